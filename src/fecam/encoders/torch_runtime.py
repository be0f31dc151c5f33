"""What the encoders that run in torch share: the device, the way an image takes, the hash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fecam.data.dataset import fingerprint_of
from fecam.encoders.encoder import Encoder, Features
from fecam.errors import EncoderError

if TYPE_CHECKING:  # it needs Pillow, which those who encode texts may not have
    from fecam.encoders.preprocessing import ImagePreprocessing

CPU_BATCH, GPU_BATCH = 16, 128
"""Small on a processor: larger batches are slower there, as activations outgrow its caches."""


def choose_device(device: str | torch.device | None = None) -> torch.device:
    """The device by that name; without one, a GPU where there is one, else the processor.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    mps = torch.backends.mps.is_available()
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if mps else "cpu")
    try:
        # Only using it shows that it is there.
        return torch.zeros(0, device=device).device
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        there = ["cpu", *["cuda"] * torch.cuda.is_available(), *["mps"] * mps]
        raise EncoderError(
            f"the device {str(device)!r} cannot be used here ({str(error).splitlines()[0]}). "
            f"Remedy: one of {', '.join(there)}"
        ) from None


class FromPixels(nn.Module):
    """A network with the normalisation in front of it: 8-bit pixels (n, 3, h, w) to features."""

    def __init__(self, network: nn.Module, preprocessing: ImagePreprocessing) -> None:
        super().__init__()
        self.network = network
        for name, values in zip(("factor", "offset"), preprocessing.affine, strict=True):
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """The features, one row an image."""
        features: Tensor = self.network(pixels.float() * self.factor + self.offset)
        return features


class TorchImageEncoder(Encoder):
    """A network of torch that turns normalised images (n, 3, h, w) into features (n, n_features).

    The network is taken over: it is put into inference mode, moved and laid out for speed.
    ``half`` computes in half precision where a GPU does the work.
    """

    kind = "images"

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
        self.name, self.steps, self.preprocessing = name, steps, steps.describe()
        self.device, self.half = choose_device(device), half
        on_processor = self.device.type == "cpu"
        if half and on_processor:
            raise EncoderError(
                f"half=True for {name!r} needs a GPU: choose a device, or half=False"
            )
        # Half precision shows in the features, so it must show in the key they are kept under.
        self.fingerprint = fingerprint_of([fingerprint, "half"]) if half else fingerprint
        self.batch_size = CPU_BATCH if on_processor else GPU_BATCH
        self.network = FromPixels(network, steps).eval().requires_grad_(False)
        # Channels last is the order that convolutions are fastest in, on processors and GPUs.
        self.network.to(self.device, memory_format=torch.channels_last)
        self.n_features = self._dry_run()

    def _dry_run(self) -> int:
        """How many features come out, found by looking at a grey image."""
        grey = np.full((3, self.steps.size, self.steps.size), 128, np.uint8)
        try:
            shape = tuple(self._run([grey]).shape)
        # Networks of all sorts come here, with errors of all sorts.
        except Exception as error:
            raise EncoderError(
                f"{self.name!r} fails on an image of {self.steps.size} x {self.steps.size} "
                f"pixels: {error}"
            ) from error
        if len(shape) != 2 or shape[0] != 1:
            raise EncoderError(
                f"{self.name!r} gives an array of shape {shape} for one image; it should be "
                "(1, features): pool or flatten what comes out"
            )
        return int(shape[1])

    def prepare(self, item: Any) -> Any:
        """One image, resized and cropped, 8-bit; the network normalises it itself."""
        return self.steps.pixels(item)

    def embed(self, prepared: Sequence[Any]) -> Features:
        """The features of prepared images, one row each."""
        if not len(prepared):
            return np.zeros((0, self.n_features), np.float32)
        return as_features(self._run(prepared))

    def _run(self, prepared: Sequence[Any]) -> Tensor:
        # `pixels` gives views of arrays whose channels are last in memory, so this stacks whole
        # images and the permutation copies nothing.
        stacked = np.stack([one.transpose(1, 2, 0) for one in prepared])
        pixels = torch.from_numpy(stacked).to(self.device).permute(0, 3, 1, 2)
        with torch.inference_mode(), torch.autocast(self.device.type, enabled=self.half):
            features: Tensor = self.network(pixels)
        return features


def as_features(features: Tensor) -> Features:
    """A tensor, wherever it is, as a float32 array."""
    return np.asarray(features.detach().float().cpu().numpy(), np.float32)


def fingerprint_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """A short hash of tensors and their names; their order does not count.

    >>> fingerprint_of_tensors({"a": torch.ones(2)}) == fingerprint_of_tensors({"b": torch.ones(2)})
    False
    """
    parts: list[object] = []
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        # numpy has no bfloat16 and other short types of torch; bytes it has.
        raw = tensor.reshape(-1).view(torch.uint8).numpy()
        parts += [name, str(tensor.dtype), str(tuple(tensor.shape)), raw]
    return fingerprint_of(parts)
