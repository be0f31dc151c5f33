"""The parts that all torch encoders share: device, pixel input, fused layers, tensor hashes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fecam.data.dataset import fingerprint_of
from fecam.encoders.encoder import Features, ImageEncoder, first_line
from fecam.errors import EncoderError

if TYPE_CHECKING:
    from fecam.encoders.preprocessing import ImagePreprocessing

CPU_BATCH, GPU_BATCH = 16, 128
"""Images per batch. Larger batches are slower on a CPU: activations no longer fit its caches."""


def choose_device(device: str | torch.device | None = None) -> torch.device:
    """Return the device of that name; by default a GPU if there is one, else the CPU."""
    mps = torch.backends.mps.is_available()
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if mps else "cpu")
    try:
        return torch.zeros(0, device=device).device  # fails if the device is missing
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        usable = ["cpu", *["cuda"] * torch.cuda.is_available(), *["mps"] * mps]
        raise EncoderError(
            f"device={str(device)!r} (--device {device}) cannot be used ({first_line(error)}). "
            f"Choose from {', '.join(usable)}."
        ) from None


class FromPixels(nn.Module):
    """A network behind a normalization layer: 8-bit pixels (n, 3, h, w) to features."""

    def __init__(self, network: nn.Module, preprocessing: ImagePreprocessing) -> None:
        super().__init__()
        self.network = network
        for name, values in zip(("factor", "offset"), preprocessing.affine, strict=True):
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the features, one row per image."""
        features: Tensor = self.network(pixels.float() * self.factor + self.offset)
        return features


class TorchImageEncoder(ImageEncoder):
    """A torch network that maps normalized images (n, 3, h, w) to features (n, n_features).

    The network itself is set to inference mode and moved to the device in channels-last layout.
    ``half`` computes in half precision, which needs a GPU.
    """

    def __init__(
        self,
        network: nn.Module,
        steps: ImagePreprocessing,
        *,
        name: str,
        fingerprint: str,
        device: str | torch.device | None = None,
        half: bool = False,
    ) -> None:
        self.device, self.half = choose_device(device), half
        on_cpu = self.device.type == "cpu"
        if half and on_cpu:
            raise EncoderError(
                f"half=True for {name!r} needs a GPU: choose another device, or half=False "
                "(--encoder-option half=false)."
            )
        if half:  # it changes the features, and so the key of their cache
            fingerprint = fingerprint_of([fingerprint, "half"])
        super().__init__(name, steps, fingerprint)
        self.batch_size = CPU_BATCH if on_cpu else GPU_BATCH
        self.network = FromPixels(network, steps).eval().requires_grad_(False)
        self.network.to(self.device, memory_format=torch.channels_last)  # fastest for convolutions
        self.n_features = self._dry_run_on_image(
            "Choose another size.", "Pool or flatten the output."
        )

    def _run(self, prepared: Sequence[Any]) -> Features:
        # Prepared pixels are channels-last in memory: this stacks whole images without a copy each.
        stacked = np.stack([pixels.transpose(1, 2, 0) for pixels in prepared])
        images = torch.from_numpy(stacked).to(self.device).permute(0, 3, 1, 2)
        with torch.inference_mode(), torch.autocast(self.device.type, enabled=self.half):
            return as_features(self.network(images))


def as_features(features: Tensor) -> Features:
    """Return a tensor of any device as a float32 array."""
    return np.asarray(features.detach().float().cpu().numpy(), np.float32)


def fuse_batchnorm(
    network: nn.Module,
    pairs: Sequence[tuple[str, str]] = (("conv1", "bn1"), ("conv2", "bn2"), ("0", "1")),
) -> nn.Module:
    """Fuse batch normalizations into their convolutions in place; ``pairs`` are attribute names."""
    network.eval()
    for module in network.modules():
        for conv, norm in pairs:
            layers = dict(module.named_children())
            if conv in layers and isinstance(layers.get(norm), nn.BatchNorm2d):
                setattr(module, conv, fuse_conv_bn_eval(layers[conv], layers[norm]))
                setattr(module, norm, nn.Identity())
    return network


def fingerprint_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return a short hash of named tensors, independent of their order."""
    parts: list[object] = []
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        raw = tensor.reshape(-1).view(torch.uint8).numpy()  # numpy has no bfloat16
        parts += [name, str(tensor.dtype), str(tuple(tensor.shape)), raw]
    return fingerprint_of(parts)
