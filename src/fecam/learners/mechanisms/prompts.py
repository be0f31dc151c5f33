"""Prompts for a frozen vision transformer (L2P): tokens from a pool, chosen by the image.

The transformer is a ``ViTModel`` of `transformers`. Prompt tokens stand before the embedded image,
without a position.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fecam.errors import TrainingError

Choice = Literal["sample", "batch"]
"""Whether each sample has its own prompts or a batch shares those that most samples choose."""


class PromptPool(nn.Module):
    """Prompts (pool, length, d) with a key each; a query selects those with the nearest keys."""

    def __init__(self, n_features: int, size: int = 10, length: int = 10, top: int = 4) -> None:
        super().__init__()
        if top > size:
            raise TrainingError(f"top={top} prompts cannot be more than the pool of size={size}.")
        self.top = top
        self.prompts = nn.Parameter(_uniform(size, length, n_features))
        self.keys = nn.Parameter(_uniform(size, n_features))

    def choose(self, queries: Tensor, choice: Choice = "sample") -> tuple[Tensor, Tensor]:
        r"""Return the indices of the chosen prompts and the cosines of their keys, both (n, top).

        With ``"batch"`` all samples get the prompts that are most often among their own.
        """
        cosines = functional.normalize(queries, dim=1) @ functional.normalize(self.keys, dim=1).T
        chosen = cosines.topk(self.top, dim=1).indices
        if choice == "batch":
            votes = chosen.flatten().bincount(minlength=len(self.keys))
            chosen = votes.topk(self.top).indices.expand(len(queries), -1)
        return chosen, cosines.gather(1, chosen)


def _uniform(*shape: int) -> Tensor:
    """Return draws from 0 to 0.01, as in the authors' code; ports draw from -1 to 1."""
    return torch.empty(shape).uniform_(0, 0.01)


class PromptedTransformer(nn.Module):
    r"""A frozen ViT and a prompt pool: images to the mean output of the prompt tokens.

    The query of an image is the output of the class token without prompts. `key_cosines` has the
    cosines of the last batch, for the loss of the keys.
    """

    key_cosines: Tensor

    def __init__(self, vit: nn.Module, pool: PromptPool, choice: Choice = "sample") -> None:
        super().__init__()
        self.vit, self.pool, self.choice = vit.requires_grad_(False), pool, choice
        self.n_features = pool.keys.shape[1]

    def train(self, mode: bool = True) -> PromptedTransformer:
        """Set the mode of the pool only: the frozen transformer has no dropout."""
        super().train(mode)
        self.vit.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, one row per image."""
        with torch.no_grad():
            tokens = self.vit.embeddings(images.contiguous())
            queries = self._run(tokens)[:, 0]
        chosen, self.key_cosines = self.pool.choose(queries, self.choice)
        prompts = self.pool.prompts[chosen].flatten(1, 2)
        outputs = self._run(torch.cat([prompts, tokens], dim=1))
        return outputs[:, : prompts.shape[1]].mean(1)

    def _run(self, tokens: Tensor) -> Tensor:
        for layer in self.vit.layers:
            tokens = layer(tokens)
        normalized: Tensor = self.vit.layernorm(tokens)
        return normalized


def find_transformer(network: nn.Module) -> nn.Module:
    """Return the vision transformer in a network, or raise."""
    for module in network.modules():
        if all(hasattr(module, part) for part in ("embeddings", "layers", "layernorm", "config")):
            return module
    raise TrainingError(
        f"{type(network).__name__} is not a vision transformer (ViTModel) of the package "
        "transformers, which prompts need. Choose such a network, or another learner."
    )
