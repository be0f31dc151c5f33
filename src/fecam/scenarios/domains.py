"""Domain-incremental: the same classes at every task, each time from another domain."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.dataset import Dataset
from fecam.errors import DatasetError, SettingsError
from fecam.scenarios.split import (
    Rows,
    by_class,
    check_seed,
    class_name,
    concat_sorted,
    draw_test_mask,
    rng_for,
)
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
    """Return a scenario with one domain per task, tested on the same rows each time.

    Test rows of the data set are never learned from. A test domain without test rows that is not a
    training domain is tested on all of its rows. Items of the data set are never read.

    Parameters
    ----------
    data : Dataset
        A data set with domains.
    train_domains : sequence of str, optional
        Domains in the order of the tasks. Default: all that have training rows and are not in
        ``test_domains``.
    test_domains : sequence of str, optional
        Domains to test on. Default: all with test rows, or the training domains if none has any.
    shuffle : bool
        Whether the seed shuffles the training domains.
    seed : int
        Seed of the random choices.
    test_share : float
        Share of each class in each domain to test on, if a domain is learned and tested on and the
        data set has no test rows.
    imbalance, long_tail, long_tail_ranks, blurry : float or str
        As in `class_incremental`.

    Returns
    -------
    Scenario
        The tasks.

    Raises
    ------
    SettingsError
        If an option is invalid or a domain does not exist.
    DatasetError
        If there are no domains, or no rows to learn from or to test on.

    Examples
    --------
    >>> texts, labels, domains = list("abcdef"), [0, 1] * 3, np.repeat([0, 1, 2], 2)
    >>> names = ("p", "q", "r")
    >>> data = Dataset("d", "texts", texts, labels, ("x", "y"), "f", None, domains, names)
    >>> scenario = domain_incremental(data, test_domains=["q"])
    >>> [(task.name, task.train.tolist(), task.test.tolist()) for task in scenario]
    [('p', [0, 1], [2, 3]), ('r', [4, 5], [2, 3])]
    """
    variants = Variants(imbalance, long_tail, long_tail_ranks, blurry)
    seed, test_share = check_seed(seed), check_fraction("test_share", test_share)
    learned, tested = _read_domains(data, train_domains, test_domains)
    if shuffle:
        learned = [learned[i] for i in rng_for(seed, "domains").permutation(len(learned))]
    is_test = _test_rows(data, learned, tested, test_share, seed)
    train = [_rows(data, name, ~is_test) for name in learned]
    _check_rows(data, learned, train, "train_domains")
    order = tuple(by_class(data.labels, concat_sorted(train)))
    train = variants.apply(data.labels, order, train, seed)
    _check_rows(data, learned, train, "train_domains")
    pieces = [_rows(data, name, is_test) for name in tested]
    if np.any(data.is_test):  # a single row is never drawn for testing
        _check_rows(data, tested, pieces, "test_domains")
    parts = tuple((name, rows) for name, rows in zip(tested, pieces, strict=True) if len(rows))
    test = concat_sorted(pieces)
    _check_tested(data, order, test)
    tasks: list[Task] = []
    seen: set[int] = set()
    for name, rows in zip(learned, train, strict=True):
        new = tuple(label for label in by_class(data.labels, rows) if label not in seen)
        seen.update(new)
        # The test rows of the first task are read-only, so the others share them.
        fixed = (tasks[0].test, tasks[0].parts) if tasks else (test, parts)
        tasks.append(Task(len(tasks), name, rows, fixed[0], new, fixed[1]))
    options: dict[str, Any] = {"train_domains": learned, "test_domains": tested}
    options |= {"test_share": test_share} | variants.options()
    return Scenario("domain-incremental", tuple(tasks), seed, options)


def _read_domains(
    data: Dataset, train_domains: Sequence[str] | None, test_domains: Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """Return the domains to learn and those to test on."""
    if data.domains is None or not data.domain_names:
        raise DatasetError(
            f"the data set {data.name!r} has no domains. Remedy: give them in a column or array "
            "'domain', or use a class-incremental scenario"
        )
    marked = np.asarray(data.is_test)
    tested = _read_names(data, "test_domains", test_domains)
    learned = _read_names(data, "train_domains", train_domains)
    if learned is None:
        others = [name for name in data.domain_names if name not in (tested or ())]
        learned = [name for name in others if len(_rows(data, name, ~marked))]
        if not learned:
            raise SettingsError(
                f"test_domains={tested!r} leaves no domain to learn from: name train_domains, or "
                "fewer test_domains."
            )
    if tested is None:
        tested = [name for name in data.domain_names if len(_rows(data, name, marked))] or learned
    return learned, list(tested)


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
    """Return the rows of a domain within the mask."""
    return np.flatnonzero((np.asarray(data.domains) == data.domain_names.index(name)) & mask)


def _test_rows(
    data: Dataset, learned: Sequence[str], tested: Sequence[str], test_share: float, seed: int
) -> NDArray[np.bool_]:
    """Return a mask of the rows to test on."""
    marked = np.asarray(data.is_test)
    everything = np.ones(len(data), bool)
    is_test = marked.copy()
    for name in tested:
        rows = _rows(data, name, everything)
        if name not in learned and not marked[rows].any():
            is_test[rows] = True
        elif not marked.any():
            domain = data.domain_names.index(name)
            is_test |= draw_test_mask(data.labels, rows, test_share, seed, domain)
    return is_test


def _check_rows(data: Dataset, names: Sequence[str], pieces: Sequence[Rows], option: str) -> None:
    purpose = "training" if option == "train_domains" else "testing"
    for name, rows in zip(names, pieces, strict=True):
        if not len(rows):
            raise DatasetError(
                f"the domain {name!r} of {data.name!r} has no rows for {purpose}. Remedy: give "
                f"{option} without it"
            )


def _check_tested(data: Dataset, order: Sequence[int], test: Rows) -> None:
    if not len(test):
        raise DatasetError(
            f"the data set {data.name!r} has no rows for testing. Remedy: name test_domains, or "
            "give a test_share such as 0.2"
        )
    for label in by_class(data.labels, test):
        if label not in order:
            raise DatasetError(
                f"{class_name(data, label)} of {data.name!r} is tested on but has no rows for "
                "training. Remedy: name train_domains that have some"
            )
