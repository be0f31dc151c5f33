"""TinyImageNet-200: 200 classes of ImageNet at 64 x 64 pixels (Stanford's CS231N)."""

from pathlib import Path

from fecam.data import _official as official
from fecam.data._files import listed
from fecam.data._listing import SkippedFiles
from fecam.data.dataset import Dataset
from fecam.errors import DatasetError

RELEASES = (
    official.Release(
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
    folder, _ = official.find("tiny-imagenet", root, RELEASES, download, RELEASES[0].url)
    skipped = SkippedFiles()
    train = official.tree_rows(folder / "train", skipped)
    keys = official.sorted_keys({row.label for row in train})
    listing = folder / "val" / "val_annotations.txt"
    if listing.exists():
        test = _listed_rows(listing, skipped)
    else:
        test = official.tree_rows(folder / "val", skipped, for_test=True)
    unexpected = sorted({row.label for row in test} - set(keys))
    if unexpected:
        raise DatasetError(
            f"{folder / 'val'} has images of classes that train lacks: {listed(unexpected)}. "
            "Remedy: unpack the whole archive again"
        )
    # No notes on skipped files: each class has a file of bounding boxes.
    words, notes = official.word_names(folder / "words.txt", keys)
    rows, sizes = train + test, (100_000, 10_000, 200)
    return official.rows_dataset(
        "tiny-imagenet", folder, rows, keys, words=words, official=sizes, notes=notes
    )


def _listed_rows(listing: Path, skipped: SkippedFiles) -> list[official.Row]:
    """Return the validation images with the classes of the listing."""
    folder = listing.parent / "images"
    files = official.files_by_name(folder, skipped)
    pairs = []
    for number, line in enumerate(official.read_lines(listing), 1):
        cells = line.split("\t")
        if len(cells) < 2:
            raise DatasetError(f"{listing}, line {number}: no file and class with a tab between")
        pairs.append((cells[0], cells[1].strip()))
    official.check_all_present(listing, folder, [name for name, _ in pairs if name not in files])
    return [official.Row(files[name], wnid, True) for name, wnid in pairs]
