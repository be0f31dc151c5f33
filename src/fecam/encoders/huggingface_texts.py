"""Text models of `transformers`: sentence encoders and plain BERT-like ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from fecam.data.dataset import fingerprint_of
from fecam.encoders.huggingface_folder import (
    essence_of_config,
    read_config,
    read_json,
    read_model,
)
from fecam.encoders.names import with_options
from fecam.encoders.sentences import SentenceEncoder
from fecam.encoders.torch_runtime import fingerprint_of_tensors
from fecam.errors import EncoderError

_TOKENIZER_FILES = (
    *("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "spiece.model"),
    *("sentencepiece.bpe.model", "tokenizer_config.json"),
)
_LONGEST = 512
"""Tokens, where neither the tokenizer nor the model says how many it can take."""


def load_texts(
    folder: Path,
    *,
    name: str,
    pooling: str,
    normalise: bool,
    max_tokens: int,
    device: Any,
) -> SentenceEncoder:
    """An encoder of texts out of a folder."""
    model, _ = read_model(folder)
    if pooling == "pooler" and getattr(model, "pooler", None) is None:
        raise EncoderError(f"{name} has no layer for pooling 'pooler': choose mean or cls")
    about = ["hf", essence_of_config(folder), pooling, normalise, max_tokens]
    about += [fingerprint_of_tensors(model.state_dict()), *_tokenizer_content(folder)]
    return SentenceEncoder(
        model,
        _tokenizer(folder, name),
        name=name,
        fingerprint=fingerprint_of(about),
        pooling=pooling,
        normalise=normalise,
        max_tokens=max_tokens,
        device=device,
    )


def load_texts_as_saved(
    folder: Path, *, name: str, pooling: str | None, device: Any
) -> SentenceEncoder:
    """An encoder of texts, pooled as the files of sentence-transformers say; else by the mean."""
    modules = folder / "modules.json"
    normalised = modules.is_file() and b"Normalize" in modules.read_bytes()
    saved = read_json(folder / "1_Pooling" / "config.json")
    if pooling is None:
        pooling = "cls" if saved.get("pooling_mode_cls_token") else "mean"
    return load_texts(
        folder,
        name=with_options(name, {"pooling": pooling}),
        pooling=pooling,
        normalise=normalised,
        max_tokens=_most_tokens(folder, name),
        device=device,
    )


def _most_tokens(folder: Path, name: str) -> int:
    """As the files say; where they do not, as many as there are positions."""
    said = read_json(folder / "sentence_bert_config.json").get("max_seq_length")
    positions = getattr(read_config(folder), "max_position_embeddings", _LONGEST)
    # Tokenizers without a limit say so by an enormous number.
    limit = min(positions, _tokenizer(folder, name).model_max_length)
    return int(min(said or limit, limit))


def _tokenizer(folder: Path, name: str) -> Any:
    if not _tokenizer_content(folder):  # transformers would make one up that knows no word
        raise EncoderError(_no_tokenizer(folder, name, "there is none"))
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever files that are missing or damaged can cause
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise EncoderError(_no_tokenizer(folder, name, reason)) from None


def _no_tokenizer(folder: Path, name: str, reason: str) -> str:
    return (
        f"{name} has no usable tokenizer in {folder} ({reason}). Remedy: save it there with "
        "tokenizer.save_pretrained(folder)"
    )


def _tokenizer_content(folder: Path) -> list[object]:
    found = [folder / file for file in _TOKENIZER_FILES if (folder / file).is_file()]
    return [part for path in found for part in (path.name, path.read_bytes())]
