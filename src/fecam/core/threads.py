"""Work on several blocks at once, on as many threads as BLAS was given.

Small products gain little from BLAS's own threads, and what lies between them nothing at all. So
each thread takes a block of its own, and BLAS is held to one thread meanwhile. How many there are
changes no number: the blocks are cut the same way whatever takes them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

T = TypeVar("T")
R = TypeVar("R")


def in_parallel(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """``[work(item) for item in items]``."""
    listed = list(items)
    if len(listed) < 2:
        return [work(item) for item in listed]
    with _one_thread_each() as threads:
        if threads == 1:
            return [work(item) for item in listed]
        with ThreadPoolExecutor(threads, thread_name_prefix="fecam") as pool:
            return list(pool.map(work, listed))


@contextmanager
def reserve_core(processes: int = 1) -> Iterator[None]:
    """Let BLAS have one core less than this process may use, for something else goes on there.

    ``processes`` share the machine. Threads of BLAS wait for work by turning in circles, so it
    must not have the core that is needed meanwhile.
    """
    with blas_threads(max(1, min(n_blas_threads(), n_cores() // processes - 1))):
        yield


@contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """Limit BLAS to a number of threads inside the context."""
    with _blas().limit(limits=count):
        yield


def n_blas_threads() -> int:
    """How many threads BLAS has now."""
    return max((one.num_threads or 1 for one in _blas().lib_controllers), default=1)


def n_cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_lock = Lock()
_held: list[
    tuple[int, Any]
] = []  # while BLAS is held: the threads it had, and what gives them back
_users = 0


@contextmanager
def _one_thread_each() -> Iterator[int]:
    """Hold BLAS to one thread, and tell how many it had.

    The setting is one for the whole process: the first who comes lowers it, the last who leaves
    restores it, or two searches at once could leave it low for ever.
    """
    global _users
    with _lock:
        if not _users:
            _held[:] = [(n_blas_threads(), _blas().limit(limits=1))]
        _users += 1
        threads, limit = _held[0]
    try:
        yield threads
    finally:
        with _lock:
            _users -= 1
            if not _users:
                limit.restore_original_limits()


@lru_cache(maxsize=1)
def _blas() -> ThreadpoolController:
    """The BLAS libraries of this process: looking for them takes longer than a small search."""
    return ThreadpoolController().select(user_api="blas")
