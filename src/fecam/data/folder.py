"""A folder of images sorted into class folders, as most people have them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fecam.data._files import (
    enumerated,
    files_dataset,
    listed,
    readable,
    split_off,
)
from fecam.data._listing import File, SkippedFiles, existing_folder, list_images, subfolders
from fecam.data.dataset import Dataset
from fecam.errors import DatasetError

_TRAIN = frozenset({"train", "training"})
_TEST = frozenset({"test", "testing"})
_VALIDATION = frozenset({"val", "valid", "validation"})

_TREE = """
    {root}/
        cat/   one.jpg  two.jpg
        dog/   three.jpg
or {root}/train/cat/..., {root}/test/cat/..."""

_DOMAIN_TREE = """
    {root}/
        photo/    cat/ one.jpg    dog/ two.jpg
        sketch/   cat/ three.jpg  dog/ four.jpg
or {root}/train/photo/cat/..., {root}/test/photo/cat/..."""


@dataclass(frozen=True)
class ClassFolder:
    """The images of one class, in one part and one domain of a data set."""

    label: str
    domain: str
    for_test: bool
    files: list[File]
    path: Path

    @property
    def keys(self) -> list[str]:
        """The names of the files inside the folder."""
        return [file.path.relative_to(self.path).as_posix() for file in self.files]


def load_folder(
    path: str | os.PathLike[str],
    *,
    domains: bool = False,
    test_share: float = 0.0,
    seed: int = 0,
    as_label: str | None = None,
    name: str | None = None,
) -> Dataset:
    """Return the images of a folder that has a folder for each class.

    Args:
        path: ``CLASS/files``, or ``train/CLASS/files`` with ``test/`` or ``val/`` beside it. Files
            deeper inside a class folder are found too.
        domains: There is a level of domains above the classes: ``DOMAIN/CLASS/files`` or
            ``train/DOMAIN/CLASS/files``.
        test_share: Where the folders name no test part, put this share of each class aside for
            testing: the same files whatever their order on disk and whatever other classes there
            are. With domains, this share of each class in each domain.
        seed: Another seed puts other files aside.
        as_label: The class of all images, whatever folders they lie in.
        name: The name of the data set; the folder's own if not given.
    """
    root = existing_folder(path, "a folder of images")
    skipped = SkippedFiles()
    notes: list[str] = []
    found = [
        one
        for top, for_test in _parts(root, skipped, notes)
        for one in _class_folders(top, for_test, domains, as_label, skipped)
    ]
    _refuse_no_images(root, found, skipped, domains)
    empty = [str(one.path.relative_to(root)) for one in found if not one.files]
    if empty:
        notes.append(f"{len(empty)} empty class folders left out: {listed(empty)}")
    found = [one for one in found if one.files]
    if not domains and as_label is None:
        notes += _perhaps_domains(found)

    files = [file for one in found for file in one.files]
    counts = [len(one.files) for one in found]
    labels, label_names = enumerated([one.label for one in found])
    domain_numbers, domain_names = enumerated([one.domain for one in found])
    is_test = np.repeat([one.for_test for one in found], counts)
    if test_share and is_test.any():
        raise DatasetError(
            f"test_share={test_share}, but {root} has a folder of its own for testing. "
            "Remedy: leave test_share out"
        )
    if not is_test.any():
        groups = [f"{one.domain}/{one.label}" for one in found for _ in one.files]
        is_test = split_off(groups, [key for one in found for key in one.keys], test_share, seed)
    return files_dataset(
        name or readable(root.resolve().name),
        root,
        files,
        np.repeat(labels, counts),
        label_names,
        is_test=is_test,
        domains=np.repeat(domain_numbers, counts) if domains else None,
        domain_names=domain_names if domains else (),
        notes=[*notes, *_one_sided(found), *skipped.notes()],
    )


def _perhaps_domains(found: list[ClassFolder]) -> list[str]:
    """A note, if every class folder has the same folders inside: those may be the classes."""
    inside = [{top.name for top in subfolders(one.path)} for one in found]
    shared = set.intersection(*inside) if len(found) > 1 else set()
    if len(shared) < 2:
        return []
    return [
        f"{listed([one.label for one in found])} were taken as classes, but each has folders "
        f"{listed(sorted(shared))} inside: if those are the classes, give domains=true"
    ]


def _parts(root: Path, skipped: SkippedFiles, notes: list[str]) -> list[tuple[Path, bool]]:
    """Return the folders that hold class folders, and whether they are for testing.

    A folder called ``train`` may as well be a class of vehicles: it is a part if another part
    stands beside it, or if it stands alone and has folders inside.
    """
    tops = subfolders(root)
    by_name = {top.name.casefold(): top for top in tops}
    train = _first(by_name, _TRAIN)
    test, validation = _first(by_name, _TEST), _first(by_name, _VALIDATION)
    alone = len(tops) == 1
    if train is None or not (test or validation or (alone and subfolders(train))):
        return [(root, False)]
    subfolders(root, skipped)
    judged = test or validation
    parts = [(train, False)] + ([(judged, True)] if judged else [])
    unused = [top.name for top in tops if top not in {train, judged}]
    if unused:
        notes.append(f"folders left out beside {train.name}: {listed(unused)}")
    return parts


def _first(by_name: dict[str, Path], names: frozenset[str]) -> Path | None:
    return next((by_name[name] for name in sorted(names) if name in by_name), None)


def _class_folders(
    top: Path, for_test: bool, domains: bool, as_label: str | None, skipped: SkippedFiles
) -> Iterator[ClassFolder]:
    for upper in subfolders(top, skipped) if domains else [top]:
        domain = readable(upper.name) if domains else ""
        for folder in subfolders(upper, skipped) if as_label is None else [upper]:
            label = readable(folder.name) if as_label is None else as_label
            yield ClassFolder(label, domain, for_test, list_images(folder, skipped), folder)


def _one_sided(found: list[ClassFolder]) -> list[str]:
    """Say which classes have images in only one of the parts."""
    train = {one.label for one in found if not one.for_test}
    test = {one.label for one in found if one.for_test}
    if not test:
        return []
    sides = ((train - test, "nothing for testing"), (test - train, "nothing to learn from"))
    return [f"classes with {what}: {listed(sorted(some))}" for some, what in sides if some]


def _refuse_no_images(
    root: Path, found: list[ClassFolder], skipped: SkippedFiles, domains: bool
) -> None:
    if any(one.files for one in found):
        return
    tree = (_DOMAIN_TREE if domains else _TREE).format(root=root.name)
    if skipped.loose:
        level = "domain and class folders" if domains else "class folders"
        raise DatasetError(
            f"{root} holds {skipped.loose} images that lie in no class folder, so nothing says "
            "what they show. Remedy: name the class of all with as_label (--as on the command "
            f"line), or sort them into {level}:{tree}"
        )
    passed = "; ".join(skipped.notes())
    raise DatasetError(
        f"{root} holds no images{f' ({passed})' if passed else ''}. Remedy: one folder a class:"
        f"{tree}"
    )
