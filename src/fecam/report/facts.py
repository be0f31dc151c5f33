"""How a run came about, in words: data, encoder, scenario, seeds, machine, versions, source."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import groupby
from typing import Any

from fecam.report.layout import listed
from fecam.report.reading import Run
from fecam.report.tables import Cell, Table
from fecam.report.text import duration, markup, size

MOST = 8
"""Longer lists are cut; the spec below the facts has them in full."""


def summary_sentence(run: Run) -> str:
    """One sentence on a run."""
    about = run.about
    data, encoder = about.get("dataset") or {}, about.get("encoder") or {}
    tasks = {
        record["tasks"]
        for seeds in run.heads.values()
        for each in seeds.values()
        for record in each
    }
    seeds = {seed for each in run.heads.values() for seed in each}
    counted = [
        _counted(len(run.heads), "head"),
        *([_counted(max(tasks), "task")] if tasks else []),
        _counted(len(seeds), "seed"),
    ]
    of = f" on {data['name']}" if data.get("name") else ""
    by = f", seen by {encoder['name']}" if encoder.get("name") else ""
    return f"{', '.join(counted[:-1])} and {counted[-1]}{of}{by}."


def facts(run: Run) -> str:
    """All that is known of how a run came about, as markup."""
    about = run.about
    known = {
        "experiment": _joined(about.get("name"), about.get("kind")),
        "data": _data(about.get("dataset")),
        "encoder": _named(about.get("encoder")),
        "features": _features(about.get("features")),
        "scenario": _scenario(about.get("scenario")),
        "seeds": _list(about.get("seeds")),
        "machine": _machine(about.get("machine")),
        "versions": _versions(about),
        "source": _git(about),
        "time": _time(about),
    }
    spec = (
        "<details><summary>The experiment, spec.toml</summary>\n"
        f"<pre>{_block(run.spec)}</pre></details>"
    )
    tasks = _tasks(about.get("scenario"))
    return f"{listed(known)}\n{tasks}\n{spec if run.spec.strip() else ''}"


def _block(text: str) -> str:
    """Text of several lines."""
    return "\n".join(markup(line) for line in text.expandtabs(2).splitlines())


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _joined(*parts: object) -> str:
    return ", ".join(str(part) for part in parts if part not in (None, ""))


def _list(values: Any) -> str:
    if not isinstance(values, list):
        return ""
    together = [(value, len(list(same))) for value, same in groupby(map(_value, values))]
    more = f", ... ({len(values)} in all)" if len(together) > MOST else ""
    shown = [
        value if count == 1 else f"{count} \N{MULTIPLICATION SIGN} {value}"
        for value, count in together[:MOST]
    ]
    return ", ".join(shown) + more


def _pairs(values: Any) -> str:
    if not isinstance(values, Mapping):
        return ""
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


def _fingerprint(values: Mapping[str, Any]) -> str | None:
    """Enough of it to tell two apart."""
    value = values.get("fingerprint")
    return f"fingerprint {str(value)[:12]}" if value else None


def _data(values: Any) -> str:
    values = values or {}
    rows, classes = _count(values.get("rows"), "rows"), _count(values.get("classes"), "classes")
    return _joined(values.get("name"), rows, classes, _fingerprint(values))


def _named(values: Any) -> str:
    return _joined(values.get("name"), _fingerprint(values)) if values else ""


def _features(values: Any) -> str:
    values = values or {}
    several = values.get("fingerprints")  # one a seed, where each trains its own encoder
    several = several if isinstance(several, Mapping) else {}
    each = {seed: str(value)[:12] for seed, value in several.items()}
    if len(set(each.values())) == 1:
        values, each = {**values, "fingerprint": next(iter(each.values()))}, {}
    return _joined(
        _count(values.get("width"), "numbers each"),
        _fingerprint(values),
        f"fingerprints {_pairs(each)}" if each else None,
    )


def _scenario(values: Any) -> str:
    """Its options are facts like the others; its tasks have a table of their own."""
    values = dict(values or {})
    tasks, options = values.pop("tasks", None), values.pop("options", None)
    if isinstance(tasks, list):
        values["tasks"] = len(tasks)
    if isinstance(options, Mapping):
        # The order of classes may be given as an option, and is then said twice.
        values |= {key: value for key, value in options.items() if value not in values.values()}
    return _pairs(values)


def _tasks(scenario: Any) -> str:
    """The tasks as a table, if they are told as plain values under the same names."""
    tasks = scenario.get("tasks") if isinstance(scenario, Mapping) else None
    if not isinstance(tasks, list) or not all(isinstance(task, Mapping) for task in tasks):
        return ""
    names = list(tasks[0]) if tasks else []
    if not names or any(list(task) != names for task in tasks):
        return ""
    rows = tuple(tuple(Cell(_value(task[name])) for name in names) for task in tasks)
    table = Table(tuple(names), rows, "Each task: what it brings, learns from and is judged on")
    return f"<details><summary>The stream of tasks</summary>\n{table.as_html()}</details>"


def _machine(values: Any) -> str:
    values = values or {}
    memory = values.get("memory")
    shown = size(memory) if isinstance(memory, (int, float)) and memory > 1e6 else memory
    return _joined(
        values.get("processor"),
        _count(values.get("cores"), "cores"),
        shown and f"{shown} of memory",
    )


def _versions(about: Mapping[str, Any]) -> str:
    packages = {
        "fecam": about.get("fecam"),
        "Python": about.get("python"),
        **(about.get("packages") or {}),
    }
    return ", ".join(f"{name} {version}" for name, version in packages.items() if version)


def _git(about: Mapping[str, Any]) -> str:
    git = about.get("git")
    if not git or not git.get("commit"):
        return "not from a git checkout"
    return f"commit {str(git['commit'])[:12]}" + (", with changes" if git.get("dirty") else "")


def _time(about: Mapping[str, Any]) -> str:
    started, finished = about.get("started"), about.get("finished")
    if not started:
        return ""
    if not finished:
        return f"started {_moment(started)}, not finished"
    try:
        took = datetime.fromisoformat(finished) - datetime.fromisoformat(started)
        return f"{_moment(started)}, {duration(max(took.total_seconds(), 0))}"
    except (TypeError, ValueError):
        return f"{started} to {finished}"


def _moment(text: Any) -> str:
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M")
    except (TypeError, ValueError):
        return str(text)
