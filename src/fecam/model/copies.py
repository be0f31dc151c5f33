"""Writing a changed copy of a model to a file of its own, without its history."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fecam.classifier import FeCAMClassifier
from fecam.errors import InputError
from fecam.model.changes import copy_provenance
from fecam.model_file import EncoderRecord
from fecam.model_file.creation import create_file
from fecam.model_file.file import translate_errors
from fecam.model_file.writing import WorkingCopy

if TYPE_CHECKING:
    from fecam.model.model import Model


def check_free(path: str | os.PathLike[str], replace: bool) -> None:
    """Raise if a file exists that may not be replaced."""
    if os.path.lexists(path) and not replace:
        raise InputError(
            f"{path} exists already. Remedy: another name with --output, or --force to replace it"
        )


def write_copy(
    model: Model,
    classifier: FeCAMClassifier,
    encoder: EncoderRecord | None,
    path: str | os.PathLike[str],
    note: str,
    *,
    replace: bool,
    change: Callable[[WorkingCopy], None] | None = None,
) -> None:
    """Write a classifier with the notes and hashes of the classes of a model."""
    working = WorkingCopy(classifier, encoder=encoder, needs_prior=True)
    assert model.snapshot is not None, "the model has classes"
    copy_provenance(working, model.snapshot.rows)
    if change is not None:
        change(working)
    with translate_errors(path):
        create_file(Path(os.path.realpath(path)), working, "save", note, replace=replace)
