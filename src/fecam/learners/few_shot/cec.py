"""CEC: prototypes that attend to each other and to the query, trained on pseudo-new classes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.learners.few_shot.episodic_learner import EpisodicLearner
from fecam.learners.mechanisms.episodes import EpisodeSampler, rotated_by_class
from fecam.learners.mechanisms.set_attention import SetAttention, adapted_cosines
from fecam.learners.task import LearningTask
from fecam.validation import check_int


@dataclass(kw_only=True, eq=False)
class CEC(EpisodicLearner):
    r"""Continually evolved classifiers (Zhang et al., CVPR 2021).

    .. math:: L = \mathrm{CE}(s \cos(q', p'_c), y), \quad (p', q') = \mathrm{Attention}(p, q)

    on episodes of classes of the first task and as many pseudo-new classes: the same images turned
    by one angle per class. :math:`p_c` is the mean of the supports of a class and q a query. The
    first stage is D-Cosine. A prediction attends to the means of all classes.

    Parameters
    ----------
    scale : float
        s, 16 in the authors' code.
    episodes : int
        5000 in the authors' code: 100 epochs of 50.
    ways, shots, queries : int
        15, 1 and 15 in the authors' code, and 10 queries for CUB-200. With fewer classes or images,
        all that there are.
    rotations : bool
        Whether turned images are classes. Rotations confuse letters and digits.
    encoder_rate : float
        0.002 in the authors' code for CIFAR-100, 0.0002 for the others.
    attention_rate : float
        0.0002 in the authors' code.
    """

    shots: int = 1
    queries: int = 15
    rotations: bool = True

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        check_int("shots", self.shots, error=TrainingError)
        check_int("queries", self.queries, error=TrainingError)
        if not isinstance(self.rotations, bool):
            raise TrainingError(f"rotations={self.rotations!r} must be a bool.")

    def episode_loss(
        self, task: LearningTask, sampler: EpisodeSampler, attention: SetAttention
    ) -> Tensor:
        """Return the cross-entropy of the queries of real and of turned classes."""
        episode = sampler.draw(self.ways, self.shots, self.queries)
        shots, ways = episode.supports.shape[1], len(episode.classes)
        rows = torch.cat([episode.supports, episode.queries], 1)
        images = sampler.load(rows, task.plan, self.device)
        if self.rotations:
            quarters = torch.randint(1, 4, (ways,), generator=sampler.generator).tolist()
            images = torch.cat([images, rotated_by_class(images, quarters)])
        features = self.network(images.flatten(0, 1)).unflatten(0, images.shape[:2])
        prototypes, queries = features[:, :shots].mean(1), features[:, shots:]
        labels = torch.arange(len(images)).repeat_interleave(queries.shape[1])
        cosines = adapted_cosines(attention, prototypes, queries.flatten(0, 1))
        return functional.cross_entropy(self.scale * cosines, labels.to(cosines.device))
