"""Confirmation of steps that remove something: a question, a refusal, or `--yes`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fecam.errors import InputError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Replace = Annotated[
    bool, typer.Option("--yes", "-y", help="Replace an existing output file without asking.")
]


def confirm(question: str, yes: bool, *, reversible: bool = False) -> None:
    """Ask on a terminal; without one, raise unless the step is reversible or has `--yes`."""
    if yes:
        return
    if sys.stdin.isatty():
        typer.confirm(question, abort=True, err=True)
    elif not reversible:
        raise InputError(
            f"{question} Nothing was changed, because there is no terminal to ask on. "
            "Remedy: add --yes"
        )


def confirm_replacing(path: Path | None, yes: bool) -> None:
    """Ask, or raise, before an output replaces a file that has content."""
    if path is not None and path.is_file() and path.stat().st_size:
        confirm(f"{path} exists already. Replace it?", yes)
