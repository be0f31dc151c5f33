"""Parts of a network that are not trained: the backbone, batch normalization, rows of the head."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fecam.errors import TrainingError
from fecam.training.hooks import Modules, Step


def freeze_network(network: nn.Module) -> Callable[[Modules], None]:
    """Freeze all weights; return a hook for the start of an epoch that freezes the statistics."""
    network.requires_grad_(False)

    def use_running_statistics(modules: Modules) -> None:
        network.eval()

    return use_running_statistics


def freeze_batch_norm(network: nn.Module) -> Callable[[Modules], None]:
    """Freeze scale and shift of batch normalization; return a hook that freezes its statistics.

    The hook is for the start of an epoch, when the loop has set the network to training mode.
    """
    layers = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    for layer in layers:
        layer.requires_grad_(False)

    def use_running_statistics(modules: Modules) -> None:
        for layer in layers:
            layer.eval()

    return use_running_statistics


def freeze_rows(classifier: nn.Module, rows: int) -> Callable[[Step], None]:
    """Return a hook for after an update that restores the first rows of a classifier.

    So neither a gradient nor the weight decay changes them. A value without rows, such as the scale
    of a cosine classifier, is trained.
    """
    weights = [parameter for parameter in classifier.parameters() if parameter.ndim]
    before = [parameter.detach()[:rows].clone() for parameter in weights]

    def restore(step: Step) -> None:
        with torch.no_grad():
            for parameter, values in zip(weights, before, strict=True):
                parameter[:rows] = values.to(parameter.device)

    return restore


def last_stage(network: nn.Module) -> nn.Module:
    """Return the last stage of a ResNet; raise `TrainingError` for a network without stages."""
    stages = [module for name, module in network.named_children() if name.startswith("layer")]
    if not stages:
        raise TrainingError(
            f"{type(network).__name__} has no stages, but this learner freezes all but the last. "
            "Train a ResNet, or choose another learner."
        )
    return stages[-1]
