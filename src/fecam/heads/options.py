"""Options of heads, checked; an error names the option, its value and what it may be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from fecam.errors import SettingsError
from fecam.suggestions import suggestion


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Refuse a value that is none of the choices.

    >>> check_choice("metric", "cosin", ("euclidean", "cosine"))
    Traceback (most recent call last):
    ...
    fecam.errors.SettingsError: metric='cosin' must be one of 'euclidean', 'cosine'. Did you mean 'cosine'?
    """  # noqa: E501
    if not (isinstance(value, str) and value in choices):
        listed = ", ".join(map(repr, choices))
        raise SettingsError(
            f"{name}={value!r} must be one of {listed}.{suggestion(value, choices)}"
        )


def check_whole(name: str, value: Any, *, at_least: int = 1) -> None:
    """Refuse what is no whole number of at least so much."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < at_least:
        raise SettingsError(f"{name}={value!r} must be a whole number >= {at_least}.")


def check_number(name: str, value: Any, *, at_most: float = math.inf) -> None:
    """Refuse what is no finite number from 0 to so much."""
    good = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not 0 <= value <= at_most:
        bound = ">= 0" if at_most == math.inf else f"from 0 to {at_most:g}"
        raise SettingsError(f"{name}={value!r} must be a finite number {bound}.")
