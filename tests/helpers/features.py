"""Random features shaped like those of real encoders."""

import numpy as np


def relu_features(n_classes, per_class, width, seed, *, dead=0):
    """Features as a ReLU leaves them: not negative, sparse, correlated, differing in spread.

    ``dead`` features are zero for every sample, as happens in trained networks.
    """
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(width, width)) * np.linspace(1.0, 0.05, width)[:, None]
    X, y = [], []
    for label in range(n_classes):
        centre = 0.5 + rng.normal(size=width) * 0.5
        spread = rng.uniform(0.3, 1.0, size=width)
        rows = centre + (rng.normal(size=(per_class, width)) * spread) @ mixing / width**0.5
        loudness = rng.uniform(0.6, 1.4, size=(per_class, 1))  # some images excite every feature
        X.append(np.maximum(rows * loudness, 0))
        y.append(np.full(per_class, label))
    X, y = np.concatenate(X).astype(np.float32), np.concatenate(y)
    X[:, :dead] = 0
    return X, y


def signed_features(n_classes, per_class, width, seed):
    """Features of a transformer: signed, correlated, with an offset."""
    X, y = relu_features(n_classes, per_class, width, seed)
    rng = np.random.default_rng(seed + 1)
    return (X - 0.4 + 0.2 * rng.normal(size=X.shape)).astype(np.float32), y
