"""One model judged on labelled samples: accuracy, confusions, calibration, novelty."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fecam.bench.metrics import auroc, calibration_error
from fecam.errors import InputError

BINS = 15
"""Of confidence, for the calibration."""


@dataclass(frozen=True)
class ClassResult:
    """How one class fared."""

    label: Hashable
    count: int
    """Samples of it."""
    recall: float | None
    """The share of them that was recognised; None without any."""
    precision: float | None
    """Of the samples that were taken for it, the share that was right; None without any."""
    confused_with: Hashable | None
    """What it was mistaken for most often."""
    confused: int
    """And how often."""


@dataclass(frozen=True)
class Bin:
    """The samples of about one confidence."""

    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Evaluation:
    """All numbers of an evaluation; shares are from 0 to 1, and None where there is no number."""

    count: int
    """Samples of classes that the model was taught."""
    n_correct: int
    accuracy: float | None
    top_k: int
    top_k_accuracy: float | None
    calibration_error: float | None
    bins: tuple[Bin, ...]
    reject: float
    """The share of known samples that may be turned away."""
    rejected: float | None
    """The share of them that was."""
    classes: tuple[ClassResult, ...]
    """Every class of the model, in its order."""
    confusions: tuple[tuple[Hashable, Hashable, int], ...]
    """What was taken for what, and how often; the most frequent first."""
    unknown: Mapping[Hashable, int] = field(default_factory=dict)
    """Samples with labels that the model was never taught: how many of each."""
    unknown_rejected: float | None = None
    """The share of them that was turned away."""
    novelty_auroc: float | None = None
    """How often one of them looks newer than a known one; 0.5 is chance."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = asdict(self)
        values["confusions"] = [
            {"label": label, "predicted": taken, "count": count}
            for label, taken, count in self.confusions
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
    """Judge answers by the labels that were due.

    Parameters
    ----------
    expected : n labels
        Those that are not among ``classes`` were never taught, and are counted apart.
    nearest : (n, k) positions
        Of the nearest classes of each sample, nearest first.
    confidence : n numbers
        The probability of the nearest class.
    novelty : n numbers
        As `FeCAMClassifier.novelty` gives them.
    classes : labels
        Those of the model, in its order.
    reject : float
        A sample is turned away as "none of these" as ``predict(X, reject=...)`` does.

    Examples
    --------
    >>> found = evaluate(["a", "a", "b", "z"], [[0], [1], [1], [0]], [0.9, 0.6, 0.8, 0.5],
    ...                  [0.1, 0.2, 0.3, 4.0], ["a", "b"])
    >>> found.n_correct, found.count, found.confusions, found.unknown, found.novelty_auroc
    (2, 3, (('a', 'b', 1),), {'z': 1}, 1.0)
    """
    if not 0 < reject < 1:
        raise InputError(
            f"reject={reject} must lie between 0 and 1: the share of samples of known classes that "
            "may be turned away, such as 0.05."
        )
    places = {label: at for at, label in enumerate(classes)}
    due = np.asarray([places.get(label, -1) for label in expected], dtype=np.int64)
    order = np.asarray(nearest, dtype=np.int64).reshape(len(due), -1)
    scores, sure = np.asarray(novelty, float), np.asarray(confidence, float)
    known = due >= 0
    is_novel = scores > -NormalDist().inv_cdf(reject)
    right = order[known, 0] == due[known]
    unknown: dict[Hashable, int] = {}
    for at in np.flatnonzero(~known).tolist():
        unknown[expected[at]] = unknown.get(expected[at], 0) + 1
    confusions = _confusions(due[known], order[known, 0], classes)
    return Evaluation(
        count=int(known.sum()),
        n_correct=int(right.sum()),
        accuracy=_share(right),
        top_k=order.shape[1],
        top_k_accuracy=_share((order[known] == due[known, None]).any(axis=1)),
        calibration_error=calibration_error(sure[known], right, BINS) if known.any() else None,
        bins=_bins(sure[known], right),
        reject=reject,
        rejected=_share(is_novel[known]),
        classes=_by_class(due[known], order[known, 0], classes, confusions),
        confusions=confusions,
        unknown=unknown,
        unknown_rejected=_share(is_novel[~known]),
        novelty_auroc=auroc(scores[known], scores[~known]) if 0 < known.sum() < len(due) else None,
    )


def _share(which: NDArray[np.bool_]) -> float | None:
    return float(np.mean(which)) if len(which) else None


def _confusions(
    due: NDArray[np.int64], taken: NDArray[np.int64], classes: Sequence[Hashable]
) -> tuple[tuple[Hashable, Hashable, int], ...]:
    """Only those that occurred are counted: a table of all pairs of many classes would be large."""
    wrong = due != taken
    pairs, counts = np.unique(
        np.stack([due[wrong], taken[wrong]], axis=1), axis=0, return_counts=True
    )
    order = np.argsort(-counts, kind="stable")
    return tuple(
        (classes[int(a)], classes[int(b)], int(n))
        for (a, b), n in zip(pairs[order], counts[order], strict=True)
    )


def _by_class(
    due: NDArray[np.int64],
    taken: NDArray[np.int64],
    classes: Sequence[Hashable],
    confusions: Sequence[tuple[Hashable, Hashable, int]],
) -> tuple[ClassResult, ...]:
    size = len(classes)
    counts, answers = np.bincount(due, minlength=size), np.bincount(taken, minlength=size)
    right = np.bincount(due[due == taken], minlength=size)
    worst: dict[Hashable, tuple[Hashable, int]] = {}
    for label, other, count in confusions:
        worst.setdefault(label, (other, count))
    return tuple(
        ClassResult(
            label,
            int(counts[at]),
            float(right[at] / counts[at]) if counts[at] else None,
            float(right[at] / answers[at]) if answers[at] else None,
            *worst.get(label, (None, 0)),
        )
        for at, label in enumerate(classes)
    )


def _bins(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> tuple[Bin, ...]:
    """The bins of `calibration_error` that hold any sample."""
    place = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    return tuple(
        Bin(int(here.sum()), float(confidence[here].mean()), float(right[here].mean()))
        for at in range(BINS)
        if (here := place == at).any()
    )
