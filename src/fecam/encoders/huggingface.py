"""`hf:<model id or folder>`: models of `transformers`, of images or of texts."""

from __future__ import annotations

from typing import Any

from fecam.encoders.encoder import Encoder
from fecam.encoders.huggingface_folder import find_folder, is_for_images, read_config
from fecam.errors import EncoderError

POOLINGS = ("cls", "mean", "pooler")


def load_encoder(
    source: str,
    *,
    device: Any = None,
    pooling: str | None = None,
    revision: str | None = None,
    half: bool = False,
) -> Encoder:
    """A model of `transformers`, out of a folder, the hub's cache or the hub.

    ``pooling`` is "cls" (the first token), "mean" (of the patches' or the text's tokens) or
    "pooler" (the model's own last layer); without one, what suits the architecture. ``revision``
    is a branch or commit on the hub.
    """
    if pooling not in (None, *POOLINGS):
        raise EncoderError(f"hf:{source} with pooling={pooling!r}: choose {', '.join(POOLINGS)}")
    folder = find_folder(source, revision)
    name = f"hf:{source}"
    # A room of its own for each kind: those who encode texts need no Pillow.
    if is_for_images(read_config(folder)):
        from fecam.encoders.huggingface_images import load_images

        return load_images(folder, name=name, pooling=pooling, half=half, device=device)
    from fecam.encoders.huggingface_texts import load_texts_as_saved

    if half:
        raise EncoderError(f"{name} encodes texts; half is for images")
    return load_texts_as_saved(folder, name=name, pooling=pooling, device=device)
