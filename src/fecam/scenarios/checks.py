"""Options of scenarios, checked: what is wrong, what it is, what it may be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from fecam.errors import SettingsError
from fecam.suggestions import suggestion


def whole(name: str, value: Any, *, at_least: int = 1, at_most: int | None = None) -> int:
    """The value as an int, if it is a whole number in these bounds."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if number >= at_least and (at_most is None or number <= at_most):
            return number
    bounds = f">= {at_least}" if at_most is None else f"from {at_least} to {at_most}"
    raise SettingsError(f"{name}={value!r} must be a whole number {bounds}.")


def ratio(name: str, value: Any) -> float:
    """The value as a float, if it is how many times larger one thing is than another."""
    if _is_number(value) and value >= 1:
        return float(value)
    raise SettingsError(
        f"{name}={value!r} must be a number >= 1: how many times larger the largest class is than "
        "the smallest."
    )


def share(name: str, value: Any) -> float:
    """The value as a float, if it is a part of something, and not all of it."""
    if _is_number(value) and 0 <= value < 1:
        return float(value)
    raise SettingsError(f"{name}={value!r} must be a share: a number >= 0 and < 1.")


def several(name: str, values: Any, example: Any) -> tuple[Any, ...]:
    """The values as a tuple, if they are a list of one at least; text is no list of letters."""
    if isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping):
        found = tuple(values)
        if found:
            return found
    raise SettingsError(f"{name}={values!r} must be a list, as in {example!r}.")


def known(what: str, name: Any, names: Iterable[str]) -> None:
    """Refuse a name that is none of these, and say which was meant."""
    names = list(names)
    if name in names:
        return
    listed = ", ".join(map(repr, names)) or "none"
    raise SettingsError(f"there is no {what} {name!r}.{suggestion(name, names)} Known: {listed}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
