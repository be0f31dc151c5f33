"""Run an experiment: a generator of plain records, which goes on where a kill has stopped it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed

from fecam.bench.analysis import analyse
from fecam.bench.metrics import finished, runs
from fecam.bench.preparation import Prepared, Progress, Watch, load_data, prepare
from fecam.bench.results import ABOUT, RunFolder, circumstances
from fecam.bench.spec import Head, Spec
from fecam.bench.stream import stream
from fecam.errors import SpecError

Record = dict[str, Any]


@dataclass(frozen=True)
class _Unit:
    """What is done in one piece, and done again if it was cut short: a head through a seed."""

    head: Head
    seed: int


def run(
    spec: Spec,
    folder: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    download: bool = False,
    again: bool = False,
    workers: int | None = None,
    device: Any = None,
    watch: Watch | None = None,
) -> Iterator[Record]:
    """Run an experiment into a folder, and yield its records as they come.

    Records that the folder already holds come first; what a kill left half done is done again.
    Features are made once for all heads. With several seeds, heads run side by side in so many
    processes as there are cores and as memory allows (``workers``); with one, a head after the
    other, and its time is its own. ``root`` and ``download`` are for the data set.

    >>> from fecam.bench import spec
    >>> import tempfile
    >>> digits = spec.load("digits").only(["nearest mean"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     records = [one for one in run(digits, folder) if one["kind"] == "task"]
    >>> [record["classes"] for record in records]
    [4, 6, 8, 10]

    Raises:
        FecamError: the experiment cannot be run as written, or the folder holds another.
    """
    home, tell = RunFolder(Path(folder), spec), watch or (lambda now: None)
    if again:
        home.clear()
    records = home.open()
    data = load_data(spec, None if root is None else Path(root), download)
    about = {
        "name": spec.name,
        "title": spec.title,
        "kind": spec.scenario.name,
        **circumstances(),
        "finished": None,
        "seeds": list(spec.seeds),
        "dataset": {
            "name": data.name,
            "fingerprint": data.fingerprint,
            "rows": len(data),
            "classes": len(data.label_names),
        },
        "paper": dict(spec.paper) or None,
        "notes": list(data.notes),
    }
    _check_same_data(home.path, about)
    kept = _whole(records)
    home.keep_only(kept)
    yield from kept
    trained = {(one["seed"], one["epoch"]) for one in kept if one["kind"] == "training"}
    done = {(label, seed) for label, seeds in runs(kept).items() for seed in seeds}
    analysed = {(one["name"], one["seed"]) for one in kept if one["kind"] == "analysis"}
    units = [
        _Unit(head, seed)
        for seed in spec.seeds
        for head in spec.heads
        if (head.label, seed) not in done
    ]
    analyses = [
        (name, seed)
        for seed in spec.seeds
        for name in spec.analyses
        if (name, seed) not in analysed
    ]
    wanted = {unit.seed for unit in units} | {seed for _, seed in analyses}
    if not wanted:
        return
    prepared: dict[int, Prepared] = {}
    for seed in filter(wanted.__contains__, spec.seeds):
        for each in prepare(spec, data, seed, device, tell):
            if isinstance(each, Prepared):
                prepared[seed] = each
            elif each["kind"] == "training" and (seed, each["epoch"]) not in trained:
                home.add([each])
                yield each
    home.describe({**about, **_described(prepared)})
    workers = _workers(spec, prepared) if workers is None else workers
    for record in _records(units, prepared, workers, tell):
        home.add([record])
        yield record
    for name, seed in analyses:
        tell(Progress(name, 0, 1))
        record = analyse(name, prepared[seed], seed)
        home.add([record])
        yield record
    home.describe({**about, **_described(prepared), "finished": _now()})
    home.tabulate()


def _records(
    units: Sequence[_Unit], prepared: dict[int, Prepared], workers: int, tell: Watch
) -> Iterator[Record]:
    """All tasks of all units: one after the other as they come, or units side by side."""
    total = sum(len(prepared[unit.seed].scenario) for unit in units)
    if workers <= 1:
        streams = (stream(prepared[unit.seed], unit.head, unit.seed) for unit in units)
    else:
        jobs = (delayed(_together)(prepared[unit.seed], unit.head, unit.seed) for unit in units)
        streams = Parallel(n_jobs=workers, return_as="generator_unordered")(jobs)
    count = 0
    tell(Progress("tasks", 0, total))
    for records in streams:
        for record in records:
            count += 1
            tell(Progress("tasks", count, total))
            yield record


def _together(prepared: Prepared, head: Head, seed: int) -> list[Record]:
    return list(stream(prepared, head, seed))


def _workers(spec: Spec, prepared: dict[int, Prepared]) -> int:
    """Side by side as many as there are seeds and cores, and as fit half of the memory."""
    one = next(iter(prepared.values()))
    width, classes = one.features.items.shape[1], len(one.scenario.class_order)
    # A matrix a class as kept, as derived, and once more while it is made; and the samples.
    need = 4 * (3 * classes * width**2 + 2 * len(one.features) * width) + 200e6
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(spec.seeds), os.cpu_count() or 1, int(memory / 2 // need)))


def _whole(records: Sequence[Record]) -> list[Record]:
    """The records that stand: a head's only if all tasks of the seed are there."""
    whole = {
        (label, seed)
        for label, seeds in runs(records).items()
        for seed, tasks in seeds.items()
        if finished(tasks)
    }
    return [
        record
        for record in records
        if record["kind"] != "task" or (record["head"], record["seed"]) in whole
    ]


def _described(prepared: dict[int, Prepared]) -> dict[str, Any]:
    one = next(iter(prepared.values()))
    return {
        "encoder": one.encoder,
        "features": {
            "width": int(one.features.items.shape[1]),
            "fingerprints": {
                str(seed): each.features.fingerprint for seed, each in prepared.items()
            },
        },
        "scenario": one.scenario.describe(),
        "class_orders": {
            str(seed): list(each.scenario.class_order) for seed, each in prepared.items()
        },
    }


def _check_same_data(folder: Path, about: dict[str, Any]) -> None:
    """A run that goes on must go on with the same data."""
    try:
        before = json.loads((folder / ABOUT).read_text("utf-8"))["dataset"]["fingerprint"]
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError) as error:
        raise SpecError(
            f"{folder / ABOUT} cannot be read ({error!r}). Begin anew with --again"
        ) from None
    if before != about["dataset"]["fingerprint"]:
        raise SpecError(
            f"{folder} was begun with other data of the name {about['dataset']['name']!r} "
            f"(fingerprint {before[:8]} then, {about['dataset']['fingerprint'][:8]} now). "
            "Choose another folder with --output, or begin anew with --again"
        )


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
