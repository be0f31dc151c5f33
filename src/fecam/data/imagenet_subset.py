"""ImageNet-Subset: 100 of the 1000 classes of ImageNet, as in class-incremental papers.

The usual list is the first 100 of the 1000 classes in the order of their WordNet IDs, shuffled by
numpy with the seed 1993 (UCIR, PODNet, PyCIL).
"""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fecam.data import _official as official
from fecam.data._files import listed
from fecam.data._listing import SkippedFiles, iter_images, subfolders
from fecam.data.dataset import Dataset
from fecam.errors import DatasetError

RELEASES = (official.Release("imagenet", (f"train/{official.WNID}", f"val/{official.WNID}")),)

CLASSES = 100
_ALL, _SEED = 1000, 1993
_PAGE = "https://image-net.org (an account is needed; sort val into class folders)"


def load(
    root: Path | str | None = None,
    *,
    download: bool = False,
    wnids: Sequence[str] | Path | str | None = None,
) -> Dataset:
    """Return 100 classes of ImageNet; its validation part is for testing.

    ``root`` has ``train/<wnid>/`` and ``val/<wnid>/`` of all or the chosen classes. ``wnids`` are
    the WordNet IDs of the classes in their order, or a file with one per line; by default the usual
    100 (see above), or all classes if there are 100 or fewer.
    """
    folder, _ = official.find("imagenet-subset", root, RELEASES, download, _PAGE)
    present = [path.name for path in subfolders(folder / "train")]
    keys = usual_classes(present) if wnids is None else _read_wnids(wnids)
    for part in ("train", "val"):
        missing = [key for key in keys if not (folder / part / key).is_dir()]
        if missing:
            raise DatasetError(
                f"{folder / part} lacks {len(missing)} of the {len(keys)} classes: "
                f"{listed(missing)}. Remedy: unpack them, or choose others with "
                "wnids=... (--option wnids=[...])"
            )
    skipped = SkippedFiles()
    rows = [
        official.Row(file, key, part == "val")
        for part in ("train", "val")
        for key in keys
        for file in iter_images(folder / part / key, skipped)
    ]
    names = folder / "LOC_synset_mapping.txt"
    words, notes = official.word_names(names if names.exists() else folder / "words.txt", keys)
    notes += skipped.notes()
    # The classes differ in their number of training images.
    sizes = (sum(not row.for_test for row in rows), 50 * len(keys), CLASSES)
    return official.rows_dataset(
        "imagenet-subset", folder, rows, keys, words=words, official=sizes, notes=notes
    )


def usual_classes(wnids: Sequence[str]) -> list[str]:
    """Return the usual 100 of 1000 classes, or all if there are 100 or fewer."""
    keys = official.sorted_keys(wnids)
    if len(keys) <= CLASSES:
        return keys
    if len(keys) != _ALL:
        raise DatasetError(
            f"the usual {CLASSES} classes are chosen out of ImageNet's {_ALL}, but there are "
            f"{len(keys)} class folders. Remedy: name the classes with wnids=... (--option "
            "wnids=[...])"
        )
    order = np.arange(_ALL)
    # The generator of the papers, which numpy keeps stable.
    np.random.RandomState(_SEED).shuffle(order)
    return [keys[i] for i in sorted(order[:CLASSES])]


def _read_wnids(wnids: Sequence[str] | Path | str) -> list[str]:
    if isinstance(wnids, (str, Path)):
        source = str(wnids)
        keys = [line.split()[0] for line in official.read_lines(Path(wnids).expanduser())]
    else:
        source, keys = "wnids", [str(key) for key in wnids]
    wrong = [key for key in keys if not re.fullmatch(official.WNID, key)]
    if wrong or not keys or len(set(keys)) < len(keys):
        what = f"{listed(wrong)} are not WordNet IDs" if wrong else "no class, or one twice"
        raise DatasetError(f"{source}: {what}. Remedy: classes such as n01440764, each once")
    return keys
