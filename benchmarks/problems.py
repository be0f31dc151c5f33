"""Problems of the speed benchmarks: classes to learn one after another, and queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np

import feature_sets
import synthetic

WIDTH = 512
"""Features a sample: the width of the paper's encoder, and of the figures in the docs."""

Batches = Iterable[tuple[int, np.ndarray]]


class UnavailableError(Exception):
    """A feature set that this machine has no source for."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A number of classes, the samples per class, and queries of these classes."""

    features: str
    classes: int
    per_class: int
    width: int
    batches: Callable[[], Batches]
    """Labels with their samples, class by class; each call starts again."""
    queries: np.ndarray

    def __str__(self) -> str:
        return f"{self.features}, {self.classes} classes, n = {self.per_class}, d = {self.width}"


def real(
    name: str, classes: int, per_class: int, width: int = WIDTH, queries: int = 1000
) -> Problem:
    """Random classes of a real set, its first columns, and random test samples of these classes.

    There may be fewer queries than requested: no test sample is used twice.
    """
    data = _load(name)
    rng = np.random.default_rng(0)
    labels = np.sort(rng.permutation(np.unique(data.y_train))[:classes])
    batches = []
    for label in labels:
        rows = np.flatnonzero(data.y_train == label)[:per_class]
        batches.append((int(label), np.ascontiguousarray(data.X_train[rows, :width])))
    tests = rng.permutation(np.flatnonzero(np.isin(data.y_test, labels)))[:queries]
    test_rows = np.ascontiguousarray(data.X_test[tests, :width])
    return Problem(name, len(batches), len(batches[0][1]), width, lambda: batches, test_rows)


def made_up(classes: int, per_class: int, width: int = WIDTH, queries: int = 1000) -> Problem:
    """Synthetic classes; each is generated when it is learned, and never all are in memory."""
    rows = -(-queries // classes)
    tests = [X for _, X in synthetic.generate_classes(classes, rows, width, test=True)]
    order = np.random.default_rng(0).permutation(classes * rows)[:queries]
    return Problem(
        "synthetic",
        classes,
        per_class,
        width,
        lambda: synthetic.generate_classes(classes, per_class, width),
        np.concatenate(tests)[order],
    )


def of(data: str, classes: int, per_class: int, width: int = WIDTH, queries: int = 1000) -> Problem:
    """``data`` "real" (of CIFAR-100, which has 500 samples a class) or "synthetic"."""
    if data == "synthetic":
        return made_up(classes, per_class, width, queries)
    return real("cifar100", classes, per_class, width, queries)


@cache
def _load(name: str) -> feature_sets.FeatureSet:
    try:
        return feature_sets.load(name)
    except (ImportError, OSError, RuntimeError) as error:
        raise UnavailableError(f"no {name} features on this machine: {error}") from error
