"""Saving and loading a classifier as a whole."""

import os
import sqlite3
from pathlib import Path

from fecam.classifier import FeCAMClassifier
from fecam.errors import ModelFileError
from fecam.model_file.creation import create_file
from fecam.model_file.file import ModelFile
from fecam.model_file.header import NewerFormatError
from fecam.model_file.writing import WorkingCopy


def save(classifier: FeCAMClassifier, path: str | os.PathLike[str]) -> None:
    """Write a classifier to a file, atomically.

    If the file is a model already, only the classes that differ are written, its encoder is kept,
    and `fecam undo` can undo it.

    Parameters
    ----------
    classifier : FeCAMClassifier
        A fitted classifier.
    path : str or os.PathLike
        The ``.fecam`` file.

    Raises
    ------
    ModelFileError
        If the file cannot be written; an existing one is unchanged.
    """
    _ = classifier.refresh().metric_  # settings that could not be loaded are not saved either
    try:
        target = Path(os.path.realpath(path))
        try:
            older = ModelFile(target)
        except NewerFormatError:
            raise
        except ModelFileError:  # missing or damaged, and may be replaced
            create_file(target, WorkingCopy(classifier, needs_prior=True), replace=True)
            return
        with older:
            older.write("save", lambda working: _replace(working, classifier))
    except ModelFileError as error:
        raise ModelFileError(f"{path} was not written: {error}") from None
    except (OSError, ValueError, OverflowError, sqlite3.Error) as error:
        raise ModelFileError(
            f"{path} was not written: {error}. A file that was there before is as it was. Check "
            "that the folder exists, may be written to and has room, then save again."
        ) from error


def _replace(working: WorkingCopy, classifier: FeCAMClassifier) -> None:
    working.classifier, working.needs_prior = classifier, True
    if working.encoder is not None and working.encoder.width != classifier.n_features_in_:
        working.encoder = None
    working.content_hashes = {}  # the samples of the classifier are not known


def load(path: str | os.PathLike[str]) -> FeCAMClassifier:
    """Load a classifier from a ``.fecam`` file.

    The matrices of a large file are read when they are needed, so do not move it.

    Parameters
    ----------
    path : str or os.PathLike
        The file.

    Returns
    -------
    FeCAMClassifier
        A classifier with NumPy arrays, which can go on learning.

    Raises
    ------
    ModelFileError
        If the file is missing, damaged or not a model.

    Examples
    --------
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
        reason = str(error).removeprefix(f"{path}: ")
        raise ModelFileError(f"{path} cannot be loaded: {reason}") from None
