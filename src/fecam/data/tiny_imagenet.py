"""TinyImageNet-200: 200 classes of ImageNet at 64 x 64 pixels (Stanford's CS231N)."""

from __future__ import annotations

from pathlib import Path

from fecam.data._files import listed
from fecam.data._listing import SkippedFiles
from fecam.data._official import (
    Release,
    Row,
    check_all_present,
    files_by_name,
    find,
    read_lines,
    rows_dataset,
    sorted_keys,
    tree_rows,
    word_names,
)
from fecam.data.dataset import Dataset
from fecam.errors import DatasetError

RELEASES = (
    Release(
        "tiny-imagenet-200",
        ("train", "val"),
        "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
        "90528d7ca1a48142e341f4ef8d21d0de",
    ),
)


def load(root: Path | str | None = None, *, download: bool = False) -> Dataset:
    """Return TinyImageNet-200, tested on its validation part: the test part has no labels.

    The classes are in the order of their WordNet IDs, with the names of ``words.txt``. ``root`` is
    the folder ``tiny-imagenet-200``, its parent, or the archive (237 MB). The validation images may
    be in class folders.
    """
    folder, _ = find(
        "tiny-imagenet",
        root,
        RELEASES,
        download,
        "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
    )
    skipped = SkippedFiles()
    train = tree_rows(folder / "train", skipped)
    keys = sorted_keys({row.label for row in train})
    listing = folder / "val" / "val_annotations.txt"
    if listing.exists():
        test = _listed_rows(listing, skipped)
    else:
        test = tree_rows(folder / "val", skipped, for_test=True)
    unexpected = sorted({row.label for row in test} - set(keys))
    if unexpected:
        raise DatasetError(
            f"{folder / 'val'} has images of classes that train lacks: {listed(unexpected)}. "
            "Remedy: unpack the whole archive again"
        )
    words, notes = word_names(folder / "words.txt", keys)
    return rows_dataset(
        "tiny-imagenet",
        folder,
        train + test,
        keys,
        words=words,
        official=(100_000, 10_000, 200),
        notes=notes,  # not on skipped files: each class has a file of bounding boxes
    )


def _listed_rows(listing: Path, skipped: SkippedFiles) -> list[Row]:
    """Return the validation images with the classes of the listing."""
    folder = listing.parent / "images"
    files = files_by_name(folder, skipped)
    pairs = []
    for number, line in enumerate(read_lines(listing), 1):
        cells = line.split("\t")
        if len(cells) < 2:
            raise DatasetError(f"{listing}, line {number}: no file and class with a tab between")
        pairs.append((cells[0], cells[1].strip()))
    check_all_present(listing, folder, [name for name, _ in pairs if name not in files])
    return [Row(files[name], wnid, True) for name, wnid in pairs]
