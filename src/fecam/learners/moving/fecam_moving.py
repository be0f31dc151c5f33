"""FeCAM for a network that goes on learning: all its statistics follow the network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Self

from torch import Tensor, nn

from fecam import heads
from fecam.classifier import FeCAMClassifier
from fecam.core.linear_map import fit_linear_map, fit_local_map
from fecam.errors import TrainingError
from fecam.heads.head import Floats
from fecam.learners.mechanisms.branches import Branches
from fecam.learners.mechanisms.class_statistics import labels_of
from fecam.learners.mechanisms.moving_means import Drift, Transform
from fecam.learners.mechanisms.moving_state import MapOptions, move_state
from fecam.learners.moving.moving_learner import MovingLwF
from fecam.learners.recipe import Recipe
from fecam.learners.task import LearningTask
from fecam.validation import check_number

FIRST = "first network"
"""What its weights are called in `Learner.kept`, and its bytes in `Learner.memory`."""


@dataclass(kw_only=True, eq=False)
class FeCAMMoving(MovingLwF):
    r"""FeCAM whose counts, means and covariances follow the network.

    .. math:: g(x) = x P + b, \qquad \mu_c \leftarrow g(\mu_c), \quad
        C_c \leftarrow P^T C_c P + R, \quad
        \frac1{n_c} \leftarrow \frac1{n_c} + v(\mu_c) \frac{\mathrm{tr} R}{\mathrm{tr} C}

    on a network that is trained as LwF. The map of the transformed features is the ridge regression
    towards the identity on the current images, whose penalty leaves out a class at a time
    (`fecam.core.linear_map`), R the covariance of its residuals, and v the variance of the map at
    a mean. A class that was moved far, or often, counts as fewer samples, so its distances are
    divided by more (`fecam.core.transport`).

    With ``first_network``, the features of the first network stand beside those of the current one
    in x. Their part of the map is the identity, without residuals, so that what a strong first
    network knows is not lost; it also helps to predict how the others moved.

    Its statistics are those of the head, `FeCAMClassifier` with default settings unless another
    head is put on the features. Of heads without class covariances only the means move.

    Parameters
    ----------
    weight : float
        Of the distillation of old outputs.
    temperature : float
        Of the distillation.
    first_network : bool
        Whether the network of the first task is kept.
    ridge : float, optional
        The penalty of the map, relative to the mean squared feature; by default estimated.
    local : bool
        Whether means also follow the drift of images near them that the linear map leaves; on
        CIFAR-100 that is no better.
    residuals : bool
        Whether the covariance of the residuals is added to that of a class.
    uncertainty : bool
        Whether a moved class counts as fewer samples.
    """

    first_network: bool = True
    ridge: float | None = None
    local: bool = False
    residuals: bool = True
    uncertainty: bool = True

    pair: tuple[Floats, Floats] | None = field(init=False, repr=False, default=None)
    """The features of the current images before and after the training."""

    _first: nn.Module | None = field(init=False, repr=False, default=None)

    def check_options(self) -> None:
        """Raise for options that are out of range."""
        super().check_options()
        if self.ridge is not None:
            check_number("ridge", self.ridge, error=TrainingError)

    def start(self, recipe: Recipe, head: Any = None) -> Self:
        """Set the recipe and the head.

        Parameters
        ----------
        recipe : Recipe
            The network and its training plans.
        head : estimator, optional
            By default FeCAM with default settings.

        Returns
        -------
        FeCAMMoving
            This learner, which has learned nothing.
        """
        self._first = None
        return super().start(recipe, heads.make("fecam") if head is None else head)

    def after_task(self, task: LearningTask) -> None:
        """Keep the first network, or compute the features that the map is estimated from."""
        self.pair = None
        if task.first and self.first_network:
            weights = self.network.state_dict()
            self.kept[FIRST] = {name: x.detach().clone() for name, x in weights.items()}
        if self.old is not None:
            networks = (self._beside_first(x) for x in (self.old.network, self.network))
            old, new = (self.features_by(x, task) for x in networks)
            self.pair = old, new
            self.drift = self.estimate(task, old, new)

    def feature_network(self) -> nn.Module:
        """Return the network, with the first one beside it."""
        return self._beside_first(self.network)

    def _beside_first(self, network: nn.Module) -> nn.Module:
        if not self.first_network:
            return network
        if self._first is None:
            self._first = self.make_network(0)
            self._first.load_state_dict(self.kept[FIRST])
        return Branches(nn.Identity(), [self._first, network])

    def n_parameters(self) -> int:
        """Return the number of weights of both networks and of the classifier.

        Returns
        -------
        int
            Those that are frozen included.
        """
        first = sum(x.numel() for x in self.network.parameters()) if self.first_network else 0
        return super().n_parameters() + first

    def estimate(self, task: LearningTask, old: Floats, new: Floats) -> Drift:
        """Return the drift of means alone, for heads without class covariances."""

        def drift(means: Floats, transform: Transform) -> Floats:
            before, after = transform(old), transform(new)
            ridge: float | Literal["auto"] = "auto" if self.ridge is None else self.ridge
            linear_map = fit_linear_map(before, after, ridge=ridge, groups=labels_of(task))
            mapping = fit_local_map(linear_map, before, after) if self.local else linear_map
            moved: Floats = mapping(means) - means
            return moved

        return drift

    def update_head(self, task: LearningTask) -> None:
        """Move the statistics of the head, and teach it the new classes."""
        if self.pair is not None and isinstance(self.head, FeCAMClassifier):
            options = MapOptions(
                ridge=self.ridge,
                local=self.local,
                residuals=self.residuals,
                counts=self.uncertainty,
            )
            state = move_state(self.head.state_, *self.pair, labels_of(task), options)
            self.head.set_state(state)
            self.drift = None
        self.pair = None
        super().update_head(task)

    def scores(self, features: Tensor) -> Tensor:
        """Return minus the distances of the head."""
        raise TrainingError("fecam-moving predicts by its head.")
