"""ONNX files of encoders that torch has traced, kept in the cache folder.

Loading torch and tracing a network take three seconds of processor time. With the file of an
earlier run onnxruntime alone loads the encoder in half a second. A file is found by a hash of the
weights, the encoder's name and options, and the modules of this folder, which make the layers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fecam.data.dataset import fingerprint_of
from fecam.data.paths import cache_folder
from fecam.errors import FecamError

_GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Devices of NVIDIA and AMD on Linux, and of either under Windows."""


def runs_on_cpu(device: Any) -> bool:
    """Return whether an encoder will run on a CPU, without asking torch; False if in doubt."""
    if device is not None:
        return str(device) == "cpu"
    return sys.platform != "darwin" and not any(map(os.path.exists, _GPU_FILES))


def path_of(name: str, weights_package: str, options: Mapping[str, Any]) -> Path | None:
    """Return the path of the file of an encoder; None without weights or a folder for it."""
    spec = find_spec(weights_package)
    folders = None if spec is None else spec.submodule_search_locations
    weights = sorted(Path(folders[0]).rglob("*.pth")) if folders else []
    if not weights:
        return None
    with suppress(OSError, FecamError):
        modules = sorted(Path(__file__).parent.glob("*.py"))
        content = [path.read_bytes() for path in (*modules, *weights)]
        key = fingerprint_of([name, sorted(options.items()), *content])
        return cache_folder() / "networks" / f"{key}.onnx"
    return None
