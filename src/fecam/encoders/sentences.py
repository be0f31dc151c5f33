"""Texts to features with a transformer: tokens in, one pooled vector out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fecam.encoders.encoder import Encoder, Features
from fecam.encoders.torch_runtime import as_features, choose_device
from fecam.errors import ItemError

_AT_ONCE = 16
"""Texts a run of the network, of like length: more only pad each other."""


class SentenceEncoder(Encoder):
    """A transformer that reads texts, and one vector for each: of its first token or their mean.

    ``normalise`` brings every vector to unit length. Longer texts are cut after ``max_tokens``.
    """

    kind = "texts"
    batch_size = 256  # to find texts of like length among; the network sees fewer at once

    def __init__(
        self,
        network: nn.Module,
        tokenizer: Any,
        *,
        name: str,
        fingerprint: str,
        pooling: str,
        normalise: bool,
        max_tokens: int,
        device: str | torch.device | None = None,
    ) -> None:
        self.name, self.fingerprint = name, fingerprint
        self.device = choose_device(device)
        self.n_features = int(network.config.hidden_size)
        self.pooling, self.normalise, self.max_tokens = pooling, normalise, max_tokens
        length = ", unit length" if normalise else ""
        self.preprocessing = f"at most {max_tokens} tokens, {pooling} pooling{length}"
        self._tokenizer = tokenizer
        self._network = network.eval().requires_grad_(False).to(self.device)

    def prepare(self, item: Any) -> Any:
        """The text itself: tokens are made by the hundred, which the tokenizer is built for."""
        if not isinstance(item, str):
            raise ItemError(repr(item)[:80], f"a text is needed, not {type(item).__name__}")
        try:
            item.encode()
        except UnicodeEncodeError:
            raise ItemError(ascii(item)[:80], "half a character (a lone surrogate)") from None
        return item

    def embed(self, prepared: Sequence[Any]) -> Features:
        """The features of texts, one row each, in their order."""
        features = np.zeros((len(prepared), self.n_features), np.float32)
        if not len(prepared):
            return features
        tokens = self._tokenizer(
            list(prepared), truncation=True, max_length=self.max_tokens, padding=False
        )["input_ids"]
        by_length = sorted(range(len(tokens)), key=lambda row: len(tokens[row]))
        for start in range(0, len(tokens), _AT_ONCE):
            rows = by_length[start : start + _AT_ONCE]
            features[rows] = as_features(self._run([tokens[row] for row in rows]))
        return features

    def _run(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        padding = self._tokenizer.pad_token_id or 0
        ids = torch.full((len(tokens), max(1, *map(len, tokens), 1)), padding)
        mask = torch.zeros_like(ids)
        for row, of_text in enumerate(tokens):
            ids[row, : len(of_text)] = torch.tensor(of_text, dtype=torch.long)
            mask[row, : len(of_text)] = 1
        ids, mask = ids.to(self.device), mask.to(self.device)
        with torch.inference_mode():
            found = self._network(input_ids=ids, attention_mask=mask)
            features = pooled(found, mask, self.pooling)
            return nn.functional.normalize(features, dim=1) if self.normalise else features


def pooled(found: Any, mask: Tensor, pooling: str) -> Tensor:
    """One vector for each text of what a transformer found."""
    if pooling == "pooler":
        output: Tensor = found.pooler_output
        return output
    hidden: Tensor = found.last_hidden_state
    if pooling == "cls":
        return hidden[:, 0]
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
