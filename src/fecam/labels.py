"""Labels: booleans, integers or strings, and only one of these kinds per model.

In Python ``True == 1``, so a model with both would confuse them.
"""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any, Literal

import numpy as np

from fecam.errors import InputError
from fecam.results import Label

LabelKind = Literal["booleans", "integers", "strings"]

_BOOLEANS = {"True": True, "true": True, "False": False, "false": False}
"""Texts of booleans, as Python and JSON write them."""


def kind_of_label(label: object) -> LabelKind | None:
    """Return the kind of a label; None if it cannot be one.

    >>> kind_of_label(True), kind_of_label(1), kind_of_label("1"), kind_of_label(1.5)
    ('booleans', 'integers', 'strings', None)
    """
    if isinstance(label, (bool, np.bool_)):
        return "booleans"
    if isinstance(label, str):
        return "strings"
    return "integers" if isinstance(label, Integral) else None


def plain_label(label: Any) -> Any:
    """Return a label of NumPy or torch as a Python object.

    >>> plain_label(np.int64(7)), plain_label("7")
    (7, '7')
    """
    return label.item() if hasattr(label, "item") else label


def first_kind(labels: Iterable[object]) -> LabelKind | None:
    """Return the kind of the first label; None if there is none."""
    return next((kind_of_label(label) for label in labels), None)


def check_same_kind(labels: Sequence[Any], learned: Sequence[Any], owner: str = "model") -> None:
    """Raise if new labels are of another kind than learned ones.

    >>> check_same_kind([1, 0], [True])
    Traceback (most recent call last):
    ...
    fecam.errors.InputError: y has integers (1, ...) but the model has booleans (True, ...). Use \
one kind of label throughout.
    """
    new, old = first_kind(labels), first_kind(learned)
    if None not in (new, old) and new != old:
        raise InputError(
            f"y has {new} ({labels[0]!r}, ...) but the {owner} has {old} ({learned[0]!r}, ...). "
            "Use one kind of label throughout."
        )


def parse_label(label: Label, kind: LabelKind | None, owner: str = "the model") -> Label:
    """Return a text as a label of this kind; a label that is no text is returned unchanged.

    Names of folders, forms and the command line are texts.

    >>> parse_label("7", "integers"), parse_label("true", "booleans"), parse_label("7", "strings")
    (7, True, '7')
    """
    if not isinstance(label, str) or kind in ("strings", None):
        return label
    try:
        return int(label) if kind == "integers" else _BOOLEANS[label]
    except (ValueError, KeyError):
        expected = "an integer" if kind == "integers" else "true or false"
        raise InputError(
            f"the labels of {owner} are {kind}, so {label!r} cannot be one. Give {expected}, or "
            "use another model."
        ) from None
