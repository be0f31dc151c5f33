"""LIMIT: fake new classes among all classes of the first task, with attention over prototypes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from fecam.errors import TrainingError
from fecam.learners.few_shot.episodic_learner import EpisodicLearner
from fecam.learners.mechanisms.episodes import EpisodeSampler
from fecam.learners.mechanisms.set_attention import SetAttention, adapted_cosines
from fecam.learners.task import LearningTask
from fecam.validation import check_int


@dataclass(kw_only=True, eq=False)
class LIMIT(EpisodicLearner):
    r"""Learning multi-phase incremental tasks (Zhou et al., TPAMI 2022).

    .. math:: L = \mathrm{CE}(s \cos(q', p'_c), y), \quad (p', q') = \mathrm{Attention}(p, q)

    over all classes of the first task, of which some are as if new: their prototype is the mean of
    the supports of the episode. The other prototypes are rows of the classifier, which are trained.
    Queries are any images of the first task. The first stage is D-Cosine.

    The authors' code draws 32 such tasks per step, but each has all 16 drawn classes, so that they
    differ by their order alone, which the attention does not see: one is computed here. The code
    also hands the query that one task has adapted to the next one, which is not done here.

    Parameters
    ----------
    scale : float
        s, 16 in the authors' code for CIFAR-100.
    episodes : int
        4700 in the authors' code for CIFAR-100: 20 epochs.
    ways, shots, queries : int
        Classes as if new, 16 in the authors' code, their supports, 1, and images to classify, 128.
    encoder_rate, attention_rate : float
        0.0002 in the authors' code.
    """

    episodes: int = 4700
    ways: int = 16
    encoder_rate: float = 0.0002
    shots: int = 1
    queries: int = 128

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        check_int("shots", self.shots, error=TrainingError)
        check_int("queries", self.queries, error=TrainingError)

    def episode_loss(
        self, task: LearningTask, sampler: EpisodeSampler, attention: SetAttention
    ) -> Tensor:
        """Return the cross-entropy of images among rows of the classifier and fake new classes."""
        episode = sampler.draw(self.ways, self.shots, 1)
        rows = sampler.batch(self.queries)
        supports = sampler.load(episode.supports, task.plan, self.device)
        means = self.network(supports.flatten(0, 1)).unflatten(0, supports.shape[:2]).mean(1)
        queries = self.network(sampler.load(rows, task.plan, self.device))
        prototypes = self.classifier.weight.index_copy(0, episode.classes.to(self.device), means)
        cosines = adapted_cosines(attention, prototypes, queries)
        labels = sampler.positions[rows].to(cosines.device)
        return functional.cross_entropy(self.scale * cosines, labels)
