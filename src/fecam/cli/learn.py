"""`fecam learn` and `fecam unlearn`: add samples to a model and remove them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

import fecam
from fecam.cli import cluster, completion
from fecam.cli.data import (
    Device,
    Download,
    EncoderOptions,
    Options,
    Root,
    Strict,
    encoder_name_option,
)
from fecam.cli.edit import Note
from fecam.cli.items import check_n_features, load_labeled
from fecam.cli.model import (
    ModelPath,
    encoding_bar,
    exit_if_unreadable,
    open_existing,
    print_unreadable,
    undo_command,
)
from fecam.cli.output import (
    INTERRUPTED,
    AsJson,
    console,
    parse_options,
    print_note,
    show_json,
    show_table,
)
from fecam.encoders.names import split_options, with_options
from fecam.errors import InputError
from fecam.presets import preset as settings_of
from fecam.validation import counted

if TYPE_CHECKING:
    from fecam.data import Dataset
    from fecam.features.extraction import Report
    from fecam.model import LearnResult, Model

MAX_ROWS = 40
"""Number of classes that are printed; the JSON output lists all of them."""

Paths = Annotated[
    list[str],
    Argument(
        metavar="PATH",
        autocompletion=completion.datasets,
        help="Folder with one subfolder per class, .csv, .tsv, .parquet or .npz with labels, or "
        "name (`fecam datasets`). With --as also images, folders of images, .npy, and .txt with "
        "one text per line.",
    ),
]
AsLabel = Annotated[
    str | None,
    Option("--as", metavar="LABEL", help="Label of all items.", autocompletion=completion.labels),
]


def learn(
    paths: Paths,
    model: ModelPath,
    as_label: AsLabel = None,
    encoder: Annotated[
        str | None, encoder_name_option("Encoder of a new model, as listed by `fecam encoders`.")
    ] = None,
    encoder_option: EncoderOptions = None,
    preset: Annotated[
        str | None,
        Option(
            help="Settings of a new model: paper, few-shot, vit, ...",
            autocompletion=completion.presets,
        ),
    ] = None,
    note: Note = "",
    allow_duplicates: Annotated[
        bool, Option("--allow-duplicates", help="Also learn items that were learned before.")
    ] = False,
    strict: Strict = False,
    root: Root = None,
    download: Download = False,
    option: Options = None,
    device: Device = None,
    ray: cluster.Ray = None,
    as_json: AsJson = False,
) -> None:
    """Learn labeled items; the model file is created if missing. Run it again to resume.

    Items that were learned before are skipped, and so is the test part of a data set. Exit code 3:
    done, but some items were unreadable.

    Example: `fecam learn photos/ -m birds.fecam`, `fecam learn *.jpg --as robin -m birds.fecam`,
    `fecam learn s3://bucket/embeddings/ -m birds.fecam --ray auto`
    """
    load = partial(load_labeled, as_label=as_label, root=root, download=download, options=option)
    name = _encoder_name(encoder, encoder_option)
    settings = None if preset is None else settings_of(preset)
    if ray is not None:
        if strict or device is not None:
            raise InputError("--ray takes neither --strict nor --device. Remedy: omit them")
        columns = parse_options(option or []) if as_label is None else None
        options = {"note": note, "allow_duplicates": allow_duplicates}
        learned = cluster.learn_on(ray, paths, model, load, columns, name, settings, options)
        return cluster.show_learned(learned, model, as_json)
    with fecam.open(model, encoder=name, device=device, settings=settings) as opened:
        if settings is not None and opened.exists:
            _check_preset(opened, str(preset), settings)
        data = load(paths)
        results = _process(
            opened,
            data,
            lambda dataset, report: opened.learn(
                dataset, note=note, allow_duplicates=allow_duplicates, strict=strict, report=report
            ),
        )
        _show(opened, results, "learned", as_json)
    exit_if_unreadable(sum(len(result.unreadable) for result in results))


def unlearn(
    paths: Paths,
    model: ModelPath,
    as_label: AsLabel = None,
    strict: Strict = False,
    root: Root = None,
    download: Download = False,
    option: Options = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Remove samples from a model: the same items, with the same labels, as were learned.

    Example: `fecam unlearn wrong.jpg --as robin -m birds.fecam`
    """
    with open_existing(model, readonly=False, device=device) as opened:
        data = load_labeled(paths, as_label, root, download, option)
        results = _process(
            opened,
            data,
            lambda dataset, report: opened.unlearn(dataset, strict=strict, report=report),
        )
        _show(opened, results, "unlearned", as_json)
    exit_if_unreadable(sum(len(result.unreadable) for result in results))


def _process(
    model: Model, data: list[Dataset], step: Callable[[Dataset, Report], LearnResult]
) -> list[LearnResult]:
    """Return the result of each data set; all are checked before the first changes the model."""
    if model.kind == "features" and model.exists:
        for dataset in data:
            if dataset.kind == "features":
                check_n_features(dataset.name, dataset.items, model.classifier.n_features_in_)
    results: list[LearnResult] = []
    try:
        for dataset in data:
            with encoding_bar(dataset.name, dataset.kind) as report:
                results.append(step(dataset, report))
    except KeyboardInterrupt:
        print_note(
            f"stopped; {counted(len(results), 'data set')} done in {model.path}, and encoded "
            "features are cached. Run the same command to resume"
        )
        raise typer.Exit(INTERRUPTED) from None
    return results


def _encoder_name(encoder: str | None, options: list[str] | None) -> str | None:
    """Return the name of the encoder, including its options."""
    parsed = parse_options(options or [])
    if encoder is None:
        if parsed:
            raise InputError("--encoder-option needs --encoder, such as efficientnet-lite0")
        return None
    name, in_name = split_options(encoder)
    return with_options(name, {**in_name, **parsed})


def _check_preset(model: Model, preset: str, settings: dict[str, Any]) -> None:
    """Raise if an existing model has other settings than the preset."""
    current = model.classifier.get_params()
    for name, value in settings.items():
        if current[name] != value:
            raise InputError(
                f"--preset {preset} is for new models; {model.path} has {name}={current[name]!r}, "
                f"not {value!r}. Remedy: omit --preset, or use another model file"
            )


def _show(model: Model, results: list[LearnResult], verb: str, as_json: bool) -> None:
    learned = sum((Counter(result.n_learned) for result in results), Counter[Any]())
    duplicates = sum((Counter(result.n_duplicates) for result in results), Counter[Any]())
    new = [label for result in results for label in result.new_classes]
    unreadable = [reason for result in results for reason in result.unreadable]
    steps = [result.step for result in results if result.step is not None]
    seconds = sum(result.seconds for result in results)
    counts = {record.label: record.count for record in model.classes}
    if as_json:
        document = {
            "model": str(model.path),
            verb: {str(label): count for label, count in learned.items()},
            "duplicates": {str(label): count for label, count in duplicates.items()},
            "new_classes": new,
            "unreadable": unreadable,
            "steps": steps,
            "classes": len(counts),
            "samples": sum(counts.values()),
            "seconds": round(seconds, 3),
        }
        return show_json(document)
    print_unreadable(unreadable)
    labels = sorted({*learned, *duplicates}, key=str)
    columns = {verb: learned, **({"duplicates": duplicates} if duplicates else {})}
    if labels:
        rows = [
            [label, *(column[label] for column in columns.values()), counts.get(label, 0)]
            for label in labels[:MAX_ROWS]
        ]
        show_table(["class", *columns, "samples now"], rows)
    if len(labels) > MAX_ROWS:
        print_note(f"... and {counted(len(labels) - MAX_ROWS, 'class')} more (--json lists all)")
    if total := learned.total():
        added = f" ({len(new):,} new)" if new else ""
        console.print(
            f"{verb}: {counted(total, 'sample')} of {counted(len(+learned), 'class')}{added} in "
            f"{seconds:.1f} s; {model.path} has {counted(len(counts), 'class')}"
        )
    else:
        console.print(
            f"nothing {verb}: duplicates: {duplicates.total():,}, unreadable: {len(unreadable):,}"
        )
    if steps:
        print_note(f"{undo_command(model.path, len(steps))} undoes that")
