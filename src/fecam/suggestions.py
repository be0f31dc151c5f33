"""What somebody who wrote a wrong name may have meant: the end of many error messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(wrong: object, names: Iterable[str]) -> str | None:
    """The name that was cut short, or else is most like the wrong one; None if none is like it.

    >>> nearest("metrik", ["metric", "ridge"])
    'metric'
    >>> nearest("class", ["few-shot", "class-incremental"])
    'class-incremental'
    """
    text, known = str(wrong), list(names)
    begun = [name for name in known if text and name.startswith(text)]
    near = get_close_matches(text, begun or known, n=1, cutoff=0.0 if begun else 0.5)
    return near[0] if near else None


def suggestion(wrong: object, names: Iterable[str]) -> str:
    """A question that names the nearest, to go behind a sentence; empty if there is none.

    >>> "there is no head 'nmc'." + suggestion("nmc", ["ncm", "slda"])
    "there is no head 'nmc'. Did you mean 'ncm'?"
    """
    near = nearest(wrong, names)
    return "" if near is None else f" Did you mean {near!r}?"
