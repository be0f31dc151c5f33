"""How often drift alarms of the service are false, and how often they find foreign items.

    python benchmarks/drift.py [SET ...]

Frozen features (see feature_sets.py), half of the classes learned in ten batches. For each learned
class, windows of 100 answers are drawn with replacement from the test rows that it is predicted
for; a share of 0, 20 and 40 % of each window are rows of the other half of the classes that are
predicted as that class.
"""

from __future__ import annotations

import argparse

import numpy as np

import feature_sets
from calibration import learned, subset
from fecam.service.drift import MIN_ALARM, WINDOW, DriftMonitor
from reporting import markdown, say, write
from stamps import CLASSIFIER

N_WINDOWS = 200
MIN_ROWS = 10
"""Rows of a class, below which it is left out: their share above the threshold is not known."""
FOREIGN = (0.0, 0.2, 0.4)


def share_of_alarms(
    known: np.ndarray, foreign: np.ndarray, share: float, rng: np.random.Generator
) -> float:
    """Return the share of windows with an alarm; ``known`` and ``foreign`` are novelties."""
    n_foreign = round(share * WINDOW)
    drawn = [
        np.concatenate([rng.choice(known, WINDOW - n_foreign), rng.choice(foreign, n_foreign)])
        for _ in range(N_WINDOWS)
    ]
    results = DriftMonitor().observe(["class"] * (WINDOW * N_WINDOWS), np.concatenate(drawn))
    return float(np.mean([window.alarm for window in results]))


def measure(name: str) -> dict[str, object]:
    """Return the shares of alarms of one set."""
    X, y, X_test, y_test = subset(feature_sets.load(name), 100)
    rng = np.random.default_rng(0)
    order = rng.permutation(np.unique(y))[: len(np.unique(y)) // 2]
    rows = np.isin(y, order)
    clf = learned(X[rows], y[rows], order, 10)
    novelty, predicted = np.asarray(clf.novelty(X_test)), clf.predict(X_test)
    is_known = np.isin(y_test, order)
    above, alarms = [], []
    for label in order:
        own, foreign = (
            novelty[(predicted == label) & (is_known == kind)] for kind in (True, False)
        )
        if len(own) >= MIN_ROWS and len(foreign):
            above.append(float(np.mean(own > 1.6449)))
            alarms.append([share_of_alarms(own, foreign, share, rng) for share in FOREIGN])
    shares = np.mean(alarms, axis=0)
    quiet = [row[0] for row, share in zip(alarms, above, strict=True) if share <= 0.1]
    return {
        "set": name,
        "classes": len(above),
        "above": float(np.mean(above)),
        "classes above a tenth": sum(share > 0.1 for share in above),
        "false": float(np.mean(quiet)),
        "false, all": float(shares[0]),
        "found": shares[1:].tolist(),
    }


def main() -> None:
    """Measure, print a table, write results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", metavar="SET")
    arguments = parser.parse_args()
    records = []
    for name in arguments.sets or feature_sets.NAMES:
        records.append(measure(name))
        say(str(records[-1]))
    header = [
        "features", "classes", "items above the 5 % point", "classes with more than 10 %",
        "false alarms, other classes", "false alarms, all classes",
        *(f"alarms at {share:.0%} foreign items" for share in FOREIGN[1:]),
    ]  # fmt: skip
    table = markdown(
        header,
        [
            [
                str(r["set"]), str(r["classes"]), f"{r['above']:.1%}",
                str(r["classes above a tenth"]), f"{r['false']:.2%}", f"{r['false, all']:.1%}",
                *(f"{share:.0%}" for share in r["found"]),
            ]
            for r in records
        ],
    )  # fmt: skip
    print(f"{MIN_ALARM} of {WINDOW} give an alarm\n{table}")
    if not arguments.sets:
        measures = (*CLASSIFIER, "src/fecam/service/drift.py")
        write("drift", table, {"records": records}, measures=measures)


if __name__ == "__main__":
    main()
