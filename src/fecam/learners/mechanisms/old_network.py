"""A frozen copy of the network before a task: the teacher of distillation."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fecam.training.hooks import Step


class OldNetwork:
    """The network and the classifier as they were before a task, in evaluation mode.

    Parameters
    ----------
    network, classifier : torch.nn.Module
        The modules to copy.
    """

    def __init__(self, network: nn.Module, classifier: nn.Module) -> None:
        self.network = copy.deepcopy(network).eval().requires_grad_(False)
        self.classifier = copy.deepcopy(classifier).eval().requires_grad_(False)
        self._images: Tensor | None = None
        self._outputs: tuple[Tensor, Tensor] = torch.empty(0), torch.empty(0)

    def outputs(self, step: Step) -> tuple[Tensor, Tensor]:
        """Return features and logits of the images of a step; computed once for all losses."""
        if self._images is not step.images:
            self.network.to(step.images.device, memory_format=torch.channels_last)
            self.classifier.to(step.images.device)
            with torch.no_grad():
                features = self.network(step.images)
                self._outputs = features, self.classifier(features)
            self._images = step.images
        return self._outputs

    def features(self, step: Step) -> Tensor:
        """Return the old features of the images of a step."""
        return self.outputs(step)[0]

    def logits(self, step: Step) -> Tensor:
        """Return the old logits of the images of a step, of the old classes."""
        return self.outputs(step)[1]
