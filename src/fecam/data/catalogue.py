"""The data sets by name, and what else can be read as one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from fecam.data.dataset import Dataset, Kind
from fecam.errors import DatasetError
from fecam.registry import keyword_options
from fecam.validation import check_keys, unknown

TABLES = (".npz", ".parquet", ".csv", ".tsv", ".npy", ".txt")
"""The files that are read as rows of features or texts."""


@dataclass(frozen=True)
class Entry:
    """A data set that is known by name."""

    name: str
    kind: Kind
    description: str
    obtained: str
    """How it is had."""
    options: tuple[str, ...] = ()
    """The keywords that `load` takes for it, besides ``root`` and ``download``."""


def _download(size: str) -> str:
    return f"downloaded when asked for, {size}"


_BY_HAND = "fetched by hand; its folder is the root"
_SETS = {
    entry.name: entry
    for entry in (
        Entry("cifar100", "images", "100 classes of photographs, 32 px", _download("161 MB")),
        Entry("tiny-imagenet", "images", "200 classes of ImageNet, 64 px", _download("237 MB")),
        Entry("imagenet-subset", "images", "100 classes of ImageNet, chosen by a list", _BY_HAND),
        Entry("mini-imagenet", "images", "100 classes of ImageNet for few-shot runs", _BY_HAND),
        Entry("cub200", "images", "200 species of birds", _download("1.1 GB")),
        Entry("imagenet-r", "images", "200 classes as art, toys, ...", _download("2.2 GB")),
        Entry("core50", "images", "50 household objects in 11 sessions (domains)", _BY_HAND),
        Entry(
            "quickdraw", "images", "345 classes of 100 sketches, 28 px", _download("14 MB by npm")
        ),
        Entry("digits", "images", "10 handwritten digits, 8 px", "comes with scikit-learn"),
        Entry(
            "glyphs",
            "images",
            "150 characters in 16 typefaces (domains), drawn at random",
            "drawn with matplotlib's typefaces",
        ),
    )
}


def available() -> list[Entry]:
    """The data sets that are known by name.

    >>> [entry.options for entry in available() if entry.name == "digits"]
    [('as_features',)]
    """
    return [replace(entry, options=_keywords(_loader(name))) for name, entry in _SETS.items()]


def load(
    what: str | Path, *, root: Path | str | None = None, download: bool = False, **options: Any
) -> Dataset:
    """Return the data set of a name, or of a folder of images or a file of rows.

    ``root`` is where a public set lies, by default a folder of its name in
    `fecam.data.paths.data_folder`; ``download`` allows to fetch it there. A name goes before a
    path: write ``./digits`` for a folder that is called so. The options are those of the loader,
    see `available`.

    >>> load("digits", as_features=True).kind
    'features'
    """
    name = os.fspath(what)
    if isinstance(what, str) and name in _SETS:
        return _load_named(name, root, download, options)
    if root is not None:
        raise DatasetError(
            f"root={root} needs the name of a data set. There is no data set "
            f"{unknown(name, _SETS)} Remedy: leave out root to load a path."
        )
    loader, path = _path_loader(name)
    return loader(path, **check_options(name, loader, options))


def _load_named(
    name: str, root: Path | str | None, download: bool, options: dict[str, Any]
) -> Dataset:
    loader = _loader(name)
    options = check_options(name, loader, options)
    parameters = keyword_options(loader)
    if "download" in parameters:
        options["download"] = download
    if "root" in parameters:
        options["root"] = root
    elif root is not None:
        raise DatasetError(
            f"{name} ({_SETS[name].obtained}) has no files of its own, so it takes no root (got "
            f"{root}). Remedy: leave root out"
        )
    return loader(**options)


def _path_loader(name: str) -> tuple[Callable[..., Dataset], Path]:
    """What reads this path, and the path."""
    # Unlike pathlib's, these say no to names that no file can have, too.
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        return _attribute("folder", "load_folder"), Path(path)
    if not os.path.exists(path):
        raise DatasetError(
            f"there is no data set, folder or file {unknown(name, _SETS)} Any other value is "
            f"the path of a folder of images or of a {', '.join(TABLES)} file."
        )
    if not path.lower().endswith(TABLES):
        raise DatasetError(
            f"{path} is no data set: a file has to end in one of {', '.join(TABLES)}. "
            "Remedy: give such a file, or a folder with the images of each class in a folder"
        )
    return _attribute("table", "load_table"), Path(path)


def check_options(
    name: str, loader: Callable[..., Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """A copy of the options, all of which the loader knows."""
    check_keys(name, options, _keywords(loader))
    return dict(options)


def _keywords(loader: Callable[..., Any]) -> tuple[str, ...]:
    """The options of a loader: its keyword-only parameters."""
    return tuple(keyword_options(loader, "root", "download"))


def _loader(name: str) -> Callable[..., Dataset]:
    return _attribute(name.replace("-", "_"), "load")


def _attribute(module: str, name: str) -> Callable[..., Dataset]:
    """Of a sister module, which is imported only now."""
    found: Callable[..., Dataset] = getattr(import_module(f"fecam.data.{module}"), name)
    return found
