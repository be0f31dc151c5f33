"""How much of the accuracy that moving statistics lose is due to the map, and how much to features.

For diagnosis only: the true statistics are those of images of old classes, which no learner sees.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from fecam.classifier import FeCAMClassifier
from fecam.core.state import ClassifierState
from fecam.data.dataset import Dataset
from fecam.errors import TrainingError
from fecam.learners.learner import Learner
from fecam.training.images import TrainingImages

Rows = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Features and labels."""


@dataclass(frozen=True)
class Rungs:
    """Accuracies on the classes so far, with statistics that are ever closer to the truth."""

    fixed: float
    """As they were when the class was learned."""
    moved: float
    """As the learner moved them."""
    true_means: float
    """Moved, with the means of old images by the current network."""
    true: float
    """All of old images by the current network: what the features allow."""


@dataclass(frozen=True)
class ClassDrift:
    """How far the mean of an old class has moved since it was learned."""

    label: int
    since: int
    """Tasks since it was learned."""
    true: float
    predicted: float
    error: float
    """The distance of the predicted mean from the true one."""


@dataclass
class OracleLadder:
    """Follows a learner that has FeCAM as its head, task by task.

    Parameters
    ----------
    test : Dataset
        Test images of all classes.

    Examples
    --------
    >>> from fecam.data import load
    >>> from fecam.learners import make, recipe_for
    >>> from fecam.training import TrainingPlan
    >>> digits = load("digits")
    >>> tasks = [digits.subset((digits.labels // 2 == i) & ~digits.is_test) for i in range(2)]
    >>> recipe = recipe_for(tasks[0], [0, 1], TrainingPlan(epochs=1), width=2, device="cpu")
    >>> learner = make("fecam-moving").start(recipe)
    >>> ladder = OracleLadder(digits.subset(digits.test))
    >>> for task in tasks:
    ...     for record in learner.learn(task):
    ...         pass
    ...     ladder.follow(learner, task)
    >>> rungs, drifts = ladder.climb(learner)
    >>> len(drifts), 0 <= rungs.moved <= 1
    (2, True)
    """

    test: Dataset
    past: list[Dataset] = field(init=False, default_factory=list)
    fixed: FeCAMClassifier | None = field(init=False, default=None)
    learned_in: dict[int, int] = field(init=False, default_factory=dict)

    def follow(self, learner: Learner, task: Dataset) -> None:
        """Keep the statistics of a task's classes as they are now.

        Parameters
        ----------
        learner : Learner
            The learner, after it has learned the task.
        task : Dataset
            The images of the task; they are kept, for the true statistics after later tasks.

        Raises
        ------
        TrainingError
            If the head of the learner is not FeCAM.
        """
        head = _head(learner)
        X, y = features_and_labels(learner, task)
        self.past.append(task)
        self.fixed = clone(head) if self.fixed is None else self.fixed
        self.fixed.partial_fit(X, y)
        self.learned_in.update(dict.fromkeys(np.unique(y).tolist(), len(self.past) - 1))

    def climb(self, learner: Learner) -> tuple[Rungs, list[ClassDrift]]:
        """Return the accuracies after the last task, and the drift of each old class.

        Parameters
        ----------
        learner : Learner
            The learner that was followed.

        Returns
        -------
        rungs : Rungs
            Accuracies on the test images of the classes so far.
        drifts : list of ClassDrift
            In the space of transformed features; empty after the first task.
        """
        head = _head(learner)
        if self.fixed is None:
            raise TrainingError("no task was followed yet: call follow() after each task.")
        rows = [features_and_labels(learner, data) for data in self.past]
        true = clone(head).fit(*(np.concatenate(part) for part in zip(*rows, strict=True)))
        mixed = clone(head).fit(*rows[-1])
        mixed.set_state(_with_means(head.state_, true.state_))
        X, y = features_and_labels(learner, self.test)
        seen = np.isin(y, learner.classes)
        accuracies = [clf.score(X[seen], y[seen]) for clf in (self.fixed, head, mixed, true)]
        return Rungs(*accuracies), self._drifts(head, true)

    def _drifts(self, head: FeCAMClassifier, true: FeCAMClassifier) -> list[ClassDrift]:
        assert self.fixed is not None
        drifts = []
        for label, task in self.learned_in.items():
            if since := len(self.past) - 1 - task:
                then, moved, now = (
                    np.asarray(clf.state_.stats_of(label).mean) for clf in (self.fixed, head, true)
                )
                lengths = [
                    float(np.linalg.norm(d)) for d in (now - then, moved - then, now - moved)
                ]
                drifts.append(ClassDrift(label, since, *lengths))
        return drifts


def _head(learner: Learner) -> FeCAMClassifier:
    if not isinstance(learner.head, FeCAMClassifier):
        raise TrainingError(
            f"the ladder compares statistics of FeCAM, but the head is {learner.head!r}: start the "
            'learner with heads.make("fecam").'
        )
    return learner.head


def features_and_labels(learner: Learner, data: Dataset) -> Rows:
    """Return the features of the readable images of a data set, and their labels."""
    images = TrainingImages(data, learner.recipe.preprocessing)
    return learner.features(images), np.asarray(data.labels)[images.rows.numpy()]


def _with_means(state: ClassifierState, true: ClassifierState) -> ClassifierState:
    classes = {
        label: replace(stats, mean=true.classes[label].mean, raw_mean=true.classes[label].raw_mean)
        for label, stats in state.classes.items()
    }
    return replace(state, classes=classes)
