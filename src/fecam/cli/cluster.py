"""`--ray`: learning, predicting and evaluating on a cluster."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fecam.cli.data import load_dataset
from fecam.cli.help import Command
from fecam.cli.items import iter_items
from fecam.cli.model import encoding_bar, exit_if_unreadable, open_existing, print_unreadable
from fecam.cli.output import (
    console,
    parse_options,
    print_note,
    reserve_stdout,
    show_json,
    show_table,
)
from fecam.errors import InputError, ItemError
from fecam.labels import LabelKind, first_kind, parse_label
from fecam.validation import counted

if TYPE_CHECKING:
    from fecam.data import Dataset
    from fecam.distributed import LearnSummary, PredictionSummary

SHOWN_CLASSES = 20
"""Classes in the table on the screen; JSON has all."""

Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Work on a cluster: `HOST:6379`, `auto` for the one of this machine, `local` for a "
        "new one on this machine. Without an address: $RAY_ADDRESS, else `auto`, else `local`.",
    ),
]

_ADDRESS = re.compile(r"auto|local|(\w+://)?(\[[0-9a-fA-F:]+\]|[\w.-]+):[0-9]+")


class ByRay(Command):
    """A command whose `--ray` may have no address."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words; a `--ray` without an address gets an empty one."""
        return super().parse_args(ctx, with_address(args))


def with_address(words: Sequence[str]) -> list[str]:
    """Return the words of a command with an empty address for each `--ray` that has none.

    A word that is not an address, most likely a path, is left as it is.

    >>> with_address(["--ray", "photos/", "-m", "birds.fecam"])
    ['--ray=', 'photos/', '-m', 'birds.fecam']
    >>> with_address(["photos/", "--ray", "head:6379"])
    ['photos/', '--ray', 'head:6379']
    """
    result: list[str] = []
    for i, word in enumerate(words):
        if word == "--":
            return [*result, *words[i:]]
        alone = word == "--ray" and not any(map(_ADDRESS.fullmatch, words[i + 1 : i + 2]))
        result.append("--ray=" if alone else word)
    return result


def learn_on(
    address: str,
    paths: Sequence[str],
    model: Path,
    load: Callable[[list[str]], list[Dataset]],
    columns: dict[str, Any] | None,
    encoder: str | None,
    settings: dict[str, Any] | None,
    options: dict[str, Any],
) -> list[LearnSummary]:
    """Learn data sets on a cluster, each as one batch; without ``columns`` none is of Parquet."""
    from fecam import FeCAMClassifier
    from fecam.distributed import cluster, learn
    from fecam.model.readable import DEFAULT_ENCODERS

    cluster.require_ray()  # raise the error of a missing package before data is loaded
    parquet = [path for path in paths if columns is not None and _is_parquet(path)]
    others = [path for path in paths if path not in parquet]
    data = load(others) if others else []
    join(address)
    columns = columns or {}
    label_kind = _label_kind(model)
    kind = {"text": "texts", "image": "images"}.get(next(iter(columns.keys() - {"label"}), ""), "")
    work = [(path, kind, _from_parquet(path, columns, label_kind)) for path in parquet]
    work += [(x.name, x.kind, _from_dataset(x, "train", label_kind)) for x in data]
    summaries = []
    for name, kind, rows in work:
        rows["encoder"] = encoder
        if not model.exists():
            rows["encoder"] = encoder or DEFAULT_ENCODERS.get(kind)
            rows["classifier"] = FeCAMClassifier(**(settings or {}))
        with encoding_bar(name, kind or "rows") as report:
            summaries.append(learn(into=model, report=report, **options, **rows))
    return summaries


def predict_on(
    address: str,
    paths: Sequence[str],
    model: Path,
    *,
    output: Path | None,
    top: int,
    reject: float | None,
    texts: bool,
    option: list[str] | None,
) -> PredictionSummary:
    """Predict items on a cluster, into a folder."""
    from fecam.distributed import cluster, predict, to_ray

    cluster.require_ray()
    if output is None:
        raise InputError("--ray writes many files. Remedy: --output FOLDER for them")
    if output.is_file():
        raise InputError(f"--output {output} is a file. Remedy: a folder, for --ray")
    columns = parse_options(option or [])
    with open_existing(model) as opened:
        kind, width = opened.kind or "features", opened.classifier.n_features_in_
    if all(map(_is_parquet, paths)):
        join(address)
        rows, total = to_ray.read_parquet(paths), to_ray.count_parquet(paths)
        item = _item_column(columns)
    else:
        groups = iter_items(paths, kind, width, texts=texts, options=columns)
        items = [pair for group in groups for pair in group if not isinstance(pair[1], ItemError)]
        join(address)
        names = [name for name, _ in items]
        rows, item, total = to_ray.as_dataset([x for _, x in items], {"name": names}), "item", None
    with encoding_bar(str(output), kind) as report:
        options: dict[str, Any] = {"top": top, "reject": reject, "item": item, "total": total}
        return predict(rows, model, output=output, report=report, **options)


def evaluate_on(
    address: str,
    dataset: str,
    model: Path,
    *,
    root: Path | None,
    download: bool,
    option: list[str] | None,
) -> PredictionSummary:
    """Predict labeled items on a cluster, and count."""
    from fecam.distributed import cluster, evaluate

    cluster.require_ray()
    label_kind = _label_kind(model)
    if _is_parquet(dataset):
        join(address)
        rows = _from_parquet(dataset, parse_options(option or []), label_kind)
    else:
        data = load_dataset(dataset, root, download, option)
        join(address)
        rows = _from_dataset(data, "test", label_kind)
    with encoding_bar(dataset, "items") as report:
        return evaluate(model=model, report=report, **rows)


def join(address: str) -> None:
    """Join a cluster; what threads of Ray print is kept off the standard output."""
    from fecam.distributed import cluster

    reserve_stdout()
    cluster.connect(address)


def _is_parquet(path: str) -> bool:
    """Return whether Ray reads the path itself."""
    if "://" in path or path.endswith(".parquet"):
        return True
    return next(Path(path).expanduser().glob("*.parquet"), None) is not None


def _label_kind(model: Path) -> LabelKind | None:
    """Return the kind of the labels of a file; None for a new one."""
    if not model.exists():
        return None
    with open_existing(model) as opened:
        return first_kind(record.label for record in opened.classes)


def _from_parquet(
    path: str, columns: dict[str, Any], label_kind: LabelKind | None
) -> dict[str, Any]:
    """Return the arguments of `learn` and `evaluate` for Parquet files."""
    from fecam.distributed import to_ray

    label = columns.get("label", "label")
    rows = to_ray.with_labels(to_ray.read_parquet([path]), label, label_kind)
    total = to_ray.count_parquet([path])
    return {"dataset": rows, "label": label, "item": _item_column(columns), "total": total}


def _from_dataset(data: Dataset, split: str, label_kind: LabelKind | None) -> dict[str, Any]:
    """Return the arguments of `learn` and `evaluate` for a split, or all rows; of files, paths."""
    from fecam.distributed import to_ray

    data = data.subset(getattr(data, split)) if len(data.test) else data
    names = [parse_label(name, label_kind or data.label_kind) for name in data.label_names]
    content = getattr(data.items, "content", data.items.__getitem__)
    items = [content(i) for i in range(len(data))]
    rows = to_ray.as_dataset(items, {"label": [names[code] for code in data.labels]})
    return {"dataset": rows, "label": "label", "item": "item"}


def _item_column(columns: dict[str, Any]) -> Any:
    return next((columns[name] for name in ("features", "text", "image") if name in columns), None)


def show_learned(summaries: Sequence[LearnSummary], model: Path, as_json: bool) -> None:
    """Print what was learned."""
    learned = sum((Counter(summary.n_learned) for summary in summaries), Counter[Any]())
    duplicates = sum(summary.n_duplicates for summary in summaries)
    unreadable = sum(summary.unreadable for summary in summaries)
    reasons = [reason for summary in summaries for reason in summary.reasons]
    seconds = sum(summary.seconds for summary in summaries)
    by_text = {str(label): count for label, count in learned.items()}
    values = {"learned": by_text, "duplicates": duplicates, "seconds": round(seconds, 3)}
    text = (
        f"learned: {counted(learned.total(), 'sample')} of {counted(len(learned), 'class')} in "
        f"{seconds:.1f} s on a cluster; duplicates: {duplicates:,}"
    )
    _show({"model": str(model), **values}, text, unreadable, reasons, as_json)


def show_predicted(summary: PredictionSummary, output: Path, as_json: bool) -> None:
    """Print where the predictions are."""
    reused = f", {summary.reused:,} of them from an earlier run" if summary.reused else ""
    values = {"output": str(output), "files": summary.files, "files_reused": summary.reused}
    text = (
        f"{counted(summary.items, 'item')} predicted in {output}: "
        f"{counted(summary.files, 'file')}{reused}"
    )
    _show({**values, "items": summary.items}, text, summary.unreadable, summary.reasons, as_json)


def show_evaluated(summary: PredictionSummary, model: Path, dataset: str, as_json: bool) -> None:
    """Print the accuracy of all classes, the worst first."""
    items: Counter[Any] = Counter()
    for (label, _), count in summary.confusions.items():
        items[label] += count
    correct = {label: summary.confusions[label, label] for label in items}
    worst = sorted(items, key=lambda label: (correct[label] / items[label], str(label)))
    values = {
        "model": str(model),
        "dataset": dataset,
        "items": summary.items,
        "accuracy": summary.accuracy,
        "classes": [{"label": x, "count": items[x], "correct": correct[x]} for x in worst],
        "confusions": [
            {"label": label, "predicted": predicted, "count": count}
            for (label, predicted), count in summary.confusions.most_common()
            if label != predicted
        ],
    }
    if not as_json:
        rows = [[x, f"{items[x]:,}", f"{100 * correct[x] / items[x]:.1f}"] for x in worst]
        show_table(["class", "items", "correct %"], rows[:SHOWN_CLASSES])
        if len(worst) > SHOWN_CLASSES:
            print_note(
                f"... and {counted(len(worst) - SHOWN_CLASSES, 'better class')} (--json has all)"
            )
    share = "-" if summary.accuracy is None else f"{100 * summary.accuracy:.2f} %"
    text = f"accuracy: {share} of {counted(summary.n_labeled, 'item')}"
    _show(values, text, summary.unreadable, summary.reasons, as_json)


def _show(
    values: dict[str, Any], text: str, unreadable: int, reasons: list[str], as_json: bool
) -> None:
    """Print the values as JSON, or the text; end with the exit code for unreadable items."""
    if as_json:
        show_json({**values, "unreadable": unreadable, "reasons": reasons})
    else:
        print_unreadable(reasons)
        console.print(f"{text}; unreadable: {unreadable:,}")
    exit_if_unreadable(unreadable)
