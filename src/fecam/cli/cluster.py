"""`--ray`: learning, predicting and evaluating on a cluster."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from fecam.cli.data import load_dataset
from fecam.cli.items import iter_items, load_labeled
from fecam.cli.model import encoding_bar, exit_if_unreadable, open_existing, print_unreadable
from fecam.cli.output import (
    console,
    counted,
    parse_options,
    print_note,
    reserve_stdout,
    show_json,
    show_table,
)
from fecam.errors import InputError, ItemError

if TYPE_CHECKING:
    from fecam.bench.runner import Executor
    from fecam.data import Dataset
    from fecam.distributed import Answered, Learnt

ROWS = 20
"""So many classes are listed on the screen; JSON has all of them."""

Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Work on a cluster: `HOST:6379`, `auto` for the one that this machine is part of, "
        "`local` for a new one on this machine. Alone: $RAY_ADDRESS, else `auto`, else `local`.",
    ),
]

_ADDRESS = re.compile(r"auto|local|(\w+://)?(\[[0-9a-fA-F:]+\]|[\w.-]+):[0-9]+")


class ByRay(TyperCommand):
    """A command with a `--ray` that may stand alone."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Say what a `--ray` without an address means, which no option can by itself."""
        return super().parse_args(ctx, with_address(args))


def with_address(words: Sequence[str]) -> list[str]:
    """Words of a command in which each `--ray` has an address: an empty one, if none follows.

    What does not look like an address is left to be what it is, most likely a path.

    >>> with_address(["--ray", "photos/", "-m", "birds.fecam"])
    ['--ray=', 'photos/', '-m', 'birds.fecam']
    >>> with_address(["photos/", "--ray", "head:6379"])
    ['photos/', '--ray', 'head:6379']
    """
    found: list[str] = []
    for at, word in enumerate(words):
        if word == "--":
            return [*found, *words[at:]]
        alone = word == "--ray" and not any(map(_ADDRESS.fullmatch, words[at + 1 : at + 2]))
        found.append("--ray=" if alone else word)
    return found


def learn_on(
    address: str,
    paths: Sequence[str],
    model: Path,
    *,
    encoder: str | None,
    settings: dict[str, Any] | None,
    note: str,
    allow_duplicates: bool,
    as_label: str | None,
    root: Path | None,
    download: bool,
    option: list[str] | None,
) -> list[Learnt]:
    """Teach a file on a cluster, a lesson a data set."""
    from fecam import FeCAMClassifier
    from fecam.distributed import cluster, teach
    from fecam.model.model import USUAL_ENCODERS

    cluster.the_ray()  # if it is not installed, say so first
    parquet = [path for path in paths if as_label is None and _is_parquet(path)]
    others = [path for path in paths if path not in parquet]
    data = load_labeled(others, as_label, root, download, option) if others else []
    _join(address)
    columns = parse_options(option or []) if parquet else {}
    numbers = _has_numbers(model)
    lessons = []
    work = [(path, _labelled(_read(path), columns, numbers), None) for path in parquet]
    sent = [(one.name, _sent(_part(one, "train"), numbers), one.kind) for one in data]
    for name, rows, kind in [*work, *sent]:
        fresh = not model.exists()
        chosen = encoder or (USUAL_ENCODERS.get(kind or _kind(columns)) if fresh else None)
        with encoding_bar(name, kind or "rows") as report:
            lessons.append(
                teach(
                    rows,
                    encoder=chosen,
                    classifier=FeCAMClassifier(**(settings or {})) if fresh else None,
                    into=model,
                    label=columns.get("label", "label") if kind is None else "label",
                    item=_item(columns) if kind is None else "item",
                    note=note,
                    allow_duplicates=allow_duplicates,
                    total=_count(name) if kind is None else None,
                    report=report,
                )
            )
    return lessons


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
) -> Answered:
    """Judge items on a cluster; the answers go to a folder."""
    from fecam.distributed import cluster, predict, sending

    cluster.the_ray()
    if output is None:
        raise InputError("--ray writes many answers at once. Remedy: --output FOLDER for them")
    if output.is_file():
        raise InputError(f"--output {output} is a file. Remedy: a folder, for --ray")
    columns = parse_options(option or [])
    with open_existing(model) as opened:
        kind, width = opened.kind or "features", opened.classifier.n_features_in_
    by_ray = all(map(_is_parquet, paths))
    if not by_ray:
        bursts = iter_items(paths, kind, width, texts=texts, options=columns)
        found = [one for burst in bursts for one in burst if not isinstance(one[1], ItemError)]
    _join(address)
    total = None
    if by_ray:
        rows, item, total = _read(*paths), _item(columns), _count(*paths)
    else:
        names = [name for name, _ in found]
        rows, item = sending.as_dataset([one for _, one in found], {"name": names}), "item"
    asked = {"top": top, "reject": reject, "item": item, "total": total}
    with encoding_bar(str(output), kind) as report:
        return predict(rows, model, output=output, report=report, **asked)


def evaluate_on(
    address: str,
    dataset: str,
    model: Path,
    *,
    root: Path | None,
    download: bool,
    option: list[str] | None,
) -> Answered:
    """Judge labelled items on a cluster, and count."""
    from fecam.distributed import cluster, evaluate

    cluster.the_ray()
    numbers = _has_numbers(model)
    data = None if _is_parquet(dataset) else load_dataset(dataset, root, download, option)
    _join(address)
    if data is None:
        columns = parse_options(option or [])
        rows, item = _labelled(_read(dataset), columns, numbers), _item(columns)
        label, total = columns.get("label", "label"), _count(dataset)
    else:
        rows, item, label, total = _sent(_part(data, "test"), numbers), "item", "label", None
    with encoding_bar(dataset, "items") as report:
        return evaluate(rows, model, label=label, item=item, total=total, report=report)


def executor_on(address: str) -> Executor:
    """What takes the heads and seeds of an experiment to a cluster."""
    from fecam.distributed.experiments import run_on_ray

    _join(address)
    return run_on_ray


def _join(address: str) -> None:
    """Join a cluster. That a worker has died is told by a thread of Ray, which is no result."""
    from fecam.distributed import cluster

    reserve_stdout()
    cluster.connect(address)


def _is_parquet(path: str) -> bool:
    """Whether Ray reads it by itself."""
    if "://" in path or path.endswith(".parquet"):
        return True
    return next(Path(path).expanduser().glob("*.parquet"), None) is not None


def _read(*paths: str) -> Any:
    from fecam.distributed import sending

    return sending.read_parquet(paths)


def _count(*paths: str) -> int | None:
    from fecam.distributed import sending

    return sending.count_parquet(paths)


def _has_numbers(model: Path) -> bool:
    """Whether the labels of a file are whole numbers; those of a new one are texts."""
    if not model.exists():
        return False
    with open_existing(model) as opened:
        return any(isinstance(one.label, int) for one in opened.classes)


def _labelled(rows: Any, columns: dict[str, Any], numbers: bool) -> Any:
    from fecam.distributed import sending

    return sending.with_labels(rows, columns.get("label", "label"), numbers)


def _item(columns: dict[str, Any]) -> Any:
    return next((columns[name] for name in ("features", "text", "image") if name in columns), None)


def _kind(columns: dict[str, Any]) -> str:
    return {"text": "texts", "image": "images"}.get(next(iter(columns.keys() - {"label"}), ""), "")


def _part(dataset: Dataset, part: str) -> Dataset:
    """The part to learn from, or to be judged on; all of a data set without a test part."""
    return dataset.subset(getattr(dataset, part)) if len(dataset.test) else dataset


def _sent(chosen: Dataset, numbers: bool) -> Any:
    """A data set on its way; of files only their names are sent."""
    from fecam.distributed import sending

    names = sending.labels_as(chosen.label_names, numbers)
    labels = [names[at] for at in chosen.labels]
    content = getattr(chosen.items, "content", chosen.items.__getitem__)
    return sending.as_dataset([content(at) for at in range(len(chosen))], {"label": labels})


def tell(lessons: Sequence[Learnt], model: Path, as_json: bool) -> None:
    """Say what became of it."""
    learned: Counter[Any] = Counter()
    for one in lessons:
        learned.update(one.n_learned)
    duplicates, unreadable = (
        sum(o.n_duplicates for o in lessons),
        sum(o.unreadable for o in lessons),
    )
    seconds = sum(one.seconds for one in lessons)
    if as_json:
        show_json(
            {
                "model": str(model),
                "learned": {str(label): count for label, count in learned.items()},
                "duplicates": duplicates,
                "unreadable": unreadable,
                "reasons": [why for one in lessons for why in one.reasons],
                "seconds": round(seconds, 3),
            }
        )
    else:
        for one in lessons:
            print_unreadable(list(one.reasons))
        console.print(
            f"learned: {counted(learned.total(), 'sample')} of {counted(len(learned), 'class')} in "
            f"{seconds:.1f} s on a cluster; duplicates: {duplicates:,}, unreadable: {unreadable:,}"
        )
    exit_if_unreadable(unreadable)


def tell_answers(found: Answered, output: Path, as_json: bool) -> None:
    """Say what became of it."""
    if as_json:
        show_json(
            {
                "output": str(output),
                "items": found.items,
                "unreadable": found.unreadable,
                "reasons": found.reasons,
                "parts": found.parts,
                "parts_kept": found.kept,
            }
        )
    else:
        print_unreadable(found.reasons)
        kept = f", {found.kept:,} of them from before" if found.kept else ""
        console.print(
            f"{counted(found.items, 'item')} answered in {output}: "
            f"{counted(found.parts, 'file')}{kept}; unreadable: {found.unreadable:,}"
        )
    exit_if_unreadable(found.unreadable)


def tell_counts(found: Answered, model: Path, dataset: str, as_json: bool) -> None:
    """Say how many answers were right, class by class, the worst first."""
    items: Counter[Any] = Counter()
    right: Counter[Any] = Counter()
    for (label, answer), count in found.confusions.items():
        items[label] += count
        right[label] += count if label == answer else 0
    worst = sorted(items, key=lambda one: (right[one] / items[one], str(one)))
    if as_json:
        show_json(
            {
                "model": str(model),
                "dataset": dataset,
                "items": found.items,
                "unreadable": found.unreadable,
                "reasons": found.reasons,
                "accuracy": found.accuracy,
                "classes": [{"class": o, "items": items[o], "right": right[o]} for o in worst],
                "confusions": [
                    {"class": label, "answer": answer, "items": count}
                    for (label, answer), count in found.confusions.most_common()
                    if label != answer
                ],
            }
        )
    else:
        print_unreadable(found.reasons)
        rows = [[o, f"{items[o]:,}", f"{100 * right[o] / items[o]:.1f}"] for o in worst]
        show_table(["class", "items", "right %"], rows[:ROWS])
        if len(worst) > ROWS:
            print_note(f"... and {len(worst) - ROWS:,} better classes (--json has all)")
        share = "-" if found.accuracy is None else f"{100 * found.accuracy:.2f} %"
        console.print(
            f"accuracy: {share} of {counted(found.labelled, 'item')}; "
            f"unreadable: {found.unreadable:,}"
        )
    exit_if_unreadable(found.unreadable)
