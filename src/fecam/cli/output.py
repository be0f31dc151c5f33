"""What the commands print: tables for people, JSON for programs, bars for the patient."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Literal, TextIO, cast

import typer
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from fecam.errors import InputError

INTERRUPTED = 130
"""What a shell calls the end by Ctrl-C."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

# Names of files are shown as they are: no markup, no emoji, and no path broken over two lines.
_plain = partial(Console, markup=False, emoji=False, highlight=False, soft_wrap=True)
console = _plain()
errors = _plain(stderr=True)
_NUMBER = re.compile(r"[0-9.,]+( [KMGT]?B)?")
# Control characters, those that turn the direction of writing, and halves of characters, of which
# names of files that are no text are made: no terminal should be sent any.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_MAX_WIDTH = 10_000


def show_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under a header; numbers go to the right. For programs, a row is one line."""
    lines = [[single_line(str(cell)) for cell in row] for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, name in enumerate(header):
        numbers = all(_NUMBER.fullmatch(line[at]) for line in lines if line[at])
        justify: Literal["left", "right"] = "right" if numbers and lines else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=at == 0)
    for line in lines:
        table.add_row(*line)
    wide = console if console.is_terminal else _plain(width=_MAX_WIDTH)
    wide.print(table, soft_wrap=False)


def show_json(value: Any) -> None:
    """Print one JSON document, in ASCII: file names that are no text come through, too."""
    print(json.dumps(value, indent=2))


def print_note(message: str) -> None:
    """Tell a person something that is not part of the result."""
    errors.print(strip_control(message))


class _OfMainThread:
    """A standard output that only the main thread writes to; others are led to the other one."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        mine = threading.current_thread() is threading.main_thread()
        return (self._stream if mine else sys.stderr).write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def reserve_stdout() -> None:
    """Keep the standard output for results, where threads of a library print what they please."""
    if not isinstance(sys.stdout, _OfMainThread):
        sys.stdout = cast(TextIO, _OfMainThread(sys.stdout))


def single_line(text: str) -> str:
    """Harmless text without a break.

    >>> single_line("two\\nlines")
    'two\\\\nlines'
    """
    return strip_control(text).replace("\n", "\\n").replace("\t", " ")


def strip_control(text: str) -> str:
    """Text that commands the terminal nothing, whatever files are called.

    >>> strip_control("clear\\x1b[2J.png")
    'clear\\\\x1b[2J.png'
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


@contextmanager
def progress_bar(what: str, unit: str) -> Iterator[Progress]:
    """A bar on the standard error with the rate and the remaining time."""
    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(unit),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    ]
    with _Bar(*columns, console=errors) as bar:
        bar.add_task(what, total=None, note="")
        yield bar


class _Bar(Progress):
    """A bar that is not seen before there is something to show: never, if all is in the cache."""

    def get_renderables(self) -> Iterator[RenderableType]:
        begun = [task for task in self.tasks if task.completed or task.total is not None]
        yield self.make_tasks_table(begun)


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} {self._unit}/s")


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """``key=value`` pairs from the command line; values are numbers, true, false, or text.

    >>> parse_options(["size=32", "flip=false", "split=val"])
    {'size': 32, 'flip': False, 'split': 'val'}
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"{pair!r} is not of the form name=value, as in size=32")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found


def counted(count: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "set"), counted(3, "set")
    ('1 set', '3 sets')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def parse_bytes(text: str) -> int:
    """A number of bytes as people write it.

    >>> parse_bytes("1.5 GB"), parse_bytes("800")
    (1500000000, 800)
    """
    number = text.strip().lower().rstrip("bkmgt ")
    unit = text.strip().lower()[len(number) :].strip()
    try:
        value = float(number) * UNITS[unit if unit.endswith("b") or not unit else f"{unit}b"]
    except (KeyError, ValueError):
        raise InputError(f"{text!r} is not a size; write 500MB or 20GB") from None
    if not 0 <= value < 2**63:
        raise InputError(f"{text!r} is not a size that can be; write 500MB or 20GB")
    return int(value)


def readable_bytes(count: float) -> str:
    """A number of bytes as people read it.

    >>> readable_bytes(1_500_000_000), readable_bytes(12)
    ('1.5 GB', '12 B')
    """
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
