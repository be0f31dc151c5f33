"""miniImageNet: 100 classes of ImageNet with 600 images each, for few-shot learning."""

from dataclasses import replace
from pathlib import Path

from fecam.data import _official as official
from fecam.data._listing import SkippedFiles
from fecam.data.dataset import Dataset
from fecam.data.table_columns import Options
from fecam.data.table_csv import read_csv
from fecam.validation import counted

RELEASES = (
    official.Release("mini-imagenet", ("train.csv", "test.csv", "images")),
    official.Release("mini-imagenet", ("train/*/", "test/*/")),
    official.Release("mini-imagenet", (f"{official.WNID}/",)),
)

_PAGE = "the authors of the paper you compare with (ImageNet has no free copy)"
_PARTS = ("train", "val", "test")


def load(
    root: Path | str | None = None,
    *,
    download: bool = False,
    test_share: float = 1 / 6,
    seed: int = 0,
) -> Dataset:
    """Return miniImageNet.

    In the original release the parts train, val and test have different classes (64, 16 and 20):
    they are merged, and 100 of the 600 images per class are for testing. In the release of few-shot
    class-incremental papers train and test have the same classes: they are used as they are, and
    a part val is left out.

    ``root`` has ``images/`` and ``train.csv``, ``val.csv`` and ``test.csv`` with the columns
    ``filename`` and ``label``; or class folders, with or without ``train/``, ``val/``, ``test/``.
    ``seed`` chooses ``test_share`` of each class where the parts differ in classes.
    """
    folder, release = official.find("mini-imagenet", root, RELEASES, download, _PAGE)
    skipped = SkippedFiles()
    if release is RELEASES[0]:
        parts = _listed_parts(folder, skipped)
    elif release is RELEASES[1]:
        present = [part for part in _PARTS if (folder / part).is_dir()]
        parts = {part: official.tree_rows(folder / part, skipped) for part in present}
    else:
        parts = {"train": official.tree_rows(folder, skipped)}
    notes = list(skipped.notes())
    classes = {part: {row.label for row in rows} for part, rows in parts.items()}
    if classes["train"] & classes.get("test", set()):
        rows = parts["train"] + [replace(row, for_test=True) for row in parts["test"]]
        if parts.get("val"):
            notes.append(f"{counted(len(parts['val']), 'image')} of the validation part left out")
    else:
        merged = [row for part in parts.values() for row in part]
        rows = official.split_rows(merged, test_share, seed)
        notes.append(f"a share of {test_share:.3g} of each class was chosen for testing")
    keys = official.sorted_keys({row.label for row in rows})
    return official.rows_dataset(
        "mini-imagenet", folder, rows, keys, official=(50_000, 10_000, 100), notes=notes
    )


def _listed_parts(folder: Path, skipped: SkippedFiles) -> dict[str, list[official.Row]]:
    files = official.files_by_name(folder / "images", skipped)
    parts = {}
    for part in _PARTS:
        listing = folder / f"{part}.csv"
        if listing.exists():
            table = read_csv(listing, Options(label="label", image="filename"), None)
            missing = [name for name in table.items if name not in files]
            official.check_all_present(listing, folder / "images", missing)
            pairs = zip(table.items, table.labels or (), strict=True)
            parts[part] = [official.Row(files[name], label, False) for name, label in pairs]
    return parts
