"""`fecam doctor`: check a model file or the installation."""

import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal as format_bytes
from typer import Argument, Option

from fecam.cli.confirmation import Yes, confirm
from fecam.cli.model import open_existing, quoted
from fecam.cli.output import AsJson, console, print_note, show_result, strip_control
from fecam.data.paths import cache_folder, ensure_writable
from fecam.encoders import catalogue
from fecam.errors import (
    EncoderError,
    FecamError,
    InputError,
    MissingPackageError,
    install_command,
)
from fecam.validation import counted

MIN_FREE_BYTES = 10**9
"""Less free space on the disk of the cache is reported as a problem."""


@dataclass(frozen=True)
class Finding:
    """Result of one check."""

    what: str
    state: str
    problem: bool = False


def doctor(
    file: Annotated[Path | None, Argument(help="Model file.")] = None,
    compact: Annotated[
        bool, Option("--compact", help="Shrink the file: drop the undo history.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Check a whole model file or, without a file, the installation.

    Each problem is printed with its remedy. Exit code 1 if there is a problem.
    --compact asks first; without a terminal it needs --yes.

    Example: `fecam doctor birds.fecam`
    """
    if file is None and compact:
        raise InputError("--compact needs a file. Remedy: fecam doctor birds.fecam --compact")
    findings = []
    for finding in _check_installation() if file is None else _check_file(file, compact, yes):
        findings.append(finding)
        if not as_json:  # printed one by one, because loading encoders takes seconds
            status = "problem" if finding.problem else "ok"
            console.print(strip_control(f"{status}: {finding.what}: {finding.state}"))
    problems = [f"{finding.what}: {finding.state}" for finding in findings if finding.problem]
    show_result(
        {"problems": problems, "findings": [asdict(finding) for finding in findings]},
        counted(len(problems), "problem") if problems else "no problems",
        as_json,
    )
    if problems:
        raise typer.Exit(1)


# -- a file ----------------------------------------------------------------------------------------


def _check_file(path: Path, compact: bool, yes: bool) -> Iterator[Finding]:
    from fecam.model_file import integrity
    from fecam.model_file.header import wal_size

    name = str(path)
    problems = integrity.check(path)
    for problem in problems:
        yield Finding(name, problem.removeprefix(f"{path}: "), problem=True)
    if problems:
        if compact:
            print_note("not compacted, because the file is damaged")
        return
    info = integrity.file_info(path)
    yield Finding(
        name,
        f"{counted(len(info.classes), 'class')}, {format_bytes(info.bytes)}; all checksums match",
    )
    yield Finding(
        "space",
        f"{format_bytes(info.history_bytes)} undo history, {format_bytes(info.free_bytes)} free; "
        f"`fecam doctor {quoted(path)} --compact` removes both",
    )
    if log := wal_size(path):
        yield Finding(
            "log",
            f"{format_bytes(log)} are in {path.name}-wal, because another program has the file "
            "open or was killed. Do not copy the file alone. The next change merges the log",
        )
    if info.encoder is not None:
        yield _check_encoder(path, info.encoder.name)
    if compact:
        confirm(f"Compact {path}? This removes the undo history.", yes)
        before, after = integrity.compact(path)
        yield Finding("compact", f"{format_bytes(before)} before, {format_bytes(after)} now")


def _check_encoder(path: Path, name: str) -> Finding:
    """Return whether the model's encoder can be loaded and has the same fingerprint."""
    try:
        with open_existing(path) as opened:
            encoder = opened.encoder
    except (EncoderError, MissingPackageError) as error:
        return Finding("encoder", str(error), problem=True)
    n_features = 0 if encoder is None else encoder.n_features
    return Finding(
        "encoder", f"{name}, {counted(n_features, 'feature')}: the same as in the model file"
    )


# -- the installation ------------------------------------------------------------------------------


def _check_installation() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("fecam", f"{metadata.version('fecam')}, Python {version}")
    for extra, packages in extras().items():
        missing = [name for name in packages if not _is_installed(name)]
        state = "installed"
        if missing:
            state = f"{', '.join(missing)} not installed; if needed: {install_command(extra)}"
        yield Finding(f"extra {extra}", state)
    for entry in catalogue.available():
        if "<" not in entry.name and entry.installed:
            yield _check_loading(entry.name)
    yield _check_cache()


def extras() -> dict[str, list[str]]:
    """Return the packages of each extra, without extras that only combine others."""
    packages: dict[str, list[str]] = {}
    for line in metadata.requires("fecam") or []:
        match = re.fullmatch(r"""([\w.-]+).*extra\s*==\s*['"]([\w.-]+)['"].*""", line)
        if match:
            packages.setdefault(match[2], []).append(match[1])
    return {extra: names for extra, names in packages.items() if "fecam" not in names}


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _check_loading(name: str) -> Finding:
    try:
        encoder = catalogue.load(name, runtime="torch")
    except FecamError as error:
        return Finding(f"encoder {name}", str(error), problem=True)
    return Finding(f"encoder {name}", counted(encoder.n_features, "feature"))


def _check_cache() -> Finding:
    """Return whether the cache folder is writable and has free space."""
    name = f"cache {cache_folder()}"
    try:
        free = shutil.disk_usage(ensure_writable(cache_folder())).free
    except FecamError as error:
        return Finding(name, str(error), problem=True)
    state = f"{format_bytes(free)} free on its disk"
    if free < MIN_FREE_BYTES:
        return Finding(name, f"only {state}; `fecam cache clear` frees space", problem=True)
    return Finding(name, state)
