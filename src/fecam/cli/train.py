"""`fecam train`: a network trained on the first classes of a data set, to be frozen afterwards."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fecam.cli.data import Device, Download, Name, Options, Root, load_dataset
from fecam.cli.output import AsJson, console, parse_options, print_note, progress_bar
from fecam.data import Dataset
from fecam.errors import InputError, MissingPackageError


def add_to(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("train")(train)


def train(
    dataset: Name,
    output: Annotated[
        Path, typer.Option("--output", "-O", help="Folder for the encoder and the checkpoint.")
    ],
    classes: Annotated[
        str, typer.Option(help="How many, in the order of --order-seed; or names with commas.")
    ] = "all",
    order_seed: Annotated[
        int | None, typer.Option(help="Shuffles the classes first; 1993 is the usual one.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Instead of the paper's 200.")] = None,
    width: Annotated[
        int, typer.Option(min=1, help="Channels of the first layer; features: 8 x.")
    ] = 64,
    size: Annotated[int | None, typer.Option(min=8, help="Side of the images in pixels.")] = None,
    plan: Annotated[
        list[str] | None,
        typer.Option(
            "--plan", help="Of the training plan, as name=value: learning_rate=0.05, seed=1."
        ),
    ] = None,
    root: Root = None,
    download: Download = False,
    option: Options = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Train a ResNet-18 on the first task, as the paper does. Run it again to go on after a stop.

    Example: `fecam train glyphs --classes 60 --width 16 --epochs 10 --output glyph-net`,
    then `fecam features glyphs --encoder resnet18:glyph-net/encoder.safetensors`
    """
    try:
        from fecam.training import base_training, records
    except ModuleNotFoundError as error:
        raise MissingPackageError("training a network", error.name or "torch", "images") from None
    data = load_dataset(dataset, root, download, option)
    chosen = _chosen(data, classes, order_seed)
    settings = base_training.plan_for(data.name, base_training.image_size(data, size))
    if epochs is not None:
        settings = base_training.scale_schedule(settings, epochs)
    settings = settings.changed(parse_options(plan or []))
    with progress_bar(f"{data.name}: {len(chosen)} classes", "batches") as bar:
        (task,) = bar.task_ids

        def report(now: records.Progress) -> None:
            done = (now.epoch - 1) * now.of + now.batches
            bar.update(task, total=now.epochs * now.of, completed=done)

        for record in base_training.train_base_classes(
            data,
            chosen,
            settings,
            folder=output,
            width=width,
            size=size,
            progress=report,
            device=device,
        ):
            _show(record, as_json)
            bar.update(task, note=f"loss {record.loss:.2f}, {100 * record.accuracy:.1f} %")
    path = output / base_training.ENCODER_FILE
    print_note(f"{path} is ready: fecam features {dataset} --encoder resnet18:{path}")


def _show(record: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(record)), flush=True)
        return
    test = "" if record.test_accuracy is None else f", test {100 * record.test_accuracy:5.1f} %"
    again = " (done before)" if record.restored else ""
    console.print(
        f"epoch {record.epoch}/{record.epochs}: loss {record.loss:.3f}, accuracy "
        f"{100 * record.accuracy:5.1f} %{test}, {record.seconds:.0f} s{again}"
    )


def _chosen(data: Dataset, classes: str, order_seed: int | None) -> list[int]:
    """The labels of the classes to train on, in the order of the stream."""
    order = np.arange(len(data.label_names))
    if order_seed is not None:
        order = np.random.RandomState(order_seed).permutation(len(order))
    if classes == "all":
        return [int(label) for label in order]
    if classes.isdigit():
        if not 2 <= int(classes) <= len(order):
            raise InputError(
                f"--classes {classes}: {data.name!r} has {len(order)} classes; 2 at least"
            )
        return [int(label) for label in order[: int(classes)]]
    names = [name.strip() for name in classes.split(",")]
    if unknown := [name for name in names if name not in data.label_names]:
        some = ", ".join(data.label_names[:8])
        raise InputError(
            f"--classes: {data.name!r} has no class {unknown[0]!r}; it has {some}, ..."
        )
    return [data.label_names.index(name) for name in names]
