"""What learning, unlearning and merging do to a working copy of a model: its statistics and marks.

They run inside the transaction, on what the file holds at that moment, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.classifier import FeCAMClassifier
from fecam.data.content_hashes import ContentHashes
from fecam.model.provenance import (
    by_label,
    check_apart,
    is_fresh,
    joined,
    refuse_strange,
    take_provenance,
    without,
)
from fecam.model_file.snapshot import ClassRow, row_hashes
from fecam.model_file.writing import WorkingCopy
from fecam.results import Label


def add_samples(
    working: WorkingCopy,
    X: NDArray[Any],
    labels: list[Label],
    marks: ContentHashes,
    *,
    allow_duplicates: bool,
) -> NDArray[np.bool_]:
    """Learn the samples that are no duplicates; return the mask of those samples."""
    fresh = (
        np.ones(len(labels), bool)
        if allow_duplicates
        else is_fresh(labels, marks, working.content_hashes)
    )
    chosen = [labels[at] for at in np.flatnonzero(fresh)]
    if chosen:
        working.classifier.partial_fit(X[fresh], chosen)
        for label, some in by_label(chosen, marks[fresh]).items():
            working.content_hashes[label] = joined(working.content_hashes.get(label, b""), some)
    return fresh


def take_samples(
    working: WorkingCopy, X: NDArray[Any], labels: list[Label], marks: ContentHashes, path: Path
) -> None:
    """Take samples back out; those that were never taught are an error."""
    working.classifier.unlearn(X, labels)
    left = working.classifier.state_.classes
    for label, some in by_label(labels, marks).items():
        working.content_hashes[label] = without(working.content_hashes.get(label, b""), some)
        samples = left[label].count if label in left else 0
        refuse_strange(path, label, len(working.content_hashes[label]) // some.itemsize - samples)


def add_model(
    working: WorkingCopy,
    classifier: FeCAMClassifier,
    held: Mapping[Label, ClassRow],
    paths: tuple[Path, Path],
    *,
    allow_duplicates: bool,
) -> None:
    """Merge another model; shared samples are an error unless ``allow_duplicates``."""
    if not allow_duplicates:
        check_apart(working.content_hashes, row_hashes(held), paths)
    working.classifier.merge(classifier)
    take_provenance(working, held)
