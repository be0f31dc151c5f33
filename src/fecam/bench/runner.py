"""Run an experiment: a generator of plain records, which goes on where a kill has stopped it."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from joblib import Parallel, cpu_count, delayed

from fecam.bench.analysis import analyse
from fecam.bench.metrics import group_by_run, is_complete
from fecam.bench.preparation import Prepared, Progress, Watch, load_data, prepare
from fecam.bench.results import RunFolder, environment, memory, now
from fecam.bench.scenario_evaluation import evaluate_scenario
from fecam.bench.spec import HeadSpec, Spec
from fecam.data import Dataset
from fecam.errors import SpecError

Record = dict[str, Any]
Executor = Callable[[Sequence[tuple[Prepared, HeadSpec]]], Iterator[Record]]
"""Takes heads through seeds somewhere else, and gives all records of one when it is done."""


@dataclass(frozen=True)
class _Job:
    """What is done in one piece, and done again if it was cut short: a head through a seed."""

    head: HeadSpec
    seed: int


def run(
    spec: Spec,
    folder: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    download: bool = False,
    again: bool = False,
    workers: int | None = None,
    executor: Executor | None = None,
    device: Any = None,
    watch: Watch | None = None,
) -> Iterator[Record]:
    """Run an experiment into a folder, and yield its records as they come.

    Records that the folder already holds come first; what a kill left half done is done again.
    Features are made once for all heads. With several seeds, heads run side by side in so many
    processes as there are seeds and cores and as memory allows (``workers``); with one, a head
    after the other, and its time is its own. ``executor`` takes them to other machines instead, as
    `fecam.distributed.experiments` does. The analyses are of the first seed. ``root`` and
    ``download`` are for the data set; ``watch`` hears how far each stage has come.

    >>> from fecam.bench import spec
    >>> import tempfile
    >>> digits = spec.load("digits", {"seeds": [1993], "analyses": []})
    >>> digits = digits.select_heads(["nearest mean"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [record["classes"] for record in run(digits, folder)]
    [4, 6, 8, 10]

    Raises:
        FecamError: the experiment cannot be run as written, or the folder holds another.
    """
    tell = watch or (lambda now: None)
    data = load_data(spec, None if root is None else Path(root), download, tell)
    with RunFolder(Path(folder), spec).locked() as home:
        if again:
            home.clear()
        yield from _run(spec, data, home, executor or partial(run_locally, workers), device, tell)


def _run(
    spec: Spec, data: Dataset, home: RunFolder, executor: Executor, device: Any, tell: Watch
) -> Iterator[Record]:
    kept = _whole(home.resume())
    before = home.metadata() if kept else {}
    about = _about(spec, data, before, home.path)
    home.rewrite(kept)
    yield from kept
    done = {(label, seed) for label, seeds in group_by_run(kept).items() for seed in seeds}
    jobs = [
        _Job(head, seed)
        for seed in spec.seeds
        for head in spec.heads
        if (head.label, seed) not in done
    ]
    analysed = {one["name"] for one in kept if one["kind"] == "analysis"}
    analyses = [name for name in spec.analyses if name not in analysed]
    if not jobs and not analyses and before.get("finished"):
        return
    home.write_metadata(about)
    wanted = {job.seed for job in jobs} | ({spec.seeds[0]} if analyses else set())
    trained = {(one["seed"], one["epoch"]) for one in kept if one["kind"] == "training"}
    prepared: dict[int, Prepared] = {}
    for each in prepare(spec, data, filter(wanted.__contains__, spec.seeds), device, tell):
        if isinstance(each, Prepared):
            prepared[each.scenario.seed] = each
            about = _with_features(about, each, home.path)
        elif (each["seed"], each["epoch"]) not in trained:
            home.append(each)
            yield each
    home.write_metadata(about)
    for record in _records(spec, jobs, analyses, prepared, executor, tell):
        home.append(record)
        yield record
    home.write_csv()
    home.write_metadata({**about, "finished": now()})


def _records(
    spec: Spec,
    jobs: Sequence[_Job],
    analyses: Sequence[str],
    prepared: dict[int, Prepared],
    executor: Executor,
    tell: Watch,
) -> Iterator[Record]:
    """Those of the heads, then those of the analyses."""
    total = sum(len(prepared[job.seed].scenario) for job in jobs)
    records = executor([(prepared[job.seed], job.head) for job in jobs]) if jobs else iter(())
    for count, record in enumerate(records):
        tell(Progress("tasks", count + 1, total))
        yield record
    for count, name in enumerate(analyses):
        tell(Progress("analyses", count, len(analyses)))
        yield analyse(name, prepared[spec.seeds[0]])
        tell(Progress("analyses", count + 1, len(analyses)))


def run_locally(workers: int | None, jobs: Sequence[tuple[Prepared, HeadSpec]]) -> Iterator[Record]:
    """All tasks of all jobs: one after the other as they come, or jobs side by side."""
    side_by_side = min(len(jobs), workers or _workers([prepared for prepared, _ in jobs]))
    if side_by_side <= 1:
        for prepared, head in jobs:
            yield from evaluate_scenario(prepared, head)
        return
    calls = (delayed(_run_one)(prepared, head, os.getpid()) for prepared, head in jobs)
    results = Parallel(n_jobs=side_by_side, return_as="generator_unordered")(calls)
    try:
        for records in results:
            yield from records
    finally:
        with warnings.catch_warnings():  # who stops a run knows that it was stopped
            warnings.filterwarnings("ignore", message=".*have been cancelled")
            results.close()


def _run_one(prepared: Prepared, head: HeadSpec, parent: int) -> list[Record]:
    _end_with(parent)
    return list(evaluate_scenario(prepared, head))


@cache
def _end_with(parent: int) -> None:
    """A worker whose run was killed would wait for ever for the next job: end it, too.

    Ctrl-C reaches all processes of a terminal: only the run itself answers, and ends its workers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _workers(prepared: Sequence[Prepared]) -> int:
    """Side by side as many as there are seeds and cores, and as fit half of the memory."""
    seeds = len({one.scenario.seed for one in prepared})
    if seeds <= 1:
        return 1
    need = bytes_to_run(prepared[0])
    cores: int = cpu_count()
    return max(1, min(seeds, cores, int((memory() or need) / 2 // need)))


def bytes_to_run(prepared: Prepared) -> int:
    """About the memory that a head needs to go through a seed."""
    width, classes = prepared.width, len(prepared.scenario.class_order)
    # A matrix a class as kept, as derived, and once more while it is made; and the samples.
    return int(4 * (3 * classes * width**2 + 2 * len(prepared.features) * width) + 200e6)


def _whole(records: Sequence[Record]) -> list[Record]:
    """The records that stand: a head's only if all tasks of the seed are there."""
    whole = {
        (label, seed)
        for label, seeds in group_by_run(records).items()
        for seed, tasks in seeds.items()
        if is_complete(tasks)
    }
    return [
        record
        for record in records
        if record["kind"] != "task" or (record["head"], record["seed"]) in whole
    ]


def _about(spec: Spec, data: Dataset, before: dict[str, Any], folder: Path) -> dict[str, Any]:
    """How the run comes about. One that is taken up keeps what was said, and adds the day.

    Raises:
        SpecError: it was begun with other data.
    """
    if before:
        _check_same("data", before["dataset"]["fingerprint"], data.fingerprint, folder)
        return {
            **before,
            "finished": None,
            "resumed": [*before.get("resumed", []), environment()],
        }
    return {
        "name": spec.name,
        "title": spec.title,
        "kind": spec.scenario.name,
        **environment(),
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


def _with_features(about: dict[str, Any], prepared: Prepared, folder: Path) -> dict[str, Any]:
    """The same with the features and the classes of one more seed."""
    features, scenario, seed = prepared.features, prepared.scenario, str(prepared.scenario.seed)
    known = about.get("features", {}).get("fingerprints", {})
    _check_same("features", known.get(seed), features.fingerprint, folder)
    return {
        "scenario": scenario.describe(),
        "encoder": prepared.encoder,
        **about,
        "features": {
            "width": prepared.width,
            "fingerprints": {**known, seed: features.fingerprint},
        },
        "class_orders": {**about.get("class_orders", {}), seed: list(scenario.class_order)},
        "notes": [*dict.fromkeys([*about["notes"], *features.notes])],
    }


def _check_same(what: str, before: str | None, after: str, folder: Path) -> None:
    """A run that goes on must go on with the same."""
    if before is not None and before != after:
        raise SpecError(
            f"{folder} was begun with other {what} (fingerprint {before[:8]} then, {after[:8]} "
            "now). Choose another folder with --output, or begin anew with --again"
        )
