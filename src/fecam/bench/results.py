"""The folder that a run leaves: the experiment, how it came about, and the records.

    spec.toml      the experiment, with nothing left to defaults
    about.json     data, encoder, versions, machine, state of the source: how it came about
    records.jsonl  one record a line, in the order in which they were made
    records.csv    the tasks among them, for a spreadsheet
"""

from __future__ import annotations

import csv
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from fecam import __version__
from fecam.bench.spec import Spec
from fecam.errors import SpecError

SPEC, ABOUT, RECORDS, TABLE = "spec.toml", "about.json", "records.jsonl", "records.csv"
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

    def open(self) -> list[Record]:
        """Make the folder, or take up the run it holds: the records that are there.

        Raises:
            SpecError: the folder holds another experiment, or cannot be written to.
        """
        text = self.spec.as_toml()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            file = self.path / SPEC
            if file.exists() and file.read_text("utf-8") != text:
                raise SpecError(
                    f"{self.path} holds another experiment: its {SPEC} is not the one to be run. "
                    "Choose another folder with --output, or begin anew with --again"
                )
            if not file.exists():
                _replace(file, text)
            return list(read_records(self.path))
        except OSError as error:
            raise SpecError(
                f"the run cannot be kept in {self.path} ({error.strerror or error}). "
                "Choose another folder with --output"
            ) from error

    def clear(self) -> None:
        """Take away what a run has left here, and nothing else."""
        for name in (SPEC, ABOUT, RECORDS, TABLE):
            (self.path / name).unlink(missing_ok=True)

    def keep_only(self, records: Iterable[Record]) -> None:
        """Write the records anew: what was left half done is dropped."""
        _replace(self.path / RECORDS, "".join(_line(record) for record in records))

    def add(self, records: Iterable[Record]) -> None:
        """Add records, all on disk when this returns."""
        with (self.path / RECORDS).open("a", encoding="utf-8") as file:
            file.writelines(_line(record) for record in records)
            file.flush()
            os.fsync(file.fileno())

    def describe(self, about: Mapping[str, Any]) -> None:
        """Say how the run came about."""
        _replace(self.path / ABOUT, json.dumps(about, indent=1, ensure_ascii=False) + "\n")

    def tabulate(self) -> None:
        """Write the tasks as CSV."""
        tasks = [record for record in read_records(self.path) if record["kind"] == "task"]
        with (self.path / TABLE).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(tasks)


def read_records(folder: Path) -> Iterator[Record]:
    """The records of a run; a last line that a kill has torn is passed over.

    Raises:
        SpecError: a line that is no record.
    """
    try:
        text = (folder / RECORDS).read_text("utf-8", errors="replace")
    except FileNotFoundError:
        return
    *lines, torn = text.split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            record["kind"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise SpecError(
                f"line {number} of {folder / RECORDS} is no record: {line[:60]!r}. "
                "Remove the line, or begin anew with --again"
            ) from None
        yield record


def circumstances() -> dict[str, Any]:
    """What else may decide a result: versions, the machine, the state of the source."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "fecam": __version__,
        "python": platform.python_version(),
        "packages": versions,
        "machine": {
            "processor": platform.machine(),
            "system": platform.system(),
            "cores": os.cpu_count(),
            "memory": _memory(),
        },
        "git": _git(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _memory() -> int | None:
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


def _line(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def _replace(path: Path, text: str) -> None:
    """Write a file that is there in full or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
