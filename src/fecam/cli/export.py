"""`fecam export` and `fecam import`: models as safetensors files for other programs."""

from pathlib import Path
from typing import Annotated

from rich.filesize import decimal as format_bytes
from typer import Argument, Option

from fecam.cli.confirmation import confirm_replacing
from fecam.cli.model import ModelPath, open_existing
from fecam.cli.output import AsJson, show_result
from fecam.errors import InputError
from fecam.validation import counted

SUFFIX = ".safetensors"


def export(
    path: Annotated[Path, Argument(help=f"The {SUFFIX} file to write.")],
    model: ModelPath,
    yes: Annotated[
        bool,
        Option("--yes", "-y", "--force", help="Replace an existing output file without asking."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Export a model as a safetensors file, which other programs can read without fecam.

    The file holds labels, counts, means and scatters, but no history. docs/reference/exchange.md
    describes the layout and predicts with it in ten lines of NumPy.

    Example: `fecam export birds.safetensors -m birds.fecam`
    """
    if path.suffix != SUFFIX:
        raise InputError(f"{path}: the file name must end in {SUFFIX}")
    confirm_replacing(path, yes)
    with open_existing(model) as opened:
        from fecam.transfer import export_model

        export_model(opened.classifier, path, encoder=opened.encoder_record)
        count = len(opened.classes)
    size = path.stat().st_size
    show_result(
        {"model": str(model), "path": str(path), "bytes": size, "classes": count},
        f"{path}: {counted(count, 'class')}, {format_bytes(size)}",
        as_json,
    )


def import_(
    path: Annotated[Path, Argument(help="A file written by `fecam export`.")],
    model: ModelPath,
    as_json: AsJson = False,
) -> None:
    """Create a model from a safetensors file written by `fecam export`.

    The model file must not exist; `fecam merge` adds one model to another.

    Example: `fecam import birds.safetensors -m birds.fecam`
    """
    from fecam.transfer import import_file

    imported = import_file(path, model)
    encoder, counts = imported.encoder, imported.classifier.class_count_
    classes, samples = len(counts), int(counts.sum())
    show_result(
        {
            "model": str(model),
            "path": str(path),
            "classes": classes,
            "samples": samples,
            "encoder": None if encoder is None else vars(encoder),
        },
        f"{model}: {counted(classes, 'class')}, {counted(samples, 'sample')}"
        + ("" if encoder is None else f", encoder {encoder.name}"),
        as_json,
    )
