"""A run's folder, read as if somebody else had written it.

A line that was cut off at the end of the records, as a kill leaves it, is ignored. Everything else
that is not as it should be is an error that names the file, the line and the value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fecam.bench.metrics import Record, runs, summarize
from fecam.errors import RunError


@dataclass(frozen=True)
class Run:
    """What is known of a run: the experiment, how it came about, and its records."""

    folder: Path
    about: Mapping[str, Any]
    spec: str
    records: tuple[Record, ...]

    @property
    def name(self) -> str:
        """A short name: that of the experiment, or of the folder."""
        return str(self.about.get("name") or self.folder.resolve().name)

    @property
    def title(self) -> str:
        """A name for people."""
        return str(self.about.get("title") or self.name)

    @cached_property
    def heads(self) -> dict[str, dict[int, list[Record]]]:
        """Task records by head and seed, in the order of tasks."""
        return runs(self.records)

    @cached_property
    def summary(self) -> list[dict[str, Any]]:
        """One row a head, over its seeds."""
        return summarize(self.records)

    @cached_property
    def paper(self) -> dict[str, dict[str, float]]:
        """The paper's figures in percent, by head and metric; empty where it has none."""
        return dict((self.about.get("paper") or {}).get("figures") or {})

    def analysis(self, name: str) -> list[Mapping[str, Any]]:
        """The data of the analyses of this name, one a seed."""
        found = [r for r in self.records if r.get("kind") == "analysis" and r["name"] == name]
        return [record["data"] for record in found]


def read_run(folder: Path | str) -> Run:
    """Read ``spec.toml``, ``about.json`` and ``records.jsonl`` of a run."""
    folder = Path(folder)
    if not (folder / "about.json").is_file():
        raise RunError(
            f"{folder} is no run: it has no about.json. Remedy: give a folder that "
            "`fecam bench` has written"
        )
    about = _parse(_bytes(folder / "about.json"), str(folder / "about.json"))
    _check(about, ABOUT, str(folder / "about.json"))
    spec = folder / "spec.toml"
    return Run(
        folder,
        about,
        _decode(_bytes(spec), str(spec)) if spec.exists() else "",
        tuple(_records(folder / "records.jsonl")),
    )


def _records(path: Path) -> list[Record]:
    lines = _bytes(path).split(b"\n") if path.exists() else []
    records = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = _parse(line, where)
        except RunError:
            if number == len(lines):  # not ended by a newline: cut off while it was written
                break
            raise
        _check(record, {"kind": _text}, where)
        if record["kind"] == "task":
            _check(record, TASK, where)
            if record["task"] >= record["tasks"]:
                raise RunError(
                    f"{where}: task {record['task']} of {record['tasks']} cannot be; "
                    "tasks are counted from 0"
                )
        elif record["kind"] == "analysis":
            _check(record, {"name": _text, "data": _object}, where)
            _check(record["data"], ANALYSES.get(record["name"], {}), f"{where}, data")
            _same_lengths(record, where)
        records.append(record)
    return records


# -- what a value has to be ------------------------------------------------------------------------

Check = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _object(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_text, value))


def _number(value: Any) -> bool:
    # A whole number may be larger than any float; what cannot be drawn is no number here.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def _positive(value: Any) -> bool:
    return _number(value) and value >= 0


def _share(value: Any) -> bool:
    return _positive(value) and value <= 1


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _part(value: Any) -> bool:
    """A name, a number of rows, the accuracy on them."""
    return (
        isinstance(value, list)
        and len(value) == 3
        and _text(value[0])
        and _count(value[1])
        and value[1] > 0
        and _share(value[2])
    )


def _label(value: Any) -> bool:
    return _text(value) or _number(value)


def _truth(value: Any) -> bool:
    return value in (0, 1)


def _figures(value: Any) -> bool:
    return _object(value) and all(
        _object(figures) and all(map(_number, figures.values())) for figures in value.values()
    )


def _list(check: Check, least: int = 0, most: float = math.inf) -> Check:
    return lambda value: (
        isinstance(value, list) and least <= len(value) <= most and all(map(check, value))
    )


def _maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


TASK: dict[str, Check] = {
    "head": _text,
    "seed": _count,
    "task": _count,
    "tasks": _count,
    "accuracy": _share,
    "parts": _list(_part, 1),
    "seconds_to_learn": _positive,
    "seconds_to_predict": _positive,
    "bytes": _positive,
    "classes": _maybe(_count),
    "calibration_error": _maybe(_share),
    "novelty_auroc": _maybe(_share),
    "options": _maybe(_object),
}
ANALYSES: dict[str, dict[str, Check]] = {
    "singular-values": {
        "old": _list(_list(_positive, 1)),
        "new": _list(_list(_positive, 1)),
    },
    "tsne": {
        "before": _list(_list(_number, 2, 2), 1),
        "after": _list(_list(_number, 2, 2), 1),
        "labels": _list(_label),
        "is_new": _list(_truth),
    },
}
ABOUT: dict[str, Check] = {
    "name": _maybe(_text),
    "title": _maybe(_text),
    "paper": _maybe(_object),
    "packages": _maybe(_object),
    "machine": _maybe(_object),
    "git": _maybe(_object),
    "dataset": _maybe(_object),
    "encoder": _maybe(_object),
    "features": _maybe(_object),
    "scenario": _maybe(_object),
    "seeds": _maybe(_list(_count)),
    "notes": _maybe(_list(_text)),
}


def _check(record: Any, checks: Mapping[str, Check], where: str) -> None:
    if not _object(record):
        raise RunError(f"{where}: expected an object, not {_short(record)}")
    for name, check in checks.items():
        # What may be null may be absent as well.
        if not check(record.get(name)):
            problem = f"is {_short(record[name])}" if name in record else "is not there"
            raise RunError(
                f"{where}: {name!r} {problem}, which no run writes. Remedy: run the experiment "
                "again, or remove the line"
            )
    paper = record.get("paper")
    if checks is ABOUT and paper and not _maybe(_figures)(paper.get("figures")):
        raise RunError(
            f"{where}: the paper's figures must be numbers by head and metric, not "
            f"{_short(paper['figures'])}"
        )


def _same_lengths(record: Record, where: str) -> None:
    if record["name"] == "tsne":
        lengths = {name: len(record["data"][name]) for name in ANALYSES["tsne"]}
        if len(set(lengths.values())) > 1:
            raise RunError(f"{where}: a point each is needed, but the lengths are {lengths}")


# -- bytes to values -------------------------------------------------------------------------------


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from None


def _decode(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RunError(f"{where}: not UTF-8 text ({error.reason} at byte {error.start})") from None


def _parse(content: bytes, where: str) -> Any:
    text = _decode(content, where)
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{where}: not JSON ({error})") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
