"""CIFAR-100: 60,000 photographs of 32 x 32 pixels in 100 classes (Krizhevsky, 2009)."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data._files import listed
from fecam.data._official import Release, find, note_sizes, read_lines
from fecam.data.dataset import Dataset, fingerprint_of
from fecam.errors import DatasetError

RELEASES = (
    Release(
        "cifar-100-python",
        ("train", "test", "meta"),
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
    ),
    Release(
        "cifar-100-binary",
        ("train.bin", "test.bin", "fine_label_names.txt", "coarse_label_names.txt"),
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
    ),
)

_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE
_REMEDY = "Remedy: unpack the official archive again"


def load(
    root: Path | str | None = None, *, download: bool = False, superclasses: bool = False
) -> Dataset:
    """Return CIFAR-100, the images as one array (count, 32, 32, 3).

    ``root`` is the folder ``cifar-100-python`` or ``cifar-100-binary``, its parent, or the archive
    (161 MB). ``superclasses`` are the 20 superclasses, such as fish, instead of the 100 classes.
    """
    folder, release = find("cifar100", root, RELEASES, download, _PAGE)
    read = _python if release is RELEASES[0] else _binary
    parts, names = read(folder, superclasses)
    sizes = [len(labels) for _, labels in parts]
    images = np.empty((sum(sizes), _SIDE, _SIDE, 3), np.uint8)
    start = 0
    for pixels, labels in parts:
        planes = pixels.reshape(-1, 3, _SIDE, _SIDE)
        images[start : start + len(labels)] = planes.transpose(0, 2, 3, 1)
        start += len(labels)
    labels = np.concatenate([labels for _, labels in parts])
    is_test = np.repeat([False, True], sizes)
    fingerprint = fingerprint_of([images, labels, is_test, *names])
    official = (50_000, 10_000, 20 if superclasses else 100)
    notes = tuple(note_sizes((sizes[0], sizes[1], len(names)), official))
    return Dataset(
        "cifar100", "images", images, labels, tuple(names), fingerprint, is_test, notes=notes
    )


_Parts = list[tuple[NDArray[np.uint8], NDArray[np.int64]]]


def _python(folder: Path, superclasses: bool) -> tuple[_Parts, list[str]]:
    """Read the pickles: a dictionary per part and one of names."""
    level = "coarse" if superclasses else "fine"
    names = _entry(folder / "meta", _read_pickle(folder / "meta"), f"{level}_label_names", list)
    decoded = [name.decode() if isinstance(name, bytes) else str(name) for name in names]
    parts: _Parts = []
    for path in (folder / "train", folder / "test"):
        content = _read_pickle(path)
        labels = _check_labels(path, _entry(path, content, f"{level}_labels", list), len(decoded))
        pixels = _entry(path, content, "data", np.ndarray)
        if pixels.dtype != np.uint8 or pixels.shape != (len(labels), _PIXELS):
            raise DatasetError(
                f"{path}: the images are {pixels.dtype} {pixels.shape}, not uint8 "
                f"({len(labels)}, {_PIXELS}). {_REMEDY}"
            )
        parts.append((pixels, labels))
    return parts, decoded


def _binary(folder: Path, superclasses: bool) -> tuple[_Parts, list[str]]:
    """Read the binary files: per image one byte for each label, then its pixels."""
    level = "coarse" if superclasses else "fine"
    names = [line.strip() for line in read_lines(folder / f"{level}_label_names.txt")]
    parts: _Parts = []
    for path in (folder / "train.bin", folder / "test.bin"):
        size = path.stat().st_size
        if not size or size % (_PIXELS + 2):
            raise DatasetError(
                f"{path} has {size} bytes, not a multiple of {_PIXELS + 2} per image. {_REMEDY}"
            )
        rows = np.fromfile(path, np.uint8).reshape(-1, _PIXELS + 2)
        labels = _check_labels(path, rows[:, 0 if superclasses else 1].tolist(), len(names))
        parts.append((rows[:, 2:], labels))
    return parts, names


def _entry(path: Path, content: Any, key: str, kind: type) -> Any:
    """Return an entry of a dictionary, whose keys Python 2 wrote as bytes."""
    value = content.get(key.encode(), content.get(key)) if isinstance(content, dict) else None
    if not isinstance(value, kind):
        raise DatasetError(f"{path} has no {kind.__name__} {key!r}. {_REMEDY}")
    return value


def _check_labels(path: Path, labels: list[Any], classes: int) -> NDArray[np.int64]:
    wrong = [x for x in labels if not isinstance(x, int) or not 0 <= x < classes]
    if wrong:
        raise DatasetError(
            f"{path}: labels {listed(wrong)}, not from 0 to {classes - 1}. {_REMEDY}"
        )
    return np.array(labels, np.int64)


def _read_pickle(path: Path) -> Any:
    """Return the content of a pickle: containers, strings, numbers and arrays."""
    try:
        with path.open("rb") as file:
            # Files of Python 2, whose strings are bytes.
            return _Arrays(file, encoding="bytes").load()
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}") from None
    # A damaged or hostile pickle can raise any error.
    except Exception as error:
        raise DatasetError(
            f"{path} is not the pickle it should be: {error or type(error).__name__}. "
            "Remedy: get the archive from where it was published"
        ) from None


class _Arrays(pickle.Unpickler):
    """Resolves only the three names of a numeric array, each to a function of this module."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in {"numpy.core.multiarray", "numpy._core.multiarray"}:
            return _empty_array
        if module == "numpy" and name == "ndarray":
            return _NDARRAY
        if module == "numpy" and name == "dtype":
            return _dtype
        raise pickle.UnpicklingError(f"{module}.{name} is not permitted")


# Replaces the class, which a pickle could call with any size.
_NDARRAY = object()


def _empty_array(kind: Any, shape: Any, code: Any) -> NDArray[Any]:
    """Return the array that the pickle then fills, whatever size it requests first."""
    return np.empty(0, np.int8)


def _dtype(code: Any, align: Any = False, copy: Any = True) -> np.dtype[Any]:
    code = code.decode() if isinstance(code, bytes) else code
    if not isinstance(code, str) or code[:1] not in "biuf" or len(code) > 2:
        raise pickle.UnpicklingError(f"an array of type {code!r} is not permitted")
    # Always a copy: the pickle sets its byte order, and numpy's own must not change.
    return np.dtype(code, copy=True)
