"""What CEC and LIMIT share: D-Cosine, then attention over prototypes, trained on episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from fecam.errors import TrainingError
from fecam.learners.few_shot.d_cosine import DCosine
from fecam.learners.mechanisms.class_statistics import class_means, labels_of
from fecam.learners.mechanisms.cosine_prototypes import set_rows
from fecam.learners.mechanisms.episodes import EpisodeSampler, train_episodes
from fecam.learners.mechanisms.set_attention import SetAttention, adapted_cosines
from fecam.learners.task import LearningTask
from fecam.validation import check_int, check_number


@dataclass(kw_only=True, eq=False)
class EpisodicLearner(DCosine):
    """D-Cosine with a second stage in the first task; later tasks train nothing.

    Parameters
    ----------
    episodes : int
        Steps of the second stage.
    ways : int
        Classes per episode, or all if there are fewer.
    encoder_rate, attention_rate : float
        Learning rates of the second stage.
    """

    episodes: int = 5000
    ways: int = 15
    encoder_rate: float = 0.002
    attention_rate: float = 0.0002

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        check_int("episodes", self.episodes, 0, error=TrainingError)
        check_int("ways", self.ways, 2, error=TrainingError)
        for name in ("encoder_rate", "attention_rate"):
            check_number(name, getattr(self, name), error=TrainingError)

    def first_task_settings(self) -> Mapping[str, Any]:
        """Return those of D-Cosine, whose first stage is the same."""
        return {"loss": DCosine.__name__, "scale": self.scale}

    def after_task(self, task: LearningTask) -> None:
        """Train on episodes after the first task; set the rows of the new classes to means."""
        if task.first:
            self._train_attention(task)
        super().after_task(task)

    def episode_loss(
        self, task: LearningTask, sampler: EpisodeSampler, attention: SetAttention
    ) -> Tensor:
        """Return the loss of one episode.

        Parameters
        ----------
        task : LearningTask
            The first task.
        sampler : EpisodeSampler
            Draws rows and loads images.
        attention : SetAttention
            The block to train.

        Returns
        -------
        tensor
            A scalar.
        """
        raise NotImplementedError

    def _train_attention(self, task: LearningTask) -> None:
        device = self.device
        generator = Generator().manual_seed(task.plan.seed)
        with torch.random.fork_rng([]):
            torch.manual_seed(task.plan.seed)
            attention = SetAttention(self.network.n_features).to(device)
        means = class_means(self.features(task.images), labels_of(task), task.new)
        set_rows(self.classifier, 0, means)
        self.classifier.to(device)
        sampler = EpisodeSampler(task.images, task.positions, generator)
        rates = {
            self.network: self.encoder_rate,
            self.classifier: self.encoder_rate,
            attention: self.attention_rate,
        }
        train_episodes(rates, lambda: self.episode_loss(task, sampler, attention), self.episodes)
        self.classifier.scale.requires_grad_(False)
        self.kept["attention"] = {k: x.cpu() for k, x in attention.state_dict().items()}

    def attention(self) -> SetAttention:
        """Return the trained block.

        Returns
        -------
        SetAttention
            In evaluation mode, on the learner's device.
        """
        block = SetAttention(self.network.n_features)
        block.load_state_dict(self.kept["attention"])
        block.to(self.device).eval()
        return block

    def scores(self, features: Tensor) -> Tensor:
        """Return the cosines between queries and prototypes after the attention."""
        prototypes = self.classifier.weight.to(features.device)
        return self.scale * adapted_cosines(self.attention(), prototypes, features)
