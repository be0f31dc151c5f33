"""Run an experiment: a generator of records that resumes after a kill."""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from joblib import Parallel, cpu_count, delayed

from fecam.bench.analysis import analyze
from fecam.bench.learner_evaluation import evaluate_learner
from fecam.bench.learner_spec import LearnerSpec
from fecam.bench.metrics import group_by_run, is_complete
from fecam.bench.preparation import PreparedScenario, Progress, ProgressCallback, load_data, prepare
from fecam.bench.results import RunFolder, environment, memory, now
from fecam.bench.scenario_evaluation import evaluate_scenario
from fecam.bench.spec import HeadSpec, Spec
from fecam.data import Dataset
from fecam.errors import SpecError

Record = dict[str, Any]
LAST_EPOCH = "a trained network is that of its last epoch; nothing was chosen on test data"
Job = tuple[PreparedScenario, HeadSpec | LearnerSpec]
"""A head or learner, and a seed. Those that were interrupted are run again; learners resume."""
Executor = Callable[[Sequence[Job]], Iterator[Record]]
"""Runs jobs, and yields all records of a job when it is complete."""


def run(
    spec: Spec,
    folder: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    download: bool = False,
    restart: bool = False,
    workers: int | None = None,
    executor: Executor | None = None,
    device: Any = None,
    progress: ProgressCallback | None = None,
) -> Iterator[Record]:
    """Run an experiment into a folder, and yield its records.

    Records in the folder come first; incomplete jobs are repeated. Features are computed once for
    all heads. The analyses are of the first seed.

    Parameters
    ----------
    spec : Spec
        The experiment, as `fecam.bench.load` returns it.
    folder : path
        The folder of the run; it is created if necessary.
    root : path, optional
        Folder of the data set.
    download : bool
        Download the data set if it is missing.
    restart : bool
        Remove the records of an earlier run first.
    workers : int, optional
        Number of processes. By default one per seed for heads, as cores and memory allow: the heads
        of a single seed run one after the other, so that their times are comparable. Learners use
        all cores, and run one after the other.
    executor : callable, optional
        Runs the jobs elsewhere, as `fecam.distributed.experiments.run_on_ray`.
    device : str, optional
        Device of the encoder, or of the training.
    progress : callable, optional
        Is called with a `fecam.bench.preparation.Progress`.

    Yields
    ------
    dict
        The records, as ``records.jsonl`` holds them.

    Raises
    ------
    SpecError
        If the experiment cannot be run, or the folder holds another one.

    Examples
    --------
    >>> from fecam.bench import load, run
    >>> import tempfile
    >>> digits = load("digits", {"seeds": [1993], "analyses": []}).select_heads(["nearest mean"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [record["classes"] for record in run(digits, folder)]
    [4, 6, 8, 10]
    """
    progress = progress or (lambda now: None)
    data = load_data(spec, None if root is None else Path(root), download, progress)
    with RunFolder(Path(folder), spec).locked() as home:
        if restart:
            home.clear()
        run_jobs = executor or partial(run_locally, workers, progress)
        yield from _run(spec, data, home, run_jobs, device, progress)


def _run(
    spec: Spec,
    data: Dataset,
    home: RunFolder,
    executor: Executor,
    device: Any,
    progress: ProgressCallback,
) -> Iterator[Record]:
    kept = _complete(home.resume())
    before = home.metadata() if kept else {}
    metadata = _metadata(spec, data, before, home.path)
    home.rewrite(kept)
    yield from kept
    folder = home.learners.resolve()
    done = {(label, seed) for label, seeds in group_by_run(kept).items() for seed in seeds}
    open_jobs = [
        (method, seed)
        for methods in (spec.heads, spec.learners)
        for seed in spec.seeds
        for method in methods
        if (method.label, seed) not in done
    ]
    analyzed = {record["name"] for record in kept if record["kind"] == "analysis"}
    analyses = [name for name in spec.analyses if name not in analyzed]
    if not open_jobs and not analyses and before.get("finished"):
        if (described := {**before, **_described(spec)}) != before:
            home.write_metadata(described)
        return
    home.write_metadata(metadata)
    seeds = {seed for _, seed in open_jobs} | ({spec.seeds[0]} if analyses else set())
    trained = {_epoch(record) for record in kept if record["kind"] == "training"}
    prepared: dict[tuple[str | None, int], PreparedScenario] = {}
    first_network = spec.networks[0].label if spec.networks else None
    chosen = filter(seeds.__contains__, spec.seeds)
    for result in prepare(spec, data, chosen, device, progress, folder):
        if isinstance(result, PreparedScenario):
            prepared[result.network, result.scenario.seed] = result
            metadata = _with_features(metadata, result, home.path)
        elif _epoch(result) not in trained:
            home.append(result)
            yield result
    home.write_metadata(metadata)
    jobs = [
        (prepared[getattr(method, "network", None) or first_network, seed], method)
        for method, seed in open_jobs
    ]
    total, count = sum(len(job.scenario) for job, _ in jobs), 0
    for record in executor(jobs) if jobs else ():
        if record["kind"] == "training":
            if _epoch(record) in trained:  # of a learner that has resumed
                continue
        else:
            count += 1
            progress(Progress("tasks", count, total))
        home.append(record)
        yield record
    for count, name in enumerate(analyses):
        progress(Progress("analyses", count, len(analyses)))
        record = analyze(name, prepared[first_network, spec.seeds[0]])
        home.append(record)
        yield record
        progress(Progress("analyses", count + 1, len(analyses)))
    home.write_csv()
    home.write_metadata({**metadata, "finished": now()})


def run_locally(
    workers: int | None, progress: ProgressCallback, jobs: Sequence[Job]
) -> Iterator[Record]:
    """Yield the records of jobs that run one after the other, or in several processes."""
    learning = [job for job in jobs if isinstance(job[1], LearnerSpec)] if workers is None else []
    others = [job for job in jobs if job not in learning]
    processes = min(len(others), workers or _worker_count([prepared for prepared, _ in others]))
    if processes <= 1:
        for prepared, method in others:
            yield from run_job(prepared, method, progress)
    else:
        yield from _run_in_processes(processes, others)
    for prepared, method in learning:
        yield from run_job(prepared, method, progress)


def run_job(
    prepared: PreparedScenario,
    method: HeadSpec | LearnerSpec,
    progress: ProgressCallback | None = None,
) -> Iterator[Record]:
    """Yield the records of a head or a learner."""
    if isinstance(method, LearnerSpec):
        return evaluate_learner(prepared, method, progress)
    return evaluate_scenario(prepared, method)


def _run_in_processes(processes: int, jobs: Sequence[Job]) -> Iterator[Record]:
    calls = (delayed(_run_one)(prepared, method, os.getpid()) for prepared, method in jobs)
    results = Parallel(n_jobs=processes, return_as="generator_unordered")(calls)
    try:
        for records in results:
            yield from records
    finally:
        with warnings.catch_warnings():  # of jobs that are canceled when a run is interrupted
            warnings.filterwarnings("ignore", message=".*have been cancelled")
            results.close()


def _run_one(
    prepared: PreparedScenario, method: HeadSpec | LearnerSpec, parent: int
) -> list[Record]:
    _exit_with(parent)
    return list(run_job(prepared, method))


def _epoch(record: Record) -> tuple[Any, ...]:
    """Return what identifies an epoch; the network of the heads has neither label nor task."""
    return tuple(record.get(key) for key in ("head", "network", "seed", "task", "epoch"))


@cache
def _exit_with(parent: int) -> None:
    """Exit when the parent process is killed; Ctrl-C is for the parent, which ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _worker_count(prepared: Sequence[PreparedScenario]) -> int:
    """Return one worker per seed, limited by the cores and by half of the memory."""
    seeds = len({seed_data.scenario.seed for seed_data in prepared})
    if seeds <= 1:
        return 1
    need = bytes_to_run(prepared[0])
    cores: int = cpu_count()
    return max(1, min(seeds, cores, int((memory() or need) / 2 // need)))


def bytes_to_run(prepared: PreparedScenario) -> int:
    """Return an estimate of the memory of a job in bytes."""
    width, classes = prepared.width, len(prepared.scenario.class_order)
    # Three matrices per class: stored, derived, and temporary; and the samples twice.
    return int(4 * (3 * classes * width**2 + 2 * len(prepared.features) * width) + 200e6)


def _complete(records: Sequence[Record]) -> list[Record]:
    """Return the records without those of incomplete jobs."""
    complete = {
        (label, seed)
        for label, seeds in group_by_run(records).items()
        for seed, tasks in seeds.items()
        if is_complete(tasks)
    }
    return [r for r in records if r["kind"] != "task" or (r["head"], r["seed"]) in complete]


def _metadata(spec: Spec, data: Dataset, before: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the metadata of a run; a resumed one keeps its own, and adds the environment."""
    if before:
        _check_same("data", before["dataset"]["fingerprint"], data.fingerprint, folder)
        resumed = [*before.get("resumed", []), environment()]
        return {**before, **_described(spec), "finished": None, "resumed": resumed}
    return {
        "name": spec.name,
        **_described(spec),
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
        "notes": [*data.notes, *([LAST_EPOCH] if spec.first_task is not None else [])],
    }


def _described(spec: Spec) -> dict[str, Any]:
    """Return what a report says of an experiment and a resumed run may change."""
    return {"title": spec.title, "paper": dict(spec.paper) or None}


def _with_features(
    metadata: dict[str, Any], prepared: PreparedScenario, folder: Path
) -> dict[str, Any]:
    """Return the metadata with the features and the class order of one more seed."""
    features, scenario, seed = prepared.features, prepared.scenario, str(prepared.scenario.seed)
    key = seed if prepared.network is None else f"{prepared.network}, {seed}"
    fingerprints = metadata.get("features", {}).get("fingerprints", {})
    _check_same("features", fingerprints.get(key), features.fingerprint, folder)
    return {
        "scenario": scenario.describe(),
        "encoder": prepared.encoder,
        **metadata,
        "features": {
            "width": prepared.width,
            "fingerprints": {**fingerprints, key: features.fingerprint},
        },
        "class_orders": {**metadata.get("class_orders", {}), seed: list(scenario.class_order)},
        "notes": [*dict.fromkeys([*metadata["notes"], *features.notes])],
    }


def _check_same(name: str, before: str | None, after: str, folder: Path) -> None:
    """Raise if a resumed run has other data or features."""
    if before is not None and before != after:
        raise SpecError(
            f"{folder} was started with other {name} (fingerprint {before[:8]} then, {after[:8]} "
            "now). Choose another folder with --output, or start over with --restart."
        )
