r"""Discovery: items that fit no class are grouped into candidates for new classes.

Items with a high novelty are compared in the space of `fecam.core.discriminant`, where two samples
of a class have the expected similarity :math:`s`, whether or not that class was learned. Average
linkage joins groups while their mean similarity exceeds :math:`f s`. The fraction :math:`f` is the
one of `FRACTIONS` at which groups are most stable: they recur when only four fifths of the items
are clustered. A group is kept if its median novelty exceeds that of half as many known items as
``reject`` permits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fecam.classifier import FeCAMClassifier
from fecam.core.calibration_rows import Floats
from fecam.core.discriminant import in_discriminant_space
from fecam.core.novelty import novelty_threshold
from fecam.errors import InputError
from fecam.results import Discovery, Group, Label
from fecam.validation import check_int

__all__ = ["discover"]

CANDIDATES = 0.2
"""Share of items of known classes that are clustered too. With 0.05, seven of eight unknown glyphs
would be left out; groups of known items are dropped for their median novelty."""
FRACTIONS = (0.5, 0.6, 0.7, 0.8)
"""Similarities at which groups are separated, relative to that expected within a class."""
MAX_CLUSTERED = 3000
"""Maximum number of items that are clustered, because time and memory grow with its square. Those
with the highest novelty are."""
N_RESAMPLES = 5
"""Number of clusterings of four fifths of the items."""
MIN_RESAMPLED = 20
"""Number of items from which on clusterings are repeated."""

Labels = NDArray[np.intp]


def discover(
    classifier: FeCAMClassifier, X: object, *, reject: float = CANDIDATES, min_size: int = 5
) -> Discovery:
    """Group the samples that fit no class.

    Parameters
    ----------
    classifier : FeCAMClassifier
        A fitted classifier.
    X : array of shape (n_samples, n_features)
        Features, of samples of learned and other classes.
    reject : float, default=0.2
        Share of samples of known classes that may be taken for unknown ones before they are
        grouped.
    min_size : int, default=5
        Number of samples of the smallest group.

    Returns
    -------
    Discovery
        Groups, the largest first, as positions of the samples; the most typical sample of a group
        comes first.

    Raises
    ------
    InputError
        If the model has too few samples to tell which samples fit no class.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.random((90, 12)), np.repeat([0, 1, 2], 30)
    >>> X[np.arange(90), 4 * y] += 6
    >>> clf = FeCAMClassifier().fit(X[y < 2], y[y < 2])
    >>> new = rng.random((8, 12))
    >>> new[:, 8] += 6
    >>> [sorted(group.items) for group in discover(clf, new).groups]
    [[0, 1, 2, 3, 4, 5, 6, 7]]
    """
    check_int("min_size", min_size, 2, error=InputError)
    threshold = novelty_threshold(reject)
    detailed = classifier.predict_detailed(X, 1, probabilities=False)
    novelty = np.asarray(detailed.novelty, np.float64)
    if np.isnan(novelty).any():
        raise InputError(
            "the model has too few samples to tell which items fit no class. Learn more samples "
            "per class: two or more of each."
        )
    rows = np.flatnonzero(novelty > threshold)
    if len(rows) < min_size:
        return Discovery([], rows.tolist(), len(novelty) - len(rows), [])
    predictor = classifier.predictor_
    space, vectors = in_discriminant_space(predictor, classifier.queries(X))
    classes = space(predictor.pooled_space.means)
    first = rows[np.argsort(-novelty[rows], kind="stable")[:MAX_CLUSTERED]]
    partition = stable_partition(vectors[first], space.similarity, min_size)
    least = novelty_threshold(reject / 2)
    members = [first[partition.labels == i] for i in range(len(partition.stability))]
    kept = [i for i, items in enumerate(members) if np.median(novelty[items]) > least]
    kept.sort(key=lambda i: -len(members[i]))
    groups = []
    for number, i in enumerate(kept, 1):
        nearest = classifier.classes_[np.argmax(classes @ vectors[members[i]].mean(axis=0))].item()
        stability = float(partition.stability[i])
        groups.append(_described(number, members[i], stability, vectors, novelty, nearest))
    grouped = {item for group in groups for item in group.items}
    single = [item for item in rows.tolist() if item not in grouped]
    return Discovery(groups, single, len(novelty) - len(rows), [])


def _described(
    number: int, items: Labels, stability: float, vectors: Floats, novelty: Floats, nearest: Label
) -> Group:
    """Return a group with its items, the most typical first."""
    order = np.argsort(-(vectors[items] @ vectors[items].mean(axis=0)), kind="stable")
    median = float(np.median(novelty[items]))
    return Group(number, items[order].tolist(), nearest, median, stability)


class Partition(NamedTuple):
    """Groups of rows."""

    labels: Labels
    """The group of each row, -1 for none."""
    stability: Floats
    """Stability of each group."""


def stable_partition(vectors: Floats, similarity: float, min_size: int) -> Partition:
    """Return the most stable partition of unit vectors over `FRACTIONS`.

    ``similarity`` is that expected of two rows of a class. Groups below ``min_size`` are dissolved.
    """
    from scipy.cluster.hierarchy import fcluster  # slow to import
    from sklearn.metrics import adjusted_rand_score

    products = vectors @ vectors.T
    number = len(vectors)
    rng = np.random.default_rng(0)
    subsets: list[Labels] = []
    if number >= MIN_RESAMPLED:
        size = 4 * number // 5
        subsets = [np.sort(rng.permutation(number)[:size]) for _ in range(N_RESAMPLES)]
    trees = [_tree(products)] + [_tree(products[np.ix_(rows, rows)]) for rows in subsets]
    best, best_score = None, -np.inf
    for fraction in FRACTIONS:
        whole, *parts = [
            fcluster(tree, 1 - fraction * similarity, "distance").astype(np.intp) for tree in trees
        ]
        pairs = list(zip(subsets, parts, strict=True))
        score = float(np.mean([adjusted_rand_score(whole[r], part) for r, part in pairs] or [0.0]))
        if score > best_score:
            best, best_score = (whole, pairs), score
    assert best is not None, "there is a fraction"
    whole, pairs = best
    sizes = np.bincount(whole)
    kept = np.flatnonzero(sizes >= min_size).tolist()
    labels = np.full(len(whole), -1)
    for i, cluster in enumerate(kept):
        labels[whole == cluster] = i
    stability = [
        np.mean([_best_jaccard(labels[rows] == i, part) for rows, part in pairs] or [1.0])
        for i in range(len(kept))
    ]
    return Partition(labels, np.asarray(stability, np.float64))


def _tree(products: Floats) -> Floats:
    """Return the tree of average linkage."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    distances = np.maximum(1 - products, 0)
    np.fill_diagonal(distances, 0)
    return np.asarray(linkage(squareform(distances, checks=False), "average"))


def _best_jaccard(mask: NDArray[np.bool_], groups: Labels) -> float:
    """Return the largest Jaccard index of a set of rows and a group of a partition."""
    common = np.bincount(groups[mask], minlength=groups.max() + 1)
    union = np.bincount(groups) + mask.sum() - common
    return float(np.max(common / union))
