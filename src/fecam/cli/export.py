"""`fecam export` and `fecam import`: models as safetensors or ONNX files for other programs."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from rich.filesize import decimal as format_bytes
from typer import Argument, Option

from fecam.cli.confirmation import confirm_replacing
from fecam.cli.model import ModelPath, open_existing
from fecam.cli.output import AsJson, show_result
from fecam.errors import InputError
from fecam.validation import counted

if TYPE_CHECKING:
    from fecam.model import Model

SUFFIX, ONNX = ".safetensors", ".onnx"


def export(
    path: Annotated[Path, Argument(help=f"The {SUFFIX} or {ONNX} file to write.")],
    model: ModelPath,
    with_encoder: Annotated[
        bool, Option("--with-encoder", help="ONNX: images to labels, the encoder in the same file.")
    ] = False,
    yes: Annotated[
        bool,
        Option("--yes", "-y", "--force", help="Replace an existing output file without asking."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Export a model as a file that other programs can read without fecam.

    A safetensors file holds labels, counts, means and scatters, but no history;
    docs/reference/exchange.md describes the layout. An ONNX file predicts in any program that
    runs ONNX; its input is features or, with --with-encoder, images.

    Example: `fecam export birds.safetensors -m birds.fecam`,
    `fecam export birds.onnx -m birds.fecam --with-encoder`
    """
    if path.suffix not in (SUFFIX, ONNX):
        raise InputError(f"{path}: the file name must end in {SUFFIX} or {ONNX}")
    if with_encoder and path.suffix != ONNX:
        raise InputError(f"--with-encoder: {path} holds statistics only. Remedy: a name in {ONNX}")
    confirm_replacing(path, yes)
    with open_existing(model) as opened:
        if path.suffix == ONNX:
            _export_onnx(opened, path, with_encoder)
        else:
            from fecam.transfer import export_model

            export_model(opened.classifier, path, encoder=opened.encoder_record)
        count = len(opened.classes)
    size = path.stat().st_size
    show_result(
        {"model": str(model), "path": str(path), "bytes": size, "classes": count},
        f"{path}: {counted(count, 'class')}, {format_bytes(size)}",
        as_json,
    )


def _export_onnx(model: Model, path: Path, with_encoder: bool) -> None:
    from fecam.encoders.catalogue import export as export_encoder
    from fecam.onnx_export import export_onnx

    if not with_encoder:
        return export_onnx(model.classifier, path)
    if model.encoder is None:
        raise InputError("--with-encoder: this model takes features. Remedy: export without it")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "encoder.onnx"
        export_encoder(model.encoder, file)
        export_onnx(model.classifier, path, encoder=file)


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
