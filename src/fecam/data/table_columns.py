"""Which column of a table is what, and the rows that came of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data._files import listed
from fecam.data.dataset import Kind
from fecam.errors import DatasetError

_EMBEDDINGS = ("embedding", "features")
# Numbers that a program wrote beside the rows, and that would be learnt from by mistake.
_COUNTERS = frozenset({"", "id", "idx", "index", "unnamed: 0"})
_PANDAS_INDEX = "__index_level_0__"

REMEDY = "Remedy: name the columns with label=, and text=, image= or features="


@dataclass(frozen=True)
class Options:
    """The columns a caller has named."""

    label: str | None = None
    text: str | None = None
    image: str | None = None
    features: str | tuple[str, ...] | None = None
    split: str | None = None
    domain: str | None = None
    labelled: bool = True
    """Whether there have to be labels."""


@dataclass(frozen=True)
class Columns:
    """What each column of a table is for."""

    label: str | None
    kind: Kind
    values: tuple[str, ...]
    """One column of texts, paths or lists; or the columns that make up a vector of features."""
    is_list: bool
    split: str | None
    domain: str | None
    unused: tuple[str, ...]

    def notes(self) -> list[str]:
        """Say which columns were not used."""
        return [f"columns left out: {listed(self.unused)}"] if self.unused else []


@dataclass
class Rows:
    """The rows of a table as they were read, before names become numbers."""

    kind: Kind
    items: Any
    """Texts, paths, features (count, width) or 8-bit images (count, ...)."""
    labels: Sequence[str] | None
    """None if the table has none, and need not have any."""
    where: Callable[[int], str]
    """How a person finds the row of this number: ``line 7``."""
    splits: Sequence[str] | None = None
    domains: Sequence[str] | None = None
    label_names: tuple[str, ...] | None = None
    notes: Iterable[str] = ()


def choose(
    path: Path,
    names: Sequence[str],
    given: Options,
    *,
    lists: Collection[str] = (),
    numbers: Collection[str] | None = None,
) -> Columns:
    """Find out from the names of the columns what each is for.

    Args:
        path: For messages.
        names: Of all columns, in their order.
        given: Those that the caller has named.
        lists: The columns that hold a vector in each row.
        numbers: The columns that hold a number in each row; None if that is not known.
    """
    found = f"{path} has the columns {listed([repr(name) for name in names], 20)}"
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DatasetError(
            f"{path} has several columns called {listed(twice)}. Remedy: rename them"
        )

    def named(option: str, default: str, needed: bool = False) -> str | None:
        wanted: str | None = getattr(given, option)
        if wanted is None:
            wanted = next((name for name in names if name.strip().casefold() == default), None)
        elif wanted not in names:
            raise DatasetError(f"{found}, but {option}={wanted!r} names none of them")
        if wanted is None and needed:
            raise DatasetError(f"{found}, none of which is called {default!r}. {REMEDY}")
        return wanted

    label = named("label", "label", needed=given.labelled)
    split, domain = named("split", "split"), named("domain", "domain")
    rest = [name for name in names if name not in {label, split, domain, _PANDAS_INDEX}]
    kind, values = _content(found, rest, given, lists, numbers)
    unused = tuple(name for name in rest if name not in values)
    is_list = kind == "features" and len(values) == 1 and values[0] in lists
    return Columns(label, kind, values, is_list, split, domain, unused)


def _content(
    found: str,
    rest: list[str],
    given: Options,
    lists: Collection[str],
    numbers: Collection[str] | None,
) -> tuple[Kind, tuple[str, ...]]:
    features = (given.features,) if isinstance(given.features, str) else given.features
    wanted: list[tuple[Kind, tuple[str, ...]]] = []
    wanted += [("texts", (given.text,))] if given.text is not None else []
    wanted += [("images", (given.image,))] if given.image is not None else []
    wanted += [("features", tuple(features))] if features is not None else []
    if not wanted:
        wanted = _guessed(found, rest, lists, numbers)
    if len(wanted) > 1:
        several = " and ".join(
            f"{kind} ({listed([repr(value) for value in values])})" for kind, values in wanted
        )
        raise DatasetError(f"{found}: they could be {several}. {REMEDY}, one of the three")
    if not wanted or not wanted[0][1]:
        raise DatasetError(f"{found}: no texts, paths of images or features to learn. {REMEDY}")
    kind, values = wanted[0]
    missing = [repr(value) for value in values if value not in rest]
    if missing:
        raise DatasetError(f"{found}: {listed(missing)} cannot be the {kind}. {REMEDY}")
    return kind, values


def _guessed(
    found: str, rest: list[str], lists: Collection[str], numbers: Collection[str] | None
) -> list[tuple[Kind, tuple[str, ...]]]:
    plain = {name.strip().casefold(): name for name in rest}
    guesses: list[tuple[Kind, tuple[str, ...]]] = []
    guesses += [("texts", (plain["text"],))] if "text" in plain else []
    guesses += [("images", (plain["path"],))] if "path" in plain else []
    guesses += [
        ("features", (plain[name],)) for name in _EMBEDDINGS if plain.get(name) in set(lists)
    ]
    if guesses:
        return guesses
    vector = [name for name in rest if numbers is None or name in numbers]
    counters = [repr(name) for name in vector if name.strip().casefold() in _COUNTERS]
    if counters:
        raise DatasetError(
            f"{found}: is {listed(counters)} something to learn from, or does it only number the "
            "rows? Remedy: name the columns with features=[...], or take it out"
        )
    return [("features", tuple(vector))] if vector else []


def empty_features(path: Path, rows: int, width: int) -> NDArray[np.float32]:
    """Return room for features of a size that a file declares, and may lie about."""
    try:
        # The system hands out the memory as it is written to, not before.
        return np.empty((rows, width), np.float32)
    except (MemoryError, ValueError, OverflowError):
        raise DatasetError(
            f"{path} declares {rows} rows of {width} features, which do not fit into memory. "
            "Remedy: if that is their true number, split the file"
        ) from None


def fill_features(
    target: NDArray[np.float32], block: NDArray[np.generic], start: int
) -> int | None:
    """Write a block of rows as float32; return the first row that holds NaN, infinity or excess."""
    with np.errstate(over="ignore", invalid="ignore"):
        target[start : start + len(block)] = block
    bad = ~np.isfinite(target[start : start + len(block)]).all(axis=1)
    return start + int(bad.argmax()) if bad.any() else None


def not_finite(path: Path, where: str) -> DatasetError:
    """Return the error about a row with a number that is none."""
    return DatasetError(
        f"{path}, {where}: a feature is NaN, infinite or too large for 32 bits. "
        "Remedy: correct or leave out this row"
    )
