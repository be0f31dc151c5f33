"""The program `fecam`: its commands, and what happens when one fails."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, NoReturn

import typer
from rich.text import Text

from fecam import __version__
from fecam.cli import (
    bench,
    cache,
    doctor,
    edit,
    encoders,
    evaluate,
    export,
    features,
    learn,
    predict,
    serve,
    train,
)
from fecam.cli.output import console, errors, strip_control
from fecam.errors import FecamError

app = typer.Typer(
    name="fecam",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
learn.add_to(app)
predict.add_to(app)
edit.add_to(app)
evaluate.add_to(app)
export.add_to(app)
doctor.add_to(app)
features.add_to(app)
serve.add_to(app)
train.add_to(app)
encoders.add_to(app)
bench.add_to(app)
app.add_typer(cache.app, name="cache")


def _version(asked: bool) -> None:
    if asked:
        console.print(f"fecam {__version__}")
        raise typer.Exit


@app.callback()
def _fecam(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it and end.")
    ] = False,
) -> None:
    """Teach a frozen encoder new classes, one after another, without keeping the data.

    Example: `fecam features photos/ --output photos.npz`
    """


def main() -> None:
    """Run a command; a user's mistake is a message and the exit code 1, never a traceback."""
    warnings.filterwarnings("ignore", module=r"PIL\.")  # what cannot be read is named anyway
    try:
        app()
    except FecamError as error:
        _fail(str(error))
    except BrokenPipeError:  # the reader of the output has gone, as `| head` does
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:  # a full disk, a folder that cannot be read: not ours to mend
        where = f" ({error.filename})" if error.filename else ""
        _fail(f"{error.strerror or error}{where}")


def _fail(message: str) -> NoReturn:
    errors.print(Text.assemble(("error: ", "bold red"), strip_control(message)))
    sys.exit(1)


if __name__ == "__main__":
    main()
