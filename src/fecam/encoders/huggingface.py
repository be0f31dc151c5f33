"""`hf:<model id or folder>`: `transformers` models of images or texts."""

from __future__ import annotations

from typing import Any

from fecam.encoders.encoder import Encoder
from fecam.encoders.huggingface_folder import find_folder, is_for_images, read_config
from fecam.errors import EncoderError
from fecam.validation import check_choice


def load_encoder(
    source: str,
    *,
    device: Any = None,
    pooling: str | None = None,
    revision: str | None = None,
    half: bool = False,
) -> Encoder:
    """Return a `transformers` model from a folder, the hub's cache or the hub.

    ``pooling`` is "cls" (the first token), "mean" (over the tokens of the patches or the text) or
    "pooler" (the model's pooling layer); the default depends on the architecture. ``revision`` is a
    branch or commit on the hub.
    """
    name = f"hf:{source}"
    check_choice("pooling", pooling, (None, "cls", "mean", "pooler"), error=EncoderError)
    folder = find_folder(source, revision)
    if is_for_images(read_config(folder)):
        # Imported here because it needs Pillow, which encoders of texts do not.
        from fecam.encoders.huggingface_images import load_images

        return load_images(folder, name=name, pooling=pooling, half=half, device=device)
    from fecam.encoders.huggingface_texts import load_texts_as_saved

    if half:
        raise EncoderError(f"half=True for {name}, which encodes texts: half is for images.")
    return load_texts_as_saved(folder, name=name, pooling=pooling, device=device)
