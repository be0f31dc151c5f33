"""Learning and answering, as ratios measured side by side in one run.

    python benchmarks/speed.py

Learning a class of 500 x 512 against the bare product of the same batch; the same after more and
more classes; a lesson followed by one query at 345 classes x 1280 features, once every class has
been measured; and a batch of queries against the computation that public implementations do.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from fecam import FeCAMClassifier
from reporting import markdown, side_by_side, write


def features(rows: int, width: int, seed: int) -> np.ndarray:
    """Non-negative features with the falling spectrum of real ones."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((width, width), dtype=np.float32)
    mixing *= np.linspace(1, 0.05, width, dtype=np.float32)[:, None] / width**0.5
    return np.maximum(0.5 + rng.standard_normal((rows, width), dtype=np.float32) @ mixing, 0)


def bare_product(X: np.ndarray) -> np.ndarray:
    """The default's transform, and one product: the least that any covariance costs."""
    Z = np.sqrt(X)
    Z = Z / np.linalg.norm(Z, axis=1, keepdims=True)
    return Z.T @ Z


def learning(classes: int) -> dict[str, float]:
    """One more class of 500 x 512 on top of so many, against the bare product."""
    X = features(500, 512, 0)
    clf = FeCAMClassifier()
    for label in range(classes):
        clf.partial_fit(X, np.full(500, label))
    fresh = iter(range(classes, 10**9))
    known = clf.knowledge_

    def learn() -> None:
        clf.partial_fit(X, np.full(500, next(fresh)))
        clf._taught = known  # measure the same step again

    return side_by_side({"learn": learn, "product": lambda: bare_product(X)}, repeats=25)


def lesson_and_query(classes: int = 345, width: int = 1280, rows: int = 20) -> list[float]:
    """Seconds of ten lessons, each followed by one query, on a model of many classes."""
    X = features(classes * rows, width, 1)
    y = np.repeat(np.arange(classes), rows)
    clf = FeCAMClassifier().fit(X, y)
    print("  deriving 345 factors once ...", file=sys.stderr)
    clf.predict(X[:1])
    seconds = []
    for label in range(10):
        start = time.perf_counter()
        clf.partial_fit(X[y == label], y[y == label])
        clf.predict(X[:1])
        seconds.append(time.perf_counter() - start)
    return seconds


def public_way(X: np.ndarray, y: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """What public implementations do at each call: invert each matrix, build N x N, keep N."""
    columns = []
    for label in np.unique(y):
        rows = np.sqrt(X[y == label])
        cov = np.cov(rows, rowvar=False)
        off = cov[~np.eye(len(cov), dtype=bool)]
        cov = cov + 3 * np.mean(np.diag(cov)) * np.eye(len(cov))
        cov = cov + 3 * np.mean(off[off != 0]) * (1 - np.eye(len(cov)))
        deviation = np.sqrt(np.diag(cov))
        inverse = np.linalg.pinv(cov / deviation[:, None] / deviation[None, :])
        difference = np.sqrt(Q) - rows.mean(axis=0)
        columns.append(np.diag(difference @ inverse @ difference.T))
    return np.stack(columns, axis=1)


def answering(queries: int) -> dict[str, float]:
    """Ten classes of 512 features: cached factors against inverting at each call."""
    X, y = features(1000, 512, 2), np.repeat(np.arange(10), 100)
    Q = features(queries, 512, 3)
    clf = FeCAMClassifier.from_preset("avalanche").fit(X, y)
    return side_by_side(
        {"fecam": lambda: clf.predict(Q), "public": lambda: public_way(X, y, Q)}, repeats=3
    )


def main() -> None:
    """Measure, print a table, write results."""
    rows: list[list[str]] = []
    results: dict[str, object] = {}
    for classes in (1, 30, 100):
        print(f"learning on top of {classes} classes ...", file=sys.stderr)
        seconds = learning(classes)
        results[f"learning_{classes}"] = seconds
        rows.append(
            [
                f"learn a class of 500 x 512, {classes} known",
                "X.T @ X of the same batch, transformed",
                f"{seconds['learn'] / seconds['product']:.2f} x its time",
            ]
        )
    print("a lesson and a query at 345 classes x 1280 features ...", file=sys.stderr)
    lessons = lesson_and_query()
    results["lesson_and_query"] = lessons
    rows.append(
        [
            "a lesson, then one query, at 345 classes x 1280",
            "-",
            f"{np.median(lessons):.2f} s (slowest of ten {max(lessons):.2f} s)",
        ]
    )
    for queries in (1, 1000):
        print(f"{queries} queries against ten classes ...", file=sys.stderr)
        seconds = answering(queries)
        results[f"answering_{queries}"] = seconds
        rows.append(
            [
                f"predict {queries} x 512, ten classes",
                "pseudo-inverse a class a call, N x N product",
                f"{seconds['public'] / seconds['fecam']:.0f} x faster",
            ]
        )
    table = markdown(["what", "against", "measured"], rows)
    print(table)
    write("speed", table, results)


if __name__ == "__main__":
    main()
