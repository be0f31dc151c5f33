r"""Synthetic features with the spectrum of real ones: any number of classes, samples and features.

Nothing is downloaded or read. A handful of constants, `FITTED`, make them like the features that
EfficientNet-Lite0 gives of CIFAR-100; ``python benchmarks/synthetic_check.py`` holds both side by
side, and fits the constants anew with ``--refit``.

A sample :math:`i` is a rectified Gaussian vector, raised to a power:

.. math:: x = \mathrm{scale} \cdot \max(z, 0)^{p}, \qquad
          z = a + L\,(m_i + s_i\,D_i f_i) + \nu\,e_i, \qquad f_i, e_i \sim N(0, I)

:math:`a, L`
    an offset for each feature, so that some are nearly always silent and some never, and the
    loadings of all features on `FACTORS` factors.
:math:`m_i, D_i`
    the mean and the deviations of the factors, those of the sample's class but for what follows.
    Both fall like :math:`(1 + k/k_0)^{-\alpha}`: the means are drawn so, and each class rescales
    the deviations in its own way. Hence the classes' matrices have a pooled one, and differ from it
    in their principal directions.
:math:`s_i`
    log-normal, for heavy tails.

Classes come in families of `FAMILY`, of which a set of few classes has only some members each.
They share part of their mean and of their rescaling, some more and some less, so there are close
classes and remote ones. And samples are ambiguous: each resembles one sibling of its class by a
share :math:`u`, small for most and nearly 1 for some, :math:`m_i = (1 - u)\,m_c + u\,m_{c'}`, and
so for :math:`D_i`. That is why accuracy ends well below 100 % however many features there are, and
why the second nearest class is far for some queries and a toss-up for others.

A class follows from the seed, its label and the constants: the classes of a small set are the first
of a large one. A feature's offset and loadings follow from the seed and its position alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feature_sets import FeatureSet

FACTORS = 512
FAMILY = 10
# The streams of random numbers that spring from a seed.
_FEATURES, _FAMILY, _TRAIN, _TEST, _ORDER = range(5)


@dataclass(frozen=True)
class Shape:
    """The constants. The variances of a class's factors add up to 1; all else is relative to it."""

    offset: float
    """Mean of the features' offsets: the lower, the more exact zeros."""
    offset_spread: float
    """Their standard deviation."""
    decay: float
    """The exponent at which the deviations of the factors fall."""
    level: float
    """How many of them are about alike before they do."""
    noise: float
    """The deviation of what each feature has for itself."""
    between: float
    """The deviation of the class means, over all factors together."""
    between_decay: float
    """The exponent at which it falls from factor to factor."""
    between_level: float
    """How many factors are about alike before it does."""
    family: float
    """The share of its mean, and of its rescaling, that a class has from its family."""
    eccentricity: float
    """How different in that families and members are: the deviation of the logarithm."""
    rescaling: float
    """How much a class rescales each factor: the deviation of the logarithm."""
    ambiguity: float
    """How much of a sample is its sibling's, on average: a uniform number to a power."""
    tail: float
    """The deviation of the logarithm of a sample's scale."""
    power: float
    """What rectified values are raised to."""
    scale: float
    """What raw features are multiplied by; it has no effect at unit length."""


FITTED = Shape(
    offset=-0.0575,
    offset_spread=0.43,
    decay=0.704,
    level=22.3,
    noise=0.185,
    between=0.627,
    between_decay=0.734,
    between_level=32.0,
    family=0.297,
    eccentricity=0.489,
    rescaling=0.566,
    ambiguity=0.35,
    tail=0.157,
    power=1.95,
    scale=0.486,
)
"""Like CIFAR-100: chosen by hand to begin with, then four steps of the fit that
``python benchmarks/synthetic_check.py --refit`` goes on with, and rounded."""


def generate(
    classes: int,
    per_class: int,
    width: int,
    seed: int = 0,
    queries: int = 10,
    shape: Shape = FITTED,
) -> FeatureSet:
    """All classes at once, with ``per_class`` training and ``queries`` test samples of each."""

    def stacked(rows: int, test: bool) -> NDArray[np.float32]:
        X = np.empty((classes, rows, width), dtype=np.float32)
        for label, samples in generate_classes(classes, rows, width, seed, test=test, shape=shape):
            X[label] = samples
        return X.reshape(classes * rows, width)

    labels = np.arange(classes)
    return FeatureSet(
        name="synthetic",
        X_train=stacked(per_class, test=False),
        y_train=np.repeat(labels, per_class),
        X_test=stacked(queries, test=True),
        y_test=np.repeat(labels, queries),
        label_names=[str(label) for label in labels],
        description=f"Synthetic features with the spectrum of real ones, seed {seed}.",
    )


def generate_classes(
    classes: int,
    per_class: int,
    width: int,
    seed: int = 0,
    *,
    test: bool = False,
    shape: Shape = FITTED,
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield each label with its samples; only one class at a time is held in memory.

    With ``test`` they are other samples of the same classes: the queries.
    """
    rng = np.random.default_rng([seed, _FEATURES])
    # All that a feature has is one row, so that more features leave the first as they are.
    features = rng.standard_normal((width, 1 + FACTORS), dtype=np.float32)
    offset = shape.offset + shape.offset_spread * features[:, 0]
    loadings = np.ascontiguousarray(features[:, 1:].T)
    for label in range(classes):
        family, member = _family(seed, label)
        means, deviations = _members(seed, family, shape)
        rng = np.random.default_rng([seed, _TEST if test else _TRAIN, label])
        sibling = (member + rng.integers(1, FAMILY, per_class)) % FAMILY
        share = rng.random((per_class, 1), dtype=np.float32) ** (1 / shape.ambiguity - 1)
        scales = np.exp(shape.tail * rng.standard_normal((per_class, 1), dtype=np.float32))
        factors = deviations[member] + share * (deviations[sibling] - deviations[member])
        factors *= scales * rng.standard_normal((per_class, FACTORS), dtype=np.float32)
        factors += means[member] + share * (means[sibling] - means[member])
        z = factors @ loadings + offset
        z += shape.noise * rng.standard_normal((per_class, width), dtype=np.float32)
        yield label, shape.scale * np.maximum(z, 0) ** shape.power


def _family(seed: int, label: int) -> tuple[int, int]:
    """The family of a class, and which member it is: neighbours may be relatives, or not."""
    block, place = divmod(label, FAMILY**2)
    order = np.random.default_rng([seed, _ORDER, block]).permutation(FAMILY**2)
    family, member = divmod(int(order[place]), FAMILY)
    return block * FAMILY + family, member


def _members(
    seed: int, family: int, shape: Shape
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Means and deviations of the factors, one row for each class of a family."""
    rng = np.random.default_rng([seed, _FAMILY, family])
    # Each time two: for the mean, and for the rescaling of the deviations.
    common = rng.standard_normal((2, 1, FACTORS), dtype=np.float32)
    single = rng.standard_normal((2, FAMILY, FACTORS), dtype=np.float32)
    common *= np.exp(shape.eccentricity * rng.standard_normal(dtype=np.float32))
    single *= np.exp(shape.eccentricity * rng.standard_normal((FAMILY, 1), dtype=np.float32))
    place, habit = shape.family**0.5 * common + (1 - shape.family) ** 0.5 * single
    means = shape.between * _power_law(shape.between_decay, shape.between_level) * place
    deviations = _power_law(shape.decay, shape.level) * np.exp(shape.rescaling * habit)
    return means, deviations / np.linalg.norm(deviations, axis=1, keepdims=True)


def _power_law(exponent: float, level: float) -> NDArray[np.float32]:
    """Deviations of the factors, level at first and then a power; their squares add up to 1."""
    deviations = (1 + np.arange(FACTORS) / level) ** -exponent
    return (deviations / np.linalg.norm(deviations)).astype(np.float32)
