"""Bias correction: a scale and an offset for the outputs of new classes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def corrected(logits: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Return ``alpha_c z_c + beta_c`` for the outputs of which there are factors, else ``z_c``.

    >>> corrected(torch.ones(1, 3), torch.tensor([1.0, 0.5]), torch.tensor([0.0, 0.25]))
    tensor([[1.0000, 0.7500, 1.0000]])
    """
    more = logits.shape[1] - len(alpha)
    scale = torch.cat([alpha, torch.ones(more)]).to(logits)
    return logits * scale + torch.cat([beta, torch.zeros(more)]).to(logits)


def fit_bias(logits: Tensor, labels: Tensor, n_old: int) -> tuple[float, float]:
    r"""Return the scale and the offset of new outputs that minimize the cross-entropy.

    .. math:: \min_{\alpha, \beta} \frac1N \sum_i \mathrm{CE}(q_i, y_i), \quad
        q_{ic} = z_{ic} \;(c \le K), \quad q_{ic} = \alpha z_{ic} + \beta \;(c > K)

    (Wu et al. 2019), a convex problem. The images should have equally many of each class.
    """
    z = logits.double()
    factors = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([factors], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        new = factors[0] * z[:, n_old:] + factors[1]
        loss = functional.cross_entropy(torch.cat([z[:, :n_old], new], 1), labels)
        loss.backward()
        return loss

    optimizer.step(closure)
    alpha, beta = factors.tolist()
    return alpha, beta
