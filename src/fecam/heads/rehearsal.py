"""Linear classifiers that are trained anew at each task, with stand-ins for past samples."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from sklearn.utils.metaestimators import available_if

from fecam.core.arrays import to_backend_of
from fecam.heads.head import Floats, Head, Labels, softmax
from fecam.heads.linear import KINDS, Linear, train
from fecam.validation import check_choice, check_int

M = TypeVar("M")
"""What is remembered of the classes."""


@dataclass(frozen=True, slots=True, eq=False)
class Rehearsed(Generic[M]):
    """What stand-ins are made from, and the classifier that was trained with them."""

    memory: M
    linear: Linear
    tasks: int

    @property
    def labels(self) -> Labels:
        """The labels, sorted."""
        return self.linear.labels


class RehearsalHead(Head[Rehearsed[M]], Generic[M]):
    """A linear classifier over all classes, trained on the new samples and on stand-ins."""

    _fixed = ("classifier",)

    def __init__(self, *, classifier: str = "linear", samples: int = 100, seed: int = 0) -> None:
        self.classifier = classifier
        self.samples = samples
        self.seed = seed

    @abstractmethod
    def _update_memory(self, memory: M | None, X: Floats, y: Labels) -> M:
        """What is remembered after one more task."""

    @abstractmethod
    def _pseudo_samples(
        self, memory: M, X: Floats, y: Labels, rng: np.random.Generator
    ) -> tuple[Floats, Labels]:
        """Made-up samples of all classes in memory that are not in this task."""

    def _check_settings(self) -> None:
        check_choice("classifier", self.classifier, tuple(KINDS))
        check_int("samples", self.samples)
        check_int("seed", self.seed, minimum=0)

    def _learn(self, before: Rehearsed[M] | None, X: Floats, y: Labels) -> Rehearsed[M]:
        tasks = 0 if before is None else before.tasks
        rng = np.random.default_rng([self.seed, tasks])
        some = draw_rows(y, self.samples, rng)
        learnt, labels = X[some], y[some]
        if before is not None:
            made_up, of = self._pseudo_samples(before.memory, X, y, rng)
            learnt, labels = np.concatenate([made_up, learnt]), np.concatenate([of, labels])
        memory = self._update_memory(None if before is None else before.memory, X, y)
        return Rehearsed(memory, train(learnt, labels, self.classifier), tasks + 1)

    def _is_logistic(self) -> bool:
        return self.classifier == "linear"

    @available_if(_is_logistic)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """The probability of each class, of the logistic regression only."""
        array = self._checked(X)
        return to_backend_of(softmax(self._scores(array)), array)

    def _derive(self, known: Rehearsed[M]) -> Linear:
        return known.linear

    def _score(self, derived: Linear, X: Floats) -> Floats:
        return derived.scores(X)


def draw_rows(
    y: Labels, most: int, rng: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Rows of a batch, at most so many a class, in their order."""
    rows = [np.flatnonzero(y == label) for label in np.unique(y)]
    kept = [some if len(some) <= most else rng.choice(some, most, replace=False) for some in rows]
    return np.sort(np.concatenate(kept))
