r"""Carry a taught classifier over to the features of another encoder, without its samples.

It needs the same items under both encoders; their labels are not needed. Statistics follow a linear
map of transformed features (`fecam.core.transport`). Then each mean moves by what the map leaves of
the items of its class, which the old classifier's probabilities weigh (`corrected`). Probabilities
and novelty are fitted to items that were left out. Measured on CIFAR-100 (benchmarks/migration.py),
this is better than learning the items under the old classifier's labels and than the map followed
by that; from about twenty items per class on, also than the map alone. Effective counts make it
worse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError

from fecam.classifier import FeCAMClassifier
from fecam.core.arrays import Array, namespace, to_backend_of, to_numpy
from fecam.core.left_out_scores import measured_queries
from fecam.core.linear_map import LinearMap, check_same_samples, fit_linear_map
from fecam.core.novelty import novelty_threshold
from fecam.core.transforms import outside_domain, unit_length
from fecam.core.transport import corrected, transport
from fecam.errors import InputError, SettingsError
from fecam.inputs import check_features
from fecam.results import Label
from fecam.validation import counted

MIN_ITEMS = 20
"""Fewest items of a migration. With so few, only the common offset of the features is certain."""
HELD_OUT = 0.2
"""Share of the items that are left out to predict the accuracy."""
PSEUDO_COUNT = 20.0
"""Items of a class at which its mean moves by half of their mean residual. CIFAR-100, Lite0 to
Lite1, 2,000 items: 59.2 % at 10, 60.0 % at 20, 59.7 % at 40, 58.9 % without."""
NOVEL = 0.05
"""Share of the items of known classes that count as novel by mistake."""
CERTAINLY_NOVEL = 0.01
"""The same for items that are not used to fit probabilities and novelty."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MigrationEstimate:
    """What to expect of a migrated classifier, from items that were left out.

    Parameters
    ----------
    n_items : int
        Items that the migration used.
    n_held_out : int
        Items that were left out for this estimate; the migrated classifier uses them too.
    agreement : float
        Share of them that both classifiers give the same label.
    accuracy_before : float
        Expected accuracy of the old classifier on items like these: its mean probability.
    accuracy : float
        Expected accuracy of the migrated classifier.
    lowest_accuracy : float
        The same if the old classifier is right wherever it is surer of its own label.
    novel : float
        Share of the items that fit no class of the old classifier, by its novelty at 5 %.
    n_labeled : int
        Items with a label that were left out.
    labeled_accuracy : float or None
        Accuracy of the migrated classifier on them.
    labeled_accuracy_before : float or None
        Accuracy of the old classifier on them.
    unseen_classes : list of str, int or bool
        Classes that the old classifier gave to no item: only the map moves them.
    """

    n_items: int
    n_held_out: int
    agreement: float
    accuracy_before: float
    accuracy: float
    lowest_accuracy: float
    novel: float
    n_labeled: int
    labeled_accuracy: float | None
    labeled_accuracy_before: float | None
    unseen_classes: list[Label]


@dataclass(frozen=True)
class Migration:
    """A migrated classifier and what to expect of it.

    Parameters
    ----------
    classifier : FeCAMClassifier
        The classifier for the new features.
    estimate : MigrationEstimate
        Its expected accuracy.
    """

    classifier: FeCAMClassifier
    estimate: MigrationEstimate


def migrate(
    classifier: FeCAMClassifier,
    before: Any,
    after: Any,
    *,
    labels: Sequence[Any] | None = None,
    seed: int = 0,
) -> Migration:
    """Return a classifier for the features of another encoder.

    Parameters
    ----------
    classifier : FeCAMClassifier
        A fitted classifier of the features of the old encoder. It does not change.
    before : array of shape (n_items, n_features)
        Features of some items under the old encoder; best of the kind that will be classified.
    after : array of shape (n_items, n_new_features)
        Features of the same items under the new encoder.
    labels : sequence, optional
        The class of each item if it is known, else None.
    seed : int, default=0
        Seed of the choice of the items that are left out for the estimate.

    Returns
    -------
    Migration
        The classifier and its expected accuracy.

    Raises
    ------
    InputError
        If there are fewer than 20 items, or the features cannot be used.
    SettingsError
        If the classifier is compressed.
    NotFittedError
        If it has no classes.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat([0, 1, 2], 20)
    >>> X = rng.random((60, 4)) + 3 * np.eye(3, 4)[y]
    >>> clf = FeCAMClassifier().fit(X, y)
    >>> mix = rng.random((4, 6))  # the new encoder
    >>> items = rng.random((90, 4)) + 3 * np.eye(3, 4).repeat(30, axis=0)
    >>> done = migrate(clf, items, items @ mix)
    >>> round(done.classifier.score(X @ mix, y), 2), done.estimate.n_held_out
    (1.0, 18)
    """
    check_migratable(classifier)
    like = classifier.state_.like
    before = to_backend_of(check_features(before, name="before"), like)
    after = to_backend_of(check_features(after, name="after"), like)
    check_same_samples(before, after)
    n = int(before.shape[0])
    if n < MIN_ITEMS:
        raise InputError(
            f"{counted(n, 'item')} cannot determine how features have changed: give at least "
            f"{MIN_ITEMS}, better some hundreds."
        )
    _check_domain(classifier, after)
    shares = to_numpy(classifier.predict_proba(before)).astype(np.float64)
    known = _one_hot(classifier, labels, shares)
    owner_shares = np.where(known.any(axis=1, keepdims=True), known, shares)
    novelty = to_numpy(classifier.novelty(before))
    left_out, rest = _split(n, seed)
    trial, chosen = _carried_over(classifier, before, after, owner_shares, rest)
    usual = left_out[~(novelty[left_out] > novelty_threshold(CERTAINLY_NOVEL))]
    measured = _measured(trial, after, owner_shares, usual, seed)
    trial.set_state(trial.state_.with_measurements({}, measured))
    estimate = _estimate(trial, after, shares, known, novelty, left_out)
    every = np.arange(n)
    migrated, _ = _carried_over(classifier, before, after, owner_shares, every, chosen)
    migrated.set_state(migrated.state_.with_measurements({}, measured))
    return Migration(migrated, estimate)


def check_migratable(classifier: FeCAMClassifier) -> None:
    """Raise if a classifier cannot be carried over.

    Parameters
    ----------
    classifier : FeCAMClassifier
        Any classifier.

    Raises
    ------
    NotFittedError
        If it has no classes.
    SettingsError
        If it is compressed.
    """
    if not classifier.state_.classes:
        raise NotFittedError("there are no classes to migrate: learn some first.")
    if classifier.state_.transform.projection is not None:
        raise SettingsError(
            "a compressed model cannot be migrated, because its directions are those of the old "
            "encoder. Migrate the model that it was compressed from, and compress the result."
        )


def _check_domain(classifier: FeCAMClassifier, after: Array) -> None:
    """Raise if a fixed Tukey power does not suit the new features; "auto" decides again."""
    power = classifier.tukey
    if power in ("auto", None):
        return
    outside = outside_domain(after, float(power))
    if bool(namespace(after).any(outside)):
        raise InputError(
            f"the new encoder gives features outside the domain of tukey={power!r}, such as "
            f"{float(after[outside][0]):.3g}. Use an encoder without negative features, or learn a "
            "model with tukey='auto' or None."
        )


def _one_hot(classifier: FeCAMClassifier, labels: Sequence[Any] | None, shares: Floats) -> Floats:
    """Return a one in the column of each known label."""
    known = np.zeros_like(shares)
    if labels is None:
        return known
    if len(labels) != len(shares):
        raise InputError(f"{len(labels)} labels for {counted(len(shares), 'item')}: give one each.")
    columns = {label: i for i, label in enumerate(classifier.state_.classes)}
    for row, label in enumerate(labels):
        if label is None:
            continue
        if label not in columns:
            classifier.state_.stats_of(label)  # raises with the known labels
        known[row, columns[label]] = 1.0
    return known


def _split(n: int, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    order = np.random.default_rng(seed).permutation(n)
    number = max(1, round(HELD_OUT * n))
    return np.sort(order[:number]), np.sort(order[number:])


def _carried_over(
    classifier: FeCAMClassifier,
    before: Array,
    after: Array,
    shares: Floats,
    rows: Any,
    chosen: tuple[float, bool] | None = None,
) -> tuple[FeCAMClassifier, tuple[float, bool]]:
    """Return the classifier after a migration with these rows of the items.

    Also the penalty of the map, and whether it is shrunk towards the identity: what was ``chosen``,
    or what predicts left-out items best.
    """
    state = classifier.state_
    raw_before, raw_after = before[rows, :], after[rows, :]
    migrated = FeCAMClassifier(**classifier.get_params())
    empty = migrated.empty_state(raw_after)
    old, new = state.transform(raw_before), empty.transform(raw_after)
    linear_map, near_identity = _fitted(old, new, chosen)
    ridge, raw_map, raw_residuals = linear_map.ridge, None, None
    if state.transform.power is not None or state.transform.unit:
        raw_map = fit_linear_map(raw_before, raw_after, ridge=ridge, toward_identity=near_identity)
        raw_residuals = raw_map.left_out_residuals(raw_before, raw_after)
    moved = transport(state, linear_map, raw_map, add_residuals=False, effective_counts=False)
    residuals = linear_map.left_out_residuals(old, new)
    moved = corrected(moved, residuals, shares[rows], PSEUDO_COUNT, raw_residuals)
    migrated.set_state(replace(moved, transform=empty.transform))
    return migrated, (ridge, near_identity)


def _fitted(
    before: Array, after: Array, chosen: tuple[float, bool] | None
) -> tuple[LinearMap, bool]:
    """Return the map, and whether it is shrunk towards the identity."""
    if chosen is not None:
        ridge, toward_identity = chosen
        fitted = fit_linear_map(before, after, ridge=ridge, toward_identity=toward_identity)
        return fitted, toward_identity
    fitted = fit_linear_map(before, after, toward_identity=False)
    if before.shape[1] != after.shape[1]:
        return fitted, False
    near_identity = fit_linear_map(before, after, toward_identity=True)
    if near_identity.error < fitted.error:
        return near_identity, True
    return fitted, False


def _measured(
    trial: FeCAMClassifier, after: Array, shares: Floats, rows: NDArray[np.intp], seed: int
) -> dict[Any, Any]:
    """Return measurements of left-out items, each of a class drawn from its probabilities."""
    state = trial.state_
    queries = state.transform(after[rows, :])
    queries = unit_length(queries) if trial.metric_.unit_compare else queries
    draws = np.random.default_rng([seed, 1]).random((len(rows), 1))
    columns = (np.cumsum(shares[rows], axis=1) < draws).sum(axis=1)
    labels = list(state.classes)
    owners = [labels[min(int(column), len(labels) - 1)] for column in columns]
    return measured_queries(trial.predictor_, queries, owners)


def _estimate(
    trial: FeCAMClassifier,
    after: Array,
    shares: Floats,
    known: Floats,
    novelty: Floats,
    rows: NDArray[np.intp],
) -> MigrationEstimate:
    own = shares[rows]
    new = to_numpy(trial.predict_proba(after[rows, :])).astype(np.float64)
    old_label, new_label = own.argmax(axis=1), new.argmax(axis=1)
    index = np.arange(len(rows))
    highest, lowest = float(own.max(axis=1).mean()), float(own[index, new_label].mean())
    labeled = known[rows].any(axis=1)
    truth = known[rows].argmax(axis=1)[labeled]
    limit = novelty_threshold(NOVEL)
    labels = list(trial.state_.classes)
    unseen = np.flatnonzero(shares.sum(axis=0) < 1.0)
    return MigrationEstimate(
        n_items=len(shares),
        n_held_out=len(rows),
        agreement=float(np.mean(old_label == new_label)),
        accuracy_before=highest,
        accuracy=(highest + lowest) / 2,
        lowest_accuracy=lowest,
        novel=float(np.mean(novelty > limit)),
        n_labeled=len(truth),
        labeled_accuracy=_mean(new_label[labeled] == truth),
        labeled_accuracy_before=_mean(old_label[labeled] == truth),
        unseen_classes=[labels[i] for i in unseen],  # type: ignore[misc]
    )


def _mean(values: NDArray[Any]) -> float | None:
    result = float(values.mean()) if len(values) else math.nan
    return None if math.isnan(result) else result
