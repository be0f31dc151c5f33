"""Answers as a table for people, CSV, or JSON lines; each is written when it is there."""

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

    Found = Prediction | ItemError
    Write = Callable[[str, Found], None]

NONE = "none of these"
_WIDEST = 32


class Format(StrEnum):
    """How answers are written."""

    table = "table"
    csv = "csv"
    jsonl = "jsonl"


def format_of(output: Path | None) -> Format:
    """What the name of a file asks for.

    >>> format_of(Path("answers.csv"))
    <Format.csv: 'csv'>
    """
    suffix = "" if output is None else output.suffix.lower()
    return {".csv": Format.csv, ".jsonl": Format.jsonl}.get(suffix, Format.table)


@contextmanager
def writing(
    output: Path | None, form: Format, labels: Sequence[str], top: int
) -> Iterator[tuple[Write, Callable[[int], None]]]:
    """What writes one answer, and what to call with their number after some."""
    if output is None:
        # Names of files that are no text come through as they are, where a program reads them.
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
        return lambda name, found: print(json.dumps(_document(name, found)), file=file)
    return _csv_writer(file, top) if form is Format.csv else _table_writer(file, labels)


def _document(name: str, found: Found) -> dict[str, Any]:
    if isinstance(found, ItemError):
        return {"item": name, "error": str(found)}
    nearest = [
        {
            "label": one.label,
            "probability": _number(one.probability),
            "distance": _number(one.distance),
        }
        for one in found.nearest
    ]
    novelty = _number(found.novelty)
    return {"item": name, "label": found.label, "novelty": novelty, "nearest": nearest}


def _number(value: float) -> float | None:
    """With the digits that mean something; JSON has no infinity."""
    return float(f"{value:.7g}") if math.isfinite(value) else None


def _csv_writer(file: TextIO, top: int) -> Write:
    """A row an item. `label` is empty where none fits; `nearest` then still names the nearest."""
    rows = csv.writer(file, lineterminator="\n")
    columns = ["nearest", "probability", "distance"]
    more = [f"{name}_{at}" for at in range(2, top + 1) for name in columns]
    rows.writerow(["item", "label", "novelty", *columns, *more, "error"])
    # A program gets names as they are; a terminal takes no commands from them.
    safe = single_line if file.isatty() else str

    def write(name: str, found: Found) -> None:
        if isinstance(found, ItemError):
            cells = [""] * (5 + len(more)) + [safe(str(found))]
        else:
            cells = ["" if found.label is None else safe(str(found.label)), f"{found.novelty:.7g}"]
            for one in found.nearest:
                cells += [safe(str(one.label)), f"{one.probability:.7g}", f"{one.distance:.7g}"]
            cells.append("")
        rows.writerow([safe(name), *cells])

    return write


def _table_writer(file: TextIO, labels: Sequence[str]) -> Write:
    """A line an item, and one for each further class; the item last, however long its name is."""
    room = min(max(cell_len(single_line(one)) for one in [*labels, NONE]) + 2, _WIDEST)

    def line(label: str, *cells: str) -> None:
        label = single_line(label)
        print("  ".join([label + " " * (room - cell_len(label)), *cells]).rstrip(), file=file)

    def write(name: str, found: Found) -> None:
        if isinstance(found, ItemError):
            print_note(f"unreadable: {found}")
            return
        measured = [
            (str(one.label), f"{one.probability:11.3f}", f"{one.distance:10.4g}")
            for one in found.nearest
        ]
        if found.label is None:
            first, others = (NONE, " " * 11, " " * 10), measured if len(measured) > 1 else []
        else:
            first, *others = measured
        line(*first, f"{found.novelty:7.2f}", single_line(name))
        for label, *cells in others:
            line(f"  {label}", *cells)

    line("class", "probability", "  distance", "novelty", "item")
    return write
