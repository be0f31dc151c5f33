"""Random covariance matrices."""

import numpy as np


def random_matrix(seed, n_features=8, rank=None, zeros=0):
    """A covariance of this rank, whose first features may be zero."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(rank or 2 * n_features, n_features)) * rng.uniform(0.2, 2, n_features)
    rows[:, :zeros] = 0
    return rows.T @ rows / len(rows)
