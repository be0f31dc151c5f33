"""Learners whose authors publish a learning rate of Adam instead of the recipe's optimizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from fecam.errors import TrainingError
from fecam.learners.learner import Learner
from fecam.training.plan import TrainingPlan
from fecam.validation import check_choice, check_number

OwnOptimizer = Literal["adam", "recipe"]


@dataclass(kw_only=True, eq=False)
class AdamLearner(Learner):
    """A learner with Adam as in the code of its authors.

    Parameters
    ----------
    optimizer : {"adam", "recipe"}
        Adam with the rate and weight decay below; or the optimizer of the recipe. Steps of Adam do
        not depend on the size of the loss: SGD may need smaller weights of the losses.
    learning_rate : float, optional
        Of Adam; by default the published one, adapted to the recipe.
    weight_decay : float
        Of Adam.
    """

    optimizer: OwnOptimizer = "adam"
    learning_rate: float | None = None
    weight_decay: float = 2e-4

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        check_choice("optimizer", self.optimizer, get_args(OwnOptimizer), error=TrainingError)
        if self.learning_rate is not None:
            check_number("learning_rate", self.learning_rate, above=0, error=TrainingError)
        check_number("weight_decay", self.weight_decay, error=TrainingError)

    def published_rate(self, plan: TrainingPlan) -> float:
        """Return the published learning rate, adapted to a plan.

        Parameters
        ----------
        plan : TrainingPlan
            The plan of the recipe.

        Returns
        -------
        float
            By default Adam's own default.
        """
        return 1e-3

    def plan_for(self, index: int) -> TrainingPlan:
        """Return the plan of the recipe with the method's own optimizer.

        Parameters
        ----------
        index : int
            The index of the task, from 0.

        Returns
        -------
        TrainingPlan
            The plan.
        """
        plan = super().plan_for(index)
        if self.optimizer == "recipe":
            return plan
        rate = self.published_rate(plan) if self.learning_rate is None else self.learning_rate
        return replace(plan, optimizer="adam", learning_rate=rate, weight_decay=self.weight_decay)

    def optimizer_settings(self) -> dict[str, Any]:
        """Return what determines the optimizer, as JSON values."""
        own = {"learning_rate": self.learning_rate, "weight_decay": self.weight_decay}
        return {"optimizer": self.optimizer, **(own if self.optimizer == "adam" else {})}
