"""Checks of parameters: each error names the parameter, its value and what it accepts."""

import math
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any

from fecam.errors import FecamError, SettingsError


def is_int(value: object) -> bool:
    """Return whether the value is an integer; a bool is not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether the value is a finite real number; a bool is not."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer larger than any float
        return False


def check_int(
    name: str,
    value: Any,
    minimum: int = 1,
    maximum: float = math.inf,
    *,
    note: str = "",
    error: type[FecamError] = SettingsError,
) -> int:
    """Return the value as an int, or raise if it is not an integer within the bounds.

    >>> check_int("k", 7, 1, 5, note=" (the number of classes)")
    Traceback (most recent call last):
    ...
    fecam.errors.SettingsError: k=7 must be an integer from 1 to 5 (the number of classes).
    """
    if is_int(value) and minimum <= value <= maximum:
        return int(value)
    raise error(f"{name}={value!r} must be an integer{_bounds(minimum, maximum)}{note}.")


def check_number(
    name: str,
    value: Any,
    minimum: float = 0.0,
    maximum: float = math.inf,
    *,
    above: float = -math.inf,
    below: float = math.inf,
    note: str = "",
    error: type[FecamError] = SettingsError,
) -> float:
    """Return the value as a float, or raise if it is not a finite number within the bounds.

    ``minimum`` and ``maximum`` are allowed values; ``above`` and ``below`` are not.

    >>> check_number("momentum", 1, below=1)
    Traceback (most recent call last):
    ...
    fecam.errors.SettingsError: momentum=1 must be a finite number >= 0 and < 1.
    """
    if is_number(value) and minimum <= value <= maximum and above < value < below:
        return float(value)
    bounds = _bounds(minimum, maximum, above, below)
    raise error(f"{name}={value!r} must be a finite number{bounds}{note}.")


def check_fraction(name: str, value: Any, *, error: type[FecamError] = SettingsError) -> float:
    """Return the value as a float, or raise if it is not in ``[0, 1)``."""
    return check_number(name, value, below=1.0, error=error)


def check_choice(
    name: str, value: Any, choices: Iterable[str | None], *, error: type[FecamError] = SettingsError
) -> None:
    """Raise if the value is not one of the choices, which may include None.

    >>> check_choice("metric", "cosin", ("euclidean", "cosine"))
    Traceback (most recent call last):
    ...
    fecam.errors.SettingsError: metric='cosin' must be one of 'euclidean', 'cosine'. Did you mean 'cosine'?
    """  # noqa: E501
    choices = tuple(choices)
    if not (isinstance(value, str | None) and value in choices):
        listed = ", ".join(map(repr, choices))
        hint = suggestion(value, filter(None, choices))
        raise error(f"{name}={value!r} must be one of {listed}.{hint}")


def check_list(
    name: str, values: Any, example: Any, *, error: type[FecamError] = SettingsError
) -> tuple[Any, ...]:
    """Return the values as a tuple, or raise if they are empty, a string or not iterable."""
    if isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping):
        items = tuple(values)
        if items:
            return items
    raise error(f"{name}={values!r} must be a list, as in {example!r}.")


def check_keys(
    owner: str,
    keys: Iterable[str],
    allowed: Collection[str],
    *,
    kind: str = "option",
    error: type[FecamError] = SettingsError,
) -> None:
    """Raise for the first key that ``owner`` does not have.

    >>> check_keys("the head 'ncm'", ["metrik"], ["metric"])
    Traceback (most recent call last):
    ...
    fecam.errors.SettingsError: the head 'ncm' has no option 'metrik'. Did you mean 'metric'? Available: metric.
    """  # noqa: E501
    for key in keys:
        if key not in allowed:
            raise error(f"{owner} has no {kind} {unknown(key, allowed)}")


def unknown(name: object, names: Collection[str]) -> str:
    """Return the end of a message about an unknown name: the name, a suggestion and all names.

    >>> "There is no head " + unknown("nmc", ["ncm", "slda"])
    "There is no head 'nmc'. Did you mean 'ncm'? Available: ncm, slda."
    """
    return f"{name!r}.{suggestion(name, names)} Available: {', '.join(names) or 'none'}."


def suggestion(wrong: object, names: Iterable[str]) -> str:
    """Return `` Did you mean 'x'?`` for the most similar name, or an empty string.

    Names that start with the wrong one come first. Case and ``_`` or ``-`` make no difference.

    >>> suggestion("class", ["few-shot", "class-incremental"])
    " Did you mean 'class-incremental'?"
    """
    text, folded = _folded(str(wrong)), {_folded(name): name for name in names}
    completed = [name for name in folded if text and name.startswith(text)]
    matches = get_close_matches(text, completed or folded, n=1, cutoff=0.0 if completed else 0.5)
    return f" Did you mean {folded[matches[0]]!r}?" if matches else ""


def counted(count: int, noun: str) -> str:
    """Return a count with its noun in singular or plural.

    >>> counted(1, "file"), counted(3, "class")
    ('1 file', '3 classes')
    """
    plural = "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{'' if count == 1 else plural}"


def _folded(name: str) -> str:
    return name.lower().replace("_", "-")


def _bounds(
    minimum: float, maximum: float, above: float = -math.inf, below: float = math.inf
) -> str:
    if above == -math.inf and below == math.inf and math.isfinite(minimum + maximum):
        return f" from {minimum:.10g} to {maximum:.10g}"
    lower = f" > {above:g}" if above >= minimum else f" >= {minimum:g}"
    upper = f" < {below:g}" if below <= maximum else f" <= {maximum:g}"
    parts = [part for part in (lower, upper) if not part.endswith("inf")]
    return " and".join(parts)
