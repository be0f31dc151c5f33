"""Ridge regression to the classes, on features as they are or projected at random."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from fecam.core.arrays import row_slices
from fecam.errors import SettingsError
from fecam.heads.head import Floats, Head, Labels
from fecam.heads.moments import BLOCK_ROWS, Moments, add_moments, gram, moments_of
from fecam.validation import check_int, check_number

RIDGES = 10.0 ** np.arange(-8, 9)
"""The ridges that are tried, as in RanPAC."""


@dataclass(frozen=True, slots=True, eq=False)
class Regression:
    """The moments of all samples, and how well each ridge did on samples held out."""

    moments: Moments
    errors: Floats
    """The sum of squared errors over all samples that were held out, for each of `RIDGES`."""

    @property
    def labels(self) -> Labels:
        """The labels, sorted."""
        return self.moments.labels


class Ridge(Head[Regression]):
    r"""Ridge regression to the classes, one column a class.

    Kept are the Gram matrix :math:`G = \sum_i x_i x_i^T` (as a scatter and means) and the sums
    :math:`C` of each class, so tasks add up exactly; the weights are
    :math:`(G + \lambda I)^{-1} C`.

    Parameters
    ----------
    ridge : float or "auto"
        :math:`\lambda`. "auto" takes the one of 10^-8, ..., 10^8 with the least squared error on a
        fifth of each task, predicted from the rest of that task. RanPAC decides so by the last task
        alone; here the errors of all tasks are added up, so that their order does not matter.

    Examples
    --------
    >>> head = Ridge().partial_fit([[0.0, 1.0], [0.1, 1.0]], ["a", "a"])
    >>> head.partial_fit([[1.0, 0.0], [1.0, 0.1]], ["b", "b"]).predict([[0, 3.0], [3, 0]]).tolist()
    ['a', 'b']
    """

    def __init__(self, *, ridge: float | str = "auto") -> None:
        self.ridge = ridge

    def _check_settings(self) -> None:
        if isinstance(self.ridge, str):
            if self.ridge != "auto":
                raise SettingsError(f"ridge={self.ridge!r} must be 'auto' or a number >= 0.")
        else:
            check_number("ridge", self.ridge)

    def _expand(self, X: Floats) -> Floats:
        """The features that the regression is on."""
        return X

    def _learn(self, before: Regression | None, X: Floats, y: Labels) -> Regression:
        task = regression_of(self._expand(X), y)
        return task if before is None else add_regressions(before, task)

    def merge(self, other: Self) -> Self:
        """Add all that another head was taught, exactly as if it had been taught here."""
        return self._combine(other, add_regressions)

    @property
    def ridge_(self) -> float:
        """The ridge in use."""
        return chosen_ridge(self.state_) if self.ridge == "auto" else float(self.ridge)

    def _derive(self, known: Regression) -> Floats:
        return weights_of(known.moments, self.ridge_)

    def _score(self, derived: Floats, X: Floats) -> Floats:
        parts = [self._expand(X[some]) @ derived for some in row_slices(len(X), BLOCK_ROWS)]
        return np.concatenate(parts)


class RanPAC(Ridge):
    r"""Ridge regression on random features (McDonnell et al. 2023): :math:`\max(x^T W, 0)`.

    W is Gaussian, drawn once. It follows from the seed and is not kept.

    Parameters
    ----------
    projections : int
        How many random features. The original takes 10,000; time and memory grow with the square.
    ridge : float or "auto"
        As for `Ridge`.
    seed : int
        Of W.

    Examples
    --------
    >>> head = RanPAC(projections=50).partial_fit([[0.0, 1.0], [0.1, 1.0]], ["a", "a"])
    >>> head.partial_fit([[1.0, 0.0], [1.0, 0.1]], ["b", "b"]).predict([[0, 3.0], [3, 0]]).tolist()
    ['a', 'b']
    """

    _fixed = ("projections", "seed")

    def __init__(
        self, *, projections: int = 2000, ridge: float | str = "auto", seed: int = 0
    ) -> None:
        super().__init__(ridge=ridge)
        self.projections = projections
        self.seed = seed

    def _check_settings(self) -> None:
        super()._check_settings()
        check_int("projections", self.projections)
        check_int("seed", self.seed, minimum=0)

    def _expand(self, X: Floats) -> Floats:
        return np.maximum(X @ projection(X.shape[1], self.projections, self.seed), 0)


@lru_cache(maxsize=4)
def projection(width: int, projections: int, seed: int) -> Floats:
    """The random matrix of RanPAC."""
    matrix: Floats = np.random.default_rng(seed).normal(size=(width, projections))
    matrix.flags.writeable = False
    return matrix


def is_held_out(y: Labels) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """The second of every five rows of each class: one of two at least, none of one.

    >>> is_held_out(np.array([0, 1, 0, 0, 2, 2])).tolist()
    [False, False, True, False, False, True]
    """
    codes = np.unique(y, return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], codes[order])
    held = np.empty(len(y), np.bool_)
    held[order] = (np.arange(len(y)) - starts) % 5 == 1
    return held


def regression_of(X: Floats, y: Labels) -> Regression:
    """The moments of a task, and the errors of each ridge on the part of it that is held out."""
    held = is_held_out(y)
    rest = moments_of(X[~held], y[~held])
    if not held.any():
        return Regression(rest, np.zeros(len(RIDGES)))
    errors = held_out_errors(rest, X[~held], y[~held], X[held], y[held])
    return Regression(add_moments(rest, moments_of(X[held], y[held])), errors)


def held_out_errors(rest: Moments, X: Floats, y: Labels, held: Floats, held_y: Labels) -> Floats:
    r"""The squared error of each of `RIDGES` on samples held out, when the rest was learnt.

    With fewer samples than features the same predictions come cheaper out of the products of
    samples: :math:`h^T (X^T X + \lambda I)^{-1} X^T Y = h^T X^T (X X^T + \lambda I)^{-1} Y`.
    """
    matrix, right, left = gram(rest), sums_of(rest), held
    if len(X) < X.shape[1]:
        X = np.asarray(X, np.float64)
        matrix, right, left = X @ X.T, np.where(y[:, None] == rest.labels, 1.0, 0.0), held @ X.T
    targets = held_y[:, None] == rest.labels
    return np.array([np.sum((left @ solve(matrix, r, right) - targets) ** 2) for r in RIDGES])


def add_regressions(a: Regression, b: Regression) -> Regression:
    """What both were taught."""
    return Regression(add_moments(a.moments, b.moments), a.errors + b.errors)


def chosen_ridge(known: Regression) -> float:
    """The ridge with the least error; the mean eigenvalue of the Gram matrix if none was tried."""
    if known.errors.any():
        return float(RIDGES[known.errors.argmin()])
    return float(np.trace(gram(known.moments)) / len(known.moments.scatter)) or 1.0


def weights_of(moments: Moments, ridge: float) -> Floats:
    r""":math:`(G + \lambda I)^{-1} C`, one column a class."""
    return solve(gram(moments), ridge, sums_of(moments))


def sums_of(moments: Moments) -> Floats:
    """The sum of each class, one column a class."""
    sums: Floats = (moments.classes.means * moments.classes.counts[:, None]).T
    return sums


def solve(matrix: Floats, ridge: float, right: Floats) -> Floats:
    r""":math:`(A + \lambda I)^{-1} B` for a positive semidefinite matrix A."""
    # A ridge below the rounding of the matrix is none.
    least = len(matrix) * np.finfo(np.float64).eps * np.trace(matrix)
    raised = matrix + max(ridge, least, np.finfo(np.float64).tiny) * np.eye(len(matrix))
    solution: Floats = cho_solve(cho_factor(raised, overwrite_a=True), right)
    return solution
