"""A list of image files of one class."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fecam.data._files import files_dataset, listed
from fecam.data._listing import File
from fecam.data.dataset import Dataset
from fecam.errors import DatasetError


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
