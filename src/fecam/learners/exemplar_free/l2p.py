"""L2P: prompts for a frozen vision transformer, chosen by the image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, get_args

from torch import Tensor, nn

from fecam.errors import TrainingError
from fecam.learners.adam_learner import AdamLearner
from fecam.learners.mechanisms.prompts import (
    Choice,
    PromptedTransformer,
    PromptPool,
    find_transformer,
)
from fecam.learners.task import LearningTask
from fecam.training.hooks import Hooks, Step
from fecam.training.plan import TrainingPlan
from fecam.validation import check_choice, check_int, check_number

PUBLISHED_RATE, PUBLISHED_BATCH = 0.03, 128


@dataclass(kw_only=True, eq=False)
class L2P(AdamLearner):
    r"""Learning to prompt (Wang et al., CVPR 2022), on a vision transformer of `transformers`.

    .. math:: L = \mathrm{CE}(z_{new}, y)
        - \lambda \frac1B \sum_i \sum_{k \in K_i} \cos(q(x_i), \kappa_k)

    where :math:`q(x)` is the class token of the frozen transformer without prompts, and :math:`K_i`
    are the prompts with the nearest keys :math:`\kappa`. Features are the mean output of the prompt
    tokens. Only prompts, keys and the classifier are trained; the authors do so for 5 epochs of
    batches of 128, with a constant learning rate.

    Parameters
    ----------
    pool, length, top : int
        Prompts, tokens per prompt, and prompts per image: 10, 10 and 4 in the authors' code for
        CIFAR-100; ports have 10, 5 and 5.
    key_weight : float
        :math:`\lambda`, 1 in the authors' code; 0.1 or 0.5 in ports.
    optimizer : {"adam", "recipe"}
        Adam with gradients clipped to a norm of 1 as in the authors' code, or the optimizer of the
        recipe. The schedule is that of the recipe.
    learning_rate : float, optional
        Of Adam; by default the authors' 0.03 for batches of 128, in proportion to the batch.
    weight_decay : float
        Of Adam, 0 in the authors' code.
    prompts_per : {"sample", "batch"}
        Whether each image has the prompts that it chooses, as in the paper; or a batch those that
        most of its images choose, as in the authors' code, also when it is tested. Then predictions
        depend on the other images of a batch.
    """

    pool: int = 10
    length: int = 10
    top: int = 4
    key_weight: float = 1.0
    prompts_per: Choice = "sample"
    weight_decay: float = 0.0

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        check_int("pool", self.pool, error=TrainingError)
        check_int("length", self.length, error=TrainingError)
        check_int("top", self.top, 1, self.pool, note=" (pool)", error=TrainingError)
        check_number("key_weight", self.key_weight, error=TrainingError)
        check_choice("prompts_per", self.prompts_per, get_args(Choice), error=TrainingError)

    def check_network(self, network: nn.Module) -> None:
        """Raise unless the network is a transformer."""
        find_transformer(network)

    def make_network(self, n_tasks: int) -> nn.Module:
        """Return the transformer with a prompt pool."""
        vit = find_transformer(self.recipe.network())
        pool = PromptPool(vit.config.hidden_size, self.pool, self.length, self.top)
        return PromptedTransformer(vit, pool, self.prompts_per)

    def first_task_settings(self) -> dict[str, Any]:
        """Return what distinguishes the first task from plain cross-entropy."""
        names = ("pool", "length", "top", "key_weight", "prompts_per")
        prompts = [getattr(self, name) for name in names]
        return {"prompts": prompts, **self.optimizer_settings()}

    def published_rate(self, plan: TrainingPlan) -> float:
        """Return the authors' rate, in proportion to the batch."""
        return PUBLISHED_RATE * plan.batch_size / PUBLISHED_BATCH

    def plan_for(self, index: int) -> TrainingPlan:
        """Return the plan with Adam and clipped gradients."""
        plan = super().plan_for(index)
        return plan if self.optimizer == "recipe" else replace(plan, clip=1.0)

    def before_task(self, task: LearningTask) -> None:
        """Freeze the transformer."""
        self.network.get_submodule("vit").requires_grad_(False)

    def hooks(self, task: LearningTask) -> Hooks:
        """Return the loss that draws keys to the queries that choose them."""

        def keys(step: Step) -> Tensor:
            assert isinstance(step.network, PromptedTransformer)
            return -self.key_weight * step.network.key_cosines.sum(1).mean()

        return Hooks(losses={"keys": keys} if self.key_weight else {})
