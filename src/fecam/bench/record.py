"""Parsing of the files of a run; every error names the file, the line and the value.

A run writes ``task`` (a head after a task), ``training`` (an epoch of the network) and ``analysis``
records.
"""

import json
from collections.abc import Mapping
from types import NoneType
from typing import Any

from fecam.errors import RunError

Types = Mapping[str, type | tuple[type, ...]]
"""The types of values by key. A value that may be null may be absent."""
_NUMBER = (int, float)

TASK: Types = {
    **dict.fromkeys(("seed", "task", "tasks"), int),
    **dict.fromkeys(("accuracy", "seconds_to_learn", "seconds_to_predict", "bytes"), _NUMBER),
    **dict.fromkeys(("calibration_error", "novelty_auroc", "classes"), (*_NUMBER, NoneType)),
    "head": str,
    "parts": list,
    "options": (dict, NoneType),
}
TRAINING: Types = {"seed": int, "epoch": int}
ANALYSES: Mapping[str, Types] = {
    "singular-values": {"old": list, "new": list},
    # There is no map after Tukey where a feature is negative.
    "tsne": {"before": list, "after": (list, NoneType), "labels": list, "is_new": list},
}


def parse_record(line: bytes, where: str) -> dict[str, Any]:
    """Return a line as a record, or raise `RunError`; ``where`` names the line in the error."""
    record: dict[str, Any] = parse_json(line, where)
    check_types(record, {"kind": str}, where)
    check_types(record, {"task": TASK, "training": TRAINING}.get(record["kind"], {}), where)
    if record["kind"] == "analysis":
        check_types(record, {"name": str, "data": dict}, where)
        check_types(record["data"], ANALYSES.get(record["name"], {}), f"{where}, data")
    return record


def check_types(values: Any, types: Types, where: str) -> None:
    """Raise for an object that lacks a value, or has one of another type."""
    if not isinstance(values, dict):
        raise RunError(f"{where}: expected an object, not {short(values)}")
    for name, kind in types.items():
        if not isinstance(values.get(name), kind):
            problem = f"is {short(values[name])}" if name in values else "is missing"
            raise RunError(
                f"{where}: {name!r} {problem}, which no run writes. Remedy: run the experiment "
                "again, or remove the line"
            )


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
