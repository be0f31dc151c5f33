"""Stamps of the measured tables: the commit, the date and the code that a table measures.

    python benchmarks/stamps.py           # list the tables whose code has changed since
    python benchmarks/stamps.py --mark    # write that into the tables, or remove it

`reporting.write` ends each table in ``docs/tables`` with such a line. `tests/docs/test_tables.py`
fails if the code has changed and the line does not say so.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLES = ROOT / "docs" / "tables"

CLASSIFIER = ("src/fecam/core", "src/fecam/mahalanobis.py", "src/fecam/classifier.py")
EXPERIMENTS = (
    *CLASSIFIER,
    "src/fecam/encoders",
    "src/fecam/heads",
    "src/fecam/scenarios",
    "src/fecam/training",
)
LEARNERS = ("src/fecam/learners",)
MODEL_FILE = (*CLASSIFIER, "src/fecam/model", "src/fecam/model_file")
SERVICE = (*CLASSIFIER, "src/fecam/model", "src/fecam/model_file", "src/fecam/service")

CHANGED = "; the measured code has changed since"
LINE = re.compile(
    r"^Measured at (?P<commit>[0-9a-f]{7,40}) \((?P<date>\d{4}-\d\d-\d\d)\): "
    rf"(?P<paths>`[^`]+`(?:, `[^`]+`)*)(?P<changed>{re.escape(CHANGED)})?\.$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Stamp:
    """The commit and date of a measurement, and the paths under ``src`` that it measures."""

    commit: str
    date: str
    paths: tuple[str, ...]
    says_changed: bool = False

    def __str__(self) -> str:
        """Return the last line of a table.

        >>> str(Stamp("0123abc", "2026-11-18", ("src/fecam/core",), says_changed=True))
        'Measured at 0123abc (2026-11-18): `src/fecam/core`; the measured code has changed since.'
        """
        paths = ", ".join(f"`{path}`" for path in self.paths)
        changed = CHANGED if self.says_changed else ""
        return f"Measured at {self.commit} ({self.date}): {paths}{changed}."

    @classmethod
    def now(cls, paths: tuple[str, ...]) -> Stamp:
        """Return the stamp of a measurement of the checked-out commit."""
        commit = git("rev-parse", "--short=7", "HEAD").stdout.strip()
        return cls(commit or "0000000", datetime.date.today().isoformat(), paths)

    @classmethod
    def read(cls, text: str) -> Stamp | None:
        """Return the stamp of a table, or None if it has none."""
        match = LINE.search(text)
        if match is None:
            return None
        paths = tuple(path.strip("`") for path in match["paths"].split(", "))
        return cls(match["commit"], match["date"], paths, bool(match["changed"]))

    def code_changed(self) -> bool:
        """Return whether the measured files differ from those of the commit.

        Uncommitted changes count. A commit that a complete history does not contain counts as
        changed.
        """
        return git("diff", "--quiet", self.commit, "--", *self.paths).returncode != 0


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run git in the root of the repository."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def missing_history() -> str | None:
    """Return why changes cannot be found in this checkout, or None if they can."""
    try:
        result = git("rev-parse", "--is-shallow-repository")
    except FileNotFoundError:
        return "git is not installed"
    if result.returncode != 0:
        return "this is not a git checkout, so it has no history"
    return "this is a shallow clone; `git fetch --unshallow`" if "true" in result.stdout else None


def stamped(table: str, stamp: Stamp) -> str:
    """Return a table with the stamp as its last line."""
    return f"{LINE.sub('', table).rstrip()}\n\n{stamp}\n"


def main() -> None:
    """List or mark the tables whose code has changed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mark", action="store_true", help="rewrite the last line of each table")
    args = parser.parse_args()
    if reason := missing_history():
        raise SystemExit(f"Changes cannot be found: {reason}.")
    for path in sorted(TABLES.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        stamp = Stamp.read(text)
        if stamp is None:
            print(f"{path.name}: no stamp")
            continue
        stamp = replace(stamp, says_changed=stamp.code_changed())
        if stamp.says_changed:
            print(f"{path.name}: the code has changed since {stamp.commit} ({stamp.date})")
        if args.mark:
            path.write_text(stamped(text, stamp), encoding="utf-8")


if __name__ == "__main__":
    main()
