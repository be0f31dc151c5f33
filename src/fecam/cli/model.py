"""The model that a command opens, and what all commands that read items share."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

import fecam
from fecam.cli.output import print_note, progress_bar
from fecam.errors import ModelFileError
from fecam.features.extraction import Progress, Report

if TYPE_CHECKING:
    from fecam.model import Model

SOME_UNREADABLE = 3
"""Exit code of a command that succeeded except for unreadable items."""
MAX_SHOWN = 10
"""Number of unreadable items that are printed; the JSON output lists all of them."""

ModelPath = Annotated[
    Path,
    Option(
        "--model",
        "-m",
        help="Model file, such as birds.fecam.",
        envvar="FECAM_MODEL",
        show_envvar=True,
    ),
]


def open_existing(path: Path, *, readonly: bool = True, device: str | None = None) -> Model:
    """Open a model file; raise with the command that creates it if it does not exist."""
    if not path.exists():
        raise ModelFileError(f"{path} does not exist; {learn_command(path)} creates it")
    _import_scikit_learn()
    return fecam.open(path, readonly=readonly, device=device)


def _import_scikit_learn() -> None:
    """Import scikit-learn without SciPy's statistics and pandas.

    It imports them for functions that are not called here: half of the CPU time of one prediction.
    """
    if "sklearn" in sys.modules or "scipy.stats" in sys.modules:
        return

    def read(name: str) -> Any:  # a version of scikit-learn that needs it while it is imported
        sys.modules.pop("scipy.stats", None)
        return getattr(import_module("scipy.stats"), name)

    placeholder = ModuleType("scipy.stats")
    placeholder.__getattr__ = read  # type: ignore[method-assign]
    sys.modules["scipy.stats"] = placeholder
    if without_pandas := "pandas" not in sys.modules:
        sys.modules["pandas"] = None  # type: ignore[assignment]
    try:
        import_module("sklearn.base")
    finally:
        if without_pandas:
            del sys.modules["pandas"]
        if sys.modules.get("scipy.stats") is placeholder:
            del sys.modules["scipy.stats"]


def require_classes(model: Model) -> None:
    """Raise if the model has no classes."""
    if not model.classes:
        raise ModelFileError(f"{model.path} has no classes; {learn_command(model.path)} adds some")


def learn_command(path: Path) -> str:
    """Return the command that creates a model, for use in a message."""
    return f"`fecam learn FOLDER -m {quoted(path)}`"


def undo_command(path: Path, steps: int = 1) -> str:
    """Return the command that undoes the last steps, for use in a message."""
    return f"`fecam undo -m {quoted(path)}{f' --steps {steps}' if steps > 1 else ''}`"


def quoted(path: Path) -> str:
    """Return the path quoted for a shell.

    >>> quoted(Path("my birds.fecam"))
    "'my birds.fecam'"
    """
    return shlex.quote(str(path))


@contextmanager
def encoding_bar(description: str, unit: str) -> Iterator[Report]:
    """Show a progress bar for items that are encoded; hidden if all of them are cached."""
    with progress_bar(description, unit) as bar:

        def report(now: Progress) -> None:
            note = f"{now.skipped} unreadable" if now.skipped else ""
            (task,) = bar.task_ids
            bar.update(task, total=now.total or None, completed=now.done, note=note)

        yield report


def print_unreadable(reasons: list[str]) -> None:
    """Print the first items that could not be read, with the reason."""
    for reason in reasons[:MAX_SHOWN]:
        print_note(f"unreadable: {reason}")
    if len(reasons) > MAX_SHOWN:
        print_note(f"... and {len(reasons) - MAX_SHOWN} more (--json lists all)")


def exit_if_unreadable(count: int) -> None:
    """Exit with code 3 if some items could not be read."""
    if count:
        raise typer.Exit(SOME_UNREADABLE)
