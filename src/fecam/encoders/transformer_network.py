"""A vision transformer of `transformers` as a network that can be trained."""

import os

from torch import Tensor, nn
from transformers import ViTModel

from fecam.encoders.encoder import first_line
from fecam.errors import EncoderError
from fecam.files import PathLike


class TransformerNetwork(nn.Module):
    """Images (n, 3, h, w) to the output of the class token of a ``ViTModel``."""

    def __init__(self, vit: nn.Module) -> None:
        super().__init__()
        self.vit, self.n_features = vit, vit.config.hidden_size

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, one row per image."""
        features: Tensor = self.vit(pixel_values=images.contiguous()).last_hidden_state[:, 0]
        return features


def load_transformer(folder: PathLike) -> TransformerNetwork:
    """Return the transformer of a folder with ``config.json`` and safetensors weights."""
    try:
        vit = ViTModel.from_pretrained(
            os.fspath(folder),
            add_pooling_layer=False,
            use_safetensors=True,
            local_files_only=True,
            attn_implementation="eager",  # others have no gradients per image, which EWC needs
        )
    except (OSError, ValueError, KeyError) as error:
        raise EncoderError(
            f"{os.fspath(folder)} does not hold a vision transformer: {first_line(error)}. Save "
            "one with ViTModel.save_pretrained, or name another folder."
        ) from None
    return TransformerNetwork(vit)
