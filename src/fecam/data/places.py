"""Where data sets and caches live on this computer.

Nothing is created or looked at until it is needed: `data_folder` and `cache_folder` only name a
place, `writable` makes sure of it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Literal

from fecam.errors import SettingsError

Purpose = Literal["data", "cache"]

_VARIABLES: dict[Purpose, str] = {"data": "FECAM_DATA", "cache": "FECAM_CACHE"}
_XDG: dict[Purpose, tuple[str, str]] = {
    "data": ("XDG_DATA_HOME", ".local/share"),
    "cache": ("XDG_CACHE_HOME", ".cache"),
}
_MACOS: dict[Purpose, str] = {"data": "Application Support", "cache": "Caches"}


def data_folder() -> Path:
    """The folder of downloaded data sets: ``$FECAM_DATA``, or the system's usual place.

    Without the variable: ``~/.local/share/fecam`` (XDG), ``~/Library/Application Support/fecam``
    on macOS, ``%LOCALAPPDATA%\\fecam\\data`` on Windows.
    """
    return _folder("data")


def cache_folder() -> Path:
    """The folder of what can be computed again: ``$FECAM_CACHE``, or the system's usual place.

    Without the variable: ``~/.cache/fecam`` (XDG), ``~/Library/Caches/fecam`` on macOS,
    ``%LOCALAPPDATA%\\fecam\\cache`` on Windows.
    """
    return _folder("cache")


def writable(folder: Path) -> Path:
    """Create the folder where there is none; an error says so if nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Only writing shows it: a read-only disk has the same permission bits as any other.
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise SettingsError(
            f"nothing can be written to {folder} ({error.strerror or error}). Remedy: choose "
            "another folder with the environment variable FECAM_DATA (data sets) or FECAM_CACHE "
            "(caches)"
        ) from error


def _folder(purpose: Purpose) -> Path:
    variable = _VARIABLES[purpose]
    try:
        if chosen := os.environ.get(variable):
            return Path(chosen).expanduser().absolute()
        return Path(usual_place(purpose, sys.platform, os.environ, Path.home()))
    except RuntimeError as error:  # no home: an unknown user, as in some containers
        raise SettingsError(
            f"the home folder cannot be found ({error}). Remedy: set the environment variable "
            f"{variable} to an absolute path"
        ) from error


def usual_place(
    purpose: Purpose, platform: str, environment: Mapping[str, str], home: PurePath
) -> PurePath:
    """Where a system keeps such files, if the user said nothing.

    >>> from pathlib import PurePosixPath
    >>> usual_place("cache", "linux", {"XDG_CACHE_HOME": "/big"}, PurePosixPath("/home/ada"))
    PurePosixPath('/big/fecam')
    """
    if platform == "darwin":
        return home / "Library" / _MACOS[purpose] / "fecam"
    if platform == "win32":
        local = environment.get("LOCALAPPDATA")
        return (type(home)(local) if local else home / "AppData" / "Local") / "fecam" / purpose
    variable, below_home = _XDG[purpose]
    base = type(home)(environment.get(variable, ""))
    # The XDG rules: a relative value is invalid and to be ignored.
    return (base if base.is_absolute() else home / below_home) / "fecam"
