"""What somebody who wrote a wrong name may have meant: the end of many error messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(wrong: object, names: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The name that is most like the wrong one; None if none is like it.

    >>> nearest("metrik", ["metric", "ridge"])
    'metric'
    """
    near = get_close_matches(str(wrong), list(names), n=1, cutoff=cutoff)
    return near[0] if near else None


def suggestion(wrong: object, names: Iterable[str], *, cutoff: float = 0.6) -> str:
    """A question that names the nearest, to go behind a sentence; empty if there is none.

    >>> "there is no head 'nmc'." + suggestion("nmc", ["ncm", "slda"])
    "there is no head 'nmc'. Did you mean 'ncm'?"
    """
    near = nearest(wrong, names, cutoff=cutoff)
    return "" if near is None else f" Did you mean {near!r}?"
