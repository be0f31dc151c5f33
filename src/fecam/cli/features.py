"""`fecam features`: from a data set to features, with a cache."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fecam.cli import completion
from fecam.cli.data import Device, Download, Name, Options, Root, load_dataset
from fecam.cli.model import encoding_bar, print_unreadable
from fecam.cli.output import AsJson, console, parse_options, show_json
from fecam.data import Dataset
from fecam.encoders import load as load_encoder
from fecam.errors import InputError
from fecam.features import FeatureStore, Progress, extract
from fecam.features.saving import save_features


def add_to(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("features")(features)


def features(
    dataset: Name,
    encoder: Annotated[
        str,
        typer.Option(
            "--encoder",
            "-e",
            help="As `fecam encoders` lists them.",
            autocompletion=completion.encoders,
        ),
    ] = "efficientnet-lite0",
    output: Annotated[
        Path | None, typer.Option("--output", "-O", help="Also write a .npz or .parquet file.")
    ] = None,
    root: Root = None,
    download: Download = False,
    option: Options = None,
    encoder_option: Annotated[
        list[str] | None,
        typer.Option("--encoder-option", "-o", help="Of the encoder, as name=value."),
    ] = None,
    device: Device = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="An item that cannot be read is an error.")
    ] = False,
    batch: Annotated[int | None, typer.Option(min=1, help="Items at a time.")] = None,
    as_json: AsJson = False,
) -> None:
    """Turn images or texts into features, once; the next time they come from the cache.

    Example: `fecam features photos/ --encoder efficientnet-lite0 --output photos.npz`
    """
    if output is not None and output.suffix not in (".npz", ".parquet"):
        raise InputError(f"--output {output}: the file name must end in .npz or .parquet")
    data = load_dataset(dataset, root, download, option)
    chosen = load_encoder(encoder, device=device, **parse_options(encoder_option or []))
    start, first = time.monotonic(), -1
    with encoding_bar(f"{data.name}: {chosen.name}", data.kind) as show:

        def report(progress: Progress) -> None:
            nonlocal first
            first = progress.done if first < 0 else first
            show(progress)

        found = extract(data, chosen, report=report, strict=strict, batch=batch)
    seconds = time.monotonic() - start
    if output is not None:
        save_features(found, output)
    made = len(data) - first if first >= 0 else 0
    _show(found, data, made, seconds, output, as_json)


def _show(
    found: Dataset, data: Dataset, made: int, seconds: float, output: Path | None, as_json: bool
) -> None:
    bad = found.notes[len(data.notes) + 1 :]
    answer: dict[str, Any] = {
        "dataset": data.name,
        "items": len(data),
        "features": len(found),
        "width": int(np.shape(found.items)[1]),
        "classes": len(found.label_names),
        "test": len(found.test),
        "unreadable": list(bad),
        "encoded_now": made,
        "seconds": round(seconds, 3),
        "items_a_second": round(made / seconds, 1) if made else None,
        "key": found.fingerprint,
        "cached_in": str(FeatureStore().folder / found.fingerprint),
        "output": None if output is None else str(output),
    }
    if as_json:
        show_json(answer)
        return
    print_unreadable(list(bad))
    rate = (
        f"{made:,} encoded in {seconds:.1f} s, {made / seconds:,.0f} a second" if made else "cached"
    )
    console.print(
        f"{len(found):,} x {answer['width']:,} features of {answer['classes']} classes "
        f"({answer['test']:,} for testing): {rate}"
    )
    if output is not None:
        console.print(f"written to {output}")
