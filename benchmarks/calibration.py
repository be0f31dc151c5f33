"""Whether probabilities and novelty can be trusted: calibration error, AUROC, rejected samples.

    python benchmarks/calibration.py [SET ...] [--classes N] [--lessons N] [--splits N ...]

Frozen features (see feature_sets.py; by default all that any machine can get, and ``cifar100``
where FECAM_CIFAR100 is set) in three streams: all samples, class sizes falling to one twentieth,
and two fifths of the classes with five samples. One class in five is held out. The others are
learned in ten batches of classes. Then follow

- the expected calibration error of `predict_proba` on test samples of learned classes,
- the AUROC of `novelty` against test samples of held-out classes,
- the share of the former that ``predict(reject=0.05)`` rejects.

Beside them are the values of the former definitions (softmax of squared distances with a
temperature from their variance; log-normal novelty of the nearest class), from the same models, and
the AUROC of three other scores: the distance to the k-th nearest stored sample (best k of 1, 5, 20,
50), the relative Mahalanobis distance, and minus the largest probability.

A split is a seed: it decides which classes are taken, which of them are held out, their order, and
the rows of the streams. The first table is of split 0, on which constants of the library were
chosen. ``--splits 1 2 3`` writes the second one, of other splits: mean and range over them. It has
the calibration error that exact probabilities would have, because a bin has few samples.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular
from scipy.spatial.distance import cdist
from scipy.special import softmax
from sklearn.covariance import shrunk_covariance
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

import feature_sets
from default_quality import calibration_error, rows_of_stream
from fecam import FeCAMClassifier
from fecam.core.lognormal import novelty_zscore, relative_variance
from fecam.core.temperature import REFERENCE_REL_VARIANCE
from reporting import markdown, say, write
from stamps import CLASSIFIER

STREAMS = ("balanced", "imbalanced 20:1", "5-shot new classes")
MAX_SPLITS = {"cifar100": 1}
"""Number of splits of sets that take minutes each."""
DRAWS = 20
"""Number of draws of outcomes whose probabilities are exact."""
Data = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def learned(X: np.ndarray, y: np.ndarray, order: np.ndarray, lessons: int) -> FeCAMClassifier:
    """Return a default classifier that learned the classes in batches."""
    clf = FeCAMClassifier()
    for labels in np.array_split(order, min(lessons, len(order))):
        rows = np.isin(y, labels)
        clf.partial_fit(X[rows], y[rows])
    return clf


def former(clf: FeCAMClassifier, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities and novelty by the former definitions."""
    distances = -np.asarray(clf.decision_function(X), np.float64)
    expected = np.asarray(clf.predictor_.expected_distances(range(len(clf.classes_))))
    variance = relative_variance(clf.state_.classes.values())
    usual = np.mean(clf.predictor_.expected_distances())
    temperature = usual * np.sqrt(variance * REFERENCE_REL_VARIANCE)
    nearest = distances.argmin(axis=1)
    novelty = novelty_zscore(distances.min(axis=1), expected[nearest], variance)
    return softmax(-distances / temperature, axis=1), np.asarray(novelty)


def nearest_neighbor_scores(clf: FeCAMClassifier, X: np.ndarray, X_test: np.ndarray) -> list[Any]:
    """Return the distances to the k-th nearest stored sample, for several k."""
    stored, queries = (np.asarray(clf.state_.transform(x), np.float32) for x in (X, X_test))
    k = [k for k in (1, 5, 20, 50) if k <= len(stored)]
    distances, _ = NearestNeighbors(n_neighbors=k[-1]).fit(stored).kneighbors(queries)
    return [distances[:, i - 1] for i in k]


def relative_mahalanobis(
    clf: FeCAMClassifier, X: np.ndarray, y: np.ndarray, X_test: np.ndarray
) -> np.ndarray:
    """Return the pooled distance to the nearest class minus that to all samples (Ren et al.)."""
    rows, queries = (np.asarray(clf.state_.transform(x), np.float64) for x in (X, X_test))
    labels, index = np.unique(y, return_inverse=True)
    means = np.stack([rows[index == i].mean(axis=0) for i in range(len(labels))])

    def squares(covariance: np.ndarray, centers: np.ndarray) -> np.ndarray:
        lower = np.linalg.cholesky(shrunk_covariance(covariance, 0.03))
        x, c = (solve_triangular(lower, z.T, lower=True).T for z in (queries, centers))
        return cdist(x, c, "sqeuclidean").min(axis=1)

    within = np.cov(rows - means[index], rowvar=False)
    mean = rows.mean(axis=0, keepdims=True)
    return squares(within, means) - squares(np.cov(rows, rowvar=False), mean)


def measure(
    data: Data, stream: str, lessons: int, split: int, *, others: bool = True
) -> dict[str, float]:
    """Return all values of one stream."""
    X, y, X_test, y_test = data
    order = np.random.default_rng(split).permutation(np.unique(y))
    held_out, order = order[::5], np.delete(order, np.s_[::5])
    rows = rows_of_stream(y, stream, split)
    rows = rows[~np.isin(y[rows], held_out)]
    X, y, known = X[rows], y[rows], ~np.isin(y_test, held_out)
    clf = learned(X, y, order, lessons)
    old_probabilities, old_novelty = former(clf, X_test)
    probabilities, novelty = clf.predict_proba(X_test), clf.novelty(X_test)
    right = clf.classes_[probabilities.argmax(axis=1)] == y_test
    confidence = probabilities.max(axis=1)[known]
    random = np.random.default_rng(split)
    drawn = [random.random(len(confidence)) < confidence for _ in range(DRAWS)]
    result = {
        "former ECE": calibration_error(old_probabilities.max(axis=1)[known], right[known]),
        "ECE": calibration_error(confidence, right[known]),
        "exact ECE": np.mean([calibration_error(confidence, outcomes) for outcomes in drawn]),
        "former AUROC": roc_auc_score(~known, old_novelty),
        "AUROC": roc_auc_score(~known, novelty),
        "former rejected": 100 * np.mean(old_novelty[known] > 1.6449),
        "rejected": 100 * np.mean(novelty[known] > 1.6449),
        "maximum probability": roc_auc_score(~known, -probabilities.max(axis=1)),
    }
    if others:
        stored = nearest_neighbor_scores(clf, X, X_test)
        relative = relative_mahalanobis(clf, X, y, X_test)
        result |= {
            "nearest neighbors": max(roc_auc_score(~known, score) for score in stored),
            "relative Mahalanobis": roc_auc_score(~known, relative),
        }
    return {name: float(value) for name, value in result.items()}


def subset(data: feature_sets.FeatureSet, most: int, split: int = 0) -> Data:
    """Return at most ``most`` classes of a set, chosen at random."""
    labels = np.random.default_rng(split).permutation(np.unique(data.y_train))[:most]
    train, test = np.isin(data.y_train, labels), np.isin(data.y_test, labels)
    return data.X_train[train], data.y_train[train], data.X_test[test], data.y_test[test]


COLUMNS = {
    "former ECE": ".3f",
    "ECE": ".3f",
    "former rejected": ".1f",
    "rejected": ".1f",
    "former AUROC": ".3f",
    "AUROC": ".3f",
    "nearest neighbors": ".3f",
    "relative Mahalanobis": ".3f",
    "maximum probability": ".3f",
}
OTHER_SCORES = ("nearest neighbors", "relative Mahalanobis", "maximum probability")


def table_of_one(records: list[dict[str, Any]]) -> str:
    """Return all columns of a single split."""
    names = [name.replace("rejected", "rejected, %") for name in COLUMNS]
    return markdown(
        ["features", "stream", *names],
        [
            [str(r["set"]), str(r["stream"]), *(f"{r[c]:{form}}" for c, form in COLUMNS.items())]
            for r in records
        ],
    )


def table_of_many(records: list[dict[str, Any]]) -> str:
    """Return the mean and the range of the values over splits."""

    def cell(values: list[float], form: str) -> str:
        low, high = min(values), max(values)
        return f"{np.mean(values):{form}} ({low:{form}} to {high:{form}})"

    rows = []
    for name, stream in dict.fromkeys((r["set"], r["stream"]) for r in records):
        chosen = [r for r in records if (r["set"], r["stream"]) == (name, stream)]
        for r in chosen:
            r["best other AUROC"] = max(r[score] for score in OTHER_SCORES)
        columns = {
            "ECE": ".3f",
            "exact ECE": ".3f",
            "rejected": ".1f",
            "AUROC": ".3f",
            "best other AUROC": ".3f",
        }
        values = [cell([r[column] for r in chosen], form) for column, form in columns.items()]
        rows.append([name, stream, str(len(chosen)), *values])
    header = ["ECE", "ECE of exact probabilities", "rejected, %", "AUROC", "best other AUROC"]
    return markdown(["features", "stream", "splits", *header], rows)


def main() -> None:
    """Measure, print a table, write results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", metavar="SET")
    parser.add_argument("--classes", type=int, default=50, help="at most (default 50)")
    parser.add_argument("--lessons", type=int, default=10, help="batches of classes (default 10)")
    parser.add_argument("--splits", type=int, nargs="+", default=[0], help="seeds (default 0)")
    arguments = parser.parse_args()
    records = []
    photographs = ["cifar100"] if "FECAM_CIFAR100" in os.environ else []
    for name in arguments.sets or [*feature_sets.NAMES, *photographs]:
        features = feature_sets.load(name)
        for stream in STREAMS:
            for split in arguments.splits[: MAX_SPLITS.get(name)]:
                data = subset(features, arguments.classes, split)
                records.append({"set": name, "stream": stream, "split": split})
                records[-1] |= measure(data, stream, arguments.lessons, split)
                say(str(records[-1]))
    is_first = arguments.splits == [0]
    table = (table_of_one if is_first else table_of_many)(records)
    print(table)
    if not arguments.sets:
        name = "calibration" if is_first else "calibration_splits"
        write(name, table, {"records": records}, measures=CLASSIFIER)


if __name__ == "__main__":
    main()
