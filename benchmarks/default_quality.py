"""What the default settings are worth: nearest mean, the paper's settings and the default.

    python benchmarks/default_quality.py [SET ...] [--novelty]

Frozen features of data that any machine can get (see feature_sets.py), each in three streams:
all classes with all samples; class sizes falling geometrically to one twentieth; and 60 % of the
classes with all samples, the others with five. Accuracy is on all test samples of all classes,
averaged over seeds. Then one class in five is held out, to measure how well `novelty` separates its
samples from those of learned classes, and whether `predict(reject=0.05)` rejects 5 % of the latter.
With ``--novelty``, only this second table is measured.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
from sklearn.metrics import roc_auc_score

import feature_sets
from fecam import FeCAMClassifier
from reporting import markdown, write
from stamps import CLASSIFIER

MOST_CLASSES = 50  # of the 160 glyphs and 345 drawings: what two cores do in minutes
SEEDS = (0, 1, 2)


def heads(signed: bool) -> dict[str, FeCAMClassifier]:
    """The three classifiers; the paper has settings of its own for signed features."""
    return {
        "nearest mean": FeCAMClassifier.from_preset("ncm"),
        "paper": FeCAMClassifier.from_preset("vit" if signed else "paper"),
        "default": FeCAMClassifier(),
    }


def few_classes(data: feature_sets.FeatureSet, seed: int) -> tuple[np.ndarray, ...]:
    """At most `MOST_CLASSES` classes of a set, chosen by the seed."""
    labels = np.random.default_rng(seed).permutation(np.unique(data.y_train))[:MOST_CLASSES]
    train, test = np.isin(data.y_train, labels), np.isin(data.y_test, labels)
    return data.X_train[train], data.y_train[train], data.X_test[test], data.y_test[test]


def rows_of_stream(y: np.ndarray, stream: str, seed: int) -> np.ndarray:
    """Which training rows a stream holds."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(np.unique(y))
    chosen = []
    for rank, label in enumerate(order):
        rows = rng.permutation(np.flatnonzero(y == label))
        size = len(rows)
        if stream == "imbalanced 20:1":
            size = max(1, round(len(rows) * 20 ** (-rank / (len(order) - 1))))
        elif stream == "5-shot new classes" and rank >= 0.6 * len(order):
            size = 5
        chosen.append(rows[:size])
    return np.concatenate(chosen)


def accuracy(name: str, stream: str, data: feature_sets.FeatureSet) -> dict[str, float]:
    """Accuracy of each head, in percent, averaged over seeds."""
    seeds = SEEDS[:1] if stream == "balanced" and name in ("digits", "texts") else SEEDS
    scores: dict[str, list[float]] = {}
    for seed in seeds:
        X, y, X_test, y_test = few_classes(data, seed)
        rows = rows_of_stream(y, stream, seed)
        for head, clf in heads(signed=bool(X.min() < 0)).items():
            score = clf.fit(X[rows], y[rows]).score(X_test, y_test)
            scores.setdefault(head, []).append(100 * score)
    return {head: float(np.mean(values)) for head, values in scores.items()}


def novelty(data: feature_sets.FeatureSet) -> dict[str, dict[str, float]]:
    """Return the AUROC against held-out classes, and the share of other samples rejected at 5 %."""
    X, y, X_test, y_test = few_classes(data, 0)
    held_out = np.random.default_rng(0).permutation(np.unique(y))[::5]
    known, familiar = ~np.isin(y, held_out), ~np.isin(y_test, held_out)
    result = {}
    for head, clf in heads(signed=bool(X.min() < 0)).items():
        scores = clf.fit(X[known], y[known]).novelty(X_test)
        confidence = clf.predict_proba(X_test[familiar])
        right = clf.classes_[confidence.argmax(axis=1)] == y_test[familiar]
        result[head] = {
            "auroc": float(roc_auc_score(~familiar, scores)),
            "rejected": 100 * float(np.mean(scores[familiar] > 1.6449)),
            "calibration_error": calibration_error(confidence.max(axis=1), right),
        }
    return result


def calibration_error(confidence: np.ndarray, right: np.ndarray, bins: int = 15) -> float:
    """The expected gap between confidence and accuracy."""
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [
        abs(right[which == b].mean() - confidence[which == b].mean()) * np.mean(which == b)
        for b in np.unique(which)
    ]
    return float(np.sum(gaps))


def main() -> None:
    """Measure, print two tables, write results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", default=feature_sets.NAMES, metavar="SET")
    parser.add_argument("--novelty", action="store_true", help="only the table of novelty")
    arguments = parser.parse_args()
    names = arguments.sets
    streams = () if arguments.novelty else ("balanced", "imbalanced 20:1", "5-shot new classes")
    start, done, total = time.perf_counter(), 0, len(names) * (len(streams) + 1)
    records: list[dict[str, object]] = []

    def progress(what: str) -> None:
        spent = time.perf_counter() - start
        left = f", about {spent / done * (total - done):.0f} s left" if done else ""
        print(f"[{done}/{total}] {what} ({spent:.0f} s so far{left})", file=sys.stderr)

    for name in names:
        data = feature_sets.load(name)
        for stream in streams:
            progress(f"{name}: {stream}")
            records.append({"set": name, "stream": stream, **accuracy(name, stream, data)})
            done += 1
        progress(f"{name}: novelty")
        records.append({"set": name, "novelty": novelty(data)})
        done += 1

    columns = ("nearest mean", "paper", "default")
    rows = [
        [str(r["set"]), str(r["stream"]), *(f"{r[c]:.1f}" for c in columns), f"{margin(r):+.1f}"]
        for r in records
        if "stream" in r
    ]
    table = markdown(["features", "stream", *columns, "default - best other"], rows)
    unknown = markdown(
        ["features", "head", "AUROC", "known classes rejected at 5 %", "calibration error"],
        [
            [
                str(r["set"]),
                head,
                f"{v['auroc']:.3f}",
                f"{v['rejected']:.1f} %",
                f"{v['calibration_error']:.3f}",
            ]
            for r in records
            if "novelty" in r
            for head, v in r["novelty"].items()  # type: ignore[attr-defined]
        ],
    )
    print(unknown if arguments.novelty else f"{table}\n\n{unknown}")
    if not arguments.novelty:
        write("default_quality", table, {"records": records}, measures=CLASSIFIER)
    write(
        "novelty", unknown, {"records": [r for r in records if "novelty" in r]}, measures=CLASSIFIER
    )


def margin(record: dict[str, object]) -> float:
    """How far the default lies above the better of the two others."""
    return float(record["default"]) - max(  # type: ignore[arg-type]
        float(record["nearest mean"]),  # type: ignore[arg-type]
        float(record["paper"]),  # type: ignore[arg-type]
    )


if __name__ == "__main__":
    main()
