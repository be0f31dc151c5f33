"""Saving and loading a classifier as a whole."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from fecam.classifier import FeCAMClassifier
from fecam.errors import ModelFileError
from fecam.model_file.creation import create_file
from fecam.model_file.file import ModelFile
from fecam.model_file.header import is_newer
from fecam.model_file.writing import WorkingCopy


def save(classifier: FeCAMClassifier, path: str | os.PathLike[str]) -> None:
    """Write all that a classifier was taught to a file, in place of what was there.

    A save that fails leaves an older file as it was. Where there is a model already, only the
    classes that differ are written, and `fecam undo` takes it back; its encoder stays. Labels are
    stored as whole numbers or strings, so ``True`` and ``False`` come back as 1 and 0.
    """
    _ = classifier.refresh().metric_  # settings that could not be loaded are not saved either
    try:
        target = Path(os.path.realpath(path))
        older = _older(target)
        if older is None:
            create_file(target, WorkingCopy(classifier, needs_prior=True), replace=True)
            return
        with older:
            older.write("save", lambda working: _take_over(working, classifier))
    except ModelFileError as error:
        raise ModelFileError(f"{path} was not written: {error}") from None
    except (OSError, ValueError, OverflowError, sqlite3.Error) as error:
        raise ModelFileError(
            f"{path} was not written: {error}. A file that was there before is as it was. Check "
            "that the folder exists, may be written to and has room, then save again."
        ) from error


def _older(path: Path) -> ModelFile | None:
    """The model that lies there; None if it is none, or one that is damaged."""
    try:
        return ModelFile(path)
    except ModelFileError:
        if is_newer(path):  # it is not ours to replace what we cannot read yet
            raise
        return None


def _take_over(working: WorkingCopy, classifier: FeCAMClassifier) -> None:
    working.classifier, working.needs_prior = classifier, True
    if working.encoder is not None and working.encoder.width != classifier.n_features_in_:
        working.encoder = None
    working.content_hashes = {}  # nobody knows of which samples the classes are made now


def load(path: str | os.PathLike[str]) -> FeCAMClassifier:
    """Open a ``.fecam`` file as a classifier that holds NumPy arrays and can go on learning.

    The matrices of a large file are read when they are needed, so keep it where it is.

    >>> import tempfile
    >>> clf = FeCAMClassifier().fit([[0.0, 1.0], [1.0, 0.0]], ["cat", "dog"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     clf.save(folder + "/pets.fecam")
    ...     load(folder + "/pets.fecam").predict([[0.1, 0.9]]).tolist()
    ['cat']
    """
    try:
        return ModelFile(path).snapshot.classifier
    except ModelFileError as error:
        raise ModelFileError(f"{path} cannot be loaded: {_without(path, error)}") from None


def _without(path: str | os.PathLike[str], error: ModelFileError) -> str:
    return str(error).removeprefix(f"{path}: ")
