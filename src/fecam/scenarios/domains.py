"""Domain-incremental: the same classes again and again, each time from another domain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.dataset import Dataset
from fecam.errors import DatasetError, SettingsError
from fecam.scenarios.seeds import check_seed, rng_for
from fecam.scenarios.split import Rows, by_class, class_name, concat_sorted, draw_test_mask
from fecam.scenarios.task import Scenario, Task
from fecam.scenarios.variants import RANKS, Variants
from fecam.validation import check_fraction, check_keys, check_list


def domain_incremental(
    data: Dataset,
    *,
    train_domains: Sequence[str] | None = None,
    test_domains: Sequence[str] | None = None,
    shuffle: bool = False,
    seed: int = 0,
    test_share: float = 0.2,
    imbalance: float | None = None,
    long_tail: float | None = None,
    long_tail_ranks: str = RANKS[0],
    blurry: float = 0.0,
) -> Scenario:
    """A domain at each task; always judged on the same rows.

    Rows that the data set marks for testing are never learnt from. A test domain that marks none,
    and is no training domain too, is judged on whole.

    >>> texts, labels, places = list("abcdef"), [0, 1] * 3, np.repeat([0, 1, 2], 2)
    >>> data = Dataset("d", "texts", texts, labels, ("x", "y"), "f", None, places, ("p", "q", "r"))
    >>> stream = domain_incremental(data, test_domains=["q"])
    >>> [(task.name, task.train.tolist(), task.test.tolist()) for task in stream]
    [('p', [0, 1], [2, 3]), ('r', [4, 5], [2, 3])]

    Args:
        data: Only its labels, domains and marks are looked at, never its items.
        train_domains: The domains in the order they come; if not given, all that have rows for
            training and are not in ``test_domains``.
        test_domains: The domains to be judged on; if not given, all with marked rows, or the
            training domains if none are marked.
        shuffle: The seed decides the order of the training domains.
        seed: Decides what is left to chance.
        test_share: The part of each class in each domain that is judged on, where a domain is both
            learnt and judged on and the data set marks no test rows.
        imbalance: As in `class_incremental`; so are the next.
        long_tail: The largest class has so many times the rows of the smallest.
        long_tail_ranks: ``"shuffled"`` by the seed, or ``"ordered"`` as the labels are.
        blurry: This share of each task's rows comes in other tasks instead.

    Raises:
        SettingsError: options that cannot be; domains that are not there.
        DatasetError: no domains, or nothing in them to learn from or to be judged on.
    """
    variants = Variants(imbalance, long_tail, long_tail_ranks, blurry)
    seed, test_share = check_seed(seed), check_fraction("test_share", test_share)
    learnt, judged = _read_domains(data, train_domains, test_domains)
    if shuffle:
        learnt = [learnt[at] for at in rng_for(seed, "domains").permutation(len(learnt))]
    is_test = _marks(data, learnt, judged, test_share, seed)
    lessons = [_rows(data, name, ~is_test) for name in learnt]
    _refuse_empty(data, learnt, lessons, "train_domains")
    order = tuple(by_class(data.labels, concat_sorted(lessons)))
    lessons = variants.apply(data.labels, order, lessons, seed)
    _refuse_empty(data, learnt, lessons, "train_domains")
    pieces = [_rows(data, name, is_test) for name in judged]
    if np.any(data.is_test):  # a single row is never drawn for testing
        _refuse_empty(data, judged, pieces, "test_domains")
    parts = tuple((name, rows) for name, rows in zip(judged, pieces, strict=True) if len(rows))
    test = concat_sorted(pieces)
    _check_judged(data, order, test)
    tasks: list[Task] = []
    seen: set[int] = set()
    for name, rows in zip(learnt, lessons, strict=True):
        new = tuple(label for label in by_class(data.labels, rows) if label not in seen)
        seen.update(new)
        # The first task's rows to be judged on, which cannot be written, serve the others too.
        fixed = (tasks[0].test, tasks[0].parts) if tasks else (test, parts)
        tasks.append(Task(len(tasks), name, rows, fixed[0], new, fixed[1]))
    options: dict[str, Any] = {"train_domains": learnt, "test_domains": judged}
    options |= {"test_share": test_share} | variants.options()
    return Scenario("domain-incremental", tuple(tasks), seed, options)


def _read_domains(
    data: Dataset, train_domains: Sequence[str] | None, test_domains: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """The domains to learn and those to be judged on."""
    if data.domains is None or not data.domain_names:
        raise DatasetError(
            f"the data set {data.name!r} has no domains. Remedy: give them in a column or array "
            "'domain', or use a class-incremental scenario"
        )
    marked = np.asarray(data.is_test)
    judged = _read_names(data, "test_domains", test_domains)
    learnt = _read_names(data, "train_domains", train_domains)
    if learnt is None:
        left = [name for name in data.domain_names if name not in (judged or ())]
        learnt = [name for name in left if len(_rows(data, name, ~marked))]
        if not learnt:
            raise SettingsError(
                f"test_domains={judged!r} leaves no domain to learn from: name train_domains, or "
                "fewer test_domains."
            )
    if judged is None:
        judged = [name for name in data.domain_names if len(_rows(data, name, marked))] or learnt
    return learnt, list(judged)


def _read_names(data: Dataset, option: str, names: Sequence[str] | None) -> list[str] | None:
    if names is None:
        return None
    names = check_list(option, names, list(data.domain_names[:2]))
    check_keys(f"the data set {data.name!r}", names, data.domain_names, kind="domain")
    for i, name in enumerate(names):
        if name in names[:i]:
            raise SettingsError(f"{option} names {name!r} twice: name each domain once.")
    return list(names)


def _rows(data: Dataset, name: str, mask: NDArray[np.bool_]) -> Rows:
    """The rows of a domain that the mask has."""
    return np.flatnonzero((np.asarray(data.domains) == data.domain_names.index(name)) & mask)


def _marks(
    data: Dataset, learnt: Sequence[str], judged: Sequence[str], test_share: float, seed: int
) -> NDArray[np.bool_]:
    """Which rows are judged on: those marked, or drawn if none are, and domains for that alone."""
    marked = np.asarray(data.is_test)
    everything = np.ones(len(data), bool)
    is_test = marked.copy()
    for name in judged:
        rows = _rows(data, name, everything)
        if name not in learnt and not marked[rows].any():
            is_test[rows] = True
        elif not marked.any():
            at = data.domain_names.index(name)
            is_test |= draw_test_mask(data.labels, rows, test_share, seed, at)
    return is_test


def _refuse_empty(data: Dataset, names: Sequence[str], pieces: Sequence[Rows], option: str) -> None:
    purpose = "training" if option == "train_domains" else "testing"
    for name, rows in zip(names, pieces, strict=True):
        if not len(rows):
            raise DatasetError(
                f"the domain {name!r} of {data.name!r} has no rows for {purpose}. Remedy: give "
                f"{option} without it"
            )


def _check_judged(data: Dataset, order: Sequence[int], test: Rows) -> None:
    if not len(test):
        raise DatasetError(
            f"the data set {data.name!r} has no rows for testing. Remedy: name test_domains, or "
            "give a test_share such as 0.2"
        )
    for label in by_class(data.labels, test):
        if label not in order:
            raise DatasetError(
                f"{class_name(data, label)} of {data.name!r} is judged on but has no rows for "
                "training. Remedy: name train_domains that have some"
            )
