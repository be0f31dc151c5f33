"""ADC: class means follow images that the old network takes for their class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fecam.errors import TrainingError
from fecam.heads.head import Floats
from fecam.learners.mechanisms.adversarial_images import moved_towards, taken_for
from fecam.learners.mechanisms.moving_means import Drift, Transform
from fecam.learners.moving.moving_learner import MovingLwF
from fecam.learners.task import LearningTask
from fecam.validation import check_int, check_number


@dataclass(kw_only=True, eq=False)
class ADC(MovingLwF):
    r"""Adversarial drift compensation (Goswami et al., CVPR 2024).

    .. math:: L = \mathrm{CE}(z_{new}, y) + \lambda\, \mathrm{KD}_2(z^{old}, z), \qquad
        \mu_c \leftarrow \mu_c + \frac{1}{|A_c|} \sum_{x \in A_c} (f(x) - f^{old}(x))

    where :math:`A_c` are the current images nearest to :math:`\mu_c`, moved towards it by some
    steps of `moved_towards`; only those that the old network then takes for class c count, or all
    if there are none. The mean with the largest cosine predicts.

    Parameters
    ----------
    weight : float
        :math:`\lambda`, 10 in the authors' code.
    temperature : float
        Of the distillation.
    images : int
        Images per old class, 100 in the authors' code.
    step : float
        :math:`\alpha`, 25 in the authors' code.
    steps : int
        3 in the authors' code; with 0, images stay as they are.
    """

    images: int = 100
    step: float = 25.0
    steps: int = 3

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        check_int("images", self.images, error=TrainingError)
        check_number("step", self.step, error=TrainingError)
        check_int("steps", self.steps, 0, error=TrainingError)

    def estimate(self, task: LearningTask, old: Floats, new: Floats) -> Drift:
        """Return the mean drift of the images of each class."""
        pairs = [self._pair(task, index, old) for index in range(task.n_old)]

        def drift(means: Floats, transform: Transform) -> Floats:
            moves = [(transform(after) - transform(before)).mean(0) for before, after in pairs]
            return np.stack(moves)

        return drift

    def _pair(self, task: LearningTask, index: int, old: Floats) -> tuple[Floats, Floats]:
        """Return the features of the images of a class before and after the training."""
        assert self.old is not None
        mean = self.kept["statistics"]["means"][index]
        distances = np.linalg.norm(old - mean.double().numpy(), axis=1)
        rows = task.images.rows[np.sort(np.argsort(distances, kind="stable")[: self.images])]
        ((_, images),) = task.images.eval_batches(self.images, self.device, rows)
        black, white = (task.images.normalize(torch.full((1, 3, 1, 1), x)) for x in (0.0, 1.0))
        teacher = self.old.network.to(self.device).eval()
        images = moved_towards(
            teacher,
            images,
            mean.to(self.device),
            step=self.step,
            steps=self.steps,
            bounds=(float(black.min()), float(white.max())),
        )
        with torch.inference_mode():
            before, after = teacher(images), self.network.eval()(images)
            chosen = taken_for(index, before, self.scores)
        return _array(before[chosen]), _array(after[chosen])


def _array(features: Tensor) -> Floats:
    result: Floats = features.double().cpu().numpy()
    return result
