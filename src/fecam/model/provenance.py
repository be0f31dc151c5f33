"""Which samples a class was taught, by their marks: so that none counts twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fecam.data.content_hashes import ContentHashes
from fecam.errors import InputError
from fecam.model_file.snapshot import ClassRow
from fecam.model_file.writing import WorkingCopy
from fecam.results import Label


def by_label(labels: list[Label], marks: ContentHashes) -> dict[Label, ContentHashes]:
    """The marks of each class."""
    found: dict[Label, list[int]] = {}
    for label, mark in zip(labels, marks.tolist(), strict=True):
        found.setdefault(label, []).append(mark)
    return {label: np.asarray(some, np.uint64) for label, some in found.items()}


def is_fresh(
    labels: Sequence[Label], marks: ContentHashes, taught: Mapping[Label, bytes]
) -> NDArray[np.bool_]:
    """Which items were not taught before under their labels."""
    fresh = np.ones(len(labels), bool)
    known = {label for label in set(labels) if label in taught}
    places: dict[Label, list[int]] = {}
    for at, label in enumerate(labels if known else ()):
        if label in known:
            places.setdefault(label, []).append(at)
    for label, here in places.items():
        fresh[here] = ~np.isin(marks[here], np.frombuffer(taught[label], "<u8"))
    return fresh


def joined(before: bytes, new: ContentHashes) -> bytes:
    """All marks together, as a file keeps them."""
    both = np.concatenate([np.frombuffer(before, "<u8"), new])
    return np.sort(both).astype("<u8").tobytes()


def refuse_strange(path: Path, label: Label, count: int) -> None:
    """More marks than samples are left: so many of those that went had never come."""
    if count > 0:
        raise InputError(
            f"{count} of the items were never taught to {path} as {label!r}, so they cannot be "
            "taken out. Give the very same files, texts or rows, under the label they had."
        )


def without(before: bytes, gone: ContentHashes) -> bytes:
    """The marks that are left; of a sample that came twice, one."""
    left = Counter(np.frombuffer(before, "<u8").tolist())
    left.subtract(gone.tolist())
    return np.sort(np.asarray([*(+left).elements()], np.uint64)).astype("<u8").tobytes()


def take_provenance(working: WorkingCopy, held: Mapping[Label, ClassRow]) -> None:
    """What is known of where classes of another model come from."""
    for label, one in held.items():
        marks = np.frombuffer(one.provenance.content_hashes, "<u8")
        working.content_hashes[label] = joined(working.content_hashes.get(label, b""), marks)
        working.notes[label], working.learned[label] = one.provenance.note, one.provenance.learned


def check_apart(
    ours: Mapping[Label, bytes], theirs: Mapping[Label, bytes], paths: tuple[Path, Path]
) -> None:
    """Refuse to count samples twice that were taught to both of two files."""
    shared: dict[Label, int] = {}
    for label in ours.keys() & theirs.keys():
        a, b = (np.frombuffer(some[label], "<u8") for some in (ours, theirs))
        if count := len(np.intersect1d(a, b)):
            shared[label] = count
    if shared:
        label = max(shared, key=lambda name: shared[name])
        raise InputError(
            f"{sum(shared.values())} samples were taught to both {paths[0]} and {paths[1]}, "
            f"{shared[label]} of them of class {label!r}: merging would count them twice. Merge "
            "files that share no samples, or pass allow_duplicates=True (--allow-duplicates)."
        )
