"""`onnx:<file>`: networks in ONNX files, run by onnxruntime without torch; and how to write one.

A file of ours takes 8-bit pixels (n, 3, size, size) and normalises them itself; how the pixels come
about, and who the encoder is, stands in its metadata. Of other files we know what their input's
shape tells; the rest are options.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from fecam.data.dataset import fingerprint_of
from fecam.encoders.encoder import Encoder, Features
from fecam.encoders.names import with_options
from fecam.encoders.preprocessing import ImagePreprocessing
from fecam.errors import EncoderError

if TYPE_CHECKING:
    from fecam.encoders.torch_runtime import TorchImageEncoder

_PREPROCESSING = "fecam.preprocessing"
_TYPES = {"tensor(uint8)": np.uint8, "tensor(float)": np.float32, "tensor(float16)": np.float16}
_PROVIDERS = {
    "cpu": ("CPUExecutionProvider",),
    "cuda": ("CUDAExecutionProvider",),
    "any": ("CUDAExecutionProvider", "CPUExecutionProvider"),
}
_OURS = "features"
"""What the output is called in files of ours."""


def load_encoder(
    path: str | os.PathLike[str],
    *,
    device: Any = None,
    size: int | None = None,
    resize: int | None = None,
    squash: bool | None = None,
    interpolation: str | None = None,
    mean: Any = None,
    std: Any = None,
    scale: float | None = None,
    output: str | None = None,
) -> OnnxEncoder:
    """The network in an ONNX file.

    The options say what the file does not: the preprocessing (else ImageNet's usual numbers, and
    the size that the input's shape tells), and which ``output`` holds the features.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise EncoderError(f"onnx:{path} cannot be read: {error.strerror}. Give a file") from None
    given = {
        "size": size,
        "resize": resize,
        "squash": squash,
        "interpolation": interpolation,
        "mean": mean,
        "std": std,
        "scale": scale,
    }
    session = _session(content, f"onnx:{path}", device)
    chosen = {key: value for key, value in given.items() if value is not None}
    steps = _preprocessing(session, f"onnx:{path}", chosen)
    return OnnxEncoder(
        session,
        steps,
        name=with_options(f"onnx:{os.fspath(path)}", {**chosen, "output": output}),
        # Of the file itself: what it says about where it came from is not proof of anything.
        fingerprint=fingerprint_of(["onnx", content, steps.fingerprint, str(output)]),
        output=output,
    )


class OnnxEncoder(Encoder):
    """A network that onnxruntime runs; ``source`` is the one of torch that it was made from."""

    kind = "images"
    batch_size = 16

    def __init__(
        self,
        session: Any,
        steps: ImagePreprocessing,
        *,
        name: str,
        fingerprint: str,
        output: str | None = None,
        source: TorchImageEncoder | None = None,
    ) -> None:
        self.name, self.fingerprint = name, fingerprint
        self.source = source
        self.steps, self.preprocessing = steps, steps.describe()
        self._session = session
        self._input = session.get_inputs()[0]
        self._channels_last = _is_channels_last(self._input.shape)
        self._output = _chosen_output(session, output, name)
        if isinstance(fixed := self._input.shape[0], int):
            self.batch_size = fixed
        self.n_features = self._dry_run()

    def prepare(self, item: Any) -> Any:
        """One image, resized and cropped, 8-bit."""
        return self.steps.pixels(item)

    def embed(self, prepared: Sequence[Any]) -> Features:
        """The features of prepared images, one row each."""
        if not len(prepared):
            return np.zeros((0, self.n_features), np.float32)
        fixed = self._input.shape[0]
        step = fixed if isinstance(fixed, int) else len(prepared)
        parts = [self._run(prepared[at : at + step]) for at in range(0, len(prepared), step)]
        return np.concatenate(parts)

    def _run(self, prepared: Sequence[Any]) -> Features:
        pixels = np.stack(prepared)
        # A file for batches of one length only gets the last one filled up.
        if isinstance(fixed := self._input.shape[0], int) and len(pixels) < fixed:
            pixels = np.concatenate([pixels, np.repeat(pixels[-1:], fixed - len(pixels), axis=0)])
        shown: NDArray[Any] = pixels
        if self._input.type != "tensor(uint8)":  # else the network normalises itself
            shown = self.steps.normalised(pixels).astype(_TYPES[self._input.type], copy=False)
        if self._channels_last:
            shown = shown.transpose(0, 2, 3, 1)
        feed = {self._input.name: np.ascontiguousarray(shown)}
        (found,) = self._session.run([self._output], feed)
        found = found.mean((2, 3)) if found.ndim == 4 else found
        return np.asarray(found[: len(prepared)], np.float32)

    def _dry_run(self) -> int:
        """How many features come out, found by looking at a grey image."""
        grey = np.full((3, self.steps.size, self.steps.size), 128, np.uint8)
        try:
            shape = self._run([grey]).shape
        except Exception as error:  # onnxruntime has a type of its own for every mishap
            raise EncoderError(
                f"{self.name} fails on an image of {self.steps.size} x {self.steps.size} pixels: "
                f"{_first_line(error)}. Remedy: another size, as in "
                f"{self.name.partition('?')[0]}?size=224"
            ) from None
        if len(shape) != 2 or shape[0] != 1:
            raise EncoderError(
                f"the output {self._output!r} of {self.name} has the shape {shape} for one image; "
                "it should be (1, features) or maps (1, channels, height, width). "
                + _outputs(self._session)
            )
        return int(shape[1])


def to_faster_runtime(encoder: Encoder, *, device: Any = "cpu") -> OnnxEncoder:
    """The same encoder, its network run by onnxruntime: the same features to 1e-4, or closer.

    It keeps its name and fingerprint, as it does on another device.
    """
    checked = _of_torch(encoder)
    return OnnxEncoder(
        _session(_graph(checked), encoder.name, device),
        checked.steps,
        name=encoder.name,
        fingerprint=encoder.fingerprint,
        source=checked,
    )


def export(encoder: Encoder, path: str | os.PathLike[str]) -> None:
    """Write an encoder of images as one ONNX file, with its preprocessing in the metadata."""
    import onnx

    checked = _of_torch(encoder)
    model = onnx.load_from_string(_graph(checked))
    for key, value in {
        "fecam.name": encoder.name,
        "fecam.fingerprint": encoder.fingerprint,
        _PREPROCESSING: json.dumps(checked.steps.as_dict()),
    }.items():
        model.metadata_props.add(key=key, value=value)
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        # A reader must never meet half a file.
        unfinished.write_bytes(model.SerializeToString())
        os.replace(unfinished, path)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise EncoderError(f"{path} was not written: {error.strerror}") from None


def _of_torch(encoder: Encoder) -> TorchImageEncoder:
    from fecam.encoders.torch_runtime import TorchImageEncoder

    if isinstance(encoder, OnnxEncoder) and encoder.source is not None:
        return encoder.source
    if not isinstance(encoder, TorchImageEncoder):
        raise EncoderError(
            f"{encoder.name!r} cannot be turned into ONNX: only encoders of images that run in "
            "torch can, such as efficientnet-lite0, or wrap(module, ...)"
        )
    return encoder


def _graph(encoder: TorchImageEncoder) -> bytes:
    """The network as the bytes of an ONNX file; any number of images at a time."""
    from fecam.encoders.onnx_export import traced

    return traced(encoder)


def _session(content: bytes, name: str, device: Any) -> Any:
    """Read a network. From bytes, so that a file cannot name others to be read along with it."""
    offered = onnxruntime.get_available_providers()
    place = str(device or "any").partition(":")[0]
    providers = [one for one in _PROVIDERS.get(place, ()) if one in offered]
    if not providers:
        raise EncoderError(
            f"the device {str(device)!r} cannot be used for {name}: this onnxruntime runs on "
            f"{', '.join(offered)}. Remedy: device='cpu', or pip install onnxruntime-gpu for cuda"
        )
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # what matters is raised
    # The variable that numpy and torch go by; 0 is one thread a core.
    threads = os.environ.get("OMP_NUM_THREADS", "")
    settings.intra_op_num_threads = int(threads) if threads.isdecimal() else 0
    try:
        session = onnxruntime.InferenceSession(content, settings, providers=providers)
    except Exception as error:  # a hostile file can be wrong in any way; each has a type
        raise EncoderError(
            f"{name} is not an ONNX network that onnxruntime can run: {_first_line(error)}"
        ) from None
    inputs = session.get_inputs()
    if len(inputs) != 1 or inputs[0].type not in _TYPES or len(inputs[0].shape) != 4:
        found = ", ".join(f"{one.name} {one.type} {one.shape}" for one in inputs) or "none"
        raise EncoderError(
            f"{name} takes {found[:300]}; it should take images only: one input (n, 3, height, "
            "width) of 8-bit or floating-point numbers"
        )
    return session


def _preprocessing(session: Any, name: str, chosen: Mapping[str, Any]) -> ImagePreprocessing:
    """Of the file's metadata, its input's shape, and what the user says; the last one wins."""
    shape = session.get_inputs()[0].shape
    sides = shape[1:3] if _is_channels_last(shape) else shape[2:]
    values: dict[str, Any] = {}
    if saved := session.get_modelmeta().custom_metadata_map.get(_PREPROCESSING):
        try:
            values = ImagePreprocessing.from_dict(json.loads(saved)).as_dict()
        except (ValueError, RecursionError) as error:
            raise EncoderError(f"the preprocessing in {name} is damaged: {error}") from None
    elif all(isinstance(side, int) for side in sides):
        if sides[0] != sides[1]:
            raise EncoderError(f"{name} takes images of {sides}; only square ones are supported")
        values = {"size": sides[0]}
    if "size" in chosen and "resize" not in chosen:
        values.pop("resize", None)  # it belonged to the other size
    values |= chosen
    if "size" not in values:
        raise EncoderError(
            f"{name} does not say how large its images are (shape {shape}). Remedy: say it, as in "
            f"{name}?size=224"
        )
    return ImagePreprocessing.from_dict(values)


def _is_channels_last(shape: Sequence[Any]) -> bool:
    return bool(shape[1] != 3 and shape[3] == 3)


def _chosen_output(session: Any, output: str | None, name: str) -> str:
    names = [one.name for one in session.get_outputs()]
    if output is None:
        return _OURS if _OURS in names else names[0]
    if output not in names:
        raise EncoderError(f"{name} has no output {output!r}. {_outputs(session)}")
    return output


def _outputs(session: Any) -> str:
    there = ", ".join(f"{one.name} {one.shape}" for one in session.get_outputs())
    return f"Remedy: choose with output=..., there are {there[:300]}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
