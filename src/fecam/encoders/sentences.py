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

_NETWORK_BATCH = 16
"""Texts of similar length per run of the network: larger batches add padding."""


class SentenceEncoder(Encoder):
    """A transformer with one vector per text: its first token, the mean, or a pooling layer.

    ``normalize`` scales every vector to unit length. Texts are truncated to ``max_tokens``.
    """

    kind = "texts"
    batch_size = 256  # large enough to group texts of similar length

    def __init__(
        self,
        network: nn.Module,
        tokenizer: Any,
        *,
        name: str,
        fingerprint: str,
        pooling: str,
        normalize: bool,
        max_tokens: int,
        device: str | torch.device | None = None,
    ) -> None:
        self.name, self.fingerprint = name, fingerprint
        self.device = choose_device(device)
        self.n_features = int(network.config.hidden_size)
        self.pooling, self.normalize, self.max_tokens = pooling, normalize, max_tokens
        length = ", unit length" if normalize else ""
        self.preprocessing = f"at most {max_tokens} tokens, {pooling} pooling{length}"
        self._tokenizer = tokenizer
        self._network = network.eval().requires_grad_(False).to(self.device)

    def prepare(self, item: Any) -> Any:
        """Return the text itself: `embed` tokenizes whole batches, which is faster."""
        if not isinstance(item, str):
            raise ItemError(repr(item)[:80], f"must be a text, not {type(item).__name__}")
        try:
            item.encode()
        except UnicodeEncodeError:
            raise ItemError(ascii(item)[:80], "half a character (a lone surrogate)") from None
        return item

    def embed(self, prepared: Sequence[Any]) -> Features:
        """Return the features of texts, in their order."""
        features = np.zeros((len(prepared), self.n_features), np.float32)
        if not len(prepared):
            return features
        tokens = self._tokenizer(
            list(prepared), truncation=True, max_length=self.max_tokens, padding=False
        )["input_ids"]
        by_length = sorted(range(len(tokens)), key=lambda row: len(tokens[row]))
        for start in range(0, len(tokens), _NETWORK_BATCH):
            rows = by_length[start : start + _NETWORK_BATCH]
            features[rows] = as_features(self._run([tokens[row] for row in rows]))
        return features

    def _run(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        padding = self._tokenizer.pad_token_id or 0
        # At least one position: a tokenizer without special tokens returns none for "".
        length = max(1, *map(len, tokens), 1)
        ids = torch.full((len(tokens), length), padding)
        mask = torch.zeros_like(ids)
        for i, text_ids in enumerate(tokens):
            ids[i, : len(text_ids)] = torch.tensor(text_ids, dtype=torch.long)
            mask[i, : len(text_ids)] = 1
        ids, mask = ids.to(self.device), mask.to(self.device)
        with torch.inference_mode():
            output = self._network(input_ids=ids, attention_mask=mask)
            features = _pooled(output, mask, self.pooling)
            return nn.functional.normalize(features, dim=1) if self.normalize else features


def _pooled(output: Any, mask: Tensor, pooling: str) -> Tensor:
    """Return one vector per text from the output of a transformer."""
    if pooling == "pooler":
        vector: Tensor = output.pooler_output
        return vector
    hidden: Tensor = output.last_hidden_state
    if pooling == "cls":
        return hidden[:, 0]
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
