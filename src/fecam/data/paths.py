"""Folders of data sets and caches. Naming a folder does not create it."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from platformdirs import user_cache_path, user_data_path

from fecam.errors import SettingsError


def data_folder() -> Path:
    """Return the folder of downloaded data sets: ``$FECAM_DATA`` or the platform's data folder."""
    return _folder("FECAM_DATA", user_data_path)


def cache_folder() -> Path:
    """Return the folder of caches: ``$FECAM_CACHE`` or the platform's cache folder."""
    return _folder("FECAM_CACHE", user_cache_path)


def ensure_writable(folder: Path) -> Path:
    """Create the folder if it is missing; raise if no file can be written to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Permission bits do not show a read-only file system, so write a file.
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise SettingsError(
            f"the folder {folder} is not writable ({error.strerror or error}). Remedy: choose "
            "another folder with the environment variable FECAM_DATA (data sets) or FECAM_CACHE "
            "(caches)."
        ) from error


def _folder(variable: str, default: Callable[..., Path]) -> Path:
    try:
        path = Path(os.environ.get(variable) or default("fecam", appauthor=False))
        return path.expanduser().absolute()
    except RuntimeError as error:  # no home folder, as for unknown users in containers
        raise SettingsError(
            f"the home folder is unknown ({error}). Remedy: set the environment variable "
            f"{variable} to an absolute path."
        ) from error
