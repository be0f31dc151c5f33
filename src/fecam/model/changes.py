"""Changes of a working copy of a model: its statistics and the content hashes of its samples.

They run inside the transaction, on the current content of the file. The hashes of a class show
which samples it has learned, so that none counts twice.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.classifier import FeCAMClassifier
from fecam.data.content_hashes import ContentHashes
from fecam.errors import InputError
from fecam.model_file.snapshot import ClassRow, row_hashes
from fecam.model_file.writing import WorkingCopy
from fecam.results import Label
from fecam.validation import counted

CARRIED_OVER = np.zeros(1, np.uint64)
"""Stands among the hashes of a class whose statistics come from another encoder. That a sample has
this hash is as unlikely as that two samples have the same."""


def add_samples(
    working: WorkingCopy,
    X: NDArray[Any],
    labels: Sequence[Label],
    hashes: ContentHashes,
    *,
    allow_duplicates: bool,
) -> NDArray[np.bool_]:
    """Learn the samples that are no duplicates; return the mask of those samples."""
    mask = np.ones(len(labels), bool)
    if not allow_duplicates:
        mask = unseen_mask(labels, hashes, working.content_hashes)
    chosen = [label for label, is_new in zip(labels, mask, strict=True) if is_new]
    if chosen:
        working.classifier.partial_fit(X[mask], chosen)
        for label, new in hashes_by_label(chosen, hashes[mask]).items():
            working.content_hashes[label] = add_hashes(working.content_hashes.get(label), new)
    return mask


def remove_samples(
    working: WorkingCopy,
    X: NDArray[Any],
    labels: Sequence[Label],
    hashes: ContentHashes,
    path: Path,
) -> None:
    """Unlearn samples; raise for samples that were not learned."""
    for label in dict.fromkeys(labels):
        if np.isin(CARRIED_OVER, _unpack(working.content_hashes.get(label, b""))).any():
            raise InputError(
                f"{path}: class {label!r} was carried over from another encoder (fecam migrate), "
                "so its samples cannot be taken out exactly. Forget the class and learn it again."
            )
    working.classifier.unlearn(X, labels)
    classes = working.classifier.state_.classes
    for label, removed in hashes_by_label(labels, hashes).items():
        left = _remove_hashes(working.content_hashes.get(label, b""), removed)
        n_samples = classes[label].count if label in classes else 0
        n_strange = len(left) // removed.itemsize - n_samples
        if n_strange > 0:  # more hashes than samples are left: the hashes did not match
            raise InputError(
                f"{n_strange} of the items were not learned by {path} as {label!r}, so they cannot "
                "be unlearned. Give the same files, texts or rows with the same label."
            )
        working.content_hashes[label] = left


def mark_carried_over(working: WorkingCopy) -> None:
    """Mark all classes, so that their samples cannot be unlearned.

    A file holds at most one hash per sample, so the mark may replace one.
    """
    for label, stats in working.classifier.state_.classes.items():
        hashes = _unpack(working.content_hashes.get(label, b""))  # type: ignore[call-overload]
        hashes = hashes[hashes != CARRIED_OVER][: stats.count - 1]
        working.content_hashes[label] = add_hashes(CARRIED_OVER.tobytes(), hashes)  # type: ignore[index]


def add_model(
    working: WorkingCopy,
    classifier: FeCAMClassifier,
    rows: Mapping[Label, ClassRow],
    paths: tuple[Path, Path],
    *,
    allow_duplicates: bool,
) -> None:
    """Merge another model; shared samples are an error unless ``allow_duplicates``."""
    if not allow_duplicates:
        _check_disjoint(working.content_hashes, row_hashes(rows), paths)
    working.classifier.merge(classifier)
    copy_provenance(working, rows)


def copy_provenance(working: WorkingCopy, rows: Mapping[Label, ClassRow]) -> None:
    """Copy hashes, notes and times of the classes of another model."""
    for label, row in rows.items():
        hashes = _unpack(row.provenance.content_hashes)
        working.content_hashes[label] = add_hashes(working.content_hashes.get(label), hashes)
        working.notes[label], working.learned[label] = row.provenance.note, row.provenance.learned


def forget(working: WorkingCopy, label: Hashable) -> None:
    """Remove a class."""
    working.classifier.forget(label)


def rename(working: WorkingCopy, label: Label, new: Label) -> None:
    """Give a class another label."""
    working.classifier.rename(label, new)
    _move_provenance(working, [label], new)


def join(working: WorkingCopy, labels: Sequence[Label], new: Label) -> None:
    """Combine classes into one."""
    working.classifier.join(labels, new)
    _move_provenance(working, labels, new)


def _move_provenance(working: WorkingCopy, labels: Sequence[Label], new: Label) -> None:
    """Give a renamed or joined class the hashes of its classes, the earliest time and its note."""
    rows = [
        working.rows[label]
        for label in {**dict.fromkeys(labels), new: None}
        if label in working.rows
    ]
    origins = [row.provenance for row in rows]
    for label in labels:
        working.content_hashes.pop(label, None)
    hashes = [_unpack(origin.content_hashes) for origin in origins]
    working.content_hashes[new] = add_hashes(None, np.concatenate(hashes))
    working.learned[new] = min(origin.learned for origin in origins)
    working.notes[new] = next((origin.note for origin in origins if origin.note), "")


def unseen_mask(
    labels: Sequence[Label], hashes: ContentHashes, learned: Mapping[Label, bytes]
) -> NDArray[np.bool_]:
    """Return which items were not learned before under their labels."""
    mask = np.ones(len(labels), bool)
    for label, rows in _rows_by_label(labels).items():
        if (before := learned.get(label)) is not None:
            mask[rows] = ~np.isin(hashes[rows], _unpack(before))
    return mask


def add_hashes(before: bytes | None, new: ContentHashes) -> bytes:
    """Return all hashes, sorted, as a file keeps them."""
    return np.sort(np.concatenate([_unpack(before or b""), new])).astype("<u8").tobytes()


def _remove_hashes(before: bytes, removed: ContentHashes) -> bytes:
    """Return the hashes that are left; one of a sample that was learned twice."""
    left = Counter(_unpack(before).tolist())
    left.subtract(removed.tolist())
    return add_hashes(None, np.asarray([*(+left).elements()], np.uint64))


def _check_disjoint(
    ours: Mapping[Label, bytes], theirs: Mapping[Label, bytes], paths: tuple[Path, Path]
) -> None:
    """Raise if two files have learned the same samples."""
    shared = {
        label: len(
            np.setdiff1d(np.intersect1d(_unpack(ours[label]), _unpack(theirs[label])), CARRIED_OVER)
        )
        for label in ours.keys() & theirs.keys()
    }
    if any(shared.values()):
        label = max(shared, key=lambda label: shared[label])
        raise InputError(
            f"{paths[0]} and {paths[1]} have both learned "
            f"{counted(sum(shared.values()), 'sample')}, "
            f"{shared[label]} of them of class {label!r}: merging would count them twice. Merge "
            "files that share no samples, or pass allow_duplicates=True (--allow-duplicates)."
        )


def _rows_by_label(labels: Sequence[Label]) -> dict[Label, list[int]]:
    rows: dict[Label, list[int]] = {}
    for i, label in enumerate(labels):
        rows.setdefault(label, []).append(i)
    return rows


def hashes_by_label(labels: Sequence[Label], hashes: ContentHashes) -> dict[Label, ContentHashes]:
    """Return the content hashes of each class."""
    return {label: hashes[rows] for label, rows in _rows_by_label(labels).items()}


def _unpack(hashes: bytes) -> ContentHashes:
    return np.frombuffer(hashes, "<u8")
