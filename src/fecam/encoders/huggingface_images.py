"""Vision models of `transformers`: ViT, DeiT, DINOv2, the vision tower of CLIP, and others."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fecam.data.dataset import fingerprint_of
from fecam.encoders.huggingface import (
    config_for_fingerprint,
    read_config,
    read_json,
    read_model,
)
from fecam.encoders.names import with_options
from fecam.encoders.preprocessing import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    INTERPOLATIONS,
    ImagePreprocessing,
)
from fecam.encoders.torch_runtime import TorchImageEncoder, fingerprint_of_tensors
from fecam.errors import EncoderError

_HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_CHANNEL_STATS = {"vit": _HALVES, "siglip": _HALVES, "clip": _CLIP}
"""Mean and standard deviation if no file has them, by model type; others have ImageNet's."""


def load_images(
    folder: Path, *, name: str, pooling: str | None, half: bool, device: Any
) -> TorchImageEncoder:
    """Return the encoder of images in a folder.

    The default ``pooling`` is the class token ("cls", as in the paper) if there is one, else
    "pooler" or "mean". For CLIP and SigLIP it is "pooler", which adds a layer to the token.
    """
    config, steps = read_config(folder), read_preprocessing(folder)
    tower = getattr(config, "vision_config", config)
    model, has_pooler = read_model(folder)
    model = getattr(model, "vision_model", model).eval()
    output = _probe_outputs(model, steps, folder)
    n_prefix, patch = 0, getattr(tower, "patch_size", None)  # tokens before those of the patches
    if output.last_hidden_state.ndim == 3 and isinstance(patch, int):
        n_prefix = max(0, output.last_hidden_state.shape[1] - (steps.size // patch) ** 2)
    poolings = ["cls"] if n_prefix else []
    if has_pooler and output.get("pooler_output") is not None:
        poolings.append("pooler")
    poolings.append("mean")
    if pooling is None:
        contrastive = tower is not config or config.model_type.endswith("_vision_model")
        pooling = "pooler" if contrastive and "pooler" in poolings else poolings[0]
    if pooling not in poolings:
        raise EncoderError(
            f"{name} ({config.model_type}) has no pooling {pooling!r}: choose "
            f"{' or '.join(poolings)}."
        )
    weights = fingerprint_of_tensors(model.state_dict())
    parts = ["hf", config_for_fingerprint(folder), pooling, weights, steps.fingerprint]
    name, key = with_options(name, {"pooling": pooling}), fingerprint_of(parts)
    network = _Pooled(model, pooling, n_prefix)
    return TorchImageEncoder(network, steps, name=name, fingerprint=key, device=device, half=half)


def read_preprocessing(folder: Path) -> ImagePreprocessing:
    """Return the preprocessing of the model in a folder."""
    config = read_config(folder)
    tower = getattr(config, "vision_config", config)
    settings = read_json(folder / "preprocessor_config.json")
    nested = read_json(folder / "processor_config.json").get("image_processor")
    if not settings and isinstance(nested, dict):
        settings = nested
    return preprocessing_from(settings, config.model_type, getattr(tower, "image_size", 224))


def _probe_outputs(model: Any, steps: ImagePreprocessing, folder: Path) -> Any:
    """Return the model's output for a blank image."""
    try:
        with torch.inference_mode():
            output = model(pixel_values=torch.zeros(1, 3, steps.size, steps.size))
        if output.last_hidden_state is None:
            raise ValueError("it has no last_hidden_state")
        return output
    except Exception as error:  # each model has its own errors
        raise EncoderError(
            f"the model in {folder} rejects an image of {steps.size} x {steps.size} pixels, the "
            f"output of its preprocessing: {error}"
        ) from error


class _Pooled(nn.Module):
    """A model whose output is one vector per image."""

    def __init__(self, model: nn.Module, pooling: str, n_prefix: int) -> None:
        super().__init__()
        self.model, self.pooling, self.n_prefix = model, pooling, n_prefix

    def forward(self, images: Tensor) -> Tensor:
        output = self.model(pixel_values=images)
        if self.pooling == "pooler":
            vector: Tensor = output.pooler_output.flatten(1)
            return vector
        hidden: Tensor = output.last_hidden_state
        if self.pooling == "cls":
            return hidden[:, 0]
        return hidden.mean((2, 3)) if hidden.ndim == 4 else hidden[:, self.n_prefix :].mean(1)


def preprocessing_from(
    settings: Mapping[str, Any], model_type: str, image_size: Any
) -> ImagePreprocessing:
    """Return the preprocessing of a `transformers` image processor with these settings.

    >>> preprocessing_from({"size": {"shortest_edge": 256}, "crop_size": 224, "resample": 3},
    ...                    "dinov2", 518).describe()
    'shorter side to 256 (bicubic), center 224 x 224, (pixel / 255 - (0.485, 0.456, 0.406)) / \
(0.229, 0.224, 0.225)'
    """
    crop = _side(settings.get("crop_size")) if settings.get("do_center_crop", True) else None
    size = settings.get("size", image_size) if settings.get("do_resize", True) else image_size
    # Height and width resize both sides, whatever the proportions; a plain number does so only if
    # no crop follows.
    by_shorter = "shortest_edge" in size if isinstance(size, Mapping) else crop is not None
    resize = _side(size)
    if resize is None:
        raise EncoderError(f"the image processor's size={size!r} is not supported.")
    if by_shorter and (share := settings.get("crop_pct")):
        crop, resize = resize, int(resize / share)
    mean, std = _CHANNEL_STATS.get(model_type.split("_")[0], (IMAGENET_MEAN, IMAGENET_STD))
    normalize = settings.get("do_normalize", True)
    number = settings.get("resample", 3 if model_type != "vit" else 2)
    if number not in range(len(INTERPOLATIONS)):
        raise EncoderError(f"the image processor's resample={number!r} is not one of Pillow's.")
    return ImagePreprocessing(
        size=min(crop or resize, resize),
        resize=resize,
        squash=not by_shorter,
        interpolation=INTERPOLATIONS[number],
        mean=settings.get("image_mean", mean) if normalize else (0.0,) * 3,
        std=settings.get("image_std", std) if normalize else (1.0,) * 3,
        scale=settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale", True) else 1.0,
    )


def _side(size: Any) -> int | None:
    """Return the pixels in a number, ``shortest_edge``, or equal ``height`` and ``width``."""
    if isinstance(size, Mapping):
        sides = {size.get("shortest_edge") or size.get("height"), size.get("width")} - {None}
        if len(sides) > 1:
            raise EncoderError(f"images of {size} are not square; only square ones are supported.")
        return sides.pop() if sides else None
    if isinstance(size, (list, tuple)) and len(set(size)) == 1:
        return int(size[0])
    return size if isinstance(size, int) else None
