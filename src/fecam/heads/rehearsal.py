"""Linear classifiers that are retrained at each task with pseudo-samples of past classes."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from sklearn.utils.metaestimators import available_if

from fecam.heads.head import Floats, Head, Labels
from fecam.heads.linear import ESTIMATORS, LinearClassifier, fit_linear
from fecam.validation import check_choice, check_int

M = TypeVar("M")
"""Statistics of the classes, from which pseudo-samples are drawn."""


@dataclass(frozen=True, slots=True, eq=False)
class RehearsalState(Generic[M]):
    """Statistics of the classes, and the current classifier."""

    memory: M
    linear: LinearClassifier
    n_tasks: int

    @property
    def labels(self) -> Labels:
        """Labels, sorted."""
        return self.linear.labels


class RehearsalHead(Head[RehearsalState[M]], Generic[M]):
    """A linear classifier over all classes, trained on new samples and on pseudo-samples."""

    _fixed = ("classifier",)

    def __init__(self, *, classifier: str = "linear", samples: int = 100, seed: int = 0) -> None:
        self.classifier = classifier
        self.samples = samples
        self.seed = seed

    @abstractmethod
    def _update_memory(self, memory: M | None, X: Floats, y: Labels) -> M:
        """Return the statistics after one more task."""

    @abstractmethod
    def _pseudo_samples(
        self, memory: M, X: Floats, y: Labels, rng: np.random.Generator
    ) -> tuple[Floats, Labels]:
        """Return pseudo-samples of all past classes that are not in this task."""

    def _check_settings(self) -> None:
        check_choice("classifier", self.classifier, tuple(ESTIMATORS))
        check_int("samples", self.samples)
        check_int("seed", self.seed, minimum=0)

    def _learn(self, state: RehearsalState[M] | None, X: Floats, y: Labels) -> RehearsalState[M]:
        memory, n_tasks = (None, 0) if state is None else (state.memory, state.n_tasks)
        rng = np.random.default_rng([self.seed, n_tasks])
        rows = subsample_rows(y, self.samples, rng)
        train_X, train_y = X[rows], y[rows]
        if memory is not None:
            pseudo_X, pseudo_y = self._pseudo_samples(memory, X, y, rng)
            train_X = np.concatenate([pseudo_X, train_X])
            train_y = np.concatenate([pseudo_y, train_y])
        linear = fit_linear(train_X, train_y, self.classifier)
        return RehearsalState(self._update_memory(memory, X, y), linear, n_tasks + 1)

    @available_if(lambda head: head.classifier == "linear")  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """Return class probabilities; only with ``classifier="linear"``."""
        return self._softmax(X)

    def _score(self, derived: RehearsalState[M], X: Floats) -> Floats:
        return derived.linear.scores(X)


def subsample_rows(
    y: Labels, max_samples: int, rng: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the indices of at most ``max_samples`` random rows per class, sorted."""
    groups = [np.flatnonzero(y == label) for label in np.unique(y)]
    drawn = [
        rows if len(rows) <= max_samples else rng.choice(rows, max_samples, replace=False)
        for rows in groups
    ]
    return np.sort(np.concatenate(drawn))
