"""`fecam encoders`, `fecam datasets` and `fecam export-encoder`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument

from fecam.cli.confirmation import Replace, confirm_replacing
from fecam.cli.data import EncoderOptions
from fecam.cli.output import AsJson, parse_options, print_note, show_json, show_result, show_table
from fecam.data import catalogue as data_catalogue
from fecam.encoders import catalogue
from fecam.errors import install_command


def list_encoders(as_json: AsJson = False) -> None:
    """List the encoders and how to install them.

    Example: `fecam encoders`
    """
    entries = catalogue.available()
    if as_json:
        show_json([asdict(entry) for entry in entries])
        return
    rows = [
        [
            entry.name,
            entry.kind,
            entry.features or "",
            entry.description,
            "yes" if entry.installed else f"no: extra {entry.extra}",
        ]
        for entry in entries
    ]
    show_table(["encoder", "input", "features", "description", "installed"], rows)
    for extra in dict.fromkeys(entry.extra for entry in entries if not entry.installed):
        print_note(f"extra {extra}: {install_command(extra)}")


def list_datasets(as_json: AsJson = False) -> None:
    """List the data sets that have a name, and how to obtain each.

    Example: `fecam datasets`
    """
    entries = data_catalogue.available()
    if as_json:
        show_json([asdict(entry) for entry in entries])
        return
    show_table(
        ["data set", "items", "description", "source"],
        [[entry.name, entry.kind, entry.description, entry.obtained] for entry in entries],
    )
    print_note("Also: a folder of images by class, or a .npz, .parquet, .csv or .tsv file.")


def export_encoder(
    encoder: Annotated[str, Argument(help="Name, as listed by `fecam encoders`.")],
    path: Annotated[Path, Argument(help="The .onnx file to write.")],
    option: EncoderOptions = None,
    yes: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Export an encoder as one ONNX file, which runs without torch.

    Example: `fecam export-encoder efficientnet-lite0 lite0.onnx`, then `--encoder onnx:lite0.onnx`
    """
    confirm_replacing(path, yes)
    loaded = catalogue.load(encoder, **parse_options(option or []))
    catalogue.export(loaded, path)
    size = path.stat().st_size
    show_result(
        {"encoder": loaded.name, "path": str(path), "bytes": size},
        f"{loaded.name} -> {path} ({size:,} bytes); use it with --encoder onnx:{path}",
        as_json,
    )
