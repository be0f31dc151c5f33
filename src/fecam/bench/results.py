"""The folder that a run leaves: the experiment, how it came about, and the records.

spec.toml      the experiment, with nothing left to defaults
about.json     data, encoder, versions, machine, state of the source: how it came about
records.jsonl  one record a line, in the order in which they were made
records.csv    the tasks among them, for a spreadsheet
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import subprocess
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fecam import __version__
from fecam.bench.record import check_values, is_object, maybe, parse_json, parse_record, short
from fecam.bench.spec import Spec
from fecam.errors import RunError, SpecError

SPEC, METADATA, RECORDS, TABLE = "spec.toml", "about.json", "records.jsonl", "records.csv"
PACKAGES = ("numpy", "scipy", "scikit-learn", "torch", "onnxruntime", "transformers")
COLUMNS = (
    "head", "seed", "task", "tasks", "name", "classes", "train_rows", "test_rows", "accuracy",
    "seconds_to_learn", "seconds_to_predict", "bytes", "calibration_error", "novelty_auroc",
)  # fmt: skip

Record = dict[str, Any]


class RunFolder:
    """One run on disk. It is written line by line, so that a kill costs no more than a line."""

    def __init__(self, path: Path, spec: Spec) -> None:
        self.path, self.spec = path, spec

    @contextmanager
    def locked(self) -> Iterator[RunFolder]:
        """The folder, made if need be, and nobody else's until the block ends.

        Raises:
            SpecError: another process has it, or it cannot be written to.
        """
        lock = FileLock(self.path / ".lock")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout:
            raise SpecError(
                f"another process is at work in {self.path}. Wait until it has ended, or choose "
                "another folder with --output"
            ) from None
        except OSError as error:
            raise SpecError(
                f"the run cannot be kept in {self.path} ({error.strerror or error}). "
                "Choose another folder with --output"
            ) from error
        try:
            yield self
        finally:
            lock.release()

    def resume(self) -> list[Record]:
        """Begin, or take up the run that is there: its records.

        Raises:
            SpecError: the folder holds records of another experiment.
            RunError: it holds something that is no record.
        """
        records = list(read_records(self.path))
        file, text = self.path / SPEC, self.spec.as_toml()
        before = read_bytes(file).decode("utf-8", "replace") if file.exists() else text
        if records and before != text:
            raise SpecError(
                f"{self.path} holds another experiment: {_difference(before, text)}. "
                "Choose another folder with --output, or begin anew with --again"
            )
        if before != text or not file.exists():
            replace_text(file, text)
        return records

    def clear(self) -> None:
        """Take away what a run has left here, and nothing else."""
        for name in (RECORDS, METADATA, SPEC, TABLE):
            (self.path / name).unlink(missing_ok=True)

    def rewrite(self, records: Iterable[Record]) -> None:
        """Write the records anew: what was left half done is dropped."""
        replace_text(self.path / RECORDS, "".join(_line(record) for record in records))

    def append(self, record: Record) -> None:
        """Add a record, on disk when this returns."""
        with (self.path / RECORDS).open("a", encoding="utf-8") as file:
            file.write(_line(record))
            file.flush()
            os.fsync(file.fileno())

    def metadata(self) -> dict[str, Any]:
        """How the run came about, as far as it has been described."""
        file = self.path / METADATA
        if not file.exists():
            return {}
        about: dict[str, Any] = parse_json(read_bytes(file), str(file))
        check_values(about, {"dataset": is_object, "features": maybe(is_object)}, str(file))
        return about

    def write_metadata(self, about: Mapping[str, Any]) -> None:
        """Say how the run came about."""
        replace_text(self.path / METADATA, json.dumps(about, indent=1, ensure_ascii=False) + "\n")

    def write_csv(self) -> None:
        """Write the tasks as CSV."""
        file = io.StringIO(newline="")
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(one for one in read_records(self.path) if one["kind"] == "task")
        replace_text(self.path / TABLE, file.getvalue())


def read_records(folder: Path) -> Iterator[Record]:
    """The records of a run; a last line that a kill has torn is passed over.

    Raises:
        RunError: a line that is no record.
    """
    path = folder / RECORDS
    lines = read_bytes(path).split(b"\n") if path.exists() else []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield parse_record(line, f"{path}, line {number}")
        except RunError:
            if number < len(lines):  # otherwise no newline has come after it
                raise


def read_bytes(path: Path) -> bytes:
    """A file of a run."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from None


def environment() -> dict[str, Any]:
    """What else may decide a result: versions, the machine, the state of the source."""
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
    """The time as it is written down."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def memory() -> int | None:
    """The bytes of memory that this machine has, where it can be found out."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on every system
        return None


def _git() -> dict[str, Any] | None:
    """The commit of the source that runs, if it runs from a checkout of its own."""
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


def _difference(before: str, after: str) -> str:
    """The first thing that two experiments say differently."""
    try:
        there, here = _flat(tomllib.loads(before)), _flat(tomllib.loads(after))
    except tomllib.TOMLDecodeError:
        return f"its {SPEC} cannot be read"
    keys = (key for key in {**there, **here} if there.get(key) != here.get(key))
    if (key := next(keys, None)) is None:
        return f"its {SPEC} says the same in another order"
    values = (short(one[key]) if key in one else "not set" for one in (there, here))
    return "{} is {} there and {} now".format(key, *values)


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Values by dotted names; heads are known by their labels, not by their places."""
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        value = {one.get("label", str(place)): one for place, one in enumerate(value)}
    if not isinstance(value, dict):
        return {name: value}
    return {
        inner: found
        for key, one in value.items()
        for inner, found in _flat(one, f"{name}.{key}" if name else key).items()
    }


def _line(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def replace_text(path: Path, text: str) -> None:
    """Write a file in one step: a reader finds the old one or the new one, never half of one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
