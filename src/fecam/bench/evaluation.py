"""Metrics of one model on labeled samples: accuracy, confusions, calibration, novelty."""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fecam.bench.metrics import auroc, calibration_error, confidence_bins, fpr_at_tpr
from fecam.classifier import FeCAMClassifier
from fecam.core.novelty import novelty_threshold

BATCH_SIZE = 1024
"""Samples per prediction."""
BINS = 15
"""Bins of confidence for the calibration."""
NOVELTY_EDGES = np.arange(-4.0, 10.5, 0.5)
"""Edges of the bins of novelty, in standard deviations; the outer bins hold all values beyond."""
MIN_AUROC = 0.7
"""Below it, novelty does not separate unknown samples from known ones."""


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
class NoveltyBin:
    """Numbers of known and of unknown samples whose novelty lies between two values."""

    low: float
    high: float
    known: int
    unknown: int


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
    n_unknown : int
        Number of unknown samples: those of such labels, and those given without a label.
    unknown_rejected : float or None
        Share of unknown samples that was rejected.
    novelty_auroc : float or None
        Area under the ROC curve of unknown samples by novelty; 0.5 is chance.
    fpr_at_95_tpr : float or None
        Share of unknown samples that is accepted at the smallest threshold of novelty that accepts
        95 % of the known samples.
    novelty_bins : tuple of NoveltyBin
        Histogram of the novelty; the outer bins hold all values beyond them.
    n_without_novelty : int
        Number of samples whose novelty is NaN: the model cannot tell yet. They are not rejected,
        and are left out of the AUROC, the FPR and the histogram.
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
    n_unknown: int = 0
    unknown_rejected: float | None = None
    novelty_auroc: float | None = None
    fpr_at_95_tpr: float | None = None
    novelty_bins: tuple[NoveltyBin, ...] = ()
    n_without_novelty: int = 0

    @property
    def separates(self) -> bool | None:
        """Whether novelty separates unknown samples from known ones; None if not measured."""
        return None if self.novelty_auroc is None else self.novelty_auroc >= MIN_AUROC

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
        values["unknown"] = [{"label": label, "count": n} for label, n in self.unknown.items()]
        return values


def evaluate_classifier(
    classifier: FeCAMClassifier,
    X: Any,
    y: Sequence[Hashable],
    *,
    unknown: Any = None,
    k: int = 5,
    reject: float = 0.05,
    report: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Predict labeled samples, and optionally samples of no learned class, and compare.

    Parameters
    ----------
    classifier : FeCAMClassifier
        A fitted classifier.
    X : array-like of shape (n, n_features)
        Features of labeled samples that were not used for learning.
    y : sequence of n labels
        Their labels. Samples of other labels than `classes_` are unknown.
    unknown : array-like of shape (m, n_features), optional
        Features of further samples that belong to no learned class.
    k : int
        k of the top-k accuracy, at most the number of classes.
    reject : float
        As in `evaluate`.
    report : callable, optional
        Is called with the number of predicted samples, and the number of all.

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
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> known, unknown = y < 8, y >= 8
    >>> clf = FeCAMClassifier().fit(X[known][::2], y[known][::2])
    >>> labels = y[known][1::2].tolist()
    >>> result = evaluate_classifier(clf, X[known][1::2], labels, unknown=X[unknown])
    >>> result.n_unknown, result.separates
    (354, True)
    """
    classes = classifier.classes_.tolist()
    index = {label: i for i, label in enumerate(classes)}
    k = min(k, len(classes))
    n_unknown = 0 if unknown is None else len(unknown)
    nearest: list[int] = []
    confidence, novelty = [np.empty(0)], [np.empty(0)]
    for rows, first in ((X, 0), (unknown, len(X))):
        for start in range(0, 0 if rows is None else len(rows), BATCH_SIZE):
            batch = classifier.predict_detailed(np.asarray(rows[start : start + BATCH_SIZE]), k)
            novelty.append(batch.novelty)
            if rows is X:
                nearest += [index[label] for label in batch.labels.ravel().tolist()]
                confidence.append(batch.probabilities[:, 0])
            if report is not None:
                report(first + start + len(batch.novelty), len(X) + n_unknown)
    scores = np.split(np.concatenate(novelty), [len(X)])
    order, confidences = np.reshape(nearest, (-1, k)), np.concatenate(confidence)
    return evaluate(y, order, confidences, scores[0], classes, reject=reject, unknown=scores[1])


def evaluate(
    expected: Sequence[Hashable],
    nearest: ArrayLike,
    confidence: ArrayLike,
    novelty: ArrayLike,
    classes: Sequence[Hashable],
    *,
    reject: float = 0.05,
    unknown: ArrayLike = (),
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
    unknown : array-like of float
        Novelty of further samples that belong to none of ``classes``.

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
    threshold = novelty_threshold(reject)
    index = {label: i for i, label in enumerate(classes)}
    true = np.asarray([index.get(label, -1) for label in expected], dtype=np.int64)
    order = np.asarray(nearest, dtype=np.int64).reshape(len(true), -1)
    novelty, confidence = np.asarray(novelty, float), np.asarray(confidence, float)
    known = true >= 0
    labels, predicted, confidence = true[known], order[known, 0], confidence[known]
    correct = predicted == labels
    confusions = _confusions(labels, predicted, classes)
    scores = novelty[known], np.concatenate([novelty[~known], np.asarray(unknown, float)])
    rejected, unknown_rejected = (x > threshold for x in scores)
    measured = [x[~np.isnan(x)] for x in scores]
    both = all(map(len, measured))
    return Evaluation(
        count=len(labels),
        n_correct=int(correct.sum()),
        accuracy=_share(correct),
        top_k=order.shape[1],
        top_k_accuracy=_share((order[known] == labels[:, None]).any(axis=1)),
        calibration_error=calibration_error(confidence, correct, BINS) if known.any() else None,
        bins=_bins(confidence, correct),
        reject=reject,
        rejected=_share(rejected),
        classes=_by_class(labels, predicted, classes, confusions),
        confusions=confusions,
        unknown=dict(Counter(expected[i] for i in np.flatnonzero(~known).tolist())),
        n_unknown=len(unknown_rejected),
        unknown_rejected=_share(unknown_rejected),
        novelty_auroc=auroc(*measured) if both else None,
        fpr_at_95_tpr=fpr_at_tpr(*measured, tpr=0.95) if both else None,
        novelty_bins=_novelty_bins(*measured),
        n_without_novelty=sum(map(len, scores)) - sum(map(len, measured)),
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


def _novelty_bins(
    known: NDArray[np.float64], unknown: NDArray[np.float64]
) -> tuple[NoveltyBin, ...]:
    """Return the bins of novelty from the first to the last that holds samples."""
    low, high = NOVELTY_EDGES[0], NOVELTY_EDGES[-1]
    counts = np.stack([np.histogram(x.clip(low, high), NOVELTY_EDGES)[0] for x in (known, unknown)])
    filled = np.flatnonzero(counts.any(axis=0))
    return tuple(
        NoveltyBin(float(NOVELTY_EDGES[i]), float(NOVELTY_EDGES[i + 1]), *counts[:, i].tolist())
        for i in (range(filled[0], filled[-1] + 1) if len(filled) else ())
    )
