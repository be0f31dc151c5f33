"""Vision models of `transformers`: ViT, DeiT, DINOv2, the vision tower of CLIP, and the like."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fecam.data.dataset import fingerprint_of
from fecam.encoders.huggingface_folder import (
    essence_of_config,
    read_config,
    read_model,
    settings_of_processor,
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
# Mean and deviation where no file says them; all others are as ImageNet's.
_COLOURS = {"vit": _HALVES, "siglip": _HALVES, "clip": _CLIP}


def load_images(
    folder: Path, *, name: str, pooling: str | None, half: bool, device: Any
) -> TorchImageEncoder:
    """An encoder of images out of a folder.

    Without a ``pooling`` it is the class token ("cls", as in the paper) where there is one; for
    CLIP and SigLIP "pooler", as theirs is behind one more layer; else "pooler" or "mean".
    """
    config = read_config(folder)
    tower = getattr(config, "vision_config", config)
    steps = preprocessing_from(
        settings_of_processor(folder), config.model_type, getattr(tower, "image_size", 224)
    )
    model, has_pooler = read_model(folder)
    model = getattr(model, "vision_model", model).eval()
    found = _probe_outputs(model, steps, folder)
    possible = _poolings(found, tower, steps.size, has_pooler)
    if pooling is None:
        contrastive = tower is not config or config.model_type.endswith("_vision_model")
        pooling = possible[0] if not contrastive or "pooler" not in possible else "pooler"
    if pooling not in possible:
        raise EncoderError(
            f"{name} ({config.model_type}) has no pooling {pooling!r}: choose "
            f"{' or '.join(possible)}"
        )
    pooled = _Pooled(model, pooling, _tokens_in_front(found, tower, steps.size))
    weights = fingerprint_of_tensors(model.state_dict())
    about = ["hf", essence_of_config(folder), pooling, weights, steps.fingerprint]
    return TorchImageEncoder(
        pooled,
        steps,
        name=with_options(name, {"pooling": pooling}),
        fingerprint=fingerprint_of(about),
        device=device,
        half=half,
    )


def _probe_outputs(model: Any, steps: ImagePreprocessing, folder: Path) -> Any:
    """What the model makes of a blank image."""
    try:
        with torch.inference_mode():
            found = model(pixel_values=torch.zeros(1, 3, steps.size, steps.size))
        return found if found.last_hidden_state is not None else None
    except Exception as error:  # models refuse sizes in ways of their own
        raise EncoderError(
            f"the model in {folder} refuses an image of {steps.size} x {steps.size} pixels, which "
            f"is what its preprocessing makes: {error}"
        ) from error


def _poolings(found: Any, tower: Any, size: int, has_pooler: bool) -> list[str]:
    """What this model offers, the best first."""
    cls = ["cls"] if _tokens_in_front(found, tower, size) else []
    pooler = ["pooler"] if has_pooler and found.get("pooler_output") is not None else []
    return [*cls, *pooler, "mean"]


def _tokens_in_front(found: Any, tower: Any, size: int) -> int:
    """How many tokens come before those of the patches: of the class, of distillation, registers.

    None where the output is a map, or has been merged so that patches cannot be counted.
    """
    patch = getattr(tower, "patch_size", None)
    if found.last_hidden_state.ndim != 3 or not isinstance(patch, int):
        return 0
    return int(max(0, found.last_hidden_state.shape[1] - (size // patch) ** 2))


class _Pooled(nn.Module):
    """A model with one vector at its end."""

    def __init__(self, model: nn.Module, pooling: str, in_front: int) -> None:
        super().__init__()
        self.model, self.pooling, self.in_front = model, pooling, in_front

    def forward(self, images: Tensor) -> Tensor:
        found = self.model(pixel_values=images)
        if self.pooling == "pooler":
            vector: Tensor = found.pooler_output.flatten(1)
            return vector
        hidden: Tensor = found.last_hidden_state
        if self.pooling == "cls":
            return hidden[:, 0]
        return hidden.mean((2, 3)) if hidden.ndim == 4 else hidden[:, self.in_front :].mean(1)


def preprocessing_from(
    settings: Mapping[str, Any], model_type: str, image_size: Any
) -> ImagePreprocessing:
    """Read the settings of an image processor of `transformers`.

    >>> preprocessing_from({"size": {"shortest_edge": 256}, "crop_size": 224, "resample": 3},
    ...                    "dinov2", 518).describe()
    'shorter side to 256 (bicubic), centre 224 x 224, (pixel / 255 - (0.485, 0.456, 0.406)) / \
(0.229, 0.224, 0.225)'
    """
    crop = _side(settings.get("crop_size")) if settings.get("do_center_crop", True) else None
    size = settings.get("size", image_size) if settings.get("do_resize", True) else image_size
    # Both sides are named where both are brought to that length, whatever the proportions; a bare
    # number means so only where nothing is cut off afterwards.
    by_shorter = "shortest_edge" in size if isinstance(size, Mapping) else crop is not None
    resize = _side(size)
    if resize is None:
        raise EncoderError(f"the image processor's size {size!r} is none we know")
    if by_shorter and (share := settings.get("crop_pct")):
        crop, resize = resize, int(resize / share)
    mean, std = _COLOURS.get(model_type.split("_")[0], (IMAGENET_MEAN, IMAGENET_STD))
    normalise = settings.get("do_normalize", True)
    number = settings.get("resample", 3 if model_type != "vit" else 2)
    if number not in range(len(INTERPOLATIONS)):
        raise EncoderError(f"the image processor's resample={number!r} is none of Pillow's")
    return ImagePreprocessing(
        size=min(crop or resize, resize),
        resize=resize,
        squash=not by_shorter,
        interpolation=INTERPOLATIONS[number],
        mean=settings.get("image_mean", mean) if normalise else (0.0,) * 3,
        std=settings.get("image_std", std) if normalise else (1.0,) * 3,
        scale=settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale", True) else 1.0,
    )


def _side(size: Any) -> int | None:
    """A side in pixels, of a number, of ``shortest_edge``, or of equal ``height`` and ``width``."""
    if isinstance(size, Mapping):
        sides = {size.get("shortest_edge") or size.get("height"), size.get("width")} - {None}
        if len(sides) > 1:
            raise EncoderError(f"images of {size} are not square; only square ones are supported")
        return sides.pop() if sides else None
    if isinstance(size, (list, tuple)) and len(set(size)) == 1:
        return int(size[0])
    return size if isinstance(size, int) else None
