"""What a shell suggests while a command is being typed; where nothing can be told, nothing."""

from __future__ import annotations

import os

import typer

from fecam.errors import FecamError


def labels(context: typer.Context, incomplete: str) -> list[str]:
    """The classes of the model that was named before, or that the environment names."""
    path = context.params.get("model") or os.environ.get("FECAM_MODEL")
    if path is None or not os.path.isfile(path):
        return []
    from fecam.model_file import file_info

    try:
        found = [str(one.label) for one in file_info(path).classes]
    except (FecamError, OSError):
        return []
    return _beginning(found, incomplete)


def encoders(incomplete: str) -> list[str]:
    """Encoders by name; of ``onnx:<file>`` what stands before the file."""
    from fecam.encoders import catalogue

    return _beginning([one.name.partition("<")[0] for one in catalogue.available()], incomplete)


def presets(incomplete: str) -> list[str]:
    """Presets by name."""
    from fecam.presets import PRESETS

    return _beginning(list(PRESETS), incomplete)


def datasets(incomplete: str) -> list[str]:
    """Data sets by name; files and folders are the shell's business."""
    from fecam.data import catalogue

    return _beginning([one.name for one in catalogue.available()], incomplete)


def _beginning(names: list[str], incomplete: str) -> list[str]:
    # A line is a suggestion to a shell, so what has a break in it cannot be one.
    return [name for name in names if name.startswith(incomplete) and name.isprintable()]
