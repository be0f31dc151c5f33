"""Rows of ``.npz`` and ``.npy`` files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from fecam.data._files import listed
from fecam.data.table_columns import Options, Rows, as_features, row_name
from fecam.errors import DatasetError
from fecam.labels import LabelKind

_REMEDY = "Remedy: np.savez(path, X=features, y=labels), with one row of X and of y per item"


def read_npy(path: Path) -> Rows:
    """Read numbers (count, width); (width,) is one row. There are no labels."""
    try:
        # Memory-mapped: numpy compares the declared size with that of the file.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a damaged file raises one of many classes
        raise DatasetError(
            f"{path} cannot be read as npy: {error}. Remedy: np.save(path, features)"
        ) from None
    if not isinstance(array, np.memmap) or array.dtype.kind not in "fiub" or array.ndim > 2:
        what = f"of type {array.dtype}, shape {array.shape}" if hasattr(array, "dtype") else "a zip"
        raise DatasetError(f"{path} is {what}. Remedy: np.save(path, features), one row per item")
    features = as_features(path, [np.atleast_2d(array)], row_name)
    return Rows("features", features, None, row_name)


def read_npz(path: Path, given: Options) -> Rows:
    """Read the vectors, texts or 8-bit images of ``X``, with ``y`` and the optional arrays."""
    try:
        # numpy leaves a damaged file open unless the file is passed.
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, NpzFile):
                raise ValueError("it holds a single array")
            return _Reader(path, archive).rows(given)
    except DatasetError:
        raise
    except Exception as error:
        raise DatasetError(
            f"{path} cannot be read as npz: {error}. Remedy: write the file again"
        ) from None


class _Reader(dict[str, NDArray[Any]]):
    """The arrays of an archive, each read when it is first used."""

    def __init__(self, path: Path, archive: NpzFile) -> None:
        super().__init__()
        self.path, self.archive, self.names = path, archive, list(archive.files)

    def __missing__(self, name: str) -> NDArray[Any]:
        try:
            self[name] = self.archive[name]
        except Exception as error:
            raise self.error(
                f"the array {name!r} cannot be read as npz: {error}. Remedy: write the file again, "
                "texts as np.array(texts, dtype=str)"
            ) from None
        return self[name]

    def error(self, problem: str) -> DatasetError:
        return DatasetError(f"{self.path}: {problem}")

    def rows(self, given: Options) -> Rows:
        items = given.features if isinstance(given.features, str) else given.text or given.image
        first = self._find(items, "X", "features=... (--option features=ARRAY)")
        train = [first]
        if given.labeled:
            train.append(self._find(given.label, "y", "label=... (--option label=ARRAY)"))
        wanted = [name.removesuffix("_train") + "_test" for name in train]
        tests = [name for name in wanted if name in self.names]
        if 0 < len(tests) < len(wanted):
            raise self.error(f"it has {tests[0]!r} alone. Remedy: give both X_test and y_test")
        parts, labels = [first, *tests[:1]], [*train[1:], *tests[1:]]
        if not all(self[name].ndim for name in parts):
            raise self.error(f"{first!r} is a single value. {_REMEDY}")
        for x, y in zip(parts, labels, strict=given.labeled):
            if self[y].ndim != 1 or len(self[x]) != len(self[y]):
                shapes = f"{x!r} has the shape {self[x].shape} and {y!r} {self[y].shape}"
                raise self.error(f"{shapes}. {_REMEDY}")
        counts = [len(self[name]) for name in parts]
        domains = self._column(given.domain or "domains", sum(counts))
        label_names = self._label_names()
        return Rows(
            *self._items(parts),
            self._labels(labels, label_names) if labels else None,
            row_name,
            self._splits(counts),
            None if domains is None else self._texts("domains", domains),
            label_names,
            self._label_kind(labels),
        )

    def _find(self, given: str | None, usual: str, option: str) -> str:
        lower = usual.lower()
        candidates = [usual, f"{usual}_train", lower, f"{lower}_train"]
        for name in candidates if given is None else [given]:
            if name in self.names:
                return name
        raise self.error(
            f"it holds the arrays {listed(self.names, 20)}, but no {given or usual!r}. {_REMEDY}, "
            f"or name them with {option}"
        )

    def _column(self, name: str, count: int) -> NDArray[Any] | None:
        """Return an optional array with one value per row, those of the test part appended."""
        if name not in self.names:
            return None
        parts = [part for part in (name, f"{name}_test") if part in self.names]
        array = np.concatenate([self[part] for part in parts])
        if array.shape != (count,):
            raise self.error(f"{name!r} has the shape {array.shape}, not ({count},)")
        return array

    def _items(self, names: list[str]) -> tuple[Any, Any]:
        """Return the kind of the items and the items."""
        parts = [self[name] for name in names]
        first = parts[0]
        if any(part.shape[1:] != first.shape[1:] for part in parts):
            shapes = " and ".join(str(part.shape) for part in parts)
            raise self.error(f"X and X_test differ in width: {shapes}")
        if first.dtype.kind == "U" and first.ndim == 1:
            return "texts", [text for part in parts for text in self._texts(names[0], part)]
        is_image = first.ndim == 3 or (first.ndim == 4 and first.shape[3] in {1, 3, 4})
        if is_image and all(part.dtype == np.uint8 for part in parts):
            return "images", np.concatenate(parts)
        if any(part.dtype.kind not in "fiub" or part.ndim != 2 for part in parts):
            raise self.error(
                f"the array {names[0]!r} is of type {first.dtype}, shape {first.shape}. Remedy: "
                "give numbers (count, features), texts (count,) or 8-bit images (count, h, w, 3)"
            )

        def where(row: int) -> str:
            i = int(row >= len(first))
            return f"{row_name(row - i * len(first))} of {names[i]!r}"

        return "features", as_features(self.path, parts, where)

    def _label_names(self) -> tuple[str, ...] | None:
        if "label_names" not in self.names:
            return None
        names = tuple(self._texts("label_names", self["label_names"].reshape(-1)))
        if len(set(names)) < len(names):
            raise self.error("'label_names' has a name twice. Remedy: make them distinct")
        return names

    def _label_kind(self, names: list[str]) -> LabelKind:
        """Return the kind of the labels; whole numbers of type float are integers."""
        if not names:
            return "strings"
        parts = ["label_names"] if "label_names" in self.names else names
        kinds: dict[str, LabelKind] = {"b": "booleans", **dict.fromkeys("iuf", "integers")}
        return kinds.get(np.result_type(*(self[name] for name in parts)).kind, "strings")

    def _labels(self, names: list[str], label_names: tuple[str, ...] | None) -> Sequence[str]:
        codes = np.concatenate([self[name] for name in names])
        texts = self._texts(names[0], codes)
        if label_names is None or codes.dtype.kind not in "fiub":
            return texts
        wrong = np.flatnonzero((codes < 0) | (codes >= len(label_names)))
        if len(wrong):
            raise self.error(
                f"{row_name(wrong[0])}: the label {codes[wrong[0]]} is no index of the "
                f"{len(label_names)} label_names, which start at 0"
            )
        return [label_names[int(code)] for code in codes]

    def _splits(self, counts: list[int]) -> Sequence[str] | None:
        is_test = self._column("is_test", sum(counts))
        if is_test is None:
            return None if len(counts) == 1 else np.repeat(["train", "test"], counts).tolist()
        if len(counts) > 1:
            raise self.error("it has both 'is_test' and 'X_test'. Remedy: give one of them")
        if is_test.dtype.kind not in "biu" or not np.isin(is_test, (0, 1)).all():
            raise self.error("'is_test' is not boolean. Remedy: give a bool array")
        return ["test" if flag else "train" for flag in is_test]

    def _texts(self, name: str, values: NDArray[Any]) -> list[str]:
        """Return names as strings, given as texts, integers or booleans."""
        if values.dtype.kind == "f":
            wrong = np.flatnonzero(~np.isfinite(values) | (values != np.round(values)))
            if len(wrong):
                raise self.error(
                    f"{row_name(wrong[0])}: {values[wrong[0]]} in {name!r} is not an integer. "
                    "Remedy: give integers or texts"
                )
            values = values.astype(np.int64)
        elif values.dtype.kind == "S":
            values = np.char.decode(values, "utf-8")
        if values.dtype.kind not in "biuU":
            raise self.error(
                f"{name!r} is of type {values.dtype}. Remedy: give integers, booleans or texts"
            )
        return [str(value) for value in values]
