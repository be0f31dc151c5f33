"""A dictionary of named entries whose lookup error suggests the nearest name."""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

from fecam.errors import FecamError, SettingsError
from fecam.validation import unknown

Entry = TypeVar("Entry")


class Registry(dict[str, Entry]):
    """Entries by name. ``registry[name] = entry`` registers one more.

    >>> heads = Registry("head", {"ncm": "nearest class mean"})
    >>> heads["nmc"]
    Traceback (most recent call last):
    ...
    fecam.errors.SettingsError: there is no head 'nmc'. Did you mean 'ncm'? Available: ncm.
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, Entry],
        *,
        note: str = "",
        error: type[FecamError] = SettingsError,
    ) -> None:
        super().__init__(entries)
        self._kind, self._note, self._error = kind, note, error

    def __missing__(self, name: str) -> Entry:
        note = self._note and f" {self._note}"
        raise self._error(f"there is no {self._kind} {unknown(name, self)}{note}")


def import_class(kind: str, name: str, error: type[FecamError] = SettingsError) -> Any:
    """Return the class at ``package.module:Class``; the cause of the error is the import's.

    >>> import_class("head", "collections:OrderedDict")
    <class 'collections.OrderedDict'>
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as reason:
        raise error(
            f"the {kind} {name!r} cannot be imported: {reason}. Write package.module:Class, of a "
            "module that is installed or in the current folder."
        ) from reason


def keyword_options(function: Callable[..., Any], *excluded: str) -> dict[str, Any]:
    """Return the keyword-only parameters of a function with their defaults."""
    return {
        parameter.name: parameter.default
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in excluded
    }
