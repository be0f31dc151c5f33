"""`fecam doctor`: whether a file, or the installation, is as it should be."""

from __future__ import annotations

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

from fecam.cli.model import open_existing, quoted
from fecam.cli.output import (
    AsJson,
    console,
    counted,
    print_note,
    show_json,
    strip_control,
)
from fecam.data.paths import cache_folder, ensure_writable
from fecam.encoders import catalogue
from fecam.errors import EncoderError, FecamError, InputError, MissingPackageError

LITTLE_ROOM = 10**9
"""With less left on its disk, the cache is soon in trouble."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    state: str
    problem: bool = False


def add_to(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("doctor")(doctor)


def doctor(
    file: Annotated[Path | None, typer.Argument(help="A model's file.")] = None,
    compact: Annotated[
        bool, typer.Option("--compact", help="Make it small: drop what is kept to undo.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check a model's file, all of it; without a file, check the installation.

    Every problem is told with its remedy. Exit code 1 if there is any.

    Example: `fecam doctor birds.fecam`
    """
    if file is None and compact:
        raise InputError("--compact: of which file? Remedy: fecam doctor birds.fecam --compact")
    findings = []
    for one in _installation() if file is None else _file(file, compact, yes):
        findings.append(one)
        if not as_json:  # as they come: loading encoders takes its time
            console.print(
                strip_control(f"{'problem' if one.problem else 'ok'}: {one.what}: {one.state}")
            )
    problems = [f"{one.what}: {one.state}" for one in findings if one.problem]
    if as_json:
        show_json({"problems": problems, "findings": [asdict(one) for one in findings]})
    else:
        print_note(counted(len(problems), "problem") if problems else "all is well")
    if problems:
        raise typer.Exit(1)


# -- a file ----------------------------------------------------------------------------------------


def _file(path: Path, compact: bool, yes: bool) -> Iterator[Finding]:
    from fecam.model_file import check, file_info
    from fecam.model_file.header import wal_size

    name = str(path)
    found = check(path)
    for problem in found:
        yield Finding(name, problem.removeprefix(f"{path}: "), problem=True)
    if found:
        if compact:
            print_note("nothing was made smaller: what is damaged is left as it is")
        return
    about = file_info(path)
    yield Finding(
        name,
        f"{len(about.classes):,} classes, {format_bytes(about.bytes)}; every checksum is right",
    )
    yield Finding(
        "room",
        f"{format_bytes(about.history_bytes)} to undo, {format_bytes(about.free_bytes)} free; "
        f"`fecam doctor {quoted(path)} --compact` drops both",
    )
    if log := wal_size(path):
        yield Finding(
            "log",
            f"{format_bytes(log)} of it are in {path.name}-wal beside it, for a program has it "
            "open or was killed; do not copy it alone. The next lesson puts them in their place",
        )
    if about.encoder is not None:
        yield _encoder_of(path, about.encoder.name)
    if compact:
        yield _compacted(path, yes)


def _encoder_of(path: Path, name: str) -> Finding:
    """Whether items that come now are seen as those that were taught."""
    try:
        with open_existing(path) as opened:
            encoder = opened.encoder
    except (EncoderError, MissingPackageError) as error:
        return Finding("encoder", str(error), problem=True)
    width = 0 if encoder is None else encoder.n_features
    return Finding("encoder", f"{name}, {width:,} features: the very one that taught the model")


def _compacted(path: Path, yes: bool) -> Finding:
    from fecam.model_file import compact

    if sys.stdin.isatty() and not yes:
        typer.confirm(f"Make {path} small? Nothing can be undone afterwards.", abort=True, err=True)
    before, after = compact(path)
    return Finding("compact", f"{format_bytes(before)} before, {format_bytes(after)} now")


# -- the installation ------------------------------------------------------------------------------


def _installation() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Finding("fecam", f"{metadata.version('fecam')}, Python {version}")
    for extra, packages in extras().items():
        missing = [name for name in packages if not _is_installed(name)]
        state = "installed"
        if missing:
            state = f"{', '.join(missing)} not installed: pip install 'fecam[{extra}]' if needed"
        yield Finding(f"extra {extra}", state)
    for entry in catalogue.available():
        if "<" not in entry.name and entry.installed:
            yield _loaded(entry.name)
    yield _cache()


def extras() -> dict[str, list[str]]:
    """The packages of each extra; extras that only gather others are left out."""
    found: dict[str, list[str]] = {}
    for line in metadata.requires("fecam") or []:
        matched = re.fullmatch(r"""([\w.-]+).*extra\s*==\s*['"]([\w.-]+)['"].*""", line)
        if matched:
            found.setdefault(matched[2], []).append(matched[1])
    return {extra: names for extra, names in found.items() if "fecam" not in names}


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _loaded(name: str) -> Finding:
    try:
        encoder = catalogue.load(name, runtime="torch")
    except FecamError as error:
        return Finding(f"encoder {name}", str(error), problem=True)
    return Finding(f"encoder {name}", f"{encoder.n_features:,} features")


def _cache() -> Finding:
    """Whether features can be kept where they are kept."""
    folder = cache_folder()
    try:
        free = shutil.disk_usage(ensure_writable(folder)).free
    except FecamError as error:
        return Finding(f"cache {folder}", str(error), problem=True)
    room = f"{format_bytes(free)} free on its disk"
    if free < LITTLE_ROOM:
        return Finding(f"cache {folder}", f"{room}; `fecam cache clear` makes room", problem=True)
    return Finding(f"cache {folder}", room)
