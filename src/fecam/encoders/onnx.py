"""`onnx:<file>`: networks in ONNX files, run by onnxruntime without torch; and how to write one.

A file that `export` wrote takes 8-bit pixels (n, 3, size, size) and normalizes them itself; its
metadata holds the preprocessing and the encoder's name. For other files the shape of the input
gives the size, and options give the remaining preprocessing.
"""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from fecam.data.dataset import fingerprint_of
from fecam.encoders.encoder import Encoder, Features, ImageEncoder, first_line
from fecam.encoders.names import with_options
from fecam.encoders.preprocessing import ImagePreprocessing
from fecam.errors import EncoderError
from fecam.files import write_atomically
from fecam.validation import check_keys

if TYPE_CHECKING:
    from fecam.encoders.torch_runtime import TorchImageEncoder

_NAME, _FINGERPRINT, _PREPROCESSING = "fecam.name", "fecam.fingerprint", "fecam.preprocessing"
_TYPES = {"tensor(uint8)": np.uint8, "tensor(float)": np.float32, "tensor(float16)": np.float16}
_PROVIDERS = {
    "cpu": ("CPUExecutionProvider",),
    "cuda": ("CUDAExecutionProvider",),
    "any": ("CUDAExecutionProvider", "CPUExecutionProvider"),
}
_OUTPUT = "features"
"""The name of the output in files that `export` wrote."""


def load_encoder(
    path: str | os.PathLike[str], *, device: Any = None, output: str | None = None, **options: Any
) -> OnnxEncoder:
    """Return the network of an ONNX file.

    ``output`` names the output with the features. Options are fields of `ImagePreprocessing`, by
    default those of the file's metadata, else ImageNet's with the size of the input's shape.
    """
    name = f"onnx:{os.fspath(path)}"
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise EncoderError(f"{name} cannot be read: {error.strerror}. Give a file.") from None
    fields = ImagePreprocessing.__dataclass_fields__
    check_keys(name, options, [*fields, "output", "runtime"], error=EncoderError)
    options = {key: options[key] for key in fields if options.get(key) is not None}
    session = _session(content, name, device)
    steps = _preprocessing(session, name, options)
    name = with_options(name, {**options, "output": output})
    # A hash of the file itself: the fingerprint in its metadata proves nothing.
    key = fingerprint_of(["onnx", content, steps.fingerprint, str(output)])
    return OnnxEncoder(session, steps, name=name, fingerprint=key, output=output)


class OnnxEncoder(ImageEncoder):
    """A network that onnxruntime runs; ``source`` loads the torch encoder that it was made from."""

    def __init__(
        self,
        session: Any,
        steps: ImagePreprocessing,
        *,
        name: str,
        fingerprint: str,
        output: str | None = None,
        source: Callable[[], Encoder] | None = None,
    ) -> None:
        super().__init__(name, steps, fingerprint)
        self.source, self._session = source, session
        self._input = session.get_inputs()[0]
        self._channels_last = _is_channels_last(self._input.shape)
        outputs = {node.name: node.shape for node in session.get_outputs()}
        listed = ", ".join(f"{key} {shape}" for key, shape in outputs.items())[:300]
        remedy = f"Choose with output=... (--encoder-option output=NAME) from {listed}."
        if output not in (None, *outputs):
            raise EncoderError(f"{name} has no output {output!r}. {remedy}")
        self._output = output or (_OUTPUT if _OUTPUT in outputs else next(iter(outputs)))
        if isinstance(fixed := self._input.shape[0], int):
            self.batch_size = fixed
        base = name.partition("?")[0]
        self.n_features = self._dry_run_on_image(
            f"Choose another size, as in {base}?size=224.",
            f"This is the output {self._output!r}. {remedy}",
        )

    def _run(self, prepared: Sequence[Any]) -> Features:
        pixels = np.stack(prepared)
        if isinstance(fixed := self._input.shape[0], int):  # split and pad batches of other sizes
            if len(prepared) > fixed:
                return np.concatenate([self._run(prepared[:fixed]), self._run(prepared[fixed:])])
            pixels = np.concatenate([pixels, np.repeat(pixels[-1:], fixed - len(pixels), axis=0)])
        images: NDArray[Any] = pixels
        if self._input.type != "tensor(uint8)":  # else the network normalizes
            images = self.steps.normalize(pixels).astype(_TYPES[self._input.type], copy=False)
        if self._channels_last:
            images = images.transpose(0, 2, 3, 1)
        feed = {self._input.name: np.ascontiguousarray(images)}
        (output,) = self._session.run([self._output], feed)
        output = output.mean((2, 3)) if output.ndim == 4 else output
        return np.asarray(output[: len(prepared)], np.float32)


def to_faster_runtime(
    encoder: Encoder, *, device: Any = "cpu", keep: Path | None = None
) -> OnnxEncoder:
    """Return the encoder run by onnxruntime, of the same name; features agree to 1e-4 or closer.

    ``keep`` is a file for `load_kept`; it is not written if it cannot be.
    """
    source = _torch_source(encoder)
    name, key = encoder.name, encoder.fingerprint
    content = _traced(source)
    if keep is not None:
        with suppress(OSError, ImportError):
            keep.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(keep, _with_metadata(content, encoder, source.steps))
    session = _session(content, name, device)
    return OnnxEncoder(session, source.steps, name=name, fingerprint=key, source=lambda: source)


def load_kept(path: Path, source: Callable[[], Encoder]) -> OnnxEncoder:
    """Return the encoder of a file that `to_faster_runtime` kept, of the same name.

    ``source`` loads it in torch, should it be exported. The file is trusted like cached features.
    """
    session = _session(path.read_bytes(), str(path), "cpu")
    about = session.get_modelmeta().custom_metadata_map
    name, key = (about.get(field, "") for field in (_NAME, _FINGERPRINT))
    if not name or not key:
        raise EncoderError(f"{path} was not written by this program. Remove it.")
    steps = _preprocessing(session, name, {})
    return OnnxEncoder(session, steps, name=name, fingerprint=key, source=source)


def export(encoder: Encoder, path: str | os.PathLike[str]) -> None:
    """Write an encoder of images as one ONNX file, with its preprocessing in the metadata."""
    source = _torch_source(encoder)
    content = _with_metadata(_traced(source), encoder, source.steps)
    try:
        write_atomically(Path(path), content)
    except OSError as reason:
        raise EncoderError(
            f"{path} was not written: {reason}. Choose a folder that exists and has space."
        ) from None


def _with_metadata(content: bytes, encoder: Encoder, steps: ImagePreprocessing) -> bytes:
    import onnx

    model = onnx.load_from_string(content)
    for key, value in {
        _NAME: encoder.name,
        _FINGERPRINT: encoder.fingerprint,
        _PREPROCESSING: json.dumps(steps.as_dict()),
    }.items():
        model.metadata_props.add(key=key, value=value)
    return bytes(model.SerializeToString())


def _torch_source(encoder: Encoder) -> TorchImageEncoder:
    from fecam.encoders.torch_runtime import TorchImageEncoder

    source: Encoder | None = encoder
    if isinstance(encoder, OnnxEncoder):
        source = None if encoder.source is None else encoder.source()
    if not isinstance(source, TorchImageEncoder):
        raise EncoderError(
            f"{encoder.name!r} cannot be converted to ONNX: choose an encoder of images that runs "
            "in torch, such as efficientnet-lite0 or wrap(module, ...)."
        )
    return source


def _traced(encoder: TorchImageEncoder) -> bytes:
    """Return the bytes of an ONNX file of the network, traced on two images, for any batch size."""
    import torch

    size = encoder.steps.size
    example = torch.zeros(2, 3, size, size, dtype=torch.uint8, device=encoder.device)
    file = io.BytesIO()
    try:
        with torch.inference_mode(), warnings.catch_warnings():
            # The tracing exporter warns that the newer one is the default, and of each branch it
            # fixes. The newer one takes ten times as long, needs another package, and writes paths
            # of the machine into the file.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                encoder.network,
                (example,),
                file,
                dynamo=False,
                input_names=["pixels"],
                output_names=[_OUTPUT],
                dynamic_axes={"pixels": {0: "images"}, _OUTPUT: {0: "images"}},
            )
    except Exception as error:  # any network may fail in any way
        raise EncoderError(
            f"torch cannot write {encoder.name!r} as ONNX: {first_line(error)}."
        ) from error
    return file.getvalue()


def _session(content: bytes, name: str, device: Any) -> Any:
    """Return a session of a network. Bytes, unlike a path, cannot refer to other files."""
    installed = onnxruntime.get_available_providers()
    wanted = _PROVIDERS.get(str(device or "any").partition(":")[0], ())
    providers = [provider for provider in wanted if provider in installed]
    if not providers:
        raise EncoderError(
            f"the device {str(device)!r} cannot be used for {name}: this onnxruntime runs on "
            f"{', '.join(installed)}. Choose device='cpu' (--device cpu), "
            "or pip install onnxruntime-gpu for cuda."
        )
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # errors are raised, not logged
    # The variable that numpy and torch use; 0 is one thread per core.
    threads = os.environ.get("OMP_NUM_THREADS", "")
    settings.intra_op_num_threads = int(threads) if threads.isdecimal() else 0
    try:
        session = onnxruntime.InferenceSession(content, settings, providers=providers)
    except Exception as error:  # a damaged file raises one of many types
        raise EncoderError(
            f"{name} is not an ONNX network that onnxruntime can run: {first_line(error)}."
        ) from None
    inputs = session.get_inputs()
    if len(inputs) != 1 or inputs[0].type not in _TYPES or len(inputs[0].shape) != 4:
        listed = ", ".join(f"{node.name} {node.type} {node.shape}" for node in inputs) or "none"
        raise EncoderError(
            f"{name} has the inputs {listed[:300]}; it must have one input (n, 3, height, width) "
            "of 8-bit or floating-point numbers."
        )
    return session


def _preprocessing(session: Any, name: str, options: Mapping[str, Any]) -> ImagePreprocessing:
    """Return the preprocessing of the metadata or the input's shape, with the user's options."""
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
            raise EncoderError(f"{name} takes images of {sides}; only square ones are supported.")
        values = {"size": sides[0]}
    if "size" in options and "resize" not in options:
        values.pop("resize", None)  # it belongs to the size in the file
    values |= options
    if "size" not in values:
        raise EncoderError(
            f"{name} does not give the size of its images (shape {shape}). Add it, as in "
            f"{name}?size=224."
        )
    return ImagePreprocessing.from_dict(values)


def _is_channels_last(shape: Sequence[Any]) -> bool:
    return bool(shape[1] != 3 and shape[3] == 3)
