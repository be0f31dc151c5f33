"""Whether two models are the same, to the bit."""

from __future__ import annotations

import numpy as np

from helpers.features import relu_features

X, Y = relu_features(3, 12, 6, 0)


def arrays_of(clf):
    """Everything that was learned, as bytes and plain numbers."""

    def content(x):
        return None if x is None else (str(x.dtype), x.shape, x.tobytes())

    def scatter_content(scatter):
        return None if scatter is None else (scatter.storage, content(scatter.data))

    return {
        label: [
            (stats.count, stats.n_batches, stats.distance_moments, clf.state_.tasks[label]),
            *map(content, (stats.raw_mean, stats.mean)),
            *map(scatter_content, (stats.scatter, stats.domain_mean_covariance)),
        ]
        for label, stats in clf.state_.classes.items()
    }


def assert_same(a, b, queries=X):
    """The same settings, statistics and answers, to the bit."""
    assert a.get_params() == b.get_params()
    assert a.state_.transform == b.state_.transform
    assert (a.state_.scatter_kind, a.n_features_in_) == (b.state_.scatter_kind, b.n_features_in_)
    assert list(a.state_.classes) == list(b.state_.classes)
    assert arrays_of(a) == arrays_of(b)
    for ask in ("decision_function", "predict_proba", "novelty", "predict"):
        np.testing.assert_array_equal(getattr(a, ask)(queries), getattr(b, ask)(queries))
