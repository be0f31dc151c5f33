"""Text models of `transformers`: sentence encoders and plain BERT-like models."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer

from fecam.data.dataset import fingerprint_of
from fecam.encoders.encoder import Encoder, Features, first_line
from fecam.encoders.huggingface import config_for_fingerprint, read_config, read_json, read_model
from fecam.encoders.names import with_options
from fecam.encoders.torch_runtime import as_features, choose_device, fingerprint_of_tensors
from fecam.errors import EncoderError, ItemError

_TOKENIZER_FILES = (
    *("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "spiece.model"),
    *("sentencepiece.bpe.model", "tokenizer_config.json"),
)
_MAX_TOKENS = 512
"""Tokens per text if neither the tokenizer nor the model has a limit."""
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


def load_texts(
    folder: Path, *, name: str, pooling: str, normalize: bool, max_tokens: int, device: Any
) -> SentenceEncoder:
    """Return the encoder of texts in a folder."""
    model, _ = read_model(folder)
    if pooling == "pooler" and getattr(model, "pooler", None) is None:
        raise EncoderError(f"{name} has no layer for pooling='pooler': choose mean or cls.")
    parts = ["hf", config_for_fingerprint(folder), pooling, normalize, max_tokens]
    parts += [fingerprint_of_tensors(model.state_dict()), *_tokenizer_content(folder)]
    return SentenceEncoder(
        model,
        _tokenizer(folder, name),
        name=name,
        fingerprint=fingerprint_of(parts),
        pooling=pooling,
        normalize=normalize,
        max_tokens=max_tokens,
        device=device,
    )


def load_texts_as_saved(
    folder: Path, *, name: str, pooling: str | None, device: Any
) -> SentenceEncoder:
    """Return an encoder of texts with the pooling of its files, by default the mean."""
    modules = folder / "modules.json"
    saved = read_json(folder / "1_Pooling" / "config.json")
    if pooling is None:
        pooling = "cls" if saved.get("pooling_mode_cls_token") else "mean"
    return load_texts(
        folder,
        name=with_options(name, {"pooling": pooling}),
        pooling=pooling,
        normalize=modules.is_file() and b"Normalize" in modules.read_bytes(),
        max_tokens=_max_tokens(folder, name),
        device=device,
    )


def _max_tokens(folder: Path, name: str) -> int:
    """Return the saved number of tokens per text, at most the number of positions."""
    saved = read_json(folder / "sentence_bert_config.json").get("max_seq_length")
    positions = getattr(read_config(folder), "max_position_embeddings", _MAX_TOKENS)
    # A tokenizer without a limit returns a very large number.
    limit = min(positions, _tokenizer(folder, name).model_max_length)
    return int(min(saved or limit, limit))


def _tokenizer(folder: Path, name: str) -> Any:
    reason = "no file"
    if _tokenizer_content(folder):  # else transformers would create one without words
        try:
            return AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # damaged files may raise anything
            reason = first_line(error)
    raise EncoderError(
        f"{name} has no usable tokenizer in {folder} ({reason}). Save it there with "
        "tokenizer.save_pretrained(folder)."
    )


def _tokenizer_content(folder: Path) -> list[object]:
    paths = [folder / file for file in _TOKENIZER_FILES if (folder / file).is_file()]
    return [part for path in paths for part in (path.name, path.read_bytes())]
