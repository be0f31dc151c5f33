"""The base class of methods that train the network task after task.

A method is a dataclass: its fields are its options. It fills in up to five parts, all optional, of
`Learner.learn`:

1. `Learner.before_task`: prepare, such as freezing weights. A copy of the network before the task
   is at hand in `Learner.old` if ``needs_old_network`` is set.
2. `Learner.hooks`: the losses of the task, as `fecam.training.Hooks` of the one training loop.
3. `Learner.after_task`: what to keep, such as the importance of weights, in `Learner.kept`, a
   dictionary of tensors by kind and name that is saved and counted.
4. `Learner.scores`: how features are classified; by default by the classifier layer.
5. `Learner.update_head`: what happens to the statistics of a head that is put on the features.

The base class does the rest: labels, growing the classifier, the decisions on which public code
differs (`outputs`, `old_rows`, `batch_norm`), checkpoints, state files, memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fecam.data.dataset import Dataset, fingerprint_of
from fecam.encoders.torch_runtime import choose_device
from fecam.errors import TrainingError
from fecam.files import PathLike
from fecam.learners.decisions import (
    BatchNorm,
    OldRows,
    Outputs,
    check_decisions,
    with_decisions,
)
from fecam.learners.head_state import can_save
from fecam.learners.mechanisms.class_statistics import features_of
from fecam.learners.mechanisms.old_network import OldNetwork
from fecam.learners.memory import bytes_by_kind
from fecam.learners.recipe import Recipe
from fecam.learners.state import read_state, write_state
from fecam.learners.task import LearningTask
from fecam.training.base_training import new_network
from fecam.training.classifiers import ClassifierName, expand_classifier
from fecam.training.hooks import Hooks
from fecam.training.images import TrainingImages
from fecam.training.loop import train
from fecam.training.plan import TrainingPlan
from fecam.training.records import EpochRecord, Progress


@dataclass(kw_only=True, eq=False)
class Learner:
    """A method that trains the network over tasks.

    Parameters
    ----------
    outputs : {"new", "all"}
        The outputs in the cross-entropy of a later task: those of its classes, or of all.
    old_rows : {"excluded", "included"}
        Whether the optimizer changes the classifier's rows of old classes, also by weight decay.
    batch_norm : {"running", "frozen"}
        Whether batch normalization goes on adapting after the first task.

    Examples
    --------
    >>> from fecam.data import load
    >>> from fecam.learners import make, recipe_for
    >>> from fecam.training import TrainingPlan
    >>> digits = load("digits")
    >>> tasks = [digits.subset((digits.labels // 2 == i) & ~digits.is_test) for i in range(2)]
    >>> recipe = recipe_for(tasks[0], [0, 1], TrainingPlan(epochs=1), width=2, device="cpu")
    >>> learner = make("ft").start(recipe)
    >>> for task in tasks:
    ...     for record in learner.learn(task):
    ...         pass
    >>> learner.classes, learner.predict(tasks[1].subset([0, 1])).shape
    ((0, 1, 2, 3), (2,))
    """

    outputs: Outputs = "new"
    old_rows: OldRows = "excluded"
    batch_norm: BatchNorm = "running"

    needs_old_network: ClassVar[bool] = False
    """Whether `old` is the network before the task while a later task is learned."""
    keeps_data: ClassVar[bool] = False
    """Whether the method may see data of earlier tasks again."""
    trains_later: ClassVar[bool] = True
    """Whether the network is trained in later tasks, too; otherwise they yield no records."""
    approximation: ClassVar[str | None] = None
    """What differs from the paper, for a method that only approximates it; records say so."""
    classifier_name: ClassVar[ClassifierName | None] = None
    """The classifier that the method's losses need, instead of that of the recipe."""

    recipe: Recipe = field(init=False, repr=False)
    network: nn.Module = field(init=False, repr=False)
    classifier: nn.Module = field(init=False, repr=False)
    head: Any = field(init=False, repr=False, default=None)
    """A classifier on features that predicts instead of the method's own rule, if one is put."""
    classes: tuple[int, ...] = field(init=False, default=())
    """The labels learned so far, in the order of the classifier's outputs."""
    n_tasks: int = field(init=False, default=0)
    kept: dict[str, dict[str, Tensor]] = field(init=False, repr=False, default_factory=dict)
    """What a method keeps between tasks: tensors by kind, then by name."""
    old: OldNetwork | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        check_decisions(self)
        self.check_options()

    # ------------------------------------------------------------------ what a method fills in

    def check_options(self) -> None:
        """Raise `TrainingError` for options that are out of range."""

    def check_network(self, network: nn.Module) -> None:
        """Raise `TrainingError` for a network that the method cannot train.

        Parameters
        ----------
        network : torch.nn.Module
            A new network of the recipe.
        """

    def check_classes(self, counts: Sequence[int]) -> None:
        """Raise `TrainingError` for tasks that the method cannot learn, before the first one.

        Parameters
        ----------
        counts : sequence of int
            The number of new classes of each task.
        """

    def check_task(self, task: LearningTask) -> None:
        """Raise `TrainingError` for a task that the method cannot learn.

        Parameters
        ----------
        task : LearningTask
            The task.
        """

    def before_task(self, task: LearningTask) -> None:
        """Prepare a task; the classifier has its outputs already.

        Parameters
        ----------
        task : LearningTask
            The task. After a kill this is called again with the same weights.
        """

    def hooks(self, task: LearningTask) -> Hooks:
        """Return what the method adds to the training loop, for the first task too.

        Parameters
        ----------
        task : LearningTask
            The task.

        Returns
        -------
        Hooks
            Without ``outputs``, the base class adds the option of that name.
        """
        return Hooks()

    def first_task_settings(self) -> Mapping[str, Any]:
        """Return what distinguishes the training of the first task.

        Returns
        -------
        mapping
            JSON values; empty for plain cross-entropy. Learners with equal ones share a checkpoint.
        """
        return {}

    def after_task(self, task: LearningTask) -> None:
        """Update what is kept; the network is trained.

        Parameters
        ----------
        task : LearningTask
            The task, whose images are seen here for the last time.
        """

    def scores(self, features: Tensor) -> Tensor:
        """Return a score per class by the method's own rule.

        Parameters
        ----------
        features : tensor of shape (n, n_features)
            Features on the learner's device.

        Returns
        -------
        tensor of shape (n, n_classes)
            In the order of `classes`.
        """
        scores: Tensor = self.classifier.eval()(features)
        return scores

    def update_head(self, task: LearningTask) -> None:
        """Teach the head the classes of a task; by default old statistics stay as they are.

        Parameters
        ----------
        task : LearningTask
            The task, after `after_task`.
        """
        labels = np.asarray(task.data.labels)[task.images.rows.numpy()]
        self.head.partial_fit(self.features(task.images), labels)

    def make_network(self, n_tasks: int) -> nn.Module:
        """Return a network with the layers that it has after ``n_tasks`` tasks.

        Parameters
        ----------
        n_tasks : int
            The number of learned tasks.

        Returns
        -------
        torch.nn.Module
            With new weights.
        """
        return self.recipe.network()

    def feature_network(self) -> nn.Module:
        """Return the module that computes what `features` returns.

        Returns
        -------
        torch.nn.Module
            By default the network.
        """
        return self.network

    def n_outputs(self, n_classes: int) -> int:
        """Return the number of the classifier's outputs.

        Parameters
        ----------
        n_classes : int
            The number of classes.

        Returns
        -------
        int
            More than ``n_classes`` if the method divides classes, as by rotations.
        """
        return n_classes

    def training_data(self, data: Dataset) -> Dataset:
        """Return what the network is trained on in a task.

        Parameters
        ----------
        data : Dataset
            The images of the task.

        Returns
        -------
        Dataset
            By default the same.
        """
        return data

    def images_per_task(self, new: Sequence[int]) -> list[int]:
        """Return the most images that the network is trained on in each task.

        Parameters
        ----------
        new : sequence of int
            The number of images of each task.

        Returns
        -------
        list of int
            By default the same.
        """
        return list(new)

    def fitted_values(self) -> dict[str, Any]:
        """Return what the method fitted at the end of the last task, for the record.

        Returns
        -------
        dict
            JSON values by name, such as the factor of an alignment; by default empty.
        """
        return {}

    def other_predictions(
        self, features: NDArray[np.float32], images: Dataset
    ) -> dict[str, NDArray[np.int64]]:
        """Return what predictors beside the method's own answer after the last task.

        Parameters
        ----------
        features : array of shape (n, n_features)
            As `features` returns them for the images.
        images : Dataset
            The images.

        Returns
        -------
        dict
            Labels by the name of the predictor, such as the teacher of a compression; by default
            empty.
        """
        return {}

    # ------------------------------------------------------------------ learning

    def start(self, recipe: Recipe, head: Any = None) -> Self:
        """Set the recipe, and optionally put a head on the features.

        Parameters
        ----------
        recipe : Recipe
            The network and its training plans.
        head : estimator, optional
            A classifier of `fecam.heads`, not fitted: it predicts instead of the method's own rule.

        Returns
        -------
        Learner
            This learner, which has learned nothing.
        """
        self.recipe, self.head, self.classes, self.n_tasks, self.kept = recipe, head, (), 0, {}
        self.old = None
        return self

    def learn(
        self,
        data: Dataset,
        *,
        checkpoint: PathLike | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> Iterator[EpochRecord]:
        """Learn one more task and yield a record per epoch.

        After an error or an interrupt, start again from the state before the task: `load`.

        Parameters
        ----------
        data : Dataset
            The training images of the task and of no other; their labels are new.
        checkpoint : path, optional
            A file that each epoch replaces. If it exists, training resumes after its last epoch.
        progress : callable, optional
            Called with a `fecam.training.records.Progress` after each batch.

        Yields
        ------
        EpochRecord
            Training happens while the records are consumed.

        Raises
        ------
        TrainingError
            If the method cannot learn the task, or the loss becomes infinite or NaN.
        """
        task = self._task(data)
        if task.first:
            self.check_network(self.recipe.network())
        self.check_task(task)
        self._grow(task)
        self.network.requires_grad_(True)
        self.before_task(task)
        if task.first or self.trains_later:
            yield from train(
                self.network,
                self.classifier,
                task.images,
                task.plan,
                classes=self.classes,
                hooks=with_decisions(self, task, self.hooks(task)),
                checkpoint=checkpoint,
                progress=progress,
                device=self.device,
            )
        self.after_task(task)
        if self.head is not None:
            self.update_head(task)
            if hasattr(self.head, "refresh"):  # so that a resumed run has the same prior
                self.head.refresh()
        self.old = None
        self.n_tasks += 1

    def plan_for(self, index: int) -> TrainingPlan:
        """Return the plan of a task.

        Parameters
        ----------
        index : int
            The index of the task, from 0.

        Returns
        -------
        TrainingPlan
            By default that of the recipe, with the classifier that the method needs.
        """
        plan, name = self.recipe.plan(index), self.classifier_name
        return plan if name is None else replace(plan, classifier=name)

    @property
    def device(self) -> Any:
        """The device of the network."""
        return choose_device(self.recipe.device)

    def _task(self, data: Dataset) -> LearningTask:
        new = tuple(sorted(set(np.asarray(data.labels).tolist())))
        if known := [label for label in new if label in self.classes]:
            raise TrainingError(
                f"the task has images of {data.label_names[known[0]]!r} (label {known[0]}), which "
                "an earlier task had: learners are told each class once. Choose a "
                "class-incremental scenario with blurry = 0."
            )
        old, self.classes = self.classes, (*self.classes, *new)
        images = TrainingImages(self.training_data(data), self.recipe.preprocessing)
        return LearningTask(self.n_tasks, data, images, old, new, self.plan_for(self.n_tasks))

    def _grow(self, task: LearningTask) -> None:
        """Make the network and the classifier, or copy the network and grow the classifier."""
        outputs = self.n_outputs(task.n_classes)
        if task.first:
            self.network, self.classifier = new_network(
                lambda: self.make_network(0), task.plan, outputs
            )
            return
        if self.needs_old_network:
            self.old = OldNetwork(self.network, self.classifier)
        with torch.random.fork_rng([]):
            torch.manual_seed(task.plan.seed)
            self.classifier = expand_classifier(self.classifier, outputs)

    # ------------------------------------------------------------------ answers

    def features(self, images: Dataset | TrainingImages) -> NDArray[np.float32]:
        """Return the features of images.

        Parameters
        ----------
        images : Dataset or TrainingImages
            The images, not augmented.

        Returns
        -------
        array of shape (n, n_features)
            One row per image, in their order.

        Raises
        ------
        TrainingError
            If nothing is learned yet, or an image of a `Dataset` cannot be read.
        """
        self._check_learned()
        every = isinstance(images, Dataset)
        if isinstance(images, Dataset):
            images = TrainingImages(images, self.recipe.preprocessing)
        features = features_of(self.feature_network(), images, self.device)
        if every and images.skipped:
            row, reason = next(iter(images.skipped.items()))
            raise TrainingError(f"image {row} of {images.name!r} cannot be read: {reason}")
        return features

    def classify(self, features: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the labels of features: by the head if there is one, else by the method's rule.

        Parameters
        ----------
        features : array of shape (n, n_features)
            As `features` returns them.

        Returns
        -------
        array of shape (n,)
            Labels.
        """
        self._check_learned()
        if self.head is not None:
            return np.asarray(self.head.predict(features), np.int64)
        self.classifier.to(self.device)
        return self.largest(self.scores, features)

    def largest(
        self, scores: Callable[[Tensor], Tensor], features: NDArray[np.float32]
    ) -> NDArray[np.int64]:
        """Return the label of the largest score of each row of features.

        Parameters
        ----------
        scores : callable
            Features to a score per class, in the order of `classes`.
        features : array of shape (n, n_features)
            Features.

        Returns
        -------
        array of shape (n,)
            Labels.
        """
        with torch.inference_mode():
            indices = scores(torch.from_numpy(features).to(self.device)).argmax(1)
        labels: NDArray[np.int64] = np.asarray(self.classes)[indices.cpu().numpy()]
        return labels

    def predict(self, images: Dataset | TrainingImages) -> NDArray[np.int64]:
        """Return the labels of images.

        Parameters
        ----------
        images : Dataset or TrainingImages
            The images.

        Returns
        -------
        array of shape (n,)
            Labels.
        """
        return self.classify(self.features(images))

    def _check_learned(self) -> None:
        if not self.classes:
            raise TrainingError("the learner has learned no task yet: call learn(data) first.")

    # ------------------------------------------------------------------ what is kept

    def memory(self) -> dict[str, int]:
        """Return the bytes of what the method needs besides the data of the current task, by kind.

        Returns
        -------
        dict
            ``network``, ``classifier``, ``old network`` (while a later task is learned),
            ``statistics`` (of the head), and the method's own kinds.
        """
        return bytes_by_kind(self)

    def n_parameters(self) -> int:
        """Return the number of weights of the network and the classifier.

        Returns
        -------
        int
            Those that are frozen included.
        """
        return sum(p.numel() for x in (self.network, self.classifier) for p in x.parameters())

    def options(self) -> dict[str, Any]:
        """Return the options of the method, with their values.

        Returns
        -------
        dict
            Values by name, `fecam.learners.DECISIONS` included.
        """
        return {item.name: getattr(self, item.name) for item in fields(self) if item.init}

    def describe(self) -> dict[str, Any]:
        """Return what determines the result, besides the data.

        Returns
        -------
        dict
            JSON values: the class, its options, the recipe and the head.
        """
        recipe = self.recipe
        return {
            "method": type(self).__name__,
            **self.options(),
            "first_task": recipe.first.as_dict(),
            "later_tasks": (recipe.later or recipe.first).as_dict(),
            "preprocessing": recipe.preprocessing.as_dict(),
            "head": None if self.head is None else repr(self.head),
        }

    def training_settings(self) -> Mapping[str, Any]:
        """Return what the weights of the network depend on, besides the data.

        Returns
        -------
        mapping
            JSON values, by default those of `describe`. Learners with equal ones share checkpoints
            of later tasks.
        """
        return self.describe()

    def training_key(self) -> str:
        """Return a hash of `training_settings`.

        Returns
        -------
        str
            Empty if no other learner is trained alike.
        """
        settings = self.training_settings()
        if settings == self.describe():
            return ""
        return fingerprint_of([json.dumps(settings, sort_keys=True)])

    def first_task_key(self) -> str:
        """Return a hash of `first_task_settings`.

        Returns
        -------
        str
            Empty if the first task is trained with plain cross-entropy and the recipe's classifier.
        """
        settings = self.first_task_settings()
        plan = self.plan_for(0)
        if not settings and plan.classifier != self.recipe.first.classifier:
            settings = {"classifier": plan.classifier}
        return fingerprint_of([str(sorted(settings.items()))]) if settings else ""

    @property
    def can_save(self) -> bool:
        """Whether `save` can write the head; one of another library is learned again instead."""
        return can_save(self.head)

    def save(self, path: PathLike, notes: Mapping[str, Any] | None = None) -> None:
        """Write the state between two tasks to a safetensors file.

        Parameters
        ----------
        path : path
            The file; it is replaced atomically.
        notes : mapping, optional
            JSON values that `load` returns.

        Raises
        ------
        TrainingError
            If the file cannot be written.
        """
        self._check_learned()
        write_state(self, path, notes or {})

    def load(self, path: PathLike, past: Sequence[Dataset] = ()) -> dict[str, Any]:
        """Restore the state of a file that a learner with equal options wrote.

        Parameters
        ----------
        path : path
            The file.
        past : sequence of Dataset
            The data of the learned tasks, for a method with ``keeps_data``.

        Returns
        -------
        dict
            The notes.

        Raises
        ------
        TrainingError
            If the file is damaged, or was written by another learner or with other settings.
        """
        notes = read_state(self, path)
        for data in past[: self.n_tasks] if self.keeps_data else ():
            self.training_data(data)
        return notes
