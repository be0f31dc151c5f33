"""`fecam migrate`: a copy of a model for another encoder."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from fecam.cli import completion
from fecam.cli.data import (
    Device,
    Download,
    Options,
    Root,
    Strict,
    encoder_name_option,
    load_dataset,
)
from fecam.cli.items import load_labeled
from fecam.cli.model import (
    encoding_bar,
    exit_if_unreadable,
    open_existing,
    print_unreadable,
    quoted,
    require_classes,
)
from fecam.cli.output import AsJson, print_note, show_result

if TYPE_CHECKING:
    from fecam.data import Dataset
    from fecam.migration import MigrationEstimate

MANY_NOVEL = 0.3
"""Share of novel items from which on they tell little about the classes of the model."""


def migrate(
    model: Annotated[Path, Argument(metavar="MODEL", help="Model file, such as birds.fecam.")],
    encoder: Annotated[str, encoder_name_option("The new encoder, as listed by `fecam encoders`.")],
    on: Annotated[
        str,
        Option(
            metavar="PATH",
            help="Items without labels: a folder of images, a table, .txt, or a data set.",
            autocompletion=completion.datasets,
        ),
    ],
    labeled: Annotated[
        str | None,
        Option(metavar="PATH", help="Also labeled items of learned classes, as for `fecam learn`."),
    ] = None,
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="File to write; MODEL-migrated.fecam by default."),
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace an existing file.")] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print the expected accuracy and write nothing.")
    ] = False,
    strict: Strict = False,
    root: Root = None,
    download: Download = False,
    option: Options = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Write a copy of a model for another encoder, and print the expected accuracy.

    No learned item is needed. Both encoders encode the items of --on, whose labels are not used;
    their features are cached. The copy keeps classes and notes, but not the history; MODEL does not
    change. Exit code 3: done, but some items were unreadable.

    Example: `fecam migrate birds.fecam --encoder efficientnet-lite1 --on photos/`
    """
    path = output or model.with_name(f"{model.stem}-migrated{model.suffix}")
    with open_existing(model, device=device) as opened:
        require_classes(opened)
        items = _unlabeled(on, root, download, option)
        known = load_dataset(labeled, root, download, option) if labeled is not None else None
        with encoding_bar("encode", items.kind) as report:
            result = opened.migrate(
                encoder,
                items,
                None if dry_run else path,
                labeled=known,
                replace=force,
                strict=strict,
                report=report,
            )
    print_unreadable(result.unreadable)
    estimate = result.estimate
    document = {
        "model": str(model),
        "output": result.path,
        "encoder": result.encoder,
        **asdict(estimate),
        "unreadable": result.unreadable,
    }
    show_result(document, _described(estimate, result.path or "nothing written"), as_json)
    if not as_json:
        _print_warnings(estimate, result.path)
    exit_if_unreadable(len(result.unreadable))


def _unlabeled(name: str, root: Path | None, download: bool, options: list[str] | None) -> Dataset:
    """Return the items of a path; of a data set with a name the training part."""
    # The labels do not matter; only a data set with a name has its own.
    label = "item" if os.path.exists(os.path.expanduser(name)) else None
    (data,) = load_labeled([name], label, root, download, options)
    return data.subset(data.train) if len(data.test) and len(data.train) else data


def _described(estimate: MigrationEstimate, what: Any) -> str:
    return (
        f"{what}: expected accuracy {_percent(estimate.accuracy)}, between "
        f"{_percent(estimate.lowest_accuracy)} and {_percent(estimate.accuracy_before)}, that of "
        "the old encoder; "
        f"{_percent(estimate.agreement)} of {estimate.n_held_out:,} left-out items keep their label"
    )


def _print_warnings(estimate: MigrationEstimate, path: str | None) -> None:
    if estimate.labeled_accuracy is not None and estimate.labeled_accuracy_before is not None:
        print_note(
            f"on {estimate.n_labeled:,} left-out labeled items: "
            f"{_percent(estimate.labeled_accuracy)} correct, with the old encoder "
            f"{_percent(estimate.labeled_accuracy_before)}"
        )
    if estimate.novel > MANY_NOVEL:
        print_note(
            f"warning: {_percent(estimate.novel)} of the items fit no class of the model, so the "
            "expected accuracy may be wrong. Remedy: items of the learned classes"
        )
    if estimate.unseen_classes:
        shown = ", ".join(str(label) for label in estimate.unseen_classes[:5])
        more = len(estimate.unseen_classes) - 5
        print_note(
            f"no item of {shown}{f' and {more} more' if more > 0 else ''}: these classes move by "
            "what the others have in common"
        )
    if path is not None:
        print_note(f"compare both: `fecam evaluate LABELED -m {quoted(Path(path))}`")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
