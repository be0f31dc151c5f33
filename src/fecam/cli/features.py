"""`fecam features`: encode a data set, with a cache."""

import time
from pathlib import Path
from typing import Annotated

import numpy as np
from typer import Option

from fecam.cli.confirmation import Replace, confirm_replacing
from fecam.cli.data import (
    Device,
    Download,
    EncoderOptions,
    Name,
    Options,
    Root,
    Strict,
    encoder_name_option,
    load_dataset,
)
from fecam.cli.model import encoding_bar, print_unreadable
from fecam.cli.output import AsJson, console, parse_options, show_json
from fecam.data import Dataset
from fecam.encoders import load as load_encoder
from fecam.errors import InputError
from fecam.features import Progress, extract
from fecam.features.saving import save_features
from fecam.features.store import FeatureStore
from fecam.validation import counted


def features(
    dataset: Name,
    encoder: Annotated[
        str, encoder_name_option("Name, as listed by `fecam encoders`.")
    ] = "efficientnet-lite0",
    output: Annotated[
        Path | None, Option("--output", "-O", help="Also write a .npz or .parquet file.")
    ] = None,
    yes: Replace = False,
    root: Root = None,
    download: Download = False,
    option: Options = None,
    encoder_option: EncoderOptions = None,
    device: Device = None,
    strict: Strict = False,
    batch: Annotated[int | None, Option(min=1, help="Items per batch.")] = None,
    as_json: AsJson = False,
) -> None:
    """Encode images or texts as features; later runs read them from the cache.

    Example: `fecam features photos/ --encoder efficientnet-lite0 --output photos.npz`
    """
    if output is not None and output.suffix not in (".npz", ".parquet"):
        raise InputError(f"--output {output}: the file name must end in .npz or .parquet")
    confirm_replacing(output, yes)
    data = load_dataset(dataset, root, download, option)
    chosen = load_encoder(encoder, device=device, **parse_options(encoder_option or []))
    start, done = time.monotonic(), list[int]()
    with encoding_bar(f"{data.name}: {chosen.name}", data.kind) as show:

        def report(progress: Progress) -> None:
            done.append(progress.done)
            show(progress)

        result = extract(data, chosen, report=report, strict=strict, batch=batch)
    seconds = time.monotonic() - start
    if output is not None:
        save_features(result, output)
    encoded = len(data) - done[0] if done else 0
    _show(result, data, encoded, seconds, output, as_json)


def _show(
    result: Dataset, data: Dataset, encoded: int, seconds: float, output: Path | None, as_json: bool
) -> None:
    unreadable = list(result.notes[len(data.notes) + 1 :])
    n_features = int(np.shape(result.items)[1])
    folder = FeatureStore().folder / result.fingerprint
    if as_json:
        document = {
            "dataset": data.name,
            "items": len(data),
            "features": len(result),
            "width": n_features,
            "classes": len(result.label_names),
            "test": len(result.test),
            "unreadable": unreadable,
            "encoded_now": encoded,
            "seconds": round(seconds, 3),
            "items_per_second": round(encoded / seconds, 1) if encoded else None,
            "key": result.fingerprint,
            "cached_in": str(folder) if folder.exists() else None,
            "output": None if output is None else str(output),
        }
        return show_json(document)
    print_unreadable(unreadable)
    rate = f"{encoded:,} encoded in {seconds:.1f} s, {encoded / seconds:,.0f} per second"
    console.print(
        f"{len(result):,} x {n_features:,} features of {counted(len(result.label_names), 'class')} "
        f"({len(result.test):,} for testing): {rate if encoded else 'cached'}"
    )
    if output is not None:
        console.print(f"written to {output}")
