"""Writers of predictions: table, CSV and JSON lines, one prediction at a time."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.cells import cell_len

from fecam.cli.output import print_note, progress_bar, single_line
from fecam.errors import ItemError

if TYPE_CHECKING:
    from fecam.model import Prediction

    Result = Prediction | ItemError
    Write = Callable[[str, Result], None]

NONE = "none of these"
_MAX_LABEL_WIDTH = 32


Format = StrEnum("Format", ["table", "csv", "jsonl"])
"""Output format of predictions."""


def format_of(output: Path | None) -> Format:
    """Return the format for the suffix of a file.

    >>> format_of(Path("answers.csv"))
    <Format.csv: 'csv'>
    """
    suffix = "" if output is None else output.suffix.lower()
    return {".csv": Format.csv, ".jsonl": Format.jsonl}.get(suffix, Format.table)


@contextmanager
def open_writer(
    output: Path | None, form: Format, labels: Sequence[str], top: int
) -> Iterator[tuple[Write, Callable[[int], None]]]:
    """Open the output; yield functions that write a prediction, and flush a number of them."""
    if output is None:
        # File names that are not valid text are printed as the same bytes.
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="surrogateescape")
        yield _writer(form, sys.stdout, labels, top), lambda _: sys.stdout.flush()
        return
    with (
        output.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
        progress_bar(str(output), "items") as bar,
    ):
        (task,) = bar.task_ids

        def flush(count: int) -> None:
            file.flush()
            bar.update(task, completed=count)

        yield _writer(form, file, labels, top), flush


def _writer(form: Format, file: TextIO, labels: Sequence[str], top: int) -> Write:
    if form is Format.jsonl:
        return lambda name, result: print(json.dumps(_document(name, result)), file=file)
    return _csv_writer(file, top) if form is Format.csv else _table_writer(file, labels)


def _document(name: str, result: Result) -> dict[str, Any]:
    if isinstance(result, ItemError):
        return {"item": name, "error": str(result)}
    nearest = [
        {"label": x.label, "probability": _number(x.probability), "distance": _number(x.distance)}
        for x in result.nearest
    ]
    novelty = _number(result.novelty)
    return {"item": name, "label": result.label, "novelty": novelty, "nearest": nearest}


def _number(value: float) -> float | None:
    """Return the value with 7 significant digits; JSON has no infinity."""
    return float(f"{value:.7g}") if math.isfinite(value) else None


def _csv_writer(file: TextIO, top: int) -> Write:
    """Write one row per item; `label` is empty for a rejected item, `nearest` is not."""
    rows = csv.writer(file, lineterminator="\n")
    columns = ["nearest", "probability", "distance"]
    more = [f"{name}_{rank}" for rank in range(2, top + 1) for name in columns]
    rows.writerow(["item", "label", "novelty", *columns, *more, "error"])
    # A program gets the exact names; control characters are escaped for a terminal.
    safe = single_line if file.isatty() else str

    def write(name: str, result: Result) -> None:
        if isinstance(result, ItemError):
            cells = [""] * (5 + len(more)) + [safe(str(result))]
        else:
            label = "" if result.label is None else safe(str(result.label))
            cells = [label, "" if math.isnan(result.novelty) else f"{result.novelty:.7g}"]
            for near in result.nearest:
                cells += [safe(str(near.label)), f"{near.probability:.7g}", f"{near.distance:.7g}"]
            cells.append("")
        rows.writerow([safe(name), *cells])

    return write


def _table_writer(file: TextIO, labels: Sequence[str]) -> Write:
    """Write one line per item and one per further class; the item is last, whatever its length."""
    longest = max(cell_len(single_line(label)) for label in [*labels, NONE])
    width = min(longest + 2, _MAX_LABEL_WIDTH)

    def line(label: str, *cells: str) -> None:
        label = single_line(label)
        print("  ".join([label + " " * (width - cell_len(label)), *cells]).rstrip(), file=file)

    def write(name: str, result: Result) -> None:
        if isinstance(result, ItemError):
            print_note(f"unreadable: {result}")
            return
        rows = [
            (str(near.label), f"{near.probability:11.3f}", f"{near.distance:10.4g}")
            for near in result.nearest
        ]
        if result.label is None:
            first, others = (NONE, " " * 11, " " * 10), rows if len(rows) > 1 else []
        else:
            first, *others = rows
        novelty = "    n/a" if math.isnan(result.novelty) else f"{result.novelty:7.2f}"
        line(*first, novelty, single_line(name))
        for label, *cells in others:
            line(f"  {label}", *cells)

    line("class", "probability", "  distance", "novelty", "item")
    return write
