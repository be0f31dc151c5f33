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
