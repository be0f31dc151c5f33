"""Virtual prototypes: rows of a classifier that reserve room for classes to come (FACT)."""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn import functional


def allowed_virtual(
    n_classes: int, n_virtual: int, classes_per_virtual: int, generator: Generator
) -> Tensor:
    """Return a mask (classes, virtual): each virtual prototype is allowed for some random classes.

    A class that none chose is allowed all of them.
    """
    allowed = torch.zeros(n_classes, n_virtual, dtype=torch.bool)
    for virtual in range(n_virtual):
        chosen = torch.randperm(n_classes, generator=generator)[:classes_per_virtual]
        allowed[chosen, virtual] = True
    allowed[~allowed.any(1)] = True
    return allowed


def virtual_loss(
    base: Tensor, virtual: Tensor, labels: Tensor, allowed: Tensor | None = None
) -> Tensor:
    r"""Return the cross-entropy towards the nearest virtual prototype, without the true class.

    Logits are of real classes (n, c) and of virtual ones (n, v). The target is the largest
    virtual logit that is ``allowed`` for the class; the logit of the class is left out.
    """
    choices = virtual if allowed is None else virtual.masked_fill(~allowed[labels], -torch.inf)
    targets = base.shape[1] + choices.argmax(1)
    others = base.scatter(1, labels[:, None], -torch.inf)
    return functional.cross_entropy(torch.cat([others, virtual], 1).float(), targets)


def mixed_loss(base: Tensor, virtual: Tensor) -> Tensor:
    """Return the two losses of mixtures: they are of a virtual class, and then of a real one.

    The targets are the largest virtual logit, and the largest real logit where that virtual one is
    left out.
    """
    nearest = virtual.argmax(1)
    logits = torch.cat([base, virtual], 1).float()
    towards_virtual = functional.cross_entropy(logits, base.shape[1] + nearest)
    without = logits.scatter(1, base.shape[1] + nearest[:, None], -torch.inf)
    return towards_virtual + functional.cross_entropy(without, base.argmax(1))


def virtual_scores(features: Tensor, rows: Tensor, virtual: Tensor, top: int) -> Tensor:
    r"""Return scores of classes by way of virtual prototypes.

    :math:`a_c = \sum_v \cos(f, v) \cos(v, w_c)` over the ``top`` virtual prototypes that are
    nearest to the feature.
    """
    unit = functional.normalize(virtual, dim=1)
    cosines = functional.normalize(features, dim=1) @ unit.T
    values, nearest = cosines.topk(min(top, len(unit)), dim=1)
    kept = torch.zeros_like(cosines).scatter(1, nearest, values)
    return kept @ (unit @ functional.normalize(rows, dim=1).T)
