"""Real services for tests: processes that listen at a port of this machine."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from serving import Served, free_port, service

__all__ = ["Served", "free_port", "service"]
