"""Metrics of one model on labeled samples: accuracy, confusions, calibration, novelty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fecam.bench.metrics import auroc, calibration_error, confidence_bins
from fecam.errors import InputError

BINS = 15
"""Bins of confidence for the calibration."""


@dataclass(frozen=True)
class ClassResult:
    """Metrics of one class; recall and precision are None where they are not defined."""

    label: Hashable
    count: int
    recall: float | None
    precision: float | None
    confused_with: Hashable | None
    """The most frequent wrong prediction for its samples."""
    confused: int
    """Number of these predictions."""


@dataclass(frozen=True)
class Bin:
    """Samples of similar confidence."""

    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Evaluation:
    """Result of `evaluate`; shares are from 0 to 1, and None where they are not defined.

    Parameters
    ----------
    count : int
        Number of samples of learned classes.
    n_correct : int
        Number of them that are predicted correctly.
    accuracy : float or None
        Share of them whose nearest class is their label.
    top_k : int
        Number of nearest classes per sample.
    top_k_accuracy : float or None
        Share of them whose label is one of these.
    calibration_error : float or None
        Expected calibration error.
    bins : tuple of Bin
        The bins of confidence that hold samples.
    reject : float
        Share of samples of learned classes that may be rejected.
    rejected : float or None
        Share of them that was rejected.
    classes : tuple of ClassResult
        All classes of the model, in its order.
    confusions : tuple of (label, predicted label, int)
        Wrong predictions, the most frequent first.
    unknown : mapping of label to int
        Number of samples per label that the model has not learned.
    unknown_rejected : float or None
        Share of unknown samples that was rejected.
    novelty_auroc : float or None
        Area under the ROC curve of unknown samples by novelty; 0.5 is chance.
    """

    count: int
    n_correct: int
    accuracy: float | None
    top_k: int
    top_k_accuracy: float | None
    calibration_error: float | None
    bins: tuple[Bin, ...]
    reject: float
    rejected: float | None
    classes: tuple[ClassResult, ...]
    confusions: tuple[tuple[Hashable, Hashable, int], ...]
    unknown: Mapping[Hashable, int] = field(default_factory=dict)
    unknown_rejected: float | None = None
    novelty_auroc: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the values as JSON can hold them.

        Returns
        -------
        dict
            The fields, with confusions and unknown labels as lists of objects.
        """
        values = asdict(self)
        values["confusions"] = [
            {"label": label, "predicted": predicted, "count": count}
            for label, predicted, count in self.confusions
        ]
        values["unknown"] = [
            {"label": label, "count": count} for label, count in self.unknown.items()
        ]
        return values


def evaluate(
    expected: Sequence[Hashable],
    nearest: ArrayLike,
    confidence: ArrayLike,
    novelty: ArrayLike,
    classes: Sequence[Hashable],
    *,
    reject: float = 0.05,
) -> Evaluation:
    """Compare predictions with the true labels.

    Parameters
    ----------
    expected : sequence of n labels
        Labels that are not among ``classes`` are unknown, and counted apart.
    nearest : array-like of int, shape (n, k)
        Indices of the nearest classes of each sample, nearest first.
    confidence : array-like of float, shape (n,)
        Probability of the nearest class.
    novelty : array-like of float, shape (n,)
        As `FeCAMClassifier.novelty` returns it.
    classes : sequence of labels
        The classes of the model, in its order.
    reject : float
        Share of samples of learned classes that may be rejected, as in ``predict(X, reject=...)``.

    Returns
    -------
    Evaluation
        All metrics.

    Raises
    ------
    InputError
        If ``reject`` is not between 0 and 1.

    Examples
    --------
    >>> result = evaluate(["a", "a", "b", "z"], [[0], [1], [1], [0]], [0.9, 0.6, 0.8, 0.5],
    ...                   [0.1, 0.2, 0.3, 4.0], ["a", "b"])
    >>> result.n_correct, result.count, result.confusions, result.unknown, result.novelty_auroc
    (2, 3, (('a', 'b', 1),), {'z': 1}, 1.0)
    """
    if not 0 < reject < 1:
        raise InputError(
            f"reject={reject} must be between 0 and 1: the share of samples of learned classes "
            "that may be rejected, such as 0.05."
        )
    index = {label: i for i, label in enumerate(classes)}
    true = np.asarray([index.get(label, -1) for label in expected], dtype=np.int64)
    order = np.asarray(nearest, dtype=np.int64).reshape(len(true), -1)
    scores, confidence = np.asarray(novelty, float), np.asarray(confidence, float)
    known = true >= 0
    rejected = scores > -NormalDist().inv_cdf(reject)
    labels, predicted, confidence = true[known], order[known, 0], confidence[known]
    correct = predicted == labels
    confusions = _confusions(labels, predicted, classes)
    return Evaluation(
        count=int(known.sum()),
        n_correct=int(correct.sum()),
        accuracy=_share(correct),
        top_k=order.shape[1],
        top_k_accuracy=_share((order[known] == labels[:, None]).any(axis=1)),
        calibration_error=calibration_error(confidence, correct, BINS) if known.any() else None,
        bins=_bins(confidence, correct),
        reject=reject,
        rejected=_share(rejected[known]),
        classes=_by_class(labels, predicted, classes, confusions),
        confusions=confusions,
        unknown=dict(Counter(expected[i] for i in np.flatnonzero(~known).tolist())),
        unknown_rejected=_share(rejected[~known]),
        novelty_auroc=auroc(scores[known], scores[~known]) if 0 < known.sum() < len(true) else None,
    )


def _share(mask: NDArray[np.bool_]) -> float | None:
    return float(np.mean(mask)) if len(mask) else None


def _confusions(
    true: NDArray[np.int64], predicted: NDArray[np.int64], classes: Sequence[Hashable]
) -> tuple[tuple[Hashable, Hashable, int], ...]:
    """Return the wrong pairs that occur: a matrix of all pairs of many classes would be large."""
    wrong = true != predicted
    pairs, counts = np.unique(
        np.stack([true[wrong], predicted[wrong]], axis=1), axis=0, return_counts=True
    )
    order = np.argsort(-counts, kind="stable")
    return tuple(
        (classes[int(a)], classes[int(b)], int(n))
        for (a, b), n in zip(pairs[order], counts[order], strict=True)
    )


def _by_class(
    true: NDArray[np.int64],
    predicted: NDArray[np.int64],
    classes: Sequence[Hashable],
    confusions: Sequence[tuple[Hashable, Hashable, int]],
) -> tuple[ClassResult, ...]:
    size = len(classes)
    counts, answers = np.bincount(true, minlength=size), np.bincount(predicted, minlength=size)
    correct = np.bincount(true[true == predicted], minlength=size)
    worst: dict[Hashable, tuple[Hashable, int]] = {}
    for label, other, count in confusions:
        worst.setdefault(label, (other, count))
    return tuple(
        ClassResult(
            label,
            int(counts[i]),
            float(correct[i] / counts[i]) if counts[i] else None,
            float(correct[i] / answers[i]) if answers[i] else None,
            *worst.get(label, (None, 0)),
        )
        for i, label in enumerate(classes)
    )


def _bins(confidence: NDArray[np.float64], correct: NDArray[np.bool_]) -> tuple[Bin, ...]:
    """Return the bins of `calibration_error` that hold samples."""
    bins = confidence_bins(confidence, BINS)
    return tuple(
        Bin(int(inside.sum()), float(confidence[inside].mean()), float(correct[inside].mean()))
        for inside in (bins == i for i in np.unique(bins))
    )
