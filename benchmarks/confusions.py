"""The shares of confused samples that `fecam.inspection` estimates, beside those of test samples.

    python benchmarks/confusions.py [--quick]

Frozen features (see `feature_sets`), at most 50 classes (`cifar100`: 20) of 10 and of 100 random
training samples (`glyphs`: 60), learned in one batch or in five batches of classes. The confusion
of a pair is the share of the test samples of both classes that is predicted as the other one. A
pair counts as within a factor of two unless the 95 % interval of its measured number of confusions
excludes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import binom, spearmanr

import feature_sets
from fecam import FeCAMClassifier
from fecam.core.calibration_rows import left_out_errors
from fecam.inspection import close_pairs
from reporting import markdown, options, say, write
from stamps import CLASSIFIER

MAX_CLASSES = {"cifar100": 20}
PER_CLASS = {"glyphs": 60}
BINS = ((0.01, 0.03), (0.03, 0.1), (0.1, 0.5))
MIN_EXPECTED = 10
"""Bins with fewer expected confusions are left out: their ratio is noise."""


def learned(
    features: feature_sets.FeatureSet, labels: np.ndarray, per_class: int, n_batches: int
) -> FeCAMClassifier:
    """Return a default classifier that learned random samples of these classes."""
    rng = np.random.default_rng(0)
    clf = FeCAMClassifier()
    for some in np.array_split(labels, n_batches):
        rows = np.concatenate(
            [rng.permutation(np.flatnonzero(features.y_train == one))[:per_class] for one in some]
        )
        clf.partial_fit(features.X_train[rows], features.y_train[rows])
    return clf


def ratio(expected: np.ndarray, measured: np.ndarray) -> float | None:
    """Return the quotient of two sums of confusions, None if they are few."""
    if expected.sum() < MIN_EXPECTED:
        return None
    return float(expected.sum() / max(measured.sum(), 0.5))


def measure(name: str, per_class: int, n_batches: int) -> dict[str, Any]:
    """One row of the table."""
    say(f"{name}, {per_class} each, {n_batches} batches")
    features = feature_sets.load(name)
    labels = np.random.default_rng(0).permutation(np.unique(features.y_train))
    labels = labels[: MAX_CLASSES.get(name, 50)]
    clf = learned(features, labels, per_class, n_batches)
    tested = np.isin(features.y_test, labels)
    due, answers = features.y_test[tested], clf.predict(features.X_test[tested])
    confused = np.zeros((labels.max() + 1,) * 2, int)
    np.add.at(confused, (due, answers), 1)
    pairs = close_pairs(clf)
    a, b = np.array([(pair.first, pair.second) for pair in pairs]).T
    estimated = np.array([np.nan if pair.overlap is None else pair.overlap for pair in pairs])
    counts = confused[a, b] + confused[b, a]
    samples = confused.sum(axis=1)[a] + confused.sum(axis=1)[b]
    high = np.maximum(estimated, counts / samples) > 0.01
    too_low = binom.sf(counts - 1, samples, np.minimum(2 * estimated, 1)) < 0.025
    too_high = binom.cdf(counts, samples, estimated / 2) < 0.025
    expected = estimated * samples
    inside = [(low <= estimated) & (estimated < top) for low, top in BINS]
    rows = [
        stats.calibration for stats in clf.state_.classes.values() if stats.calibration is not None
    ]
    return {
        "features": name,
        "classes": len(labels),
        "per_class": per_class,
        "batches": n_batches,
        "rows": sum(map(len, rows)),
        "left_out_error": float(np.mean(np.concatenate([left_out_errors(r) for r in rows]))),
        "test_error": float(np.mean(answers != due)),
        "total": ratio(expected, counts),
        "bins": [ratio(expected[some], counts[some]) for some in inside],
        "pairs": int(high.sum()),
        "within": float(np.mean(~(too_low | too_high)[high])),
        "rank_correlation": float(spearmanr(estimated, counts / samples)[0]),
    }


def table(results: list[dict[str, Any]]) -> str:
    """All rows."""
    ranges = ["1-3 %", "3-10 %", "10 % and more"]
    return markdown(
        [
            "features",
            "samples, batches",
            "left-out error",
            "test error",
            "estimated / measured, all pairs",
            *[f"pairs of {some}" for some in ranges],
            "pairs above 1 %",
            "within a factor of two",
            "rank correlation",
        ],
        [
            [
                f"{one['features']}, {one['classes']} classes",
                f"{one['per_class']} each, {one['batches']}",
                f"{100 * one['left_out_error']:.1f} % of {one['rows']}",
                f"{100 * one['test_error']:.1f} %",
                *["" if x is None else f"{x:.2f}" for x in (one["total"], *one["bins"])],
                str(one["pairs"]),
                f"{100 * one['within']:.0f} %",
                f"{one['rank_correlation']:.2f}",
            ]
            for one in results
        ],
    )


def main() -> None:
    """Measure, print a table, write results."""
    args = options(__doc__).parse_args()
    names = ["digits"] if args.quick else [*feature_sets.NAMES, "cifar100"]
    results = [
        measure(name, per_class, n_batches)
        for name in names
        for per_class in (10, PER_CLASS.get(name, 100))
        for n_batches in (1, 5)
    ]
    told = table(results)
    print(told)
    paths = (*CLASSIFIER, "src/fecam/inspection.py")
    write("confusions", told, {"results": results}, quick=args.quick, measures=paths)


if __name__ == "__main__":
    main()
