"""Takes the pictures of the page: ``python docs/pictures/page.py``; needs chromium.

The browser tests draw, teach and ask, and write `page-*.png` and the moving `page.gif` on the way.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
TESTS = "tests/service/test_page.py"
WITH_PICTURES = "reload or several or touch or moving"


def main() -> int:
    """Run the tests that take pictures, and return their exit status."""
    command = [sys.executable, "-m", "pytest", "-q", TESTS, "-k", WITH_PICTURES]
    environment = {**os.environ, "FECAM_SCREENSHOTS": str(HERE)}
    return subprocess.run(command, cwd=HERE.parents[1], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
