"""Experience replay: fine-tuning on new images and exemplars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Generator, Tensor

from fecam.errors import TrainingError
from fecam.learners.exemplars.exemplar_learner import ExemplarLearner, is_new
from fecam.learners.task import LearningTask
from fecam.training.hooks import Hooks
from fecam.validation import check_choice

Sampling = Literal["union", "half"]


@dataclass(kw_only=True, eq=False)
class Replay(ExemplarLearner):
    r"""Fine-tune on new images and exemplars.

    .. math:: L = \mathrm{CE}(z, y)

    over all classes. The union shows each image once per epoch, so that old classes are rare (the
    Replay of PyCIL); ``sampling="half"`` adds as many exemplars to each batch as it has new images
    (experience replay, as in mammoth).

    Parameters
    ----------
    sampling : {"union", "half"}
        How new images and exemplars are mixed.
    """

    sampling: Sampling = "union"

    def check_options(self) -> None:
        """Raise for an unknown sampling."""
        super().check_options()
        check_choice("sampling", self.sampling, get_args(Sampling), error=TrainingError)

    def hooks(self, task: LearningTask) -> Hooks:
        """Draw the second half of each batch from the exemplars, if that is the option."""
        if task.first or self.sampling == "union" or is_new(task).all():
            return Hooks()
        images, plan, positions = task.images, task.plan, task.positions
        exemplars = images.rows[images.rows >= len(task.data)]
        images.rows = images.rows[images.rows < len(task.data)]

        def with_exemplars(
            batch: Tensor, labels: Tensor, generator: Generator
        ) -> tuple[Tensor, Tensor]:
            drawn = exemplars[torch.randint(len(exemplars), (len(batch),), generator=generator)]
            ((rows, pixels),) = images.batches([drawn])
            size = images.preprocessing.size
            more = images.normalize(plan.augmentation(pixels.to(batch.device), size, generator))
            return torch.cat([batch, more]), torch.cat([labels, positions[rows].to(labels.device)])

        return Hooks(batch=with_exemplars)
