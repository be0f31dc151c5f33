"""Output of the commands: tables, JSON, notes and progress bars."""

import json
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Literal, TextIO, cast

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
from typer import Option

from fecam.errors import InputError

INTERRUPTED = 130
"""Exit code of a program that Ctrl-C ended."""

AsJson = Annotated[bool, Option("--json", help="Print the result, or the error, as JSON.")]

# File names are printed literally: no markup, no emoji, no line break inside a path.
_plain = partial(Console, markup=False, emoji=False, highlight=False, soft_wrap=True)
console = _plain()
errors = _plain(stderr=True)
_NUMBER = re.compile(r"\*?([0-9.,]+( [kMGT]?B| bytes?| ± [0-9.]+)?|\u2013)")
# Control characters, characters that change the writing direction, and lone surrogates, which
# stand for the bytes of file names that are not valid text.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
# An argument of Python, followed by the option of the command line in parentheses.
_ARGUMENT = re.compile(r"\w+(?:=\S*)? \((--[^()]*)\)")
_VALUE = re.compile(r"(\w+)=('[^']*'|\S+)")
_MAX_WIDTH = 10_000


def show_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under a header, numbers right-aligned; outside a terminal, one line per row."""
    lines = [[single_line(str(cell)) for cell in row] for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(header):
        numbers = all(_NUMBER.fullmatch(line[i]) for line in lines if line[i])
        justify: Literal["left", "right"] = "right" if numbers and lines else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=i == 0)
    for line in lines:
        table.add_row(*line)
    wide = console if console.is_terminal else _plain(width=_MAX_WIDTH)
    wide.print(table, soft_wrap=False)


def show_json(value: Any) -> None:
    """Print one JSON document in ASCII, which also keeps file names that are not valid text."""
    print(json.dumps(value, indent=2))


def show_result(document: Any, note: str, as_json: bool) -> None:
    """Print the result as a JSON document, or as a note on standard error."""
    show_json(document) if as_json else print_note(note)


def print_note(message: str) -> None:
    """Print a message that is not part of the result on standard error."""
    errors.print(strip_control(message))


class _MainThreadStdout:
    """Standard output for the main thread; writes of other threads go to standard error."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        is_main = threading.current_thread() is threading.main_thread()
        return (self._stream if is_main else sys.stderr).write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def reserve_stdout() -> None:
    """Redirect what other threads, such as those of Ray, print to standard error."""
    if not isinstance(sys.stdout, _MainThreadStdout):
        sys.stdout = cast(TextIO, _MainThreadStdout(sys.stdout))


def single_line(text: str) -> str:
    """Return the text without control characters and line breaks.

    >>> single_line("two\\nlines")
    'two\\\\nlines'
    """
    return strip_control(text).replace("\n", "\\n").replace("\t", " ")


def strip_control(text: str) -> str:
    """Return the text with control characters escaped, so that it cannot control a terminal.

    >>> strip_control("clear\\x1b[2J.png")
    'clear\\\\x1b[2J.png'
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def name_options(message: str, words: Sequence[str] = ()) -> str:
    """Return a message that names options of the command line instead of arguments of Python.

    These are arguments that the message explains by an option, and a value at its start that was
    given by an option among the words of the command.

    >>> name_options("Remedy: download=True (--download), or as_label (--as LABEL)")
    'Remedy: --download, or --as LABEL'
    >>> name_options("max_rows=0 must be above zero.", ["--max-rows", "0"])
    '--max-rows 0 must be above zero.'
    """
    message = _ARGUMENT.sub(r"\1", message)
    if start := _VALUE.match(message):
        option = f"--{start[1].replace('_', '-')}"
        if option in (word.partition("=")[0] for word in words):
            return f"{option} {start[2].strip(chr(39))}{message[start.end() :]}"
    return message


@contextmanager
def progress_bar(description: str, unit: str) -> Iterator[Progress]:
    """Show a progress bar on standard error, with rate and remaining time."""
    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(unit),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    ]
    with _Bar(*columns, console=errors) as bar:
        bar.add_task(description, total=None, note="")
        yield bar


class _Bar(Progress):
    """A progress bar that is hidden until the first update: always, if everything is cached."""

    def get_renderables(self) -> Iterator[RenderableType]:
        started = [task for task in self.tasks if task.completed or task.total is not None]
        yield self.make_tasks_table(started)


class _Rate(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} {self._unit}/s")


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Return ``name=value`` pairs as a dictionary; values are parsed as JSON, or stay text.

    >>> parse_options(["size=32", "flip=false", "split=val"])
    {'size': 32, 'flip': False, 'split': 'val'}
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise InputError(f"{pair!r} must have the form name=value, such as size=32")
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options


UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def parse_bytes(text: str) -> int:
    """Return the number of bytes that a text such as ``1.5 GB`` stands for.

    >>> parse_bytes("1.5 GB"), parse_bytes("800")
    (1500000000, 800)
    """
    number = text.strip().lower().rstrip("bkmgt ")
    unit = text.strip().lower()[len(number) :].strip()
    try:
        value = float(number) * UNITS[unit if unit.endswith("b") or not unit else f"{unit}b"]
    except (KeyError, ValueError):
        value = -1
    if not 0 <= value < 2**63:
        raise InputError(f"{text!r} is not a valid size; write 500MB or 20GB")
    return int(value)
