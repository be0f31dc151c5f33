"""Records of experiments that are kept with the docs: one file per experiment and method.

``docs/records/EXPERIMENT/METHOD.json`` has the results per seed and task, with options, versions
and commit. `experiments.py` writes them from the folders of runs, and
``docs/scripts/reproducibility.py`` reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fecam.bench import spec
from fecam.bench.metrics import is_complete
from fecam.bench.results import file_name
from fecam.report import Run, read_run

RECORDS = Path(__file__).parent.parent / "docs" / "records"
ENVIRONMENT = ("fecam", "python", "packages", "machine", "git", "started")
METHOD = ("learner", "approximation", "options", "head_options", "settings")
"""Equal in all records of a method, or those of the last task."""
RESULT = (
    "seed", "task", "tasks", "name", "classes", "train_rows", "test_rows", "accuracy", "parts",
    "bytes", "bytes_by_kind", "parameters", "seconds_to_learn", "seconds_to_predict",
    "calibration_error", "novelty_auroc", "fitted", "other_accuracy",
)  # fmt: skip


def merged(folders: Iterable[Path], stored: Path | None = None) -> Run:
    """Return the runs of one experiment as one run, with the figures of the shipped experiment.

    Of two folders with the same method and seed, the later one counts; ``stored`` is a folder of
    records that count if no folder has them. Seeds without all their tasks are left out.
    """
    runs = [read_run(folder) for folder in folders]
    names = sorted({run.name for run in runs})
    if len(names) != 1:
        raise SystemExit(f"the folders hold {', '.join(names)}: give those of one experiment.")
    records = [] if stored is None else [*_stored(stored / names[0])]
    records += [record for run in runs for record in _complete(run)]
    shipped = spec.load(names[0])
    ranks = {method.label: rank for rank, method in enumerate(shipped.methods)}
    records.sort(key=lambda record: ranks.get(record["head"], len(ranks)))
    about = {**runs[-1].about, "title": shipped.title, "paper": dict(shipped.paper) or None}
    toml = shipped.as_toml()  # each folder may have some of its heads
    return replace(runs[-1], about=about, spec=toml, records=tuple(records))


def write_records(folders: Sequence[Path], to: Path = RECORDS) -> list[Path]:
    """Write a file per method of the runs of one experiment, and return their paths.

    Seeds that the runs do not have stay in the file; the environment is that of the last run. Of an
    experiment that runs all heads on several networks, only learners have files.
    """
    environments = {
        record["head"]: {key: run.about.get(key) for key in ENVIRONMENT}
        for run in map(read_run, folders)
        for record in _complete(run)
    }
    run, paths = merged(folders, to), []
    crossed = bool(spec.load(run.name).networks)
    for head, seeds in run.heads.items():
        if head not in environments:
            continue
        last = [*seeds.values()][-1][-1]
        if crossed and last.get("learner") is None:
            continue  # too many: the table has them
        content = {
            "experiment": run.name,
            "kind": "task",
            "head": head,
            **{key: last.get(key) for key in METHOD if key != "approximation" or key in last},
            **environments[head],
            "results": [
                {key: _rounded(record.get(key)) for key in RESULT}
                for tasks in seeds.values()
                for record in tasks
            ],
        }
        path = to / run.name / f"{file_name(head)}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_dump(content), encoding="utf-8")
        paths.append(path)
    return paths


def read_records(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the contents of the files of an experiment."""
    for path in sorted(folder.glob("*.json")):
        yield json.loads(path.read_text(encoding="utf-8"))


def task_records(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the results of a file as the records of a run, for `fecam.bench.metrics`."""
    return [{"kind": "task", "head": content["head"], **result} for result in content["results"]]


def _stored(folder: Path) -> Iterator[dict[str, Any]]:
    for content in read_records(folder):
        method = {key: content[key] for key in METHOD if key in content}
        yield from ({**method, **record} for record in task_records(content))


def _complete(run: Run) -> Iterator[Any]:
    for seeds in run.heads.values():
        for tasks in seeds.values():
            if is_complete(tasks):
                yield from tasks


def _rounded(value: Any) -> Any:
    """Return a value with six decimals: accuracies of less than a million images."""
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, 6) if isinstance(value, float) else value


def _dump(content: dict[str, Any]) -> str:
    """Return JSON with a line per result, so that differences can be read."""
    results = ",\n".join(f"  {json.dumps(result)}" for result in content["results"])
    head = json.dumps({k: v for k, v in content.items() if k != "results"}, indent=1)
    return f'{head[:-2]},\n "results": [\n{results}\n ]\n}}\n'
