"""ImageNet-R: 30,000 renditions (art, toys, sketches, ...) of 200 of ImageNet's classes.

It has no official split: papers use different random lists of 20 % for testing. Here a share of
each class is chosen by a hash of the file names and a seed, which is the same on every machine. To
compare with a paper, give its folders ``train/`` and ``test/``.
"""

from pathlib import Path

from fecam.data import _official as official
from fecam.data._listing import SkippedFiles
from fecam.data.dataset import Dataset

RELEASES = (
    official.Release(
        "imagenet-r",
        (f"{official.WNID}/",),
        "https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar",
        "a61312130a589d0ca1a8fca1f2bd3337",
    ),
    official.Release("imagenet-r", (f"train/{official.WNID}/", f"test/{official.WNID}/")),
)

_PAGE = "https://github.com/hendrycks/imagenet-r"


def load(
    root: Path | str | None = None,
    *,
    download: bool = False,
    test_share: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Return ImageNet-R.

    ``root`` is the folder ``imagenet-r`` with 200 class folders, its parent, or the archive
    (2.2 GB); or a folder with ``train/`` and ``test/`` of class folders. Otherwise ``seed`` chooses
    ``test_share`` of each class for testing.
    """
    folder, release = official.find("imagenet-r", root, RELEASES, download, _PAGE)
    skipped = SkippedFiles()
    if release is RELEASES[0]:
        rows = official.split_rows(official.tree_rows(folder, skipped), test_share, seed)
    else:
        rows = official.tree_rows(folder / "train", skipped)
        rows += official.tree_rows(folder / "test", skipped, for_test=True)
    keys = official.sorted_keys({row.label for row in rows})
    words, notes = official.word_names(folder / "README.txt", keys)
    notes += skipped.notes()
    test = sum(row.for_test for row in rows)
    sizes = (30_000 - test, test, 200)  # the split is not official, only the sum
    return official.rows_dataset(
        "imagenet-r", folder, rows, keys, words=words, official=sizes, notes=notes
    )
