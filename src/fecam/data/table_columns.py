"""The role of each column of a table, and the rows that were read."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data._files import listed
from fecam.data.dataset import Kind
from fecam.errors import DatasetError
from fecam.labels import LabelKind

_EMBEDDINGS = ("embedding", "features")
# Columns of row numbers, which must not be learned from.
_COUNTERS = frozenset({"", "id", "idx", "index", "unnamed: 0"})
_PANDAS_INDEX = "__index_level_0__"

FEATURES_OPTION = """features=[...] (--option 'features=["COLUMN", "COLUMN"]')"""
REMEDY = (
    "Remedy: name the columns with label=... (--option label=COLUMN), and text=... (--option "
    "text=COLUMN), or image or features in place of text"
)


@dataclass(frozen=True)
class Options:
    """The columns that the caller named, and whether labels are required."""

    label: str | None = None
    text: str | None = None
    image: str | None = None
    features: str | Sequence[str] | None = None
    split: str | None = None
    domain: str | None = None
    labeled: bool = True


@dataclass
class Rows:
    """The rows of a table before names become indices."""

    kind: Kind
    items: Any
    """Texts, paths, features (count, width) or 8-bit images (count, ...)."""
    labels: Sequence[str] | None
    """None if the table has none and none are required."""
    where: Callable[[int], str]
    """The position of a row for messages: ``line 7``."""
    splits: Sequence[str] | None = None
    domains: Sequence[str] | None = None
    label_names: tuple[str, ...] | None = None
    label_kind: LabelKind = "strings"
    notes: Iterable[str] = ()


@dataclass(frozen=True)
class Columns:
    """The role of each column of a table."""

    label: str | None
    kind: Kind
    values: tuple[str, ...]
    """One column of texts, paths or lists, or the columns of a feature vector."""
    is_list: bool
    split: str | None
    domain: str | None
    unused: tuple[str, ...]

    @property
    def about(self) -> list[str]:
        """The columns of labels, splits and domains."""
        return [name for name in (self.label, self.split, self.domain) if name is not None]

    def rows(
        self,
        features: NDArray[np.float32] | None,
        texts: Mapping[str, Sequence[str]],
        where: Callable[[int], str],
        label_kind: LabelKind,
    ) -> Rows:
        """Return the rows of these features, or of the texts of each column."""
        items = texts[self.values[0]] if features is None else features
        label, split, domain = (
            None if name is None else texts[name] for name in (self.label, self.split, self.domain)
        )
        notes = [f"columns left out: {listed(self.unused)}"] if self.unused else []
        return Rows(
            self.kind, items, label, where, split, domain, label_kind=label_kind, notes=notes
        )


def choose(
    path: Path | str,
    names: Sequence[str],
    given: Options,
    *,
    lists: Collection[str] = (),
    numbers: Collection[str] | None = None,
) -> Columns:
    """Return the role of each column; ``lists`` hold vectors, ``numbers`` numbers (if known)."""
    subject = f"{path} has the columns {listed([repr(name) for name in names], 20)}"
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise DatasetError(
            f"{path} has several columns called {listed(duplicates)}. Remedy: rename them"
        )

    def find(option: str, required: bool = False) -> str | None:
        name: str | None = getattr(given, option)
        if name is None:
            name = next((name for name in names if name.strip().casefold() == option), None)
        elif name not in names:
            raise DatasetError(f"{subject}, but {option}={name!r} names none of them")
        if name is None and required:
            raise DatasetError(f"{subject}, none of which is called {option!r}. {REMEDY}")
        return name

    label = find("label", required=given.labeled)
    split, domain = find("split"), find("domain")
    others = [name for name in names if name not in {label, split, domain, _PANDAS_INDEX}]
    named = (("texts", given.text), ("images", given.image), ("features", given.features))
    options: list[tuple[Any, tuple[str, ...]]] = [
        (kind, (names,) if isinstance(names, str) else tuple(names))
        for kind, names in named
        if names is not None
    ]
    options = options or _guess(subject, others, lists, numbers)
    if len(options) > 1:
        several = " and ".join(
            f"{kind} ({listed([repr(value) for value in values])})" for kind, values in options
        )
        raise DatasetError(f"{subject}: they could be {several}. {REMEDY}, one of the three")
    if not options or not options[0][1]:
        raise DatasetError(f"{subject}: no texts, paths of images or features to learn. {REMEDY}")
    kind, values = options[0]
    missing = [repr(value) for value in values if value not in others]
    if missing:
        raise DatasetError(f"{subject}: {listed(missing)} cannot be the {kind}. {REMEDY}")
    unused = tuple(name for name in others if name not in values)
    is_list = kind == "features" and len(values) == 1 and values[0] in lists
    return Columns(label, kind, values, is_list, split, domain, unused)


def _guess(
    subject: str, names: list[str], lists: Collection[str], numbers: Collection[str] | None
) -> list[tuple[Kind, tuple[str, ...]]]:
    """Return the possible kinds of items, from the names of the columns."""
    by_name = {name.strip().casefold(): name for name in names}
    usual: tuple[tuple[Kind, str], ...] = (("texts", "text"), ("images", "path"))
    guesses: list[tuple[Kind, tuple[str, ...]]] = [
        (kind, (by_name[name],)) for kind, name in usual if name in by_name
    ]
    embeddings = [by_name[name] for name in _EMBEDDINGS if by_name.get(name) in lists]
    guesses += [("features", (name,)) for name in embeddings]
    if guesses:
        return guesses
    vector = [name for name in names if numbers is None or name in numbers]
    counters = [repr(name) for name in vector if name.strip().casefold() in _COUNTERS]
    if counters:
        raise DatasetError(
            f"{subject}: {listed(counters)} may only number the rows. Remedy: name the columns to "
            f"learn from with {FEATURES_OPTION}, or remove it"
        )
    return [("features", tuple(vector))] if vector else []


def as_features(
    path: Path | str, parts: Sequence[NDArray[Any]], where: Callable[[int], str]
) -> NDArray[np.float32]:
    """Return the rows of all parts as float32, or raise if a number is not finite."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            features = np.concatenate(parts, dtype=np.float32, casting="unsafe")
    except MemoryError as error:
        raise DatasetError(
            f"{path} does not fit into memory: {error}. Remedy: split the file"
        ) from None
    is_bad = ~np.isfinite(features).all(axis=1)
    if is_bad.any():
        raise DatasetError(
            f"{path}, {where(int(is_bad.argmax()))}: a feature is NaN, infinite or too large for "
            "32 bits. Remedy: correct or remove this row"
        )
    return features


def row_name(row: int) -> str:
    """Return the position of a row for messages."""
    return f"row {row + 1}"
