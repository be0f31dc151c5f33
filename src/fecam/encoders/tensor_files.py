"""Safetensors files of named tensors and text, with a checksum over both."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fecam.data.dataset import fingerprint_of
from fecam.encoders.torch_runtime import fingerprint_of_tensors
from fecam.errors import FecamError
from fecam.files import PathLike, write_atomically


def write_tensors(
    path: PathLike,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    form: str,
    error: type[FecamError],
) -> None:
    """Write tensors and text atomically, or raise ``error``; ``form`` names the kind of file."""
    arrays = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {**metadata, "form": form}
    header["checksum"] = _checksum(header, arrays)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(Path(path), save(arrays, header))
    except OSError as reason:
        raise error(
            f"{path} was not written: {reason}. Choose a writable folder that has space."
        ) from None


def read_tensors(
    path: PathLike, form: str, error: type[FecamError]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the text that `write_tensors` wrote, or raise ``error``."""
    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            header = dict(file.metadata() or {})
            if header.get("form") != form:
                raise error(
                    f"{path} has the form {header.get('form')!r}, not {form!r}. Give another file."
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as reason:
        raise error(f"{path} cannot be read: {reason}. Delete it and create it again.") from None
    if header.pop("checksum", None) != _checksum(header, tensors):
        raise error(f"{path} is damaged: its checksum differs. Delete it and create it again.")
    return tensors, header


def layer_difference(
    saved: Mapping[str, Tensor], required: Mapping[str, Tensor], optional: Mapping[str, Tensor]
) -> str | None:
    """Return a description of the first layer that differs in dtype or shape, or None."""
    expected = {**required, **optional}
    for name in (*required, *(saved.keys() - required.keys())):
        theirs, ours = (
            f"{str(tensors[name].dtype).removeprefix('torch.')} {tuple(tensors[name].shape)}"
            if name in tensors
            else "none"
            for tensors in (saved, expected)
        )
        if theirs != ours:
            return f"the layer {name} ({theirs} in the file, {ours} expected)"
    return None


def _checksum(header: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    return fingerprint_of([json.dumps(header, sort_keys=True), fingerprint_of_tensors(tensors)])
