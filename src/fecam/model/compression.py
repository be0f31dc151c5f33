"""Writing a compressed copy of a model file."""

import os
from pathlib import Path

from fecam.core.compression_loss import CompressionEstimate
from fecam.errors import InputError
from fecam.model.changes import copy_provenance
from fecam.model.model import Model
from fecam.model_file.creation import create_file
from fecam.model_file.file import translate_errors
from fecam.model_file.writing import WorkingCopy


def compress_file(
    model: Model,
    path: str | os.PathLike[str],
    n_components: int | str = "auto",
    *,
    replace: bool = False,
) -> CompressionEstimate:
    """Write a compressed copy of a model, without its history; return the expected loss."""
    if os.path.lexists(path) and not replace:
        raise InputError(
            f"{path} exists already. Remedy: another name with --output, or --force to replace it"
        )
    classifier = model.classifier.copy()
    estimate, state = classifier.compression(n_components)
    working = WorkingCopy(
        classifier.set_state(state), encoder=model.encoder_record, needs_prior=True
    )
    assert model.snapshot is not None, "the model has classes"
    copy_provenance(working, model.snapshot.rows)
    size = f"{estimate.n_components} of {estimate.n_features} components"
    note = f"compressed from {model.path.name} to {size}"
    with translate_errors(path):
        create_file(Path(os.path.realpath(path)), working, "save", note, replace=replace)
    return estimate
