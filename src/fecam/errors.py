"""Exceptions. Each is a ``ValueError``, which scikit-learn expects.

Messages name the thing, its value and the remedy. A failed call leaves a model unchanged.
"""

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class FecamError(ValueError):
    """Base class of all errors of this package."""


class InputError(FecamError):
    """The input data are invalid."""


class SettingsError(FecamError):
    """A parameter has an invalid value, or can no longer be changed."""


class UnknownLabelError(FecamError):
    """A label that the model has not learned."""


class SingularMatrixError(FecamError):
    """The covariance matrix of a class is not positive definite."""


class ModelFileError(FecamError):
    """A model file is missing, damaged, hostile, or of another kind or version."""


class UndoError(ModelFileError):
    """No step of the history can be undone."""


class ItemError(FecamError):
    """One image, text or row of a data set cannot be read."""

    def __init__(self, item: object, reason: str) -> None:
        super().__init__(f"{item}: {reason}")
        self.item, self.reason = str(item), reason


class DatasetError(FecamError):
    """A data set is missing, incomplete or damaged."""


class EncoderError(FecamError):
    """An encoder cannot be loaded or used: unknown name, missing or incompatible weights."""


class UnknownEncoderError(EncoderError):
    """There is no encoder of this name."""


class TrainingError(FecamError):
    """A network cannot be trained with these settings, or a checkpoint does not fit."""


class SpecError(FecamError):
    """An experiment is invalid, or its folder holds another one."""


class RunError(FecamError):
    """The folder of a run is missing, damaged, or written by another program."""


class ServiceError(FecamError):
    """A service rejects a request, or cannot be reached.

    Parameters
    ----------
    message : str
        The message of the service.
    status : int
        The HTTP status; 0 without a response.
    code : str
        A code for programs.
    """

    def __init__(self, message: str, status: int = 0, code: str = "unreachable") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class ClusterError(FecamError):
    """A cluster cannot be reached, or lost data that it needs."""


class MissingPackageError(FecamError):
    """A package is not installed; the message names the extra that installs it."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the package {package!r}, which is not installed. "
            f"Remedy: {install_command(extra)}"
        )
        self.package, self.extra = package, extra


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Raise an import error as a `MissingPackageError` that names the extra."""
    try:
        yield
    except ImportError as error:
        package = (error.name or extra).partition(".")[0]
        package = "pillow" if package == "PIL" else package
        raise MissingPackageError(what, package, extra) from None


def install_command(extra: str) -> str:
    """Return the command that installs an extra, from where the package itself was installed.

    Parameters
    ----------
    extra : str
        Name of the extra, such as ``"images"``; several are separated by commas.

    Returns
    -------
    str
        A shell command: for a checkout ``pip install -c constraints.txt '.[images]'`` in its
        folder, for an archive or a repository its address, otherwise ``pip install
        'fecam[images]'`` from an index.
    """
    from urllib.parse import urlsplit
    from urllib.request import url2pathname  # slow to import

    source = _source()
    url = str(source.get("url", ""))
    if "dir_info" in source:
        editable = "-e " if source["dir_info"].get("editable") else ""
        folder = Path(url2pathname(urlsplit(url).path))
        place = f"cd {shlex.quote(str(folder))} && " if folder.is_dir() else ""
        return f"{place}pip install -c constraints.txt {editable}'.[{extra}]'"
    if url:
        scheme = f"{source['vcs_info']['vcs']}+" if "vcs_info" in source else ""
        return f"pip install 'fecam[{extra}] @ {scheme}{url}'"
    return f"pip install 'fecam[{extra}]'"


def _source() -> dict[str, Any]:
    """Return where the installed package came from (PEP 610); empty if from an index."""
    from importlib import metadata

    try:
        text = metadata.distribution("fecam").read_text("direct_url.json")
        source = json.loads(text or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return {}
    return source if isinstance(source, dict) else {}
