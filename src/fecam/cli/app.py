"""The program `fecam`: its commands, and what happens when one fails."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fecam import __version__
from fecam.cli import cache, encoders, features, train
from fecam.cli.output import console, errors
from fecam.errors import FecamError

app = typer.Typer(
    name="fecam",
    help="Teach a frozen encoder new classes, one after another, without keeping the data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
features.add_to(app)
train.add_to(app)
encoders.add_to(app)
app.add_typer(cache.app, name="cache")


def _version(asked: bool) -> None:
    if asked:
        console.print(f"fecam {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _fecam(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it and end.")
    ] = False,
) -> None:
    """Teach a frozen encoder new classes, one after another, without keeping the data."""


def main() -> None:
    """Run a command; a user's mistake is a message and the exit code 1, never a traceback."""
    try:
        app()
    except FecamError as error:
        errors.print(f"[bold red]error:[/] {_escaped(str(error))}", highlight=False)
        sys.exit(1)
    except BrokenPipeError:  # the reader of the output has gone, as `| head` does
        sys.stderr.close()
        sys.exit(141)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)


if __name__ == "__main__":
    main()
