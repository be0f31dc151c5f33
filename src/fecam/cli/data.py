"""Loading a data set on the command line: options, downloads that can be watched, notes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fecam.cli import completion
from fecam.cli.output import parse_options, print_note, progress_bar
from fecam.data import Dataset, load
from fecam.data.download import report_downloads

Name = Annotated[
    str,
    typer.Argument(
        help="A name (`fecam datasets`), a folder of images by class, or a file.",
        autocompletion=completion.datasets,
    ),
]
Root = Annotated[Path | None, typer.Option(help="Where a public data set lies.")]
Download = Annotated[bool, typer.Option("--download", help="Fetch it if it is not there.")]
Options = Annotated[
    list[str] | None, typer.Option("--option", help="Of the data set, as name=value.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, mps; found out if not given.")]


def load_dataset(
    name: str,
    root: Path | None,
    download: bool,
    options: Sequence[str] | None,
    as_label: str | None = None,
) -> Dataset:
    """The data set; a person sees how a download comes along, and what was noticed."""
    settings = parse_options(options or [])
    settings |= {} if as_label is None else {"as_label": as_label}
    if not download:
        data = load(name, root=root, **settings)
    else:
        with progress_bar(f"{name}: download", "B") as bar:
            (task,) = bar.task_ids
            with report_downloads(
                lambda done, total: bar.update(task, completed=done, total=total)
            ):
                data = load(name, root=root, download=True, **settings)
    for note in data.notes:
        print_note(f"note: {note}")
    return data
