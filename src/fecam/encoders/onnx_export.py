"""From a network of torch to the bytes of an ONNX file."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING

import torch

from fecam.errors import EncoderError

if TYPE_CHECKING:
    from fecam.encoders.torch_runtime import TorchImageEncoder


def traced(encoder: TorchImageEncoder) -> bytes:
    """The network, traced on two images; the file takes any number of them."""
    side = encoder.steps.size
    example = torch.zeros(2, 3, side, side, dtype=torch.uint8, device=encoder.device)
    file = io.BytesIO()
    try:
        with torch.inference_mode(), warnings.catch_warnings():
            # The tracing exporter warns that the newer one is the default, and of every decision
            # it keeps. The newer one takes ten times as long, needs another package, and writes
            # the paths of the machine it ran on into the file.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                encoder.network,
                (example,),
                file,
                dynamo=False,
                input_names=["pixels"],
                output_names=["features"],
                dynamic_axes={"pixels": {0: "images"}, "features": {0: "images"}},
            )
    except Exception as error:  # networks of all sorts come here, with errors of all sorts
        raise EncoderError(
            f"torch cannot write {encoder.name!r} as ONNX: {str(error).strip().splitlines()[0]}"
        ) from error
    return file.getvalue()
