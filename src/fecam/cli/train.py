"""`fecam train`: train a network on the base classes, to be used as a frozen encoder."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from fecam.cli.data import Device, Download, Name, Options, Root, load_dataset
from fecam.cli.output import AsJson, console, parse_options, print_note, progress_bar
from fecam.data import Dataset
from fecam.errors import InputError, needs_extra
from fecam.scenarios import class_order
from fecam.validation import counted


def train(
    dataset: Name,
    output: Annotated[Path, Option("--output", "-O", help="Folder for encoder and checkpoint.")],
    classes: Annotated[
        str, Option(help="Number of classes, or their names separated by commas.")
    ] = "all",
    order_seed: Annotated[
        int | None, Option(help="Seed that shuffles the classes first; papers use 1993.")
    ] = None,
    epochs: Annotated[
        int | None, Option(min=1, help="Epochs. Default: 200, as in the paper.")
    ] = None,
    width: Annotated[
        int, Option(min=1, help="Channels of the first layer; 8 times as many features.")
    ] = 64,
    size: Annotated[int | None, Option(min=8, help="Image size in pixels.")] = None,
    plan: Annotated[
        list[str] | None,
        Option(
            "--plan",
            metavar="NAME=VALUE",
            help="Setting of the training, such as learning_rate=0.05; repeatable.",
        ),
    ] = None,
    root: Root = None,
    download: Download = False,
    option: Options = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Train a ResNet-18 on the base classes, as in the paper. Run it again to resume after a stop.

    Example: `fecam train glyphs --classes 60 --width 16 --epochs 10 --output glyph-net`,
    then `fecam features glyphs --encoder resnet18:glyph-net/encoder.safetensors`
    """
    with needs_extra("training a network", "images"):
        from fecam.training import base_training, records
    data = load_dataset(dataset, root, download, option)
    chosen = _chosen(data, classes, order_seed)
    settings = base_training.plan_for(data.name, base_training.image_size(data, size))
    if epochs is not None:
        settings = base_training.scale_schedule(settings, epochs)
    settings = settings.changed(parse_options(plan or []))
    with progress_bar(f"{data.name}: {counted(len(chosen), 'class')}", "batches") as bar:
        (task,) = bar.task_ids

        def report(now: records.Progress) -> None:
            done = (now.epoch - 1) * now.n_batches + now.batch
            bar.update(task, total=now.epochs * now.n_batches, completed=done)

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
    restored = " (restored)" if record.restored else ""
    console.print(
        f"epoch {record.epoch}/{record.epochs}: loss {record.loss:.3f}, accuracy "
        f"{100 * record.accuracy:5.1f} %{test}, {record.seconds:.0f} s{restored}"
    )


def _chosen(data: Dataset, classes: str, order_seed: int | None) -> list[int]:
    """Return the labels of the classes to train on, in the order of the tasks."""
    order = list(class_order(len(data.label_names), order_seed))
    if classes == "all":
        return order
    if classes.isdigit():
        if not 2 <= int(classes) <= len(order):
            raise InputError(
                f"--classes {classes} must be from 2 to {len(order)} (the classes of {data.name!r})"
            )
        return order[: int(classes)]
    names = [name.strip() for name in classes.split(",")]
    if unknown := [name for name in names if name not in data.label_names]:
        examples = ", ".join(data.label_names[:8])
        raise InputError(
            f"--classes: {data.name!r} has no class {unknown[0]!r}; it has {examples}, ..."
        )
    return [data.label_names.index(name) for name in names]
