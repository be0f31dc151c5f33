"""The folder of a run.

spec.toml      the experiment, with all defaults written out
about.json     metadata: data, encoder, versions, machine, commit
records.jsonl  one record per line, in the order of writing
records.csv    the task records, for a spreadsheet
learners/      per learner and seed its state between two tasks, from which a run resumes
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import shutil
import subprocess
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import NoneType
from typing import Any

from filelock import FileLock, Timeout

from fecam import __version__
from fecam.bench.record import check_types, parse_json, parse_record, short
from fecam.bench.spec import Spec
from fecam.data.dataset import fingerprint_of
from fecam.errors import RunError, SpecError
from fecam.files import write_atomically

SPEC, METADATA, RECORDS, TABLE = "spec.toml", "about.json", "records.jsonl", "records.csv"
LEARNERS = "learners"
PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "onnxruntime", "transformers")
COLUMNS = (
    "head", "seed", "task", "tasks", "name", "classes", "train_rows", "test_rows", "accuracy",
    "seconds_to_learn", "seconds_to_predict", "bytes", "calibration_error", "novelty_auroc",
    "parameters",
)  # fmt: skip

Record = dict[str, Any]


class RunFolder:
    """The folder of a run; records are appended line by line, so a kill loses at most one."""

    def __init__(self, path: Path, spec: Spec) -> None:
        self.path, self.spec = path, spec

    @contextmanager
    def locked(self) -> Iterator[RunFolder]:
        """Create and lock the folder; raise `SpecError` if another process holds it."""
        lock = FileLock(self.path / ".lock")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout:
            raise SpecError(
                f"another process writes to {self.path}. Wait until it ends, or choose another "
                "folder with --output."
            ) from None
        except OSError as error:
            raise SpecError(
                f"{self.path} cannot be written ({error.strerror or error}). Choose another folder "
                "with --output."
            ) from error
        try:
            yield self
        finally:
            lock.release()

    def resume(self) -> list[Record]:
        """Write the spec and return the records; raise if they are of another experiment."""
        records = list(read_records(self.path))
        file, text = self.path / SPEC, self.spec.as_toml()
        before = read_bytes(file).decode("utf-8", "replace") if file.exists() else text
        if records and _what_is_run(before) != _what_is_run(text):
            raise SpecError(
                f"{self.path} holds another experiment: {_difference(before, text)}. "
                "Choose another folder with --output, or start over with --restart."
            )
        if before != text or not file.exists():
            write_atomically(file, text)
        return records

    def clear(self) -> None:
        """Remove the files of a run, and no others."""
        for name in (RECORDS, METADATA, SPEC, TABLE):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.learners, ignore_errors=True)

    @property
    def learners(self) -> Path:
        """The folder of the states of learners."""
        return self.path / LEARNERS

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace all records."""
        write_atomically(self.path / RECORDS, "".join(_line(record) for record in records))

    def append(self, record: Record) -> None:
        """Append a record; it is on disk when this returns."""
        with (self.path / RECORDS).open("a", encoding="utf-8") as file:
            file.write(_line(record))
            file.flush()
            os.fsync(file.fileno())

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of the run; empty if there is none."""
        file = self.path / METADATA
        if not file.exists():
            return {}
        metadata: dict[str, Any] = parse_json(read_bytes(file), str(file))
        check_types(metadata, {"dataset": dict, "features": (dict, NoneType)}, str(file))
        return metadata

    def write_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Write the metadata of the run."""
        write_atomically(
            self.path / METADATA, json.dumps(metadata, indent=1, ensure_ascii=False) + "\n"
        )

    def write_csv(self) -> None:
        """Write the task records as CSV."""
        file = io.StringIO(newline="")
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(r for r in read_records(self.path) if r["kind"] == "task")
        write_atomically(self.path / TABLE, file.getvalue())


def read_records(folder: Path) -> Iterator[Record]:
    """Yield the records of a run, except a last line that a kill has cut off; raise `RunError`."""
    path = folder / RECORDS
    lines = read_bytes(path).split(b"\n") if path.exists() else []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield parse_record(line, f"{path}, line {number}")
        except RunError:
            if number < len(lines):  # the last line has no newline if it was cut off
                raise


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, or raise `RunError`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from None


def file_name(label: str) -> str:
    """Return a label as a file name; a short hash follows if characters are replaced."""
    plain = "".join(char if char.isalnum() else "-" for char in label)
    return plain if plain == label else f"{plain}-{fingerprint_of([label])[:6]}"


def environment() -> dict[str, Any]:
    """Return what else may affect a result: versions, machine, commit, time."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "fecam": __version__,
        "python": platform.python_version(),
        "packages": versions,
        "machine": {
            "processor": platform.machine(),
            "system": platform.system(),
            "cores": os.cpu_count(),
            "memory": memory(),
        },
        "git": _git(),
        "started": now(),
    }


def now() -> str:
    """Return the time in UTC as ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def memory() -> int | None:
    """Return the memory of this machine in bytes; None on systems that do not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _git() -> dict[str, Any] | None:
    """Return the commit of the source, if it runs from a checkout."""
    source = Path(__file__).resolve().parents[3]
    if not (source / ".git").exists():
        return None
    try:
        commit, state = (
            subprocess.run(
                ["git", "-C", str(source), *command],
                capture_output=True, text=True, timeout=10, check=True,
            ).stdout
            for command in (["rev-parse", "HEAD"], ["status", "--porcelain"])
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit.strip(), "dirty": bool(state.strip())}


def _what_is_run(text: str) -> Any:
    """Return the tables of an experiment that affect its results, in their order."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return text
    return [[key, value] for key, value in tables.items() if key not in ("title", "paper")]


def _difference(before: str, after: str) -> str:
    """Return the first difference of two experiments."""
    try:
        old, new = _flatten(tomllib.loads(before)), _flatten(tomllib.loads(after))
    except tomllib.TOMLDecodeError:
        return f"its {SPEC} cannot be read"
    keys = (key for key in {**old, **new} if old.get(key) != new.get(key))
    if (key := next(keys, None)) is None:
        return f"its {SPEC} has another order"
    values = (short(spec[key]) if key in spec else "not set" for spec in (old, new))
    return "{} is {} there and {} now".format(key, *values)


def _flatten(value: Any, name: str = "") -> dict[str, Any]:
    """Return values by dotted names; heads are named by their labels, not by their positions."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        value = {item.get("label", str(i)): item for i, item in enumerate(value)}
    if not isinstance(value, dict):
        return {name: value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flatten(item, f"{name}.{key}" if name else key)
    return flat


def _line(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"
