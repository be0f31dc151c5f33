"""The errors a user can meet, each a ``ValueError`` so that scikit-learn's tools treat it as one.

Every message names the thing, its value and the remedy; nothing here is raised after a model has
been changed, so a failed call leaves it as it was.
"""

from __future__ import annotations


class FecamError(ValueError):
    """Base of all errors raised on purpose by this package."""


class InputError(FecamError):
    """The data handed in cannot be used as it is."""


class SettingsError(FecamError):
    """A parameter has a value it cannot take, or cannot take any more."""


class UnknownLabelError(FecamError):
    """A label that this model was never taught."""


class SingularMatrixError(FecamError):
    """A class's matrix is not positive definite, so it measures no distance."""


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
    """A data set is not there, not complete, or not what it says it is."""


class EncoderError(FecamError):
    """An encoder cannot be had: no such name, no weights, or weights that do not fit."""


class TrainingError(FecamError):
    """A network cannot be trained as asked, or a checkpoint does not fit."""


class SpecError(FecamError):
    """An experiment cannot be run as it is written down, or its folder holds another."""


class RunError(FecamError):
    """A run's folder cannot be read: not there, damaged, or written by something else."""


class ServiceError(FecamError):
    """A service did not do what it was asked for, or cannot be reached.

    ``status`` is that of HTTP, 0 if there was no answer; ``code`` is the service's word for it.
    """

    def __init__(self, message: str, status: int = 0, code: str = "unreachable") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class ClusterError(FecamError):
    """A cluster cannot be reached, or has lost too much to go on."""


class MissingPackageError(FecamError):
    """Something needs a package that is not installed; the message names the extra that has it."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the package {package!r}, which is not installed. "
            f"Remedy: pip install 'fecam[{extra}]'"
        )
        self.package, self.extra = package, extra
