"""Shell completion of labels, encoders, presets and data sets."""

import os

import typer

from fecam.errors import FecamError


def labels(context: typer.Context, incomplete: str) -> list[str]:
    """Return labels of the model given by `--model` or `FECAM_MODEL`."""
    path = context.params.get("model") or os.environ.get("FECAM_MODEL")
    if path is None or not os.path.isfile(path):
        return []
    from fecam.model_file.integrity import file_info

    try:
        names = [str(record.label) for record in file_info(path).classes]
    except (FecamError, OSError):
        return []
    return _matching(names, incomplete)


def encoders(incomplete: str) -> list[str]:
    """Return names of encoders; of ``onnx:<file>`` only the part before the file."""
    from fecam.encoders import catalogue

    return _matching([entry.name.partition("<")[0] for entry in catalogue.available()], incomplete)


def presets(incomplete: str) -> list[str]:
    """Return names of presets."""
    from fecam.presets import PRESETS

    return _matching(list(PRESETS), incomplete)


def datasets(incomplete: str) -> list[str]:
    """Return names of data sets; the shell itself completes files and folders."""
    from fecam.data import catalogue

    return _matching([entry.name for entry in catalogue.available()], incomplete)


def _matching(names: list[str], incomplete: str) -> list[str]:
    # The shell reads one suggestion per line, so a name with a line break cannot be one.
    return [name for name in names if name.startswith(incomplete) and name.isprintable()]
