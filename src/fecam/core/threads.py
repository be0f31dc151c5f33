"""Parallel work on blocks of rows, on as many threads as BLAS has.

Small products gain little from the threads of BLAS, and element-wise operations nothing. So each
thread works on its own block while BLAS is limited to one thread. The number of threads does not
change results, because it does not change the blocks.
"""

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
    """Return ``[work(item) for item in items]``."""
    items = list(items)
    if len(items) < 2:
        return [work(item) for item in items]
    with _single_threaded_blas() as n_threads:
        if n_threads == 1:
            return [work(item) for item in items]
        with ThreadPoolExecutor(n_threads, thread_name_prefix="fecam") as pool:
            return list(pool.map(work, items))


@contextmanager
def reserve_core(processes: int = 1) -> Iterator[None]:
    """Limit BLAS inside the context to leave one core free, if ``processes`` share the machine.

    Idle threads of OpenBLAS busy-wait and would slow down other work on that core.
    """
    with blas_threads(max(1, min(n_blas_threads(), n_cores() // processes - 1))):
        yield


@contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """Limit BLAS to a number of threads inside the context."""
    with _blas().limit(limits=count):
        yield


def n_blas_threads() -> int:
    """Return the number of threads that BLAS uses now."""
    return max((library.num_threads or 1 for library in _blas().lib_controllers), default=1)


def n_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_lock = Lock()
_original: list[tuple[int, Any]] = []
"""While BLAS is limited: its original number of threads, and the limiter that restores it."""
_n_users = 0


@contextmanager
def _single_threaded_blas() -> Iterator[int]:
    """Limit BLAS to one thread inside the context and yield its original number of threads.

    The limit applies to the whole process. So the first of several concurrent users sets it and
    the last one restores it.
    """
    global _n_users
    with _lock:
        if not _n_users:
            _original[:] = [(n_blas_threads(), _blas().limit(limits=1))]
        _n_users += 1
        n_threads, limiter = _original[0]
    try:
        yield n_threads
    finally:
        with _lock:
            _n_users -= 1
            if not _n_users:
                limiter.restore_original_limits()


@lru_cache(maxsize=1)
def _blas() -> ThreadpoolController:
    """Return a controller of the BLAS libraries; cached, as finding them is slow."""
    return ThreadpoolController().select(user_api="blas")
