"""Work on several blocks at once, on as many threads as BLAS was given.

Small products gain little from BLAS's own threads, and what lies between them nothing at all. So
each thread takes a block of its own, and BLAS is held to one thread meanwhile. How many there are
changes no number: the blocks are cut the same way whatever takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

T = TypeVar("T")
R = TypeVar("R")


def in_parallel(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """``[work(item) for item in items]``."""
    listed = list(items)
    if len(listed) < 2:
        return [work(item) for item in listed]
    blas = _blas()
    threads = max((library.num_threads or 1 for library in blas.lib_controllers), default=1)
    with blas.limit(limits=1):
        if threads == 1:
            return [work(item) for item in listed]
        with ThreadPoolExecutor(threads, thread_name_prefix="fecam") as pool:
            return list(pool.map(work, listed))


@lru_cache(maxsize=1)
def _blas() -> ThreadpoolController:
    """The BLAS libraries of this process: looking for them takes longer than a small search."""
    return ThreadpoolController().select(user_api="blas")
