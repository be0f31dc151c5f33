"""CUB-200-2011: 11,788 photographs of 200 species of birds (Wah and others, 2011)."""

from pathlib import Path

from fecam.data import _official as official
from fecam.data._files import listed
from fecam.data._listing import SkippedFiles
from fecam.data.dataset import Dataset
from fecam.errors import DatasetError
from fecam.validation import counted

_LISTS = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")

RELEASES = (
    official.Release(
        "CUB_200_2011",
        (*_LISTS, "images"),
        "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
        "97eceeb196236b17998738112f37df78",
    ),
)

_REMEDY = "Remedy: unpack the official archive again"
_PAGE = "https://data.caltech.edu/records/65de6-vp158"


def load(root: Path | str | None = None, *, download: bool = False) -> Dataset:
    """Return CUB-200-2011 with its official split and class order.

    ``root`` is the folder ``CUB_200_2011``, its parent, or the archive (1.1 GB).
    """
    folder, _ = official.find("cub200", root, RELEASES, download, _PAGE)
    images, labels, split, classes = (_numbered(folder / name) for name in _LISTS)
    for name, table in zip(_LISTS[1:3], (labels, split), strict=True):
        difference = sorted(images.keys() ^ table.keys(), key=int)
        if difference:
            raise DatasetError(
                f"{folder / name} and images.txt differ in {listed(difference)}. {_REMEDY}"
            )
    unexpected = sorted(set(labels.values()) - classes.keys())
    if unexpected:
        raise DatasetError(f"{folder}: classes.txt has no class {listed(unexpected)}. {_REMEDY}")
    if set(split.values()) - {"0", "1"}:
        raise DatasetError(f"{folder / _LISTS[2]} has other values than 0 and 1. {_REMEDY}")
    skipped = SkippedFiles()
    files = official.files_by_name(folder / "images", skipped)
    missing = [name for name in images.values() if name not in files]
    official.check_all_present(folder / "images.txt", folder / "images", missing)
    unlisted = len(files) - len(set(images.values()))
    note = f"{counted(unlisted, 'image')} left out that images.txt does not name"
    return official.rows_dataset(
        "cub200",
        folder,
        # 1 is for training.
        [official.Row(files[name], labels[key], split[key] == "0") for key, name in images.items()],
        list(classes),
        words=classes,
        official=(5_994, 5_794, 200),
        notes=[*[note] * bool(unlisted), *skipped.notes()],
    )


def _numbered(path: Path) -> dict[str, str]:
    """Return the values of a file with a number and a value per line, ordered by number."""
    pairs: dict[str, str] = {}
    for number, line in enumerate(official.read_lines(path), 1):
        cells = line.split(maxsplit=1)
        if len(cells) != 2 or not cells[0].isdecimal() or cells[0] in pairs:
            raise DatasetError(f"{path}, line {number}: no distinct number with a value. {_REMEDY}")
        pairs[cells[0]] = cells[1].strip()
    return dict(sorted(pairs.items(), key=lambda pair: int(pair[0])))
