r"""Class augmentation of IL2A: mixtures of two images are a class of their own per pair of classes.

N classes have :math:`N (N - 1) / 2` unordered pairs. Their columns follow those of the classes, and
are dropped after the task.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from fecam.errors import TrainingError
from fecam.training.classifiers import expand_classifier


def n_pairs(n_classes: int) -> int:
    """Return the number of unordered pairs of different classes.

    >>> n_pairs(50)
    1225
    """
    return n_classes * (n_classes - 1) // 2


def pair_index(a: Tensor, b: Tensor) -> Tensor:
    r"""Return the index of the unordered pair {a, b} of different classes: a bijection.

    :math:`j (j - 1) / 2 + i` with :math:`i = \min(a, b)` and :math:`j = \max(a, b)`. It does not
    depend on the number of classes.

    >>> pair_index(torch.tensor([0, 2, 2, 1]), torch.tensor([1, 0, 1, 2])).tolist()
    [0, 1, 2, 2]
    """
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    return high * (high - 1) // 2 + low


def check_pairs(n_classes: int) -> None:
    """Raise unless a task has two classes."""
    if n_classes < 2:
        raise TrainingError(
            f"a task of {n_classes} class has no pairs of classes to mix. Use tasks of at least "
            "two classes, or switch the mixtures off with mixtures=0."
        )


def mix_pairs(
    images: Tensor,
    labels: Tensor,
    generator: Generator,
    *,
    n_old: int,
    n_classes: int,
    repeats: int = 4,
    beta: float = 20.0,
    limits: tuple[float, float] = (0.4, 0.6),
) -> tuple[Tensor, Tensor]:
    r"""Return the batch with mixtures :math:`\lambda x_i + (1 - \lambda) x_j` appended.

    Each of ``repeats`` times, images are mixed with a random permutation of the batch where the
    classes differ. :math:`\lambda \sim Beta(20, 20)`, or 1/2 where that is outside the limits. The
    label of a mixture is ``n_classes + pair_index``, of the classes counted from ``n_old``.
    """
    batches, targets = [images], [labels]
    for _ in range(repeats):
        order = torch.randperm(len(images), generator=generator).to(labels.device)
        shares = draw_beta(beta, len(images), generator)
        shares[(shares < limits[0]) | (shares > limits[1])] = 0.5
        rows = (labels != labels[order]).nonzero()[:, 0]
        share = shares.to(images.device)[rows, None, None, None]
        batches.append(share * images[rows] + (1 - share) * images[order[rows]])
        pairs = pair_index(labels[rows] - n_old, labels[order[rows]] - n_old)
        targets.append(n_classes + pairs)
    return torch.cat(batches), torch.cat(targets)


def draw_beta(parameter: float, count: int, generator: Generator) -> Tensor:
    """Return draws of Beta(a, a), from two draws of Gamma(a) each."""
    shape = torch.full((2, count), parameter)
    first, second = torch._standard_gamma(shape, generator=generator)
    return first / (first + second)


def with_pairs(classifier: nn.Module, pairs: int, seed: int) -> nn.Module:
    """Return a classifier with more outputs, with initial weights of the seed."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return expand_classifier(classifier, len(classifier.weight) + pairs)


def without_pairs(classifier: nn.Module, n_classes: int) -> nn.Module:
    """Return a linear classifier with the first outputs only."""
    smaller = nn.Linear(classifier.weight.shape[1], n_classes).to(classifier.weight.device)
    with torch.no_grad():
        smaller.weight.copy_(classifier.weight[:n_classes])
        smaller.bias.copy_(classifier.bias[:n_classes])
    return smaller
