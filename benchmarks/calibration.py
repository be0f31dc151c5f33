"""Whether probabilities and novelty can be trusted: calibration error, AUROC, rejected samples.

    python benchmarks/calibration.py [SET ...] [--classes N] [--lessons N]

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
from fecam.core.calibration import REFERENCE_REL_VARIANCE, novelty_zscore, relative_variance
from reporting import markdown, say, write
from stamps import CLASSIFIER

STREAMS = ("balanced", "imbalanced 20:1", "5-shot new classes")
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


def measure(data: Data, stream: str, lessons: int, *, others: bool = True) -> dict[str, float]:
    """Return all values of one stream."""
    X, y, X_test, y_test = data
    order = np.random.default_rng(0).permutation(np.unique(y))
    held_out, order = order[::5], np.delete(order, np.s_[::5])
    rows = rows_of_stream(y, stream, 0)
    rows = rows[~np.isin(y[rows], held_out)]
    X, y, known = X[rows], y[rows], ~np.isin(y_test, held_out)
    clf = learned(X, y, order, lessons)
    old_probabilities, old_novelty = former(clf, X_test)
    probabilities, novelty = clf.predict_proba(X_test), clf.novelty(X_test)
    right = clf.classes_[probabilities.argmax(axis=1)] == y_test
    result = {
        "former ECE": calibration_error(old_probabilities.max(axis=1)[known], right[known]),
        "ECE": calibration_error(probabilities.max(axis=1)[known], right[known]),
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


def subset(data: feature_sets.FeatureSet, most: int) -> Data:
    """Return at most ``most`` classes of a set, chosen at random."""
    labels = np.random.default_rng(0).permutation(np.unique(data.y_train))[:most]
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


def main() -> None:
    """Measure, print a table, write results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", metavar="SET")
    parser.add_argument("--classes", type=int, default=50, help="at most (default 50)")
    parser.add_argument("--lessons", type=int, default=10, help="batches of classes (default 10)")
    arguments = parser.parse_args()
    records = []
    photographs = ["cifar100"] if "FECAM_CIFAR100" in os.environ else []
    for name in arguments.sets or [*feature_sets.NAMES, *photographs]:
        data = subset(feature_sets.load(name), arguments.classes)
        for stream in STREAMS:
            records.append({"set": name, "stream": stream})
            records[-1] |= measure(data, stream, arguments.lessons)
            say(str(records[-1]))
    names = [name.replace("rejected", "rejected, %") for name in COLUMNS]
    table = markdown(
        ["features", "stream", *names],
        [
            [str(r["set"]), str(r["stream"]), *(f"{r[c]:{form}}" for c, form in COLUMNS.items())]
            for r in records
        ],
    )
    print(table)
    if not arguments.sets:
        write("calibration", table, {"records": records}, measures=CLASSIFIER)


if __name__ == "__main__":
    main()
