"""Sequences of tasks: the rows to learn from and to test on at each step, as index arrays."""

from fecam.scenarios.catalogue import KINDS, build
from fecam.scenarios.classes import class_incremental
from fecam.scenarios.domains import domain_incremental
from fecam.scenarios.order import class_order
from fecam.scenarios.shot_lists import read_shot_lists
from fecam.scenarios.shots import few_shot
from fecam.scenarios.task import Scenario, Task

__all__ = [
    "KINDS",
    "Scenario",
    "Task",
    "build",
    "class_incremental",
    "class_order",
    "domain_incremental",
    "few_shot",
    "read_shot_lists",
]
