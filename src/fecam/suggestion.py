r"""Suggestion: which items to label next, and which labels look wrong.

**Next labels.** The model is projected on the first principal components of the items, whose
covariance is better known than that of few labeled samples. Items are clustered by k-means with the
weights :math:`1 - (p_1 - p_2)`, one minus the margin between the two most probable classes, in the
coordinates of the pooled metric; or in the space of `fecam.core.discriminant`, once the model has
as many degrees of freedom as components. The item nearest to the center of each of the :math:`n`
clusters is suggested. So suggested items are uncertain, differ from each other, and are typical of
many items like them; those of a class that is not learned, or learned from few samples, have a
small margin.

**Wrong labels.** Each labeled item is compared with its class and its nearest rivals, as if it had
not been learned (`fecam.core.leave_one_out`). Its label looks wrong if a rival is far more
probable.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.classifier import FeCAMClassifier
from fecam.core.arrays import Array, is_array, namespace, to_backend_of, to_numpy
from fecam.core.calibration_rows import Floats
from fecam.core.compression import compressed
from fecam.core.discriminant import in_discriminant_space
from fecam.core.leave_one_out import left_out_distances
from fecam.core.novelty import novelty_threshold
from fecam.core.predictions import Predictions
from fecam.core.predictor import Predictor
from fecam.core.softmax import log_softmax, softmax_logits
from fecam.core.transforms import unit_length
from fecam.errors import InputError
from fecam.results import Label, Suggestion, Suspect
from fecam.validation import check_int, counted

__all__ = ["find_mislabeled", "suggest"]

MAX_ITEMS = 20_000
"""Maximum number of items that are clustered; of more, a random subset is."""
N_COMPONENTS = 96
"""Number of principal components of the items that are used, if there are more features: along the
others, the variance within classes is uncertain while labels are few."""
MAX_RIVALS = 16
"""Number of nearest classes that a labeled item is compared with."""
BLOCK_ROWS = 512
"""Rows that are compared at once."""
UNCERTAIN = 0.3
"""Margin below which an item is said to lie between two classes."""
FEW_SAMPLES = 10
"""Number of samples below which a class is said to have few."""
WRONG = 0.05
"""Probability of a label, relative to the most probable class, below which it looks wrong."""


def suggest(classifier: FeCAMClassifier, X: Any, n: int = 20) -> list[Suggestion]:
    """Return the samples to label next.

    Parameters
    ----------
    classifier : FeCAMClassifier
        A fitted classifier.
    X : array of shape (n_samples, n_features)
        Features of samples without labels.
    n : int, default=20
        Number of samples.

    Returns
    -------
    list of Suggestion
        The one that stands for the most uncertain samples first; all samples if there are fewer
        than ``n``.

    Examples
    --------
    >>> clf = FeCAMClassifier().fit([[0.0, 1.0], [0.1, 1.0], [1.0, 0.0]], ["cat", "cat", "dog"])
    >>> pool = [[0.0, 0.9], [0.1, 0.9], [0.6, 0.6], [0.9, 0.1]]
    >>> [suggestion.item for suggestion in suggest(clf, pool, 1)]
    [2]
    """
    check_int("n", n, error=InputError)
    X = X if is_array(X) or hasattr(X, "iloc") else np.asarray(X)
    queries = classifier.queries(X)
    number = queries.shape[0]
    rows = np.arange(number)
    if number > MAX_ITEMS:
        rows = np.sort(np.random.default_rng(0).permutation(number)[:MAX_ITEMS])
        queries, X = _taken(queries, rows), _taken(X, rows)
    projected = _projected(classifier, queries)
    margins = _margins(projected.predict_detailed(X, min(2, len(projected.state_.classes))))
    weights = np.clip(1 - margins, 1e-6, 1.0)
    predictor, queries = projected.predictor_, projected.queries(X)
    if predictor.dof < predictor.state.n_features:  # the variance within classes is uncertain
        vectors = predictor.in_pooled_space(queries)
    else:
        _, vectors = in_discriminant_space(predictor, queries)
    chosen = _representatives(vectors, weights, min(n, len(rows)))
    items = _taken(X, np.asarray([row for row, _ in chosen]))
    detailed = classifier.predict_detailed(items, min(2, len(classifier.state_.classes)))
    columns = detailed.labels.tolist(), _margins(detailed).tolist(), detailed.novelty.tolist()
    suggestions = []
    for (row, similar), labels, margin, novelty in zip(chosen, *columns, strict=True):
        count = classifier.state_.classes[labels[0]].count
        reason = _reason(labels, margin, novelty, count, similar)
        suggestions.append(Suggestion(int(rows[row]), labels[0], margin, novelty, similar, reason))
    return suggestions


def _projected(classifier: FeCAMClassifier, queries: Array) -> FeCAMClassifier:
    """Return the classifier on the principal components of transformed samples, if it has more."""
    state = classifier.state_
    if (
        state.transform.projection is not None
        or state.scatter_kind != "full"
        or classifier.metric_.unit_compare
        or min(queries.shape) <= N_COMPONENTS
    ):
        return classifier
    from sklearn.utils.extmath import randomized_svd

    rows = np.asarray(to_numpy(queries), np.float64)
    _, _, axes = randomized_svd(rows - rows.mean(axis=0), N_COMPONENTS, random_state=0)
    projection = to_backend_of(np.asarray(axes.T, rows.dtype), state.like)
    return classifier.copy().set_state(compressed(state, projection))


def _taken(X: Any, rows: NDArray[np.intp]) -> Any:
    """Return rows of an array or of a data frame."""
    if hasattr(X, "iloc"):
        return X.iloc[rows]
    return namespace(X).take(X, to_backend_of(rows, X), axis=0)


def _margins(detailed: Predictions) -> Floats:
    """Return the probability of the first class minus that of the second."""
    probabilities = np.asarray(detailed.probabilities, np.float64)
    second = probabilities[:, 1] if probabilities.shape[1] > 1 else 0.0
    return np.asarray(probabilities[:, 0] - second)


def _representatives(vectors: Floats, weights: Floats, n: int) -> list[tuple[int, int]]:
    """Return the item nearest to the center of each weighted cluster, and the cluster's size.

    The cluster with the largest weight comes first.
    """
    from sklearn.cluster import KMeans  # slow to import
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct items than clusters
        clusters = KMeans(n, n_init=1, max_iter=20, random_state=0).fit(
            vectors, sample_weight=weights
        )
    labels = np.asarray(clusters.labels_)
    chosen = []
    for cluster in np.unique(labels):
        members = np.flatnonzero(labels == cluster)
        distances = np.sum((vectors[members] - clusters.cluster_centers_[cluster]) ** 2, axis=1)
        chosen.append((members[np.argmin(distances)], len(members), weights[members].sum()))
    chosen.sort(key=lambda item: -item[2])
    found = [(int(row), size) for row, size, _ in chosen]
    missing = n - len(found)  # of equal items, one stands for all
    if missing:
        rest = np.setdiff1d(np.arange(len(vectors)), [row for row, _ in found])
        order = rest[np.argsort(-weights[rest], kind="stable")][:missing]
        found += [(int(row), 1) for row in order]
    return found


def _reason(
    labels: Sequence[Label], margin: float, novelty: float, count: int, similar: int
) -> str:
    """Return why an item is useful."""
    reasons = []
    if novelty > novelty_threshold(0.05):
        reasons.append("fits no class")
    if margin < UNCERTAIN and len(labels) > 1:
        reasons.append(f"between {labels[0]} and {labels[1]}")
    if count < FEW_SAMPLES:
        reasons.append(f"{labels[0]} has {counted(count, 'sample')}")
    if similar > 1:
        reasons.append(f"stands for {similar:,} items")
    return "; ".join(reasons) or "unlike the others"


def find_mislabeled(
    classifier: FeCAMClassifier,
    X: object,
    labels: Sequence[Any],
    learned: NDArray[np.bool_] | None = None,
) -> list[Suspect]:
    """Return samples whose label looks wrong, the most suspicious first.

    Parameters
    ----------
    classifier : FeCAMClassifier
        A fitted classifier.
    X : array of shape (n_samples, n_features)
        Features.
    labels : sequence
        The label of each sample; a learned class.
    learned : array of bool, optional
        Which samples the classifier has learned under their label: they are measured as if they
        had been left out. Default: all. The only sample of a class cannot be judged.

    Returns
    -------
    list of Suspect
        Samples that another class explains far better.

    Raises
    ------
    UnknownLabelError
        If a label was not learned.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.random((60, 6)), np.repeat(["cat", "dog"], 30)
    >>> X[:30, 0] += 3
    >>> X[30:, 1] += 3
    >>> y[7] = "dog"
    >>> clf = FeCAMClassifier().fit(X, y)
    >>> [(suspect.item, suspect.suggested) for suspect in find_mislabeled(clf, X, y)]
    [(7, 'cat')]
    """
    predictor = classifier.predictor_
    names: list[Any] = [label.item() if hasattr(label, "item") else label for label in labels]
    for label in dict.fromkeys(names):
        classifier.state_.stats_of(label)
    features = classifier.queries(X, unit=False)
    if features.shape[0] != len(names):
        raise InputError(
            f"{counted(features.shape[0], 'sample')} but {counted(len(names), 'label')}: give one "
            "label per sample."
        )
    position = {label: i for i, label in enumerate(predictor.labels)}
    own = np.asarray([position[label] for label in names], np.intp)
    is_learned = np.ones(len(own), bool) if learned is None else np.asarray(learned, bool)
    counts = np.asarray([stats.count for stats in predictor.state.classes.values()])
    judged = ~is_learned | (counts[own] >= _min_count(predictor))
    order = np.flatnonzero(judged)
    order = order[np.argsort(own[order], kind="stable")]  # few classes per block
    temperature, n_classes = classifier.temperature_, len(predictor.labels)
    suspects = []
    for start in range(0, len(order), BLOCK_ROWS):
        rows = order[start : start + BLOCK_ROWS]
        block = namespace(features).take(features, to_backend_of(rows, features), axis=0)
        queries = unit_length(block) if predictor.metric.unit_compare else block
        near = predictor.nearest(queries, min(MAX_RIVALS, n_classes), search=classifier.search)
        compared = np.zeros((len(rows), n_classes), bool)
        np.put_along_axis(compared, to_numpy(near.indices), True, axis=1)
        compared[np.arange(len(rows)), own[rows]] = True
        needed = np.flatnonzero(compared.any(axis=0))
        compared = compared[:, needed]
        columns = np.searchsorted(needed, own[rows])
        distances = _distances(
            predictor, block, queries, columns, needed, compared, is_learned[rows]
        )
        log_proba = log_softmax(softmax_logits(distances, temperature))
        best = np.argmax(log_proba, axis=1)
        ours = log_proba[np.arange(len(rows)), columns]
        ratio = ours - log_proba[np.arange(len(rows)), best]
        for i in np.flatnonzero(ratio < np.log(WRONG)):
            suggested: Any = predictor.labels[needed[best[i]]]
            suspect = Suspect(int(rows[i]), names[rows[i]], suggested, float(np.exp(ours[i])))
            suspects.append((float(ratio[i]), suspect))
    return [suspect for _, suspect in sorted(suspects, key=lambda pair: pair[0])]


def _min_count(predictor: Predictor) -> int:
    """Return the number of samples from which on one of a class can be left out."""
    prior = predictor.class_prior
    has_prior = prior is not None and prior.pseudo_count > 0
    return 2 if has_prior or predictor.metric.is_shared else 3


def _distances(
    predictor: Predictor,
    features: Array,
    queries: Array,
    own: NDArray[np.intp],
    needed: NDArray[np.intp],
    compared: NDArray[np.bool_],
    learned: NDArray[np.bool_],
) -> Floats:
    """Return the squared distances to the needed classes, infinite where they are not compared.

    Those of learned rows are measured without the row.
    """
    distances = np.full(compared.shape, np.inf)
    precisions = [predictor.precision_of(int(i)) for i in needed]
    xp = namespace(queries)
    if learned.any():
        chosen = np.flatnonzero(learned)
        classes = list(predictor.state.classes.values())
        distances[chosen] = left_out_distances(
            xp.take(features, to_backend_of(chosen, features), axis=0),
            own[chosen],
            [classes[i] for i in needed],
            precisions,
            predictor.metric,
            predictor.class_prior,
            predictor.dof,
            compared[chosen],
        )
    for column, precision in enumerate(precisions):
        chosen = np.flatnonzero(compared[:, column] & ~learned)
        if len(chosen):
            rows = xp.take(queries, to_backend_of(chosen, queries), axis=0)
            differences = xp.astype(rows - precision.center, queries.dtype)
            squares = precision.squared_mahalanobis(differences)
            distances[chosen, column] = to_numpy(squares) * precision.scale
    return distances
