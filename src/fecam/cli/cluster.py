"""`fecam learn --ray` and `fecam predict --ray`: the same work on a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fecam.cli.change import counted_classes
from fecam.cli.material import entries, load_lessons
from fecam.cli.model import encoding_bar, end, open_existing, tell_unreadable
from fecam.cli.output import console, counted, parse_options, show_json
from fecam.errors import InputError, ItemError

if TYPE_CHECKING:
    from fecam.data import Dataset
    from fecam.distributed import Answered, Learnt

Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Work on a cluster: `auto`, `ray://HOST:10001`, or `local` for one on this machine.",
    ),
]


def learn_on(
    address: str,
    paths: Sequence[str],
    model: Path,
    *,
    encoder: str | None,
    settings: dict[str, Any] | None,
    note: str,
    again: bool,
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
    data = load_lessons(others, as_label, root, download, option) if others else []
    cluster.connect(address)
    columns = parse_options(option or []) if parquet else {}
    lessons = []
    work = [(path, _read(path), None) for path in parquet]
    for name, rows, kind in [*work, *((one.name, _sent(one), one.kind) for one in data)]:
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
                    again=again,
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
        bursts = entries(paths, kind, width, texts=texts, options=columns)
        found = [one for burst in bursts for one in burst if not isinstance(one[1], ItemError)]
    cluster.connect(address)
    if by_ray:
        rows, item = _read(*paths), _item(columns)
    else:
        names = [name for name, _ in found]
        rows, item = sending.as_dataset([one for _, one in found], {"name": names}), "item"
    with encoding_bar(str(output), kind) as report:
        return predict(rows, model, output=output, top=top, reject=reject, item=item, report=report)


def _is_parquet(path: str) -> bool:
    """Whether Ray reads it by itself."""
    if "://" in path or path.endswith(".parquet"):
        return True
    return next(Path(path).expanduser().glob("*.parquet"), None) is not None


def _read(*paths: str) -> Any:
    from fecam.distributed import sending

    return sending.read_parquet(paths)


def _item(columns: dict[str, Any]) -> Any:
    return next((columns[name] for name in ("features", "text", "image") if name in columns), None)


def _kind(columns: dict[str, Any]) -> str:
    return {"text": "texts", "image": "images"}.get(next(iter(columns.keys() - {"label"}), ""), "")


def _sent(dataset: Dataset) -> Any:
    """The part of a data set to learn from; of files only their names are sent."""
    from fecam.distributed import sending

    chosen = dataset.subset(dataset.train) if len(dataset.test) else dataset
    labels = [chosen.label_names[at] for at in chosen.labels]
    content = getattr(chosen.items, "content", chosen.items.__getitem__)
    return sending.as_dataset([content(at) for at in range(len(chosen))], {"label": labels})


def tell(lessons: Sequence[Learnt], model: Path, as_json: bool) -> None:
    """Say what became of it."""
    taught: Counter[Any] = Counter()
    for one in lessons:
        taught.update(one.taught)
    known, unreadable = sum(o.known for o in lessons), sum(o.unreadable for o in lessons)
    seconds = sum(one.seconds for one in lessons)
    if as_json:
        show_json(
            {
                "model": str(model),
                "taught": {str(label): count for label, count in taught.items()},
                "known": known,
                "unreadable": unreadable,
                "reasons": [why for one in lessons for why in one.reasons],
                "seconds": round(seconds, 3),
            }
        )
    else:
        for one in lessons:
            tell_unreadable(list(one.reasons))
        console.print(
            f"taught: {counted(taught.total(), 'sample')} of {counted_classes(len(taught))} in "
            f"{seconds:.1f} s on a cluster; known before: {known:,}, unreadable: {unreadable:,}"
        )
    end(unreadable)


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
        tell_unreadable(found.reasons)
        kept = f", {found.kept:,} of them from before" if found.kept else ""
        console.print(
            f"{counted(found.items, 'item')} answered in {output}: "
            f"{counted(found.parts, 'file')}{kept}; unreadable: {found.unreadable:,}"
        )
    end(found.unreadable)
