"""Known weaknesses of the packages in an environment, as the Python Package Index lists them.

    python deploy/audit.py FOLDER ...       (site-packages)

Run by `make audit`, with a Python that has pip-audit. Exit code 1 if there are any. Packages that
the index does not know are named, not passed over in silence: if it knows none of them, because
there is no network or only a mirror, nothing was audited, and that is said.
"""

from __future__ import annotations

import json
import subprocess
import sys


def findings(folders: list[str]) -> list[dict] | None:
    """What pip-audit says of each package; None if it could not ask."""
    places = [word for folder in folders for word in ("--path", folder)]
    command = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "-f", "json"]
    done = subprocess.run([*command, *places], capture_output=True, text=True, check=False)
    try:
        return list(json.loads(done.stdout)["dependencies"])
    except (ValueError, KeyError):
        print(*done.stderr.strip().splitlines()[-1:], file=sys.stderr)
        return None


def told(found: list[dict] | None) -> tuple[str, int]:
    """What to say, and the exit code.

    >>> told([{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "unknown"}])
    ('1 packages have no known weakness; 1 could not be looked up: b', 0)
    """
    seen = [one for one in found or () if "skip_reason" not in one]
    if not seen:
        return "the index of packages cannot be asked: nothing was audited", 0
    lines = [
        f"{one['name']} {one['version']}: {weak['id']}, mended in {weak['fix_versions'] or 'none'}"
        for one in seen
        for weak in one["vulns"]
    ]
    unknown = [one["name"] for one in found or () if "skip_reason" in one]
    rest = f"; {len(unknown)} could not be looked up: {', '.join(unknown)}" if unknown else ""
    sound = sum(not one["vulns"] for one in seen)
    return "\n".join([*lines, f"{sound} packages have no known weakness{rest}"]), int(bool(lines))


def main() -> int:
    """Ask, tell."""
    text, code = told(findings(sys.argv[1:]))
    print(text)
    return code


if __name__ == "__main__":
    sys.exit(main())
