"""Softmax of distances: probabilities of the classes of a sample."""

from __future__ import annotations

from fecam.core.arrays import Array, namespace

SOFTMAX_CUTOFF = 5.0
"""Difference to the nearest class, in temperatures, beyond which the probability is zero.

The ratio of the probabilities is 1/148 there."""


def softmax_logits(distances: Array, temperature: float) -> Array:
    """Return the logarithm of unnormalized probabilities from squared distances, at most zero."""
    xp = namespace(distances)
    return -xp.sqrt(xp.maximum(distances, xp.zeros_like(distances))) / temperature


def log_softmax(logits: Array) -> Array:
    """Return normalized log-probabilities per row.

    >>> import numpy as np
    >>> log_softmax(np.log([[1.0, 3.0]])).round(3).tolist()
    [[-1.386, -0.288]]
    """
    xp = namespace(logits)
    shifted = logits - xp.max(logits, axis=1, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=1, keepdims=True))


def softmax_numerators(distances: Array, temperature: float) -> Array:
    """Return unnormalized probabilities per row: 1 for the nearest class, 0 beyond the cutoff.

    >>> import numpy as np
    >>> softmax_numerators(np.array([[9.0, 1.0, 2.25, np.inf]]), 0.25).round(3).tolist()
    [[0.0, 1.0, 0.135, 0.0]]
    """
    xp = namespace(distances)
    logits = softmax_logits(distances, temperature)
    excess = xp.max(logits, axis=1, keepdims=True) - logits
    return xp.exp(-excess) * xp.astype(excess <= SOFTMAX_CUTOFF, distances.dtype)


def softmax_sum(distances: Array, temperature: float) -> Array:
    """Return the sum of the softmax numerators per row; zero without a temperature."""
    xp = namespace(distances)
    if not temperature:
        return xp.zeros_like(distances[:, 0])  # a pruned class has an infinite distance
    return xp.sum(softmax_numerators(distances, temperature), axis=1)
