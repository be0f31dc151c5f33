"""`fecam encoders`, `fecam datasets` and `fecam export-encoder`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fecam.cli.output import AsJson, parse_options, print_note, show_json, show_table
from fecam.data import catalogue as data_catalogue
from fecam.encoders import catalogue


def add_to(app: typer.Typer) -> None:
    """Add these commands to the program."""
    app.command("encoders")(list_encoders)
    app.command("datasets")(list_datasets)
    app.command("export-encoder")(export_encoder)


def list_encoders(as_json: AsJson = False) -> None:
    """List the encoders, and what installs them.

    Example: `fecam encoders`
    """
    entries = catalogue.available()
    if as_json:
        show_json([asdict(one) for one in entries])
        return
    show_table(
        ["encoder", "for", "features", "what it is", "installed"],
        [
            [
                one.name,
                one.kind,
                one.features or "",
                one.description,
                "yes" if one.installed else f"pip install 'fecam[{one.extra}]'",
            ]
            for one in entries
        ],
    )


def list_datasets(as_json: AsJson = False) -> None:
    """List the data sets that are known by name, and how each is had.

    Example: `fecam datasets`
    """
    entries = data_catalogue.available()
    if as_json:
        show_json([asdict(one) for one in entries])
        return
    show_table(
        ["data set", "holds", "what it is", "how it is had"],
        [[one.name, one.kind, one.description, one.obtained] for one in entries],
    )
    print_note("Or a folder of images by class, or a .npz, .parquet, .csv or .tsv file.")


def export_encoder(
    encoder: Annotated[str, typer.Argument(help="As `fecam encoders` lists them.")],
    path: Annotated[Path, typer.Argument(help="The .onnx file to write.")],
    option: Annotated[
        list[str] | None,
        typer.Option("--encoder-option", "-o", help="name=value, as often as needed."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write an encoder as one ONNX file, which needs no torch to run.

    Example: `fecam export-encoder efficientnet-lite0 lite0.onnx`, then `--encoder onnx:lite0.onnx`
    """
    loaded = catalogue.load(encoder, **parse_options(option or []))
    catalogue.export(loaded, path)
    done = {"encoder": loaded.name, "path": str(path), "bytes": path.stat().st_size}
    if as_json:
        show_json(done)
    else:
        print_note(
            f"{loaded.name} -> {path} ({done['bytes']:,} bytes); use it as --encoder onnx:{path}"
        )
