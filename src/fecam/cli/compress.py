"""`fecam compress`: a smaller and faster copy of a model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.filesize import decimal as format_bytes
from typer import Argument, Option

from fecam.cli.model import open_existing, require_classes
from fecam.cli.output import AsJson, show_result
from fecam.errors import InputError

if TYPE_CHECKING:
    from fecam.core.compression_loss import CompressionEstimate


def compress(
    model: Annotated[Path, Argument(metavar="MODEL", help="Model file, such as birds.fecam.")],
    components: Annotated[
        str, Option(help="Number of directions to keep; auto for a small expected loss.")
    ] = "auto",
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="File to write; MODEL-compressed.fecam by default."),
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace an existing file.")] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print the expected loss and write nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a smaller and faster copy of a model, and print the expected loss.

    The statistics are projected onto directions that separate the classes. The copy goes on
    learning. It has no history, and cannot be turned back into the original.

    Example: `fecam compress birds.fecam --dry-run`
    """
    n_components = _read_components(components)
    path = output or model.with_name(f"{model.stem}-compressed{model.suffix}")
    with open_existing(model) as opened:
        require_classes(opened)
        if dry_run:
            estimate = opened.classifier.estimate_compression(n_components)
        else:
            from fecam.model.compression import compress_file

            estimate = compress_file(opened, path, n_components, replace=force)
    document = {"model": str(model), "output": None if dry_run else str(path), **asdict(estimate)}
    show_result(document, _described(estimate, "nothing written" if dry_run else path), as_json)


def _read_components(text: str) -> int | str:
    if text == "auto":
        return text
    if not (text.isascii() and text.isdigit() and int(text)):
        raise InputError(f"--components {text}: must be auto or a number, such as 256")
    return int(text)


def _described(estimate: CompressionEstimate, what: object) -> str:
    sizes = map(format_bytes, (estimate.bytes_before, estimate.bytes_after))
    larger = ""
    if estimate.bytes_after >= estimate.bytes_before:
        larger = "; not smaller, because classes of few samples are stored in little space already"
    return (
        f"{what}: {estimate.n_components:,} of {estimate.n_features:,} components, "
        f"{' -> '.join(sizes)} of statistics; expected: {100 * estimate.agreement:.1f} % of labels "
        "unchanged" + larger
    )
