"""`fecam learn` and `fecam unlearn`: samples go into a model and out of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

import fecam
from fecam.cli import cluster, completion
from fecam.cli.data import Device, Download, Options, Root
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
    counted,
    parse_options,
    print_note,
    show_json,
    show_table,
)
from fecam.encoders.names import split_options, with_options
from fecam.errors import InputError
from fecam.presets import preset as settings_of

if TYPE_CHECKING:
    from fecam.data import Dataset
    from fecam.features.extraction import Report
    from fecam.model import LearnResult, Model

ROWS = 40
"""So many classes are listed on the screen; JSON has all of them."""

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...",
        autocompletion=completion.datasets,
        help="Folders by class, .csv/.tsv/.parquet/.npz with labels, names (`fecam datasets`); "
        "with --as also images, folders of images, .txt (a text a line), .npy.",
    ),
]
AsLabel = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="LABEL",
        help="All of it is of this one class.",
        autocompletion=completion.labels,
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="An item that cannot be read is an error.")]


def learn(
    paths: Paths,
    model: ModelPath,
    as_label: AsLabel = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            "--encoder",
            "-e",
            help="Of a new model, as `fecam encoders` lists them.",
            autocompletion=completion.encoders,
        ),
    ] = None,
    encoder_option: Annotated[
        list[str] | None,
        typer.Option("--encoder-option", "-o", help="Of the encoder, as name=value."),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Settings of a new model: paper, few-shot, vit, ...",
            autocompletion=completion.presets,
        ),
    ] = None,
    note: Note = "",
    allow_duplicates: Annotated[
        bool, typer.Option("--allow-duplicates", help="Also learn items that were learned before.")
    ] = False,
    strict: Strict = False,
    root: Root = None,
    download: Download = False,
    option: Options = None,
    device: Device = None,
    ray: cluster.Ray = None,
    as_json: AsJson = False,
) -> None:
    """Teach a model; the file is made if it is not there. Run it again to go on after a stop.

    What was taught before is not taught twice, and nothing of a test part is taught. Exit code 3:
    done, but some items could not be read.

    Example: `fecam learn photos/ -m birds.fecam`, `fecam learn *.jpg --as robin -m birds.fecam`,
    `fecam learn s3://bucket/embeddings/ -m birds.fecam --ray auto`
    """
    name = _encoder_name(encoder, encoder_option)
    settings = None if preset is None else settings_of(preset)
    if ray is not None:
        if strict or device is not None:
            raise InputError("--ray takes neither --strict nor --device. Remedy: leave them out")
        given = {
            "encoder": name,
            "settings": settings,
            "note": note,
            "allow_duplicates": allow_duplicates,
        }
        where = {"as_label": as_label, "root": root, "download": download, "option": option}
        learnt = cluster.learn_on(ray, paths, model, **given, **where)  # type: ignore[arg-type]
        return cluster.show_learned(learnt, model, as_json)
    with fecam.open(model, encoder=name, device=device, settings=settings) as opened:
        if settings is not None and opened.exists:
            _refuse_other_settings(opened, str(preset), settings)
        data = load_labeled(paths, as_label, root, download, option)

        def teach(one: Dataset, report: Report) -> LearnResult:
            return opened.learn_dataset(
                one, note=note, allow_duplicates=allow_duplicates, strict=strict, report=report
            )

        lessons = _each(opened, data, teach)
        _tell(opened, lessons, "learned", as_json)
    exit_if_unreadable(sum(len(one.unreadable) for one in lessons))


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
    """Take samples back out of a model: the same files, with the same labels, as were taught.

    Example: `fecam unlearn wrong.jpg --as robin -m birds.fecam`
    """
    with open_existing(model, readonly=False, device=device) as opened:
        data = load_labeled(paths, as_label, root, download, option)

        def take_out(one: Dataset, report: Report) -> LearnResult:
            return opened.unlearn_dataset(one, strict=strict, report=report)

        lessons = _each(opened, data, take_out)
        _tell(opened, lessons, "taken out", as_json)
    exit_if_unreadable(sum(len(one.unreadable) for one in lessons))


def _each(
    model: Model, data: list[Dataset], work: Callable[[Dataset, Report], LearnResult]
) -> list[LearnResult]:
    """A lesson of each data set; all were looked at before the first changes anything."""
    if model.kind == "features" and model.exists:
        for one in data:
            if one.kind == "features":
                check_n_features(one.name, one.items, model.classifier.n_features_in_)
    lessons: list[LearnResult] = []
    with _can_be_stopped(model, lessons):
        for one in data:
            with encoding_bar(one.name, one.kind) as report:
                lessons.append(work(one, report))
    return lessons


@contextmanager
def _can_be_stopped(model: Model, lessons: list[LearnResult]) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        done = f"{counted(len(lessons), 'data set')} done" if lessons else "as it was"
        print_note(
            f"stopped; {model.path} is {done}, and what was encoded is kept. "
            "Run the same command to go on"
        )
        raise typer.Exit(INTERRUPTED) from None


def _encoder_name(encoder: str | None, options: list[str] | None) -> str | None:
    """The encoder with its options in its name."""
    chosen = parse_options(options or [])
    if encoder is None:
        if chosen:
            raise InputError("--encoder-option needs --encoder, such as efficientnet-lite0")
        return None
    name, in_name = split_options(encoder)
    return with_options(name, {**in_name, **chosen})


def _refuse_other_settings(model: Model, preset: str, settings: dict[str, Any]) -> None:
    """Settings are those of the first lesson; a command may be run again with the same."""
    there = model.classifier.get_params()
    for name, value in settings.items():
        if there[name] != value:
            raise InputError(
                f"--preset {preset} is for new models; {model.path} has {name}={there[name]!r}, "
                f"not {value!r}. Remedy: leave it out, or teach another file"
            )


def _tell(model: Model, lessons: list[LearnResult], verb: str, as_json: bool) -> None:
    learned: Counter[Any] = Counter()
    duplicates: Counter[Any] = Counter()
    for one in lessons:
        learned.update(one.n_learned)
        duplicates.update(one.n_duplicates)
    new = [label for one in lessons for label in one.new_classes]
    unreadable = [why for one in lessons for why in one.unreadable]
    steps = [one.step.number for one in lessons if one.step is not None]
    seconds = sum(one.seconds for one in lessons)
    now = {one.label: one.count for one in model.classes}
    if as_json:
        show_json(
            {
                "model": str(model.path),
                verb.replace(" ", "_"): {str(label): count for label, count in learned.items()},
                "duplicates": {str(label): count for label, count in duplicates.items()},
                "new_classes": new,
                "unreadable": unreadable,
                "steps": steps,
                "classes": len(now),
                "samples": sum(now.values()),
                "seconds": round(seconds, 3),
            }
        )
        return
    print_unreadable(unreadable)
    touched = sorted({*learned, *duplicates}, key=str)
    if touched:
        show_table(
            ["class", verb, *(["duplicates"] if duplicates else []), "samples now"],
            [
                [one, learned[one], *([duplicates[one]] if duplicates else []), now.get(one, 0)]
                for one in touched[:ROWS]
            ],
        )
    if len(touched) > ROWS:
        print_note(f"... and {counted(len(touched) - ROWS, 'class')} more (--json names all)")
    total = sum(learned.values())
    fresh = f" ({len(new)} new)" if new else ""
    classes = f"{counted(len([one for one in learned if learned[one]]), 'class')}{fresh}"
    console.print(
        f"{verb}: {counted(total, 'sample')} of {classes} in {seconds:.1f} s; "
        f"{model.path} has {counted(len(now), 'class')}"
        if total
        else f"nothing {verb}: duplicates: {duplicates.total():,}, unreadable: {len(unreadable):,}"
    )
    if steps:
        print_note(f"{undo_command(model.path, len(steps))} undoes that")
