"""The program `fecam`: its commands and its error messages."""

import json
import sys
import warnings
from collections.abc import Callable
from itertools import takewhile
from typing import Annotated, Any, NoReturn, TextIO

import typer
from rich.text import Text
from typer import Option

from fecam import __version__
from fecam.cli import (
    bench,
    cache,
    compress,
    discover,
    doctor,
    edit,
    encoders,
    evaluate,
    explain,
    export,
    features,
    learn,
    migrate,
    predict,
    serve,
    suggest,
    train,
)
from fecam.cli.cluster import ByRay
from fecam.cli.help import Group
from fecam.cli.output import console, errors, name_options, print_note, strip_control
from fecam.errors import FecamError

COMMANDS: dict[str, dict[str, Callable[..., Any] | typer.Typer]] = {
    "Teach": {
        "learn": learn.learn,
        "unlearn": learn.unlearn,
        "forget": edit.forget,
        "rename": edit.rename,
        "join": edit.join,
        "undo": edit.undo,
        "merge": edit.merge,
        "migrate": migrate.migrate,
    },
    "Ask": {
        "predict": predict.predict,
        "explain": explain.explain,
        "discover": discover.discover,
        "suggest": suggest.suggest,
        "evaluate": evaluate.evaluate,
    },
    "Inspect": {
        "classes": evaluate.classes,
        "inspect": evaluate.inspect,
        "history": edit.history,
        "doctor": doctor.doctor,
    },
    "Serve": {
        "serve": serve.serve,
        "token": serve.tokens_app,
        "export": export.export,
        "import": export.import_,
        "compress": compress.compress,
    },
    "Experiment": {
        "bench": bench.bench,
        "report": bench.report,
        "heads": bench.list_heads,
        "learners": bench.list_learners,
        "datasets": encoders.list_datasets,
        "encoders": encoders.list_encoders,
        "export-encoder": encoders.export_encoder,
        "features": features.features,
        "cache": cache.app,
        "train": train.train,
    },
}
"""The commands of each panel of `fecam --help`."""

UsageError: Any = typer.BadParameter.__base__
"""A wrong option or argument; Typer has no public name for it."""

app = typer.Typer(
    name="fecam",
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
for _panel, _commands in COMMANDS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, cls=Group, rich_help_panel=_panel)
        else:
            app.command(_name, cls=ByRay, rich_help_panel=_panel)(_command)


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

    Example: `fecam learn photos/ -m birds.fecam`, then `fecam predict new.jpg -m birds.fecam`
    """


def main() -> None:
    """Run a command; a user error is a message and a non-zero exit code, not a traceback.

    With `--json` the error is also a JSON document on standard output.
    """
    warnings.filterwarnings("ignore", module=r"PIL\.")  # unreadable images are reported anyway
    warnings.showwarning = _show_warning
    as_json = "--json" in takewhile(lambda word: word != "--", sys.argv[1:])
    try:
        # Typer prints usage errors itself, except in this mode.
        sys.exit(app(standalone_mode=not as_json))
    except FecamError as error:
        _fail(error, str(error), as_json)
    except BrokenPipeError:  # the reader of the output has exited, as `| head` does
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:  # such as a full disk or an unreadable folder
        where = f" ({error.filename})" if error.filename else ""
        _fail(error, f"{error.strerror or error}{where}", as_json)
    except typer.Abort as error:
        _fail(error, "aborted", as_json)
    except UsageError as error:
        _fail(error, error.format_message(), as_json, code=2)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print_note(f"warning: {message}")


def _fail(error: Exception, message: str, as_json: bool, code: int = 1) -> NoReturn:
    message = name_options(message, sys.argv[1:])
    errors.print(Text.assemble(("error: ", "bold red"), strip_control(message)))
    if as_json:
        print(json.dumps({"error": message, "type": type(error).__name__}))
    sys.exit(code)


if __name__ == "__main__":
    main()
