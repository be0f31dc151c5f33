"""What `FeCAMClassifier.compress` costs in accuracy, and what it saves.

    python benchmarks/compression.py [SET ...] [--quick]

Frozen features (see feature_sets.py), each in two streams: all classes with all samples, and 60 %
of the classes with all samples, the others with five. Per number of components: the size of the
statistics and the CPU time of a prediction of all test samples, both relative to the model before;
the expected and the measured share of unchanged labels; accuracy before and after, also with twice
the default ``mean_uncertainty``; and accuracy if the model is compressed after half of the classes
and learns the others afterwards. At most 50 classes; ``cifar100`` where FECAM_CIFAR100 is set.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

import feature_sets
from default_quality import few_classes, rows_of_stream
from fecam import FeCAMClassifier
from fecam.core.compression import statistics_bytes
from reporting import markdown, options, say, side_by_side, write
from stamps import CLASSIFIER

STREAMS = ("balanced", "5-shot new classes")
SHARES = (1 / 8, 1 / 4, 1 / 2)
REPEATS = 3


def measure(data: feature_sets.FeatureSet, stream: str) -> list[dict[str, Any]]:
    """Return a record per number of components."""
    X, y, X_test, y_test = few_classes(data, 0)
    rows = rows_of_stream(y, stream, 0)
    X, y = X[rows], y[rows]
    clf = FeCAMClassifier().fit(X, y).warm_up()
    before = clf.predict(X_test)
    labels = np.random.default_rng(1).permutation(np.unique(y))
    half = np.isin(y, labels[: len(labels) // 2])
    auto = clf.estimate_compression().n_components
    records = []
    for n_components in (round(share * clf.n_features_in_) for share in SHARES):
        say(f"  {data.name}, {stream}: {n_components} components ...")
        estimate = clf.estimate_compression(n_components)
        small = clf.copy().compress(n_components).warm_up()
        after = small.predict(X_test)
        later = FeCAMClassifier().fit(X[half], y[half]).compress(n_components)
        later.partial_fit(X[~half], y[~half])
        seconds = side_by_side(
            {
                "before": lambda: clf.predict(X_test),
                "after": lambda small=small: small.predict(X_test),  # type: ignore[misc]
            },
            REPEATS,
            time.process_time,
        )
        records.append(
            {
                "set": data.name,
                "stream": stream,
                "classes": len(labels),
                "features": clf.n_features_in_,
                "components": n_components,
                "auto": n_components == auto,
                "smaller": statistics_bytes(clf.state_) / statistics_bytes(small.state_),
                "faster": seconds["before"] / seconds["after"],
                "expected": estimate.agreement,
                "unchanged": float(np.mean(before == after)),
                "before": float(np.mean(before == y_test)),
                "after": float(np.mean(after == y_test)),
                "uncertain": small.set_params(mean_uncertainty=2.0).score(X_test, y_test),
                "later": later.score(X_test, y_test),
            }
        )
    return records


def table(records: list[dict[str, Any]]) -> str:
    """Return the records as Markdown."""
    header = [
        *("features", "stream", "components", "smaller", "faster (CPU time)"),
        *(
            "labels unchanged: expected",
            "measured",
            "accuracy before",
            "after",
            "with mean_uncertainty=2",
            "compressed half way",
        ),
    ]
    rows = [
        [
            f"{r['set']}, {r['classes']} classes",
            r["stream"],
            f"{r['components']:,} of {r['features']:,}{' (auto)' if r['auto'] else ''}",
            f"{r['smaller']:.1f} x",
            f"{r['faster']:.1f} x",
            *(f"{100 * r[name]:.1f} %" for name in ("expected", "unchanged", "before")),
            *(f"{100 * (r[name] - r['before']):+.1f}" for name in ("after", "uncertain", "later")),
        ]
        for r in records
    ]
    return markdown(header, rows)


def main() -> None:
    """Measure, print a table, write results."""
    photographs = ["cifar100"] if "FECAM_CIFAR100" in os.environ else []
    parser = options(__doc__)
    parser.add_argument(
        "sets", nargs="*", default=["digits", "glyphs", *photographs], metavar="SET"
    )
    args = parser.parse_args()
    names = ["digits"] if args.quick else args.sets
    records = [
        record
        for name in names
        for stream in STREAMS
        for record in measure(feature_sets.load(name), stream)
    ]
    text = table(records)
    print(text, flush=True)
    write("compression", text, {"records": records}, quick=args.quick, measures=CLASSIFIER)


if __name__ == "__main__":
    main()
