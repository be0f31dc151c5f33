"""Data sets by name, and paths that can be loaded as one."""

import inspect
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

TABLE_SUFFIXES = (".npz", ".parquet", ".csv", ".tsv", ".npy", ".txt")
"""Suffixes of files of features or texts."""
COLLECTIONS = ("lancedb", "qdrant", "huggingface")
"""Programs whose collections can be read, by addresses such as ``lancedb:folder/table``."""


@dataclass(frozen=True)
class DatasetInfo:
    """A data set that is loaded by name."""

    name: str
    kind: Kind
    description: str
    obtained: str
    """How its files are obtained."""
    options: tuple[str, ...] = ()
    """Options of `load`, besides ``root`` and ``download``."""


_DOWNLOAD = "downloaded on request, "
_BY_HAND = "obtained by hand; root is its folder"
_FONTS = "drawn with the fonts of matplotlib"
_IMAGES = {
    "cifar100": ("100 classes of photographs, 32 px", _DOWNLOAD + "161 MB"),
    "tiny-imagenet": ("200 classes of ImageNet, 64 px", _DOWNLOAD + "237 MB"),
    "imagenet-subset": ("100 classes of ImageNet, chosen by a list", _BY_HAND),
    "mini-imagenet": ("100 classes of ImageNet for few-shot runs", _BY_HAND),
    "cub200": ("200 species of birds", _DOWNLOAD + "1.1 GB"),
    "imagenet-r": ("200 classes as art, toys, ...", _DOWNLOAD + "2.2 GB"),
    "core50": ("50 household objects in 11 sessions (domains)", _BY_HAND),
    "quickdraw": ("345 classes of 100 sketches, 28 px", _DOWNLOAD + "14 MB by npm"),
    "digits": ("10 handwritten digits, 8 px", "included in scikit-learn"),
    "glyphs": ("150 characters in 16 typefaces (domains), drawn at random", _FONTS),
}
_DATASETS = {name: DatasetInfo(name, "images", *texts) for name, texts in _IMAGES.items()}


def available() -> list[DatasetInfo]:
    """Return the data sets that `load` accepts by name.

    Returns
    -------
    list of DatasetInfo
        Name, kind, description, source and options of each.

    Examples
    --------
    >>> [info.options for info in available() if info.name == "digits"]
    [('as_features',)]
    """
    return [replace(info, options=_options(_loader(name))) for name, info in _DATASETS.items()]


def load(
    what: str | Path, *, root: Path | str | None = None, download: bool = False, **options: Any
) -> Dataset:
    """Return a data set by name, or the content of a folder of images or a table.

    Parameters
    ----------
    what : str or Path
        A name of `available`, or a path. A name takes precedence: write ``./digits`` for a folder
        of that name. Or the address of a collection, such as ``lancedb:FOLDER/TABLE``: see
        `fecam.data.collections.load_collection`.
    root : path, optional
        The folder of a public data set. Default: a folder in `fecam.data.paths.data_folder`.
    download : bool
        Whether to download the files if they are missing.
    **options : Any
        Options of the loader, see `available`, `fecam.data.folder.load_folder` and
        `fecam.data.table.load_table`.

    Returns
    -------
    Dataset
        The data set.

    Raises
    ------
    DatasetError
        If there is no such data set or path, or its files are missing or damaged.
    SettingsError
        If an option does not exist.

    Examples
    --------
    >>> load("digits", as_features=True).kind
    'features'
    """
    name = os.fspath(what)
    if not isinstance(what, str) or name not in _DATASETS:
        if root is not None:
            raise DatasetError(
                f"root={root} needs the name of a data set. There is no data set "
                f"{unknown(name, _DATASETS)} Remedy: leave out root to load a path."
            )
        loader, path = _path_loader(name)
        return loader(path, **check_options(name, loader, options))
    loader = _loader(name)
    options = check_options(name, loader, options)
    parameters = inspect.signature(loader).parameters
    if "download" in parameters:
        options["download"] = download
    if "root" in parameters:
        options["root"] = root
    elif root is not None:
        raise DatasetError(
            f"{name} ({_DATASETS[name].obtained}) has no files, so it takes no root (got {root}). "
            "Remedy: leave out root"
        )
    return loader(**options)


def _path_loader(name: str) -> tuple[Callable[..., Dataset], Path | str]:
    """Return the loader of a path or of a collection, and the path or address."""
    if name.partition(":")[0] in COLLECTIONS and not os.path.exists(name):
        return _import("collections", "load_collection"), name
    # Unlike pathlib, these functions accept names that no file can have.
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        return _import("folder", "load_folder"), Path(path)
    if not os.path.exists(path):
        raise DatasetError(
            f"there is no data set, folder or file {unknown(name, _DATASETS)} Any other value is "
            f"the path of a folder of images or of a {', '.join(TABLE_SUFFIXES)} file."
        )
    if not path.lower().endswith(TABLE_SUFFIXES):
        raise DatasetError(
            f"{path} is not a data set: its suffix must be one of {', '.join(TABLE_SUFFIXES)}. "
            "Remedy: give such a file, or a folder with one folder of images per class"
        )
    return _import("table", "load_table"), Path(path)


def check_options(
    name: str, loader: Callable[..., Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a copy of the options, or raise if the loader does not have one."""
    check_keys(name, options, _options(loader))
    return dict(options)


def _options(loader: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(keyword_options(loader, "root", "download"))


def _loader(name: str) -> Callable[..., Dataset]:
    return _import(name.replace("-", "_"), "load")


def _import(module: str, name: str) -> Callable[..., Dataset]:
    function: Callable[..., Dataset] = getattr(import_module(f"fecam.data.{module}"), name)
    return function
