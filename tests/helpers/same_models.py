"""Whether two models are the same, to the bit."""

from __future__ import annotations

import numpy as np

from helpers.features import relu_features

X, Y = relu_features(3, 12, 6, 0)


def _numbers(scatter):
    return None if scatter is None else scatter.numbers


def arrays_of(clf):
    """Everything that was learnt, as bytes and plain numbers."""
    return {
        label: [
            (one.count, one.visits, one.sampled, clf.knowledge_.tasks[label]),
            *(
                None if x is None else (str(x.dtype), x.shape, x.tobytes())
                for x in (one.raw_mean, one.mean, *map(_numbers, (one.scatter, one.averaged)))
            ),
        ]
        for label, one in clf.knowledge_.classes.items()
    }


def assert_same(a, b, queries=X):
    """The same settings, statistics and answers, to the bit."""
    assert a.get_params() == b.get_params()
    assert a.knowledge_.transform == b.knowledge_.transform
    assert (a.knowledge_.form, a.n_features_in_) == (b.knowledge_.form, b.n_features_in_)
    assert list(a.knowledge_.classes) == list(b.knowledge_.classes)
    assert arrays_of(a) == arrays_of(b)
    for ask in ("decision_function", "predict_proba", "novelty", "predict"):
        np.testing.assert_array_equal(getattr(a, ask)(queries), getattr(b, ask)(queries))
