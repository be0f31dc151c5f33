"""Data-free replay: sessions train on their images and on generated ones of old classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.learners.decisions import BatchNorm, OldRows, Outputs
from fecam.learners.few_shot.d_cosine import DCosine
from fecam.learners.learner import Learner
from fecam.learners.mechanisms.cosine_prototypes import check_images, fix_scale
from fecam.learners.mechanisms.freezing import last_stage
from fecam.learners.mechanisms.image_generator import ImageGenerator, train_generator
from fecam.learners.task import LearningTask
from fecam.training.base_training import new_network
from fecam.training.classifiers import ClassifierName
from fecam.training.hooks import Hooks, Step
from fecam.validation import check_int, check_number


@dataclass(kw_only=True, eq=False)
class DataFreeReplay(Learner):
    r"""Entropy-regularized data-free replay (Liu et al., ECCV 2022).

    .. math:: L = \mathrm{CE}(s \cos(f(x), W), y) + \mathrm{CE}(s \cos(f(G(z)), W), \hat y)

    over the images of a later task and generated ones, whose label is the class that the network
    before the task predicts; the mean is over both together. After each task the generator is
    trained against the network and a student: it looks for images on which both differ and the
    network is uncertain. The stages before the last one are frozen.

    Parameters
    ----------
    scale : float
        s, 16 in the authors' code.
    generated : int
        Generated images per batch, 25 in the authors' code.
    iterations, student_steps, batch : int
        Steps of the generator, 7500 in the authors' code, steps of the student before each, 5, and
        images per step, 512.
    latent : int
        Size of the noise z, 512 in the authors' code.
    slow : float
        The learning rate of the network and of old rows, as a share of that of the new rows: 0.001
        in the authors' code (0.0001 and 0.1).
    """

    outputs: Outputs = "all"
    old_rows: OldRows = "included"
    batch_norm: BatchNorm = "frozen"
    scale: float = 16.0
    generated: int = 25
    iterations: int = 7500
    student_steps: int = 5
    batch: int = 512
    latent: int = 512
    slow: float = 0.001

    classifier_name: ClassVar[ClassifierName | None] = "cosine"
    needs_old_network: ClassVar[bool] = True

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        check_number("scale", self.scale, above=0, error=TrainingError)
        check_number("slow", self.slow, error=TrainingError)
        for name, least in (("generated", 0), ("iterations", 0), ("student_steps", 1)):
            check_int(name, getattr(self, name), least, error=TrainingError)
        check_int("batch", self.batch, 2, error=TrainingError)
        check_int("latent", self.latent, error=TrainingError)

    def check_network(self, network: nn.Module) -> None:
        """Raise for a network without stages."""
        last_stage(network)

    def check_task(self, task: LearningTask) -> None:
        """Raise for a class without a readable image."""
        check_images(task)

    def first_task_settings(self) -> Mapping[str, Any]:
        """Return those of D-Cosine, whose first task is the same."""
        return {"loss": DCosine.__name__, "scale": self.scale}

    def before_task(self, task: LearningTask) -> None:
        """Fix the scale; freeze the stages before the last one."""
        fix_scale(self.classifier, self.scale)
        if not task.first:
            self.network.requires_grad_(False)
            last_stage(self.network).requires_grad_(True)

    def hooks(self, task: LearningTask) -> Hooks:
        """Return the loss with generated images, and small steps of what is old."""
        old = self.old
        if task.first or old is None:
            return Hooks()
        images = self._generator(task.images.preprocessing.size)

        def loss(step: Step) -> Tensor:
            logits, labels = step.logits, step.labels
            if self.generated:
                with torch.no_grad():
                    drawn = images.draw(self.generated, step.generator, labels.device)
                    answers = old.classifier(old.network(drawn)).argmax(1)
                logits = torch.cat([logits, step.classifier(step.network(drawn))])
                labels = torch.cat([labels, answers])
            return functional.cross_entropy(logits.float(), labels)

        def slow_down(step: Step) -> None:
            for parameter in step.network.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(self.slow)
            step.classifier.weight.grad[: task.n_old] *= self.slow

        return Hooks(loss=loss, backward=[slow_down])

    def after_task(self, task: LearningTask) -> None:
        """Train the generator against the network, from where it was."""
        if not self.generated:
            return
        device, seed = self.device, task.plan.seed
        size = task.images.preprocessing.size
        images = self._generator(size, seed)
        network = self.network.to(device).eval().requires_grad_(False)
        classifier = self.classifier.to(device).eval().requires_grad_(False)
        student = nn.Sequential(*new_network(self.recipe.network, task.plan, task.n_classes))
        train_generator(
            images,
            lambda x: classifier(network(x)),
            student,
            torch.Generator().manual_seed(seed),
            iterations=self.iterations,
            student_steps=self.student_steps,
            batch=self.batch,
            device=device,
        )
        classifier.weight.requires_grad_(True)
        self.kept["generator"] = {
            name: tensor.detach().cpu() for name, tensor in images.state_dict().items()
        }

    def _generator(self, size: int, seed: int = 0) -> ImageGenerator:
        """Return the generator, a new one before the first task is over."""
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            images = ImageGenerator(self.latent, size)
        if "generator" in self.kept:
            images.load_state_dict(self.kept["generator"])
        images.to(self.device).train()
        return images
