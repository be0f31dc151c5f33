"""Image files: a folder with one folder per class, or a list of files of one class."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fecam.data._files import enumerated, files_dataset, listed, readable, split_off
from fecam.data._listing import (
    UNCLASSIFIED,
    File,
    SkippedFiles,
    existing_folder,
    iter_images,
    subfolders,
)
from fecam.data.dataset import Dataset
from fecam.errors import DatasetError
from fecam.validation import counted

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
        """The paths of the files inside the folder."""
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

    Its layout is ``CLASS/files``, or ``train/CLASS/files`` beside ``test/`` or ``val/``; with
    ``domains``, ``DOMAIN/CLASS/files``. Files in subfolders of a class folder belong to the class.
    Without a folder for testing, ``seed`` chooses ``test_share`` of each class (and domain), which
    depends neither on the order of the files nor on other classes. ``as_label`` is the class of all
    images, whatever their folders.
    """
    root = existing_folder(path, "a folder of images")
    skipped, notes = SkippedFiles(), list[str]()
    folders = [
        folder
        for top, for_test in _parts(root, skipped, notes)
        for folder in _class_folders(top, for_test, domains, as_label, skipped)
    ]
    _check_images(root, folders, skipped, domains, as_label)
    empty = [str(folder.path.relative_to(root)) for folder in folders if not folder.files]
    if empty:
        notes.append(f"{counted(len(empty), 'empty class folder')} left out: {listed(empty)}")
    folders = [folder for folder in folders if folder.files]
    if not domains and as_label is None:
        notes += _note_possible_domains(folders)

    counts = [len(folder.files) for folder in folders]
    labels, label_names = enumerated([folder.label for folder in folders])
    domain_indices, domain_names = enumerated([folder.domain for folder in folders])
    is_test = np.repeat([folder.for_test for folder in folders], counts)
    if test_share and is_test.any():
        raise DatasetError(
            f"test_share={test_share}, but {root} has a folder for testing. Remedy: leave out "
            "test_share"
        )
    if not is_test.any():
        groups = np.repeat([f"{folder.domain}/{folder.label}" for folder in folders], counts)
        keys = [key for folder in folders for key in folder.keys]
        is_test = split_off(groups.tolist(), keys, test_share, seed)
    return files_dataset(
        name or readable(root.resolve().name),
        root,
        [file for folder in folders for file in folder.files],
        np.repeat(labels, counts),
        label_names,
        is_test=is_test,
        domains=np.repeat(domain_indices, counts) if domains else None,
        domain_names=domain_names if domains else (),
        notes=[*notes, *_note_one_sided(folders), *skipped.notes()],
    )


def load_files(
    paths: Iterable[str | os.PathLike[str]], as_label: str, *, name: str | None = None
) -> Dataset:
    """Return image files as a data set of one class; a repeated path is one item."""
    files = [File.from_path(Path(path)) for path in dict.fromkeys(Path(path) for path in paths)]
    missing = [str(file.path) for file in files if not file.exists]
    if missing:
        raise DatasetError(
            f"{listed(missing)} {'do' if len(missing) > 1 else 'does'} not exist. "
            "Remedy: give paths of image files"
        )
    if not as_label.strip():
        raise DatasetError(f"{as_label!r} is not a label. Remedy: give the name of a class")
    labels = np.zeros(len(files), np.int64)
    is_test = np.zeros(len(files), bool)
    top = Path(Path.cwd().anchor)
    return files_dataset(name or as_label, top, files, labels, [as_label], is_test=is_test)


def _note_possible_domains(folders: list[ClassFolder]) -> list[str]:
    """Return a note if all class folders have the same subfolders, which may be the classes."""
    inside = [{top.name for top in subfolders(folder.path)} for folder in folders]
    shared = set.intersection(*inside) if len(folders) > 1 else set()
    if len(shared) < 2:
        return []
    return [
        f"{listed([folder.label for folder in folders])} were read as classes, but each has the "
        f"folders {listed(sorted(shared))}: if those are the classes, give domains=true"
    ]


def _parts(root: Path, skipped: SkippedFiles, notes: list[str]) -> list[tuple[Path, bool]]:
    """Return the folders of class folders, and whether they are for testing.

    A folder ``train`` may be a class of vehicles: it is a part if another part is beside it, or if
    it is the only folder and has subfolders.
    """
    tops = subfolders(root)
    by_name = {top.name.casefold(): top for top in tops}
    train, test, validation = (
        next((by_name[name] for name in sorted(names) if name in by_name), None)
        for names in (_TRAIN, _TEST, _VALIDATION)
    )
    alone = len(tops) == 1
    if train is None or not (test or validation or (alone and subfolders(train))):
        return [(root, False)]
    subfolders(root, skipped)
    test = test or validation
    unused = [top.name for top in tops if top not in {train, test}]
    if unused:
        notes.append(f"folders left out beside {train.name}: {listed(unused)}")
    return [(train, False)] + ([(test, True)] if test else [])


def _class_folders(
    top: Path, for_test: bool, domains: bool, as_label: str | None, skipped: SkippedFiles
) -> Iterator[ClassFolder]:
    for upper in subfolders(top, skipped) if domains else [top]:
        domain = readable(upper.name) if domains else ""
        for folder in subfolders(upper, skipped) if as_label is None else [upper]:
            label = readable(folder.name) if as_label is None else as_label
            yield ClassFolder(label, domain, for_test, list(iter_images(folder, skipped)), folder)


def _note_one_sided(folders: list[ClassFolder]) -> list[str]:
    """Return notes on classes with images in only one of the parts."""
    train = {folder.label for folder in folders if not folder.for_test}
    test = {folder.label for folder in folders if folder.for_test}
    if not test:
        return []
    sides = ((train - test, "nothing for testing"), (test - train, "nothing to learn from"))
    return [f"classes with {what}: {listed(sorted(names))}" for names, what in sides if names]


def _check_images(
    root: Path,
    folders: list[ClassFolder],
    skipped: SkippedFiles,
    domains: bool,
    as_label: str | None,
) -> None:
    if any(folder.files for folder in folders):
        return
    tree = (_DOMAIN_TREE if domains else _TREE).format(root=root.name)
    if skipped[UNCLASSIFIED]:
        level = "domain and class folders" if domains else "class folders"
        raise DatasetError(
            f"{root} holds {counted(skipped[UNCLASSIFIED], 'image')} in no class folder, so the "
            "class is unknown. Remedy: name the class of all with as_label (--as LABEL), "
            f"or sort them into {level}:{tree}"
        )
    reasons = "; ".join(skipped.notes())
    remedy = f"one folder per class:{tree}" if as_label is None else "a folder with images in it"
    raise DatasetError(
        f"{root} holds no images{f' ({reasons})' if reasons else ''}. Remedy: {remedy}"
    )
