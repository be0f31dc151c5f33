"""Text models of `transformers`: sentence encoders and plain BERT-like models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from fecam.data.dataset import fingerprint_of
from fecam.encoders.encoder import first_line
from fecam.encoders.huggingface import config_for_fingerprint, read_config, read_json, read_model
from fecam.encoders.names import with_options
from fecam.encoders.sentences import SentenceEncoder
from fecam.encoders.torch_runtime import fingerprint_of_tensors
from fecam.errors import EncoderError

_TOKENIZER_FILES = (
    *("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "spiece.model"),
    *("sentencepiece.bpe.model", "tokenizer_config.json"),
)
_MAX_TOKENS = 512
"""Tokens per text if neither the tokenizer nor the model has a limit."""


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
