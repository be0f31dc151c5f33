"""Models and queries on which every search must agree: parameters, class sizes, close calls."""

import numpy as np

from fecam import FeCAMClassifier
from fecam.core.metric import class_covariance, distance_scale, prototype_of
from fecam.core.predictor import Predictor
from helpers.features import relu_features

SETTINGS = {
    "default": {},
    "paper": None,
    "few-shot": None,
    "vit": None,
    "official-resnet": None,
    "official-vit": None,
    "avalanche": None,
    "pooling 7": {"pooling": 7},
    "weak prior": {"pooling": 0.01},
    "strong prior": {"pooling": 1e4, "shrinkage": (0.3, 0.2)},
    "variance": {"normalization": "variance", "l2": None},
    "unnormalized": {"normalization": None, "pooling": 0, "shrinkage": (1, 1)},
    "unnormalized prior": {"normalization": None, "l2": "compare", "shrinkage": (0.1, 0)},
    "low floor": {"pooling": 0, "shrinkage": (0.02, 0.0)},
    "nonzero": {"pooling": 0, "shrinkage": (1, 1), "off_diagonal": "nonzero"},
    "float64": {"dtype": "float64"},
}
"""Parameters by name; None for a preset of that name."""


def make(name, **changes):
    """An unfitted classifier with one of the `SETTINGS`."""
    params = SETTINGS[name]
    if params is None:
        return FeCAMClassifier.from_preset(name, **changes)
    return FeCAMClassifier(**{**params, **changes})


def samples(counts, n_features=96, seed=0, lift=0.0):
    """Samples and labels, one class per count; a lift makes every sample longer than zero."""
    X, y = relu_features(len(counts), max(counts), n_features, seed)
    rows = [np.flatnonzero(y == label)[:count] for label, count in enumerate(counts)]
    rows = np.concatenate(rows)
    return X[rows] + np.float32(lift), y[rows]


def close_queries(X, n=60, seed=1):
    """Samples with noise, and midpoints between two samples, whose nearest classes are close."""
    rng = np.random.default_rng(seed)
    a, b = X[rng.integers(len(X), size=n)], X[rng.integers(len(X), size=n)]
    a[::2] = (a[::2] + b[::2]) / 2
    noise = rng.normal(size=a.shape) * 0.1 * np.abs(X).mean()
    return np.abs(a + noise).astype(X.dtype)


def exact_distances(clf, Q):
    """Distances in double precision through the inverse of each class's matrix."""
    predictor = Predictor(clf.state_, clf.metric_)
    state, metric = predictor.state, predictor.metric
    rows = clf._queries(Q, predictor).astype(np.float64)
    prior = predictor.prior if metric.has_prior else None
    columns = []
    for stats in state.classes.values():
        covariance = class_covariance(stats, metric, prior, predictor.fallback_variance)
        differences = rows - prototype_of(stats, metric, state.transform)
        squares = np.einsum("ni,ij,nj->n", differences, np.linalg.inv(covariance), differences)
        columns.append(squares * distance_scale(stats, metric))
    return np.stack(columns, axis=1)
