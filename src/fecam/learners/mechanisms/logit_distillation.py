"""Distillation of logits: the outputs for old classes stay close to those of the old network."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from fecam.training.hooks import Hooks, Step


def softmax_distillation(logits: Tensor, old_logits: Tensor, temperature: float = 2.0) -> Tensor:
    r"""Return the cross-entropy of softened probabilities (Hinton et al. 2015), without T^2.

    .. math:: -\frac{1}{B} \sum_b \sum_{c \le K} \mathrm{softmax}(z^{old}_b / T)_c
        \log \mathrm{softmax}(z_b / T)_c

    over the K old classes, the first outputs of both networks.

    >>> import torch
    >>> z = torch.zeros(1, 4)
    >>> round(float(softmax_distillation(torch.ones(1, 6), z)), 4)  # the entropy of 4 classes
    1.3863
    """
    old = old_logits.float() / temperature
    new = logits[:, : old.shape[1]].float() / temperature
    return functional.cross_entropy(new, old.softmax(1))


def sigmoid_distillation(logits: Tensor, old_logits: Tensor | None, labels: Tensor) -> Tensor:
    r"""Return the binary cross-entropy of all outputs (iCaRL, Eq. 1), summed over them.

    The target of an old class is :math:`\sigma(z^{old}_c)`, that of a new class 1 for the label and
    0 otherwise. The mean is over the images.
    """
    targets = functional.one_hot(labels, logits.shape[1]).float()
    if old_logits is not None:
        targets[:, : old_logits.shape[1]] = old_logits.float().sigmoid()
    losses = functional.binary_cross_entropy_with_logits(logits.float(), targets, reduction="none")
    return losses.sum(1).mean()


def weighted_distillation(
    share: float,
    old_logits: Callable[[Step], Tensor],
    *,
    label_smoothing: float = 0.0,
    correct: Callable[[Tensor], Tensor] = lambda logits: logits,
) -> Hooks:
    r"""Return the losses of WA and BiC: :math:`(1 - \lambda) \mathrm{CE} + \lambda \mathrm{KD}_2`.

    ``share`` is :math:`\lambda`, the share of old classes; ``correct`` changes the logits before.
    """

    def weighted_cross_entropy(step: Step) -> Tensor:
        logits = correct(step.logits.float())
        return (1 - share) * functional.cross_entropy(
            logits, step.labels, label_smoothing=label_smoothing
        )

    def distillation(step: Step) -> Tensor:
        return share * softmax_distillation(correct(step.logits.float()), old_logits(step))

    if not share:  # the same as without the method, also in the names of the losses
        return Hooks()
    return Hooks(loss=weighted_cross_entropy, losses={"distillation": distillation})
