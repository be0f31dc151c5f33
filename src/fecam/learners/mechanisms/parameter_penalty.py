"""Penalties on the change of weights, and the Fisher information as their importance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fecam.training.hooks import Step
from fecam.training.images import TrainingImages

FisherLabels = Literal["sampled", "true", "predicted", "all"]
CHUNK = 32
"""Images whose gradients are computed together; more need memory for one gradient each."""


def quadratic_penalty(
    parameters: Mapping[str, Tensor],
    anchors: Mapping[str, Tensor],
    importance: Mapping[str, Tensor],
) -> Tensor:
    r"""Return :math:`\frac12 \sum_i F_i (\theta_i - \theta^*_i)^2` over weights with anchors."""
    terms = [
        (importance[name] * (parameters[name] - anchor).square()).sum()
        for name, anchor in anchors.items()
    ]
    return 0.5 * torch.stack(terms).sum()


def stable_importance(
    importance: Mapping[str, Tensor], weight: float, learning_rate: float
) -> dict[str, Tensor]:
    r"""Return the importance, clipped to :math:`1 / (\lambda \eta)`.

    Beyond it a step of size :math:`\eta` against the penalty of weight :math:`\lambda` jumps over
    the minimum, and gradient descent diverges; `pull_back` applies the rest. PyCIL clips at 10^-4
    for 1000 and 0.1, a hundredth of it.
    """
    limit = 1 / (weight * learning_rate) if weight else torch.inf
    return {name: values.clamp(max=limit) for name, values in importance.items()}


def pull_back(
    anchors: Mapping[str, Tensor], importance: Mapping[str, Tensor], weight: float, rate: float
) -> Callable[[Step], None]:
    r"""Return a hook for after an update that applies what `stable_importance` clips.

    :math:`\theta \leftarrow \theta^* + (\theta - \theta^*) / (1 + \eta \lambda E)` with the clipped
    part E, an implicit gradient step, is stable for any weight: for a large one, weights are fixed.
    """
    stable = stable_importance(importance, weight, rate)
    factors = {
        name: 1 / (1 + rate * weight * (importance[name] - stable[name])) for name in anchors
    }

    def pull(step: Step) -> None:
        with torch.no_grad():
            for name, parameter in step.network.named_parameters():
                if name in anchors:
                    parameter.copy_(torch.lerp(anchors[name], parameter, factors[name]))

    return pull


def merge_importance(
    old: Mapping[str, Tensor], new: Mapping[str, Tensor], old_share: float
) -> dict[str, Tensor]:
    """Return ``old_share`` of the old importance plus the rest of the new one, by name."""
    return {name: old_share * old[name] + (1 - old_share) * new[name] for name in new}


@torch.no_grad()  # type: ignore[untyped-decorator]  # else the gradients have a graph of their own
def fisher_diagonal(
    network: nn.Module,
    classifier: nn.Module,
    images: TrainingImages,
    labels: Tensor,
    outputs: range,
    generator: Generator,
    *,
    which: FisherLabels = "sampled",
    samples: int | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    r"""Return the diagonal of the Fisher information of the network's weights.

    .. math:: F_i = \frac1n \sum_x
        \left( \frac{\partial \log p(y \mid x)}{\partial \theta_i} \right)^2

    with one gradient per image and in evaluation mode, so that batch normalization stays as it is.
    Public code squares the mean gradient of a batch instead, which is about B times smaller.

    Parameters
    ----------
    network, classifier : torch.nn.Module
        The trained modules.
    images : TrainingImages
        The images of the task, not augmented.
    labels : tensor of int
        The output index of each row of ``images``, for ``which="true"``.
    outputs : range
        The outputs of the softmax: those of the training loss.
    generator : torch.Generator
        Draws the labels and the rows.
    which : {"sampled", "true", "predicted", "all"}
        The labels y: drawn from the network's own probabilities, which is the definition; those of
        the data, the empirical Fisher; the most probable; or the expectation over all outputs.
    samples : int, optional
        Use this many random images; by default all.
    device : device
        Where the modules are.

    Returns
    -------
    dict
        Values by the names of the network's trainable weights.
    """
    network.eval()
    weights = {k: v.detach() for k, v in network.named_parameters() if v.requires_grad}
    chosen = torch.ones(len(images.labels), dtype=torch.bool)
    if samples is not None and samples < len(images):
        chosen[:] = False
        chosen[images.rows[torch.randperm(len(images), generator=generator)[:samples]]] = True

    def loss(values: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        logits = classifier(functional_call(network, values, (image[None],)))
        logits = logits[:, outputs.start : outputs.stop]
        return functional.cross_entropy(logits.float(), label[None])

    gradients = vmap(grad(loss), in_dims=(None, 0, 0), randomness="error")
    totals = {name: torch.zeros_like(value) for name, value in weights.items()}
    count = 0
    for rows, batch in images.eval_batches(CHUNK, device):
        keep = chosen[rows]
        if not keep.any():
            continue
        batch, own = batch[keep.to(device)], labels[rows[keep]] - outputs.start
        count += len(batch)
        logits = classifier(network(batch))[:, outputs.start : outputs.stop]
        probabilities = logits.float().softmax(1).cpu()
        for target, shares in _labels(which, own, probabilities, generator):
            by_image = gradients(weights, batch, target.to(device))
            for name, values in by_image.items():
                factor = shares.to(device).reshape(-1, *[1] * (values.ndim - 1))
                totals[name] += (factor * values.square()).sum(0)
    return {name: total / max(1, count) for name, total in totals.items()}


def _labels(
    which: FisherLabels, own: Tensor, probabilities: Tensor, generator: Generator
) -> list[tuple[Tensor, Tensor]]:
    """Return one label per image with its share, or all labels with their probabilities."""
    ones = torch.ones(len(own))
    choices: Mapping[str, Callable[[], list[tuple[Tensor, Tensor]]]] = {
        "true": lambda: [(own, ones)],
        "predicted": lambda: [(probabilities.argmax(1), ones)],
        "sampled": lambda: [(torch.multinomial(probabilities, 1, generator=generator)[:, 0], ones)],
        "all": lambda: [
            (torch.full_like(own, label), probabilities[:, label])
            for label in range(probabilities.shape[1])
        ],
    }
    return choices[which]()
