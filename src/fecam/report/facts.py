"""Metadata of a run in words: data, encoder, scenario, seeds, machine, versions, source."""

from collections.abc import Mapping
from datetime import datetime
from itertools import groupby
from typing import Any

from fecam.report.layout import description_list, details
from fecam.report.reading import Run
from fecam.report.tables import text_table
from fecam.report.text import duration, markup, size

MAX_LISTED = 8
"""Longer lists are cut; the spec below the facts has them in full."""


def summary_sentence(run: Run) -> str:
    """Return one sentence with the size of the run, its data and its encoder."""
    data, encoder = run.about.get("dataset") or {}, run.about.get("encoder") or {}
    records = [tasks for seeds in run.heads.values() for tasks in seeds.values()]
    n_tasks = max((record["tasks"] for tasks in records for record in tasks), default=0)
    counts = {
        "head": len(run.heads),
        **({"task": n_tasks} if n_tasks else {}),
        "seed": len({seed for seeds in run.heads.values() for seed in seeds}),
    }
    *first, last = [f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items()]
    on = f" on {data['name']}" if data.get("name") else ""
    by = f", encoded by {encoder['name']}" if encoder.get("name") else ""
    return f"{', '.join(first)} and {last}{on}{by}."


def facts(run: Run) -> str:
    """Return the metadata of a run as HTML."""
    about = run.about
    encoder, scenario = about.get("encoder") or {}, about.get("scenario") or {}
    values = {
        "experiment": _joined(about.get("name"), about.get("kind")),
        "data": _data(about.get("dataset") or {}),
        "encoder": _joined(encoder.get("name"), _fingerprint(encoder.get("fingerprint"))),
        "features": _features(about.get("features") or {}),
        "scenario": _scenario(scenario),
        "seeds": _list(about.get("seeds") or []),
        "machine": _machine(about.get("machine") or {}),
        "versions": _versions(about),
        "source": _git(about.get("git") or {}),
        "time": _time(about.get("started"), about.get("finished")),
    }
    lines = "\n".join(markup(line) for line in run.spec.expandtabs(2).splitlines())
    spec = details("The experiment, spec.toml", f"<pre>{lines}</pre>") if run.spec.strip() else ""
    return f"{description_list(values)}\n{_tasks(scenario)}\n{spec}"


def _joined(*parts: object) -> str:
    return ", ".join(str(part) for part in parts if part not in (None, ""))


def _list(values: list[Any]) -> str:
    groups = [(value, len(list(equal))) for value, equal in groupby(map(_value, values))]
    shown = [
        value if count == 1 else f"{count} \N{MULTIPLICATION SIGN} {value}"
        for value, count in groups[:MAX_LISTED]
    ]
    more = f", ... ({len(values)} in total)" if len(groups) > MAX_LISTED else ""
    return ", ".join(shown) + more


def _pairs(values: Mapping[str, Any]) -> str:
    return "; ".join(f"{name}: {_value(value)}" for name, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{_list(value)}]"
    if isinstance(value, Mapping):
        return "{" + _pairs(value) + "}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 else str(value)


def _count(value: Any, noun: str) -> str | None:
    return f"{value:,} {noun}" if isinstance(value, int) else None


def _fingerprint(value: object) -> str | None:
    return f"fingerprint {str(value)[:12]}" if value else None


def _data(values: Mapping[str, Any]) -> str:
    rows, classes = _count(values.get("rows"), "rows"), _count(values.get("classes"), "classes")
    return _joined(values.get("name"), rows, classes, _fingerprint(values.get("fingerprint")))


def _features(values: Mapping[str, Any]) -> str:
    """Return the width, and one fingerprint per seed if each seed trains its own encoder."""
    short = {seed: str(value)[:12] for seed, value in values.get("fingerprints", {}).items()}
    width = _count(values.get("width"), "numbers each")
    if len(set(short.values())) > 1:
        return _joined(width, f"fingerprints {_pairs(short)}")
    return _joined(width, _fingerprint(next(iter(short.values()), values.get("fingerprint"))))


def _scenario(scenario: Mapping[str, Any]) -> str:
    """Return kind and options; the tasks have a table of their own."""
    values = dict(scenario)
    options = values.pop("options", {})
    if "tasks" in values:
        values["tasks"] = len(values["tasks"])
    # Without values that are listed already, such as the order.
    values |= {key: value for key, value in options.items() if value not in values.values()}
    return _pairs(values)


def _tasks(scenario: Mapping[str, Any]) -> str:
    """Return the tasks as a table."""
    tasks = scenario.get("tasks")
    if not tasks:
        return ""
    names = list(tasks[0])
    rows = [[_value(task.get(name)) for name in names] for task in tasks]
    table = text_table(names, rows, "New classes, training rows and test rows of each task")
    return details("The sequence of tasks", table.as_html())


def _machine(values: Mapping[str, Any]) -> str:
    memory = values.get("memory")
    cores = _count(values.get("cores"), "cores")
    return _joined(values.get("processor"), cores, memory and f"{size(memory)} of memory")


def _versions(about: Mapping[str, Any]) -> str:
    own = {"fecam": about.get("fecam"), "Python": about.get("python")}
    packages = {**own, **(about.get("packages") or {})}
    return ", ".join(f"{name} {version}" for name, version in packages.items() if version)


def _git(git: Mapping[str, Any]) -> str:
    if not git.get("commit"):
        return "not from a git checkout"
    return f"commit {str(git['commit'])[:12]}" + (", with changes" if git.get("dirty") else "")


def _time(started: str | None, finished: str | None) -> str:
    if not started:
        return ""
    try:
        start = datetime.fromisoformat(started)
        elapsed = datetime.fromisoformat(finished or started) - start
    except ValueError:
        return f"{started} to {finished}"
    shown = start.strftime("%Y-%m-%d %H:%M")
    if not finished:
        return f"started {shown}, not finished"
    return f"{shown}, {duration(max(elapsed.total_seconds(), 0))}"
