"""Check that every public name has a complete numpydoc docstring.

    python docs/scripts/check_docstrings.py [PACKAGE ...]

Public are the names in ``__all__`` of the packages below, and the public methods and properties
that their classes define or inherit from a class of ours. Prints one line per violation and exits
with 1 if there are any.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass

from numpydoc.docscrape import get_doc_object
from numpydoc.validate import Validator, validate

PACKAGES = (
    "fecam",
    "fecam.bench",
    "fecam.client",
    "fecam.data",
    "fecam.distributed",
    "fecam.encoders",
    "fecam.features",
    "fecam.heads",
    "fecam.inspection",
    "fecam.model",
    "fecam.model_file",
    "fecam.report",
    "fecam.scenarios",
    "fecam.service",
    "fecam.training",
    "fecam.transfer",
)

CODES = {
    "GL08": "there is no docstring",
    "GL07": "sections are in the wrong order",
    "SS03": "the summary does not end with a period",
    "SS06": "the summary takes more than one line",
    "PR01": "parameters are missing",
    "PR02": "unknown parameters",
    "PR03": "parameters are in the wrong order",
    "PR04": "a parameter has no type",
    "PR07": "a parameter has no description",
    "PR10": "a space is missing before the colon",
    "RT01": "there is no Returns section",
    "RT03": "a returned value has no description",
    "YD01": "there is no Yields section",
}
"""The codes that are checked.

Off are those of taste, which ruff decides or which this code base does otherwise: line breaks
around the quotes (GL01, GL02), extended summaries, See Also and Notes for everything (ES01, SA01),
the mood of the verb (SS05), punctuation of descriptions (PR05 to PR09, RT02, RT04, RT05), and
examples for each method (EX01).
"""

NOT_FUNCTIONS = {"RT01", "RT03", "YD01"}
"""Codes that make no sense for a class or a property."""
SUMMARY = {"RT01"}
"""Not for functions without parameters whose summary says what they return."""
FIELDS = {"PR01"}
"""Not for dataclasses: their fields have docstrings of their own, which the reference shows."""


def names(package: str) -> Iterator[str]:
    """Yield the dotted public names of a package."""
    module = importlib.import_module(package)
    for name in sorted(getattr(module, "__all__", ())):
        value = getattr(module, name)
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            continue  # a constant, or a module that is in the list itself
        yield f"{package}.{name}"
        for base in value.__mro__ if inspect.isclass(value) else ():
            if base.__module__.startswith("fecam"):
                yield from (f"{package}.{name}.{member}" for member in _members(base))


def _members(kind: type) -> list[str]:
    """Return the public methods and properties that a class defines itself."""
    kinds = (property, classmethod, staticmethod)
    return [
        name
        for name, value in vars(kind).items()
        if (inspect.isroutine(value) or isinstance(value, kinds)) and not _is_hidden(name)
    ]


def _is_hidden(member: str) -> bool:
    """Return whether a member is private or written by scikit-learn's metadata routing."""
    return member.startswith("_") or (member.startswith("set_") and member.endswith("_request"))


def violations(name: str) -> list[str]:
    """Return one line per violation of a public name."""
    value = inspect.unwrap(Validator._load_obj(name))
    report = validate(get_doc_object(value))
    checked = CODES.keys() - (set() if inspect.isroutine(value) else NOT_FUNCTIONS)
    checked -= FIELDS if is_dataclass(value) else set()
    checked -= SUMMARY if _says_what_it_returns(value) else set()
    return [
        f"{report['file']}:{report['file_line']}: {name}: {code} {message}"
        for code, message in report["errors"]
        if code in checked
    ]


def _says_what_it_returns(value: object) -> bool:
    """Return whether a function has no parameters and a summary that begins with Return."""
    summary = (inspect.getdoc(value) or "").split("\n\n")[0]
    if not (inspect.isroutine(value) and summary.startswith("Return ")):
        return False
    return not inspect.signature(value).parameters.keys() - {"self", "cls"}


def main() -> None:
    """Print all violations."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="*", default=PACKAGES)
    public = [name for package in parser.parse_args().packages for name in names(package)]
    lines = sorted({line for name in public for line in violations(name)})
    print(*lines, f"{len(public)} public names, {len(lines)} violations", sep="\n")
    raise SystemExit(bool(lines))


if __name__ == "__main__":
    main()
