"""The model that a command works on, and what commands that read items share."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import fecam
from fecam.cli.output import print_note, progress_bar
from fecam.errors import ModelFileError
from fecam.features.extraction import Progress, Report

if TYPE_CHECKING:
    from fecam.model import Model

SOME_UNREADABLE = 3
"""The exit code of a command that is done, though some items could not be read."""
SHOWN = 10
"""So many unreadable items are named on the screen; JSON names all of them."""

ModelPath = Annotated[
    Path,
    typer.Option(
        "--model",
        "-m",
        help="The model's file, such as birds.fecam.",
        envvar="FECAM_MODEL",
        show_envvar=True,
    ),
]


def open_existing(path: Path, *, readonly: bool = True, device: str | None = None) -> Model:
    """A model that is there; one that is not is a message that says how it is made."""
    if not path.exists():
        raise ModelFileError(f"{path} does not exist; {how_to_learn(path)} makes it")
    return fecam.open(path, readonly=readonly, device=device)


def how_to_learn(path: Path) -> str:
    """The command that begins a model, to be put into a message."""
    return f"`fecam learn FOLDER -m {quoted(path)}`"


def quoted(path: Path) -> str:
    """A path as a shell takes it.

    >>> quoted(Path("my birds.fecam"))
    "'my birds.fecam'"
    """
    return shlex.quote(str(path))


@contextmanager
def encoding_bar(what: str, unit: str) -> Iterator[Report]:
    """A bar for items that are encoded; not seen if all of them come from the cache."""
    with progress_bar(what, unit) as bar:

        def report(now: Progress) -> None:
            note = f"{now.skipped} unreadable" if now.skipped else ""
            (task,) = bar.task_ids
            # A total of nothing is one that nobody knows.
            bar.update(task, total=now.total or None, completed=now.done, note=note)

        yield report


def tell_unreadable(reasons: list[str]) -> None:
    """Name the first items that could not be read, and why."""
    for why in reasons[:SHOWN]:
        print_note(f"unreadable: {why}")
    if len(reasons) > SHOWN:
        print_note(f"... and {len(reasons) - SHOWN} more (--json names all)")


def end(unreadable: int) -> None:
    """End with the exit code that says whether all items could be read."""
    if unreadable:
        raise typer.Exit(SOME_UNREADABLE)
