"""Methods that train the network over tasks, each from the mechanisms that it names.

`fecam.learners.learner` explains how a method is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fecam.learners.catalogue import DECISIONS, Entry, available, check_name, make, options

if TYPE_CHECKING:
    from fecam.learners.learner import Learner
    from fecam.learners.oracle_ladder import OracleLadder
    from fecam.learners.recipe import Recipe, recipe_for, transformer_recipe
    from fecam.learners.task import LearningTask

__all__ = [
    "DECISIONS", "Entry", "Learner", "LearningTask", "OracleLadder", "Recipe", "available",
    "check_name", "make", "options", "recipe_for", "transformer_recipe",
]  # fmt: skip

_LAZY = {
    "Learner": "learner",
    "LearningTask": "task",
    "OracleLadder": "oracle_ladder",
    "Recipe": "recipe",
    "recipe_for": "recipe",
    "transformer_recipe": "recipe",
}
"""Names whose modules need torch."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
