"""A ResNet-18 of `transformers` as a network that can be trained."""

import os
import re

from transformers import ResNetConfig, ResNetModel

from fecam.encoders.encoder import first_line
from fecam.encoders.resnet import ResNet18
from fecam.errors import EncoderError
from fecam.files import PathLike

_NAMES = (
    (r"embedder\.embedder\.convolution\.", "conv1."),
    (r"embedder\.embedder\.normalization\.", "bn1."),
    (r"encoder\.stages\.(\d+)\.layers\.", lambda match: f"layer{int(match[1]) + 1}."),
    (r"layer\.0\.convolution\.", "conv1."),
    (r"layer\.0\.normalization\.", "bn1."),
    (r"layer\.1\.convolution\.", "conv2."),
    (r"layer\.1\.normalization\.", "bn2."),
    (r"shortcut\.convolution\.", "downsample.0."),
    (r"shortcut\.normalization\.", "downsample.1."),
)
"""Patterns of the names of layers there, and what they are here."""


def load_resnet(folder: PathLike) -> ResNet18:
    """Return the ResNet-18 of a folder with ``config.json`` and safetensors weights."""
    try:
        theirs = ResNetModel.from_pretrained(
            os.fspath(folder), use_safetensors=True, local_files_only=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise EncoderError(
            f"{os.fspath(folder)} does not hold a ResNet: {first_line(error)}. Save one with "
            "ResNetModel.save_pretrained, or name another folder."
        ) from None
    config = theirs.config
    if not _is_resnet18(config):
        raise EncoderError(
            f"{os.fspath(folder)} holds a ResNet with depths={list(config.depths)} and "
            f"{config.layer_type} layers, not a ResNet-18. Name a folder or a model with one, as "
            "hf:microsoft/resnet-18."
        )
    network = ResNet18(config.embedding_size, "large")
    weights = {_rename(name): tensor for name, tensor in theirs.state_dict().items()}
    network.load_state_dict(weights)
    return network


def _is_resnet18(config: ResNetConfig) -> bool:
    widths = [config.embedding_size * factor for factor in (1, 2, 4, 8)]
    same = list(config.depths) == [2] * 4 and list(config.hidden_sizes) == widths
    plain = config.layer_type == "basic" and not config.downsample_in_first_stage
    return same and plain and config.num_channels == 3 and config.hidden_act == "relu"


def _rename(name: str) -> str:
    for pattern, replacement in _NAMES:
        name = re.sub(pattern, replacement, name)
    return name
