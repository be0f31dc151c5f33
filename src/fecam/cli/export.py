"""`fecam export` and `fecam import`: models for other programs, as safetensors files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal as format_bytes

from fecam.cli.model import ModelPath, open_existing
from fecam.cli.output import AsJson, counted, print_note, show_json
from fecam.errors import InputError

SUFFIX = ".safetensors"


def add_to(app: typer.Typer) -> None:
    """Add these commands to the program."""
    app.command("export")(export)
    app.command("import")(import_)


def export(
    path: Annotated[Path, typer.Argument(help=f"The {SUFFIX} file to write.")],
    model: ModelPath,
    force: Annotated[bool, typer.Option("--force", help="In place of a file that is there.")] = (
        False
    ),
    as_json: AsJson = False,
) -> None:
    """Write a model as a safetensors file, which other programs read without fecam.

    It holds labels, counts, means and scatters, but no history; docs/reference/exchange.md has the
    layout, and ten lines of NumPy that predict with it.

    Example: `fecam export birds.safetensors -m birds.fecam`
    """
    if path.suffix != SUFFIX:
        raise InputError(f"{path}: the file name must end in {SUFFIX}")
    if path.exists() and not force:
        raise InputError(f"{path} is there already. Remedy: another name, or --force to replace it")
    with open_existing(model) as opened:
        from fecam.transfer import export_model

        export_model(opened.classifier, path, encoder=opened.encoder_record)
        count = len(opened.classes)
    size = path.stat().st_size
    if as_json:
        show_json({"model": str(model), "path": str(path), "bytes": size, "classes": count})
    else:
        print_note(f"{path}: {count:,} classes, {format_bytes(size)}")


def import_(
    path: Annotated[Path, typer.Argument(help="A file that `fecam export` has written.")],
    model: ModelPath,
    as_json: AsJson = False,
) -> None:
    """Make a model of a safetensors file that `fecam export` has written, here or elsewhere.

    The model must not be there yet; `fecam merge` adds one to another.

    Example: `fecam import birds.safetensors -m birds.fecam`
    """
    from fecam.transfer import import_file

    found = import_file(path, model)
    counts = found.classifier.class_count_
    if as_json:
        encoder = None if found.encoder is None else vars(found.encoder)
        show_json(
            {
                "model": str(model),
                "path": str(path),
                "classes": len(counts),
                "samples": int(counts.sum()),
                "encoder": encoder,
            }
        )
        return
    seen = "" if found.encoder is None else f", seen by {found.encoder.name}"
    print_note(f"{model}: {len(counts):,} classes of {counted(int(counts.sum()), 'sample')}{seen}")
