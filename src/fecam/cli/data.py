"""Options that several commands share, and loading of a data set with progress and notes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from fecam.cli import completion
from fecam.cli.output import parse_options, print_note, progress_bar
from fecam.data import Dataset, load
from fecam.data.download import report_downloads

Name = Annotated[
    str,
    Argument(
        help="Name of a data set (`fecam datasets`), folder with one subfolder of images per "
        "class, or file.",
        autocompletion=completion.datasets,
    ),
]
Root = Annotated[
    Path | None, Option(help="Folder of a public data set that is already on this machine.")
]
Download = Annotated[bool, Option("--download", help="Download the data set if missing.")]
Options = Annotated[
    list[str] | None,
    Option("--option", metavar="NAME=VALUE", help="Option of the data set; repeatable."),
]
TableOptions = Annotated[
    list[str] | None,
    Option("--option", metavar="NAME=VALUE", help="Option of a table: text=review; repeatable."),
]
EncoderOptions = Annotated[
    list[str] | None,
    Option(
        "--encoder-option", "-o", metavar="NAME=VALUE", help="Option of the encoder; repeatable."
    ),
]
Device = Annotated[
    str | None, Option(help="Device: cpu, cuda or mps. Default: the fastest available.")
]
Strict = Annotated[bool, Option("--strict", help="Stop at the first unreadable item.")]


def encoder_name_option(help_text: str) -> Any:
    """Return the option that names an encoder."""
    return Option("--encoder", "-e", help=help_text, autocompletion=completion.encoders)


def load_dataset(
    name: str,
    root: Path | None,
    download: bool,
    options: Sequence[str] | None,
    as_label: str | None = None,
) -> Dataset:
    """Load a data set; show the progress of a download and print the loader's notes."""
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
