"""`fecam evaluate`, `classes` and `inspect`: measure and describe a model."""

from __future__ import annotations

import os
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.filesize import decimal as format_bytes
from typer import Option

from fecam.cli import cluster
from fecam.cli.confirmation import Replace, confirm_replacing
from fecam.cli.data import Device, Download, Name, Options, Root, Strict, load_dataset
from fecam.cli.items import load_labeled
from fecam.cli.model import (
    ModelPath,
    encoding_bar,
    exit_if_unreadable,
    learn_command,
    open_existing,
    print_unreadable,
    require_classes,
)
from fecam.cli.output import (
    AsJson,
    console,
    print_note,
    progress_bar,
    show_json,
    show_table,
    strip_control,
)
from fecam.core.novelty import novelty_threshold
from fecam.data.catalogue import TABLE_SUFFIXES
from fecam.errors import InputError
from fecam.validation import counted

if TYPE_CHECKING:
    from fecam.bench.evaluation import Evaluation
    from fecam.data import Dataset
    from fecam.inspection import Pair, Weakness
    from fecam.model import Model
    from fecam.model_file.records import FileInfo

MAX_ROWS = 20
"""Number of classes that are printed; the JSON output and the page list all of them."""
MAX_CLASSES = 100
"""Number of classes that `fecam classes` prints by default."""


Order = StrEnum("Order", ["label", "count", "batches", "learned", "changed", "bytes"])
"""Sort keys of classes."""


# -- evaluate --------------------------------------------------------------------------------------


def evaluate(
    dataset: Name,
    model: ModelPath,
    output: Annotated[
        Path | None, Option("--output", "-O", help="Also write an HTML page.")
    ] = None,
    yes: Replace = False,
    reject: Annotated[
        float, Option(help="Fraction of items of known classes that may be rejected as novel.")
    ] = 0.05,
    unknown: Annotated[
        str | None,
        Option(
            help="Items that belong to no learned class, as a folder of images, a table or a data "
            "set: measures how well novelty detects them."
        ),
    ] = None,
    root: Root = None,
    download: Download = False,
    option: Options = None,
    device: Device = None,
    strict: Strict = False,
    ray: cluster.Ray = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model on labeled items: accuracy, recall, confusions, calibration, novelty.

    Uses the test part of the data set, or all of it if there is none. Items with unknown labels
    are counted separately, with those of --unknown. Exit code 3: done, but some items were
    unreadable. With --ray: only accuracy, recall and confusions, and an item with an unknown label
    counts as wrong.

    Example: `fecam evaluate photos/ -m birds.fecam --output report.html`
    """
    novelty_threshold(reject)  # raises now, before the work
    if output is not None and output.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--output {output}: the file name must end in .html")
    if ray is not None:
        if output is not None or unknown is not None or strict or device is not None:
            raise InputError(
                "--ray takes no --output, --unknown, --strict or --device. Remedy: omit them"
            )
        counts = cluster.evaluate_on(
            ray, dataset, model, root=root, download=download, option=option
        )
        return cluster.show_evaluated(counts, model, dataset, as_json)
    confirm_replacing(output, yes)
    if output is not None:
        import fecam.report.drawing  # noqa: F401 (raises now if matplotlib is missing)
    with open_existing(model, device=device) as opened:
        require_classes(opened)
        data = load_dataset(dataset, root, download, option)
        part = "test" if len(data.test) else "all"
        if part == "test":
            data = data.subset(data.test)
        else:
            print_note(
                f"{data.name} has no test part: all {counted(len(data), 'item')} are used. The "
                "results are too good if the model has learned some of them"
            )
        features, unreadable = _encode(opened, data, strict)
        encoder = opened.encoder_record
        facts = {
            "model": model.name,
            "classes": f"{len(opened.classes):,}",
            "encoder": "none, features are given" if encoder is None else encoder.name,
            "data": f"{data.name}, {'test part' if part == 'test' else 'all of it'}",
            "items": f"{len(data):,}",
        }
        others = None
        if unknown is not None:
            # The labels do not matter; only a data set with a name has its own.
            label = "unknown" if os.path.exists(os.path.expanduser(unknown)) else None
            options = option if _is_table(dataset) and _is_table(unknown) else None
            (unlabeled,) = load_labeled([unknown], label, None, download, options)
            encoded, reasons = _encode(opened, unlabeled, strict)
            others, unreadable = encoded.items, unreadable + reasons
            facts |= {"unknown items": f"{unlabeled.name}, {len(unlabeled):,}"}
        facts |= {"unreadable items": f"{len(unreadable):,}" if unreadable else ""}
        evaluation = _evaluate(opened, features, others, reject)
    if output is not None:
        from fecam.report.evaluation import write_evaluation

        write_evaluation(evaluation, facts, output)
    print_unreadable(unreadable)
    if as_json:
        about = {"model": str(model), "dataset": data.name, "part": part, "items": len(data)}
        page = None if output is None else str(output)
        show_json({**about, "unreadable": unreadable, **evaluation.as_dict(), "output": page})
    else:
        _show_evaluation(evaluation, with_reliability=unknown is not None)
        if output is not None:
            print_note(f"page: {output}")
    exit_if_unreadable(len(unreadable))


def _is_table(path: str) -> bool:
    return path.lower().endswith(TABLE_SUFFIXES)


def _encode(model: Model, data: Dataset, strict: bool) -> tuple[Dataset, list[str]]:
    """Return the features of a data set, and why items are unreadable."""
    with encoding_bar(f"{data.name}: encode", data.kind) as report:
        features = model.features_of(data, strict=strict, report=report)
    return features, list(features.notes[len(data.notes) + 1 :])


def _evaluate(model: Model, features: Dataset, unknown: Any, reject: float) -> Evaluation:
    """Predict all samples and compare with their labels."""
    from fecam.bench.evaluation import evaluate_classifier

    by_name = {str(label): label for label in model.classifier.classes_.tolist()}
    names = [by_name.get(name, name) for name in features.label_names]
    expected = [names[label] for label in features.labels]
    with progress_bar(f"{features.name}: predict", "items") as bar:
        (task,) = bar.task_ids
        return evaluate_classifier(
            model.classifier,
            features.items,
            expected,
            unknown=unknown,
            reject=reject,
            report=lambda done, total: bar.update(task, total=total, completed=done),
        )


def _show_evaluation(evaluation: Evaluation, with_reliability: bool) -> None:
    from fecam.report.evaluation import (
        classes_table,
        novelty_sentences,
        reliability_table,
        results_table,
        summary_sentence,
    )

    table = classes_table(evaluation)
    if table.rows:
        show_table(table.header, table.text_rows()[:MAX_ROWS])
        if len(table.rows) > MAX_ROWS:
            better = len(table.rows) - MAX_ROWS
            print_note(f"... and {counted(better, 'better class')} (--json and --output list all)")
        console.print()
    if with_reliability and evaluation.bins:
        reliability = reliability_table(evaluation)
        show_table(reliability.header, reliability.text_rows())
        console.print()
    for name, value in results_table(evaluation).text_rows():
        console.print(f"{name}: {value}")
    if evaluation.unknown:
        items = counted(sum(evaluation.unknown.values()), "item")
        labels = counted(len(evaluation.unknown), "unknown label")
        console.print(f"{items} with {labels}, counted separately")
    for sentence in [*novelty_sentences(evaluation), summary_sentence(evaluation)]:
        console.print(sentence)


# -- classes ---------------------------------------------------------------------------------------


def classes(
    model: ModelPath,
    sort: Annotated[
        Order,
        Option(
            metavar="KEY",
            help=f"One of {', '.join(Order.__members__)}; numbers and times in descending order.",
        ),
    ] = Order.label,
    limit: Annotated[int, Option(min=1, help="Number of classes in the table.")] = MAX_CLASSES,
    show_all: Annotated[bool, Option("--all", help="Print all classes.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the classes of a model with samples, training batches, times and size.

    Of many classes the table has the first --limit; --json always lists all.

    Example: `fecam classes -m birds.fecam --sort count`
    """
    with open_existing(model):  # raises with a hint if the file does not exist
        from fecam.model_file.integrity import file_info

        records = file_info(model).classes
    if sort is not Order.label:
        records = sorted(records, key=lambda record: getattr(record, sort.value), reverse=True)
    if as_json:
        show_json([asdict(record) for record in records])
        return
    shown = records if show_all else records[:limit]
    header = ["class", "samples", "batches", "learned (UTC)", "changed (UTC)", "size", "note"]
    rows = [
        [
            record.label,
            f"{record.count:,}",
            record.batches,
            _minute(record.learned),
            _minute(record.changed),
            format_bytes(record.bytes),
            record.note,
        ]
        for record in shown
    ]
    show_table(header, rows)
    if more := len(records) - len(shown):
        print_note(f"... and {counted(more, 'more class')} (--all prints all)")
    samples = counted(sum(record.count for record in records), "sample")
    remedy = "" if records else f"; {learn_command(model)} adds some"
    print_note(f"{counted(len(records), 'class')}, {samples}{remedy}")


# -- inspect ---------------------------------------------------------------------------------------


def inspect(
    model: ModelPath,
    top: Annotated[
        int, Option("--top", "-k", min=0, help="Number of pairs and weak classes.")
    ] = 10,
    as_json: AsJson = False,
) -> None:
    """Show the size and settings of a model, its closest pairs of classes and its weak classes.

    No samples are needed: confusions are estimated from the stored statistics; `fecam evaluate`
    measures them. With many classes, only pairs with near prototypes are considered.

    Example: `fecam inspect -m birds.fecam`
    """
    with open_existing(model) as opened:
        from fecam.inspection import close_pairs, weak_classes
        from fecam.model_file.integrity import file_info

        info = file_info(model)
        pairs = close_pairs(opened.classifier) if top else []
        weak = weak_classes(opened.classifier, pairs) if top else []
    if as_json:
        show_json(_as_dict(model, info, pairs[:top], weak[:top]))
        return
    _show_info(info)
    if pairs:
        _show_pairs(pairs[:top])
    if weak:
        console.print("\nWeakest classes:")
        rows = [[each.label, f"{each.count:,}", "; ".join(each.reasons)] for each in weak[:top]]
        show_table(["class", "samples", "reasons"], rows)
    elif top:
        console.print("\nNo weak classes: none has few samples, frequent errors or high variance.")


def _show_pairs(pairs: list[Pair]) -> None:
    """Print pairs; with shares in percent if the model has enough measurements for them."""
    names = [[pair.first, pair.second, f"{pair.apart:.2f}"] for pair in pairs]
    shares = [f"{100 * pair.overlap:.1f}" for pair in pairs if pair.overlap is not None]
    if shares:
        console.print("\nClosest pairs, with the estimated share of samples that are confused:")
        rows = [[*name, share] for name, share in zip(names, shares, strict=True)]
        show_table(["class", "and", "distance", "confused %"], rows)
    else:
        console.print("\nClosest pairs (too few measured samples to estimate confusions):")
        show_table(["class", "and", "distance"], names)


def _show_info(info: FileInfo) -> None:
    samples = sum(record.count for record in info.classes)
    class_bytes, encoder = sum(record.bytes for record in info.classes), info.encoder
    lines = {
        "format": f"version {info.format_version}, after {counted(info.model_version, 'change')}",
        "size": f"{format_bytes(info.bytes)}, of which {format_bytes(class_bytes)} classes, "
        f"{format_bytes(info.prior_bytes)} prior, {format_bytes(info.history_bytes)} undo history "
        f"and {format_bytes(info.free_bytes)} free",
        "classes": f"{len(info.classes):,}, of {counted(samples, 'sample')}",
        "features": f"{info.settings['n_features_in_']:,}"
        + ("" if info.n_components is None else f", compressed to {info.n_components:,}"),
        "encoder": "none, features are given"
        if encoder is None
        else f"{encoder.name} for {encoder.kind}, fingerprint {encoder.fingerprint[:12]}",
        "settings": ", ".join(f"{name}={value!r}" for name, value in _settings(info).items()),
    }
    for name, value in lines.items():
        console.print(strip_control(f"{name}: {value}"))


def _settings(info: FileInfo) -> dict[str, Any]:
    """Return the parameters, with the fitted power in place of ``tukey="auto"``."""
    chosen = {name: value for name, value in info.settings.items() if not name.endswith("_")}
    return {**chosen, "tukey": info.settings["tukey_"]}


def _as_dict(
    model: Path, info: FileInfo, pairs: list[Pair], weak: list[Weakness]
) -> dict[str, Any]:
    sizes = "format_version model_version bytes prior_bytes history_bytes free_bytes"
    return {
        "model": str(model),
        **{name: getattr(info, name) for name in sizes.split()},
        "encoder": None if info.encoder is None else asdict(info.encoder),
        "settings": _settings(info),
        "features": info.settings["n_features_in_"],
        "components": info.n_components,
        "classes": len(info.classes),
        "samples": sum(record.count for record in info.classes),
        "closest": [asdict(pair) for pair in pairs],
        "weakest": [asdict(each) for each in weak],
    }


def _minute(time: str) -> str:
    """Return a time without seconds."""
    return time[:16].replace("T", " ")
