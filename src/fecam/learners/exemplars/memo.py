"""MEMO: a last stage per task on shared ones."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fecam.encoders.resnet import ResNet18
from fecam.errors import TrainingError
from fecam.learners.exemplars.der import DER, Correction
from fecam.learners.mechanisms.branches import Branches, LastStage, SharedStages
from fecam.training.hooks import Hooks


@dataclass(kw_only=True, eq=False)
class MEMO(DER):
    r"""A model or 603 exemplars (Zhou et al. 2023): DER with shared first stages.

    .. math:: L = \mathrm{CE}(W u, y) + \lambda\, \mathrm{CE}(W_a \phi_t(s), y_a),
        \quad u = [\phi_1(s), \dots, \phi_t(s)]

    where s are the maps of the first three stages of a ResNet-18, and :math:`\phi` is the last one.
    Then the weights of new classes are aligned as in WA.

    Parameters
    ----------
    train_shared : bool
        Whether the shared stages are trained in later tasks, as the authors do after a small first
        task. It moves the features of old branches.
    """

    correction: Correction = "wa"
    train_shared: bool = False

    def check_network(self, network: nn.Module) -> None:
        """Raise for a network without stages."""
        if not isinstance(network, ResNet18):
            raise TrainingError(
                f"memo shares the first stages of a ResNet-18, and the network is a "
                f"{type(network).__name__}: choose der, which adds whole networks."
            )

    def branches(self, network: nn.Module) -> Branches:
        """Return the last stage as a branch on the others."""
        assert isinstance(network, ResNet18)
        return Branches(SharedStages(network), [LastStage(network)])

    def freeze(self, network: Branches) -> Hooks:
        """Freeze all but the last branch, and the shared stages unless they are trained."""
        return Hooks(epoch_start=[network.freeze(shared=not self.train_shared)])
