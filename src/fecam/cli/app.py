"""The program `fecam`: its commands and its error messages."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer
from rich.text import Text
from typer import Option

from fecam import __version__
from fecam.cli import (
    bench,
    cache,
    compress,
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
from fecam.cli.cluster import ByRay
from fecam.cli.output import console, errors, strip_control
from fecam.errors import FecamError

COMMANDS: dict[str, Callable[..., Any]] = {
    "learn": learn.learn,
    "unlearn": learn.unlearn,
    "predict": predict.predict,
    "forget": edit.forget,
    "merge": edit.merge,
    "undo": edit.undo,
    "history": edit.history,
    "evaluate": evaluate.evaluate,
    "classes": evaluate.classes,
    "inspect": evaluate.inspect,
    "compress": compress.compress,
    "export": export.export,
    "import": export.import_,
    "doctor": doctor.doctor,
    "features": features.features,
    "serve": serve.serve,
    "train": train.train,
    "encoders": encoders.list_encoders,
    "datasets": encoders.list_datasets,
    "export-encoder": encoders.export_encoder,
    "bench": bench.bench,
    "report": bench.report,
    "heads": bench.list_heads,
}

app = typer.Typer(
    name="fecam", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)
for _name, _command in COMMANDS.items():
    app.command(_name, cls=ByRay)(_command)
app.add_typer(serve.tokens_app, name="token")
app.add_typer(cache.app, name="cache")


def _print_version(value: bool) -> None:
    if value:
        console.print(f"fecam {__version__}")
        raise typer.Exit


@app.callback()
def _fecam(
    version: Annotated[
        bool,
        Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Class-incremental classifier on a frozen encoder: learns new classes without stored data.

    Example: `fecam features photos/ --output photos.npz`
    """


def main() -> None:
    """Run a command; a user error is a message and exit code 1, not a traceback."""
    warnings.filterwarnings("ignore", module=r"PIL\.")  # unreadable images are reported anyway
    try:
        app()
    except FecamError as error:
        _fail(str(error))
    except BrokenPipeError:  # the reader of the output has exited, as `| head` does
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:  # such as a full disk or an unreadable folder
        where = f" ({error.filename})" if error.filename else ""
        _fail(f"{error.strerror or error}{where}")


def _fail(message: str) -> NoReturn:
    errors.print(Text.assemble(("error: ", "bold red"), strip_control(message)))
    sys.exit(1)


if __name__ == "__main__":
    main()
