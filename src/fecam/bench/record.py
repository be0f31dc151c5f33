"""Validation of the records of a run, which may come from another program.

A run writes ``task`` (a head after a task), ``training`` (an epoch of the network) and ``analysis``
records. Every error names the file, the line and the value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from fecam.errors import RunError
from fecam.validation import is_int
from fecam.validation import is_number as is_finite

Check = Callable[[Any], bool]


def parse_record(line: bytes, where: str) -> dict[str, Any]:
    """Return a line as a record, or raise `RunError`; ``where`` names the line in the error.

    >>> parse_record(b'{"kind": "note", "text": "hello"}', "line 1")
    {'kind': 'note', 'text': 'hello'}
    """
    record: dict[str, Any] = parse_json(line, where)
    check_values(record, {"kind": is_text}, where)
    if record["kind"] == "task":
        check_values(record, TASK, where)
        if record["task"] >= record["tasks"]:
            raise RunError(
                f"{where}: task {record['task']} of {record['tasks']} is invalid; the first is 0."
            )
    elif record["kind"] == "training":
        check_values(record, {"seed": is_count, "epoch": is_count}, where)
    elif record["kind"] == "analysis":
        check_values(record, {"name": is_text, "data": is_object}, where)
        check_values(record["data"], ANALYSES.get(record["name"], {}), f"{where}, data")
        _check_lengths(record, where)
    return record


def is_text(value: Any) -> bool:
    """Return whether it is a string."""
    return isinstance(value, str)


def is_object(value: Any) -> bool:
    """Return whether it is a JSON object."""
    return isinstance(value, dict) and all(map(is_text, value))


def is_number(value: Any) -> bool:
    """Return whether the value is a number that a plot can show."""
    return is_finite(value) and abs(value) < 1e300


def is_count(value: Any) -> bool:
    """Return whether it is an integer from 0 to 2**63 - 1."""
    return is_int(value) and 0 <= value < 2**63


def list_of(check: Check, least: int = 0, most: float = math.inf) -> Check:
    """Return a check of a list of such values."""
    return lambda value: (
        isinstance(value, list) and least <= len(value) <= most and all(map(check, value))
    )


def maybe(check: Check) -> Check:
    """Return a check of such a value, or null."""
    return lambda value: value is None or check(value)


def _positive(value: Any) -> bool:
    return is_number(value) and value >= 0


def _share(value: Any) -> bool:
    return _positive(value) and value <= 1


def _part(value: Any) -> bool:
    """Return whether it is a name, a number of rows and the accuracy on them."""
    return (
        isinstance(value, list)
        and len(value) == 3
        and is_text(value[0])
        and is_count(value[1])
        and value[1] > 0
        and _share(value[2])
    )


TASK: dict[str, Check] = {
    "head": is_text,
    "seed": is_count,
    "task": is_count,
    "tasks": is_count,
    "accuracy": _share,
    "parts": list_of(_part, 1),
    "seconds_to_learn": _positive,
    "seconds_to_predict": _positive,
    "bytes": _positive,
    "classes": maybe(is_count),
    "calibration_error": maybe(_share),
    "novelty_auroc": maybe(_share),
    "options": maybe(is_object),
}
_POINTS = list_of(list_of(is_number, 2, 2), 1)
ANALYSES: dict[str, dict[str, Check]] = {
    "singular-values": {
        "old": list_of(list_of(_positive, 1)),
        "new": list_of(list_of(_positive, 1)),
    },
    "tsne": {
        "before": _POINTS,
        "after": maybe(_POINTS),  # there is none where a feature is negative
        "labels": list_of(lambda value: is_text(value) or is_number(value)),
        "is_new": list_of(lambda value: value in (0, 1)),
    },
}


def check_values(values: Any, checks: Mapping[str, Check], where: str) -> None:
    """Raise for an object with an invalid value. A value that may be null may be absent."""
    if not is_object(values):
        raise RunError(f"{where}: expected an object, not {short(values)}")
    for name, check in checks.items():
        if not check(values.get(name)):
            problem = f"is {short(values[name])}" if name in values else "is missing"
            raise RunError(
                f"{where}: {name!r} {problem}, which no run writes. Remedy: run the experiment "
                "again, or remove the line"
            )


def _check_lengths(record: Mapping[str, Any], where: str) -> None:
    if record["name"] == "tsne":
        lengths = {
            name: len(record["data"][name])
            for name in ANALYSES["tsne"]
            if record["data"].get(name) is not None
        }
        if len(set(lengths.values())) > 1:
            raise RunError(f"{where}: the lengths must be equal, but are {lengths}")


def decode(content: bytes, where: str) -> str:
    """Return bytes as text, or raise `RunError`."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RunError(f"{where}: not UTF-8 text ({error.reason} at byte {error.start})") from None


def parse_json(content: bytes, where: str) -> Any:
    """Return the value of JSON, or raise `RunError`; NaN and infinity are invalid."""
    text = decode(content, where)
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{where}: not JSON ({error})") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def short(value: Any) -> str:
    """Return a value as an error shows it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
