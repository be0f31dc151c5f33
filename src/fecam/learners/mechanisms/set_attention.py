"""One block of attention over class prototypes and a query: prototypes that fit the query (CEC).

The tokens have no position, so the order of the prototypes does not matter.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

QUERIES = 256
"""Queries per pass: the block has a matrix of all pairs of tokens for each of them."""


class SetAttention(nn.Module):
    r"""A block of attention with one head: sets of vectors (n, t, d) to sets of the same shape.

    .. math:: \mathrm{LayerNorm}(x + A\, \mathrm{softmax}(Q x (K x)^T / \sqrt d)\, V x + a)

    Parameters
    ----------
    n_features : int
        d.
    """

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (
            nn.Linear(n_features, n_features, bias=False) for _ in range(3)
        )
        for layer in (self.query, self.key, self.value):
            nn.init.normal_(layer.weight, 0, n_features**-0.5)
        self.output = nn.Linear(n_features, n_features)
        nn.init.xavier_normal_(self.output.weight)
        self.norm = nn.LayerNorm(n_features)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the adapted tokens."""
        scores = self.query(tokens) @ self.key(tokens).mT / tokens.shape[-1] ** 0.5
        out: Tensor = self.norm(tokens + self.output(scores.softmax(-1) @ self.value(tokens)))
        return out


def adapted_cosines(block: nn.Module, prototypes: Tensor, queries: Tensor) -> Tensor:
    """Return the cosine of each adapted query to the prototypes that are adapted with it.

    >>> same = nn.Identity()
    >>> adapted_cosines(same, torch.eye(2), torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """
    parts = []
    for own in queries.split(QUERIES):
        sets = prototypes.expand(len(own), -1, -1)
        adapted = functional.normalize(block(torch.cat([sets, own[:, None]], 1)), dim=-1)
        parts.append((adapted[:, :-1] @ adapted[:, -1, :, None])[..., 0])
    return torch.cat(parts)
