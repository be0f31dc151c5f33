"""Writing a compressed copy of a model file."""

import os

from fecam.core.compression_loss import CompressionEstimate
from fecam.model.copies import check_free, write_copy
from fecam.model.model import Model


def compress_file(
    model: Model,
    path: str | os.PathLike[str],
    n_components: int | str = "auto",
    *,
    replace: bool = False,
) -> CompressionEstimate:
    """Write a compressed copy of a model, without its history; return the expected loss."""
    check_free(path, replace)
    classifier = model.classifier.copy()
    estimate, state = classifier.compression(n_components)
    size = f"{estimate.n_components} of {estimate.n_features} components"
    note = f"compressed from {model.path.name} to {size}"
    classifier.set_state(state)
    write_copy(model, classifier, model.encoder_record, path, note, replace=replace)
    return estimate
