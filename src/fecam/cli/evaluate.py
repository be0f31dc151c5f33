"""`fecam evaluate`, `classes` and `inspect`: how good a model is, and what it holds."""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal as format_bytes

from fecam.cli import cluster
from fecam.cli.data import Device, Download, Name, Options, Root, load_dataset
from fecam.cli.model import (
    ModelPath,
    encoding_bar,
    exit_if_unreadable,
    open_existing,
    print_unreadable,
    require_classes,
)
from fecam.cli.output import (
    AsJson,
    console,
    counted,
    print_note,
    progress_bar,
    show_json,
    show_table,
    strip_control,
)
from fecam.errors import InputError

if TYPE_CHECKING:
    from fecam.bench.evaluation import Evaluation
    from fecam.data import Dataset
    from fecam.inspection import Pair, Weakness
    from fecam.model import Model
    from fecam.model_file import FileInfo

BLOCK = 1024
"""So many samples are judged at a time."""
TOP = 5
ROWS = 20
"""So many classes are listed on the screen; JSON and the page have all of them."""


class Order(Enum):
    """What classes can be sorted by."""

    label = "label"
    count = "count"
    batches = "batches"
    learned = "learned"
    changed = "changed"
    bytes = "bytes"


# -- evaluate --------------------------------------------------------------------------------------


def evaluate(
    dataset: Name,
    model: ModelPath,
    output: Annotated[
        Path | None, typer.Option("--output", "-O", help="Also write a page, such as report.html.")
    ] = None,
    reject: Annotated[
        float,
        typer.Option(help="Share of items of known classes that may be answered 'none of these'."),
    ] = 0.05,
    root: Root = None,
    download: Download = False,
    option: Options = None,
    device: Device = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="An item that cannot be read is an error.")
    ] = False,
    ray: cluster.Ray = None,
    as_json: AsJson = False,
) -> None:
    """Judge a model on labelled items: accuracy, classes, confusions, calibration, novelty.

    The test part of the data set is used, or all of it if it has none. Items with labels that the
    model was never taught are counted apart. Exit code 3: done, but some items could not be read.
    With --ray: accuracy, classes and confusions, and a label that was never taught is a wrong one.

    Example: `fecam evaluate photos/ -m birds.fecam --output report.html`
    """
    if not 0 < reject < 1:
        raise InputError(f"--reject {reject}: give a share between 0 and 1, such as 0.05")
    if output is not None and output.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--output {output}: the page's name must end in .html")
    if ray is not None:
        if output is not None or strict or device is not None:
            raise InputError("--ray takes no --output, --strict or --device. Remedy: leave it out")
        where = {"root": root, "download": download, "option": option}
        counts = cluster.evaluate_on(ray, dataset, model, **where)  # type: ignore[arg-type]
        return cluster.show_evaluated(counts, model, dataset, as_json)
    if output is not None:
        import fecam.report.drawing  # noqa: F401 (says at once what is not installed)
    with open_existing(model, device=device) as opened:
        require_classes(opened)
        data = load_dataset(dataset, root, download, option)
        part = "test" if len(data.test) else "all"
        if part == "test":
            data = data.subset(data.test)
        else:
            print_note(
                f"{data.name} has no test part, so all of its {counted(len(data), 'item')} are "
                "judged; of items that were also taught the numbers are flattering"
            )
        with encoding_bar(f"{data.name}: encode", data.kind) as report:
            features = opened.features_of(data, strict=strict, report=report)
        unreadable = list(features.notes[len(data.notes) + 1 :])
        found = _judged(opened, features, reject)
        facts = _facts(opened, data, part, len(unreadable))
    if output is not None:
        from fecam.report.evaluation import write_evaluation

        write_evaluation(found, facts, output)
    print_unreadable(unreadable)
    if as_json:
        about = {"model": str(model), "dataset": data.name, "part": part, "items": len(data)}
        page = None if output is None else str(output)
        show_json({**about, "unreadable": unreadable, **found.as_dict(), "output": page})
    else:
        _show_evaluation(found)
        if output is not None:
            print_note(f"the page: {output}")
    exit_if_unreadable(len(unreadable))


def _judged(model: Model, features: Dataset, reject: float) -> Evaluation:
    """The answers to all samples, block by block."""
    import numpy as np

    from fecam.bench.evaluation import evaluate as evaluated
    from fecam.model import predictions_of

    known = model.classifier.classes_.tolist()
    places = {label: at for at, label in enumerate(known)}
    taught = {str(label): label for label in known}
    names = [taught.get(name, name) for name in features.label_names]
    k = min(TOP, len(known))
    nearest = np.empty((len(features), k), np.int64)
    confidence, novelty = np.empty(len(features)), np.empty(len(features))
    with progress_bar(f"{features.name}: judge", "items") as bar:
        (task,) = bar.task_ids
        for start in range(0, len(features), BLOCK):
            rows = np.asarray(features.items[start : start + BLOCK])
            for at, one in enumerate(predictions_of(model.classifier, rows, k), start):
                nearest[at] = [places[candidate.label] for candidate in one.nearest]
                confidence[at] = one.nearest[0].probability
                novelty[at] = one.novelty
            bar.update(task, total=len(features), completed=start + len(rows))
    expected = [names[label] for label in features.labels]
    return evaluated(expected, nearest, confidence, novelty, known, reject=reject)


def _facts(model: Model, data: Dataset, part: str, unreadable: int) -> dict[str, str]:
    record = model.encoder_record
    return {
        "model": model.path.name,
        "classes": f"{len(model.classes):,}",
        "encoder": "none, features are given" if record is None else record.name,
        "data": f"{data.name}, {'its test part' if part == 'test' else 'all of it'}",
        "items": f"{len(data):,}" + (f", {unreadable:,} of them unreadable" if unreadable else ""),
    }


def _show_evaluation(found: Evaluation) -> None:
    from fecam.report.evaluation import classes_table, results_table, summary

    table = classes_table(found)
    if table.rows:
        show_table(table.header, [[cell.text for cell in row] for row in table.rows[:ROWS]])
        if len(table.rows) > ROWS:
            print_note(
                f"... and {len(table.rows) - ROWS:,} better classes (--json and --output have all)"
            )
        console.print()
    for row in results_table(found).rows:
        console.print(f"{row[0].text}: {row[1].text}")
    if found.unknown:
        total = sum(found.unknown.values())
        console.print(
            f"{counted(total, 'item')} with {counted(len(found.unknown), 'label')} never taught, "
            "counted apart"
        )
    console.print(summary(found))


# -- classes ---------------------------------------------------------------------------------------


def classes(
    model: ModelPath,
    sort: Annotated[Order, typer.Option(help="Largest or newest first; labels from a.")] = (
        Order.label
    ),
    as_json: AsJson = False,
) -> None:
    """List the classes of a model: samples, batches, when they were learned and changed.

    Example: `fecam classes -m birds.fecam --sort count`
    """
    rows = _facts_of(model).classes
    if sort is not Order.label:
        rows = sorted(rows, key=lambda one: getattr(one, sort.value), reverse=True)
    if as_json:
        show_json([asdict(one) for one in rows])
        return
    show_table(
        ["class", "samples", "batches", "learned (UTC)", "changed (UTC)", "size", "note"],
        [
            [
                one.label,
                f"{one.count:,}",
                one.batches,
                _minute(one.learned),
                _minute(one.changed),
                format_bytes(one.bytes),
                one.note,
            ]
            for one in rows
        ],
    )
    print_note(f"{len(rows):,} classes of {counted(sum(one.count for one in rows), 'sample')}")


# -- inspect ---------------------------------------------------------------------------------------


def inspect(
    model: ModelPath,
    top: Annotated[
        int, typer.Option("--top", "-k", min=0, help="So many pairs and weak classes.")
    ] = 10,
    as_json: AsJson = False,
) -> None:
    """Tell what a model is made of, which classes lie close together, and which are weak and why.

    No samples are needed: what is said of confusions is estimated from what the model keeps;
    `fecam evaluate` measures. Of many classes, only pairs with near prototypes are looked at.

    Example: `fecam inspect -m birds.fecam`
    """
    with open_existing(model) as opened:
        from fecam.inspection import close_pairs, weak_classes
        from fecam.model_file import file_info

        facts = file_info(model)
        pairs = close_pairs(opened.classifier) if top else []
        weak = weak_classes(opened.classifier, pairs) if top else []
    if as_json:
        show_json(_as_dict(model, facts, pairs[:top], weak[:top]))
        return
    _show_facts(facts)
    if pairs:
        console.print(
            "\nThe closest pairs, and how probable it is that one is taken for the other:"
        )
        show_table(
            ["class", "and", "confused %", "apart"],
            [
                [one.first, one.second, f"{100 * one.overlap:.1f}", f"{one.apart:.2f}"]
                for one in pairs[:top]
            ],
        )
    if weak:
        console.print("\nThe weakest classes:")
        show_table(
            ["class", "samples", "why"],
            [[one.label, f"{one.count:,}", "; ".join(one.reasons)] for one in weak[:top]],
        )
    elif top:
        console.print("\nNo class is weak: none has few samples, overlaps, or varies much.")


def _show_facts(facts: FileInfo) -> None:
    samples = sum(one.count for one in facts.classes)
    encoder = facts.encoder
    shown = {
        "format": f"version {facts.format_version}, after {counted(facts.model_version, 'change')}",
        "size": f"{format_bytes(facts.bytes)}, of which {format_bytes(facts.history_bytes)} "
        f"to undo and {format_bytes(facts.free_bytes)} free",
        "classes": f"{len(facts.classes):,}, of {counted(samples, 'sample')}; "
        f"{format_bytes(sum(one.bytes for one in facts.classes))}",
        "features": f"{facts.settings['n_features_in_']:,}",
        "encoder": "none, features are given"
        if encoder is None
        else f"{encoder.name} for {encoder.kind}, fingerprint {encoder.fingerprint[:12]}",
        "settings": ", ".join(f"{name}={value!r}" for name, value in _settings(facts).items()),
    }
    for name, value in shown.items():
        console.print(strip_control(f"{name}: {value}"))


def _settings(facts: FileInfo) -> dict[str, Any]:
    """What was chosen, with what "auto" has found; names with an underscore are the file's own."""
    chosen = {name: one for name, one in facts.settings.items() if not name.endswith("_")}
    return {**chosen, "tukey": facts.settings["tukey_"]}


def _as_dict(
    model: Path, facts: FileInfo, pairs: list[Pair], weak: list[Weakness]
) -> dict[str, Any]:
    return {
        "model": str(model),
        "format_version": facts.format_version,
        "model_version": facts.model_version,
        "bytes": facts.bytes,
        "history_bytes": facts.history_bytes,
        "free_bytes": facts.free_bytes,
        "encoder": None if facts.encoder is None else asdict(facts.encoder),
        "settings": _settings(facts),
        "features": facts.settings["n_features_in_"],
        "classes": len(facts.classes),
        "samples": sum(one.count for one in facts.classes),
        "closest": [asdict(one) for one in pairs],
        "weakest": [asdict(one) for one in weak],
    }


def _facts_of(path: Path) -> FileInfo:
    with open_existing(path):  # says how a model that is not there is made
        from fecam.model_file import file_info

        return file_info(path)


def _minute(time: str) -> str:
    """Without seconds, as a person reads it."""
    return time[:16].replace("T", " ")
