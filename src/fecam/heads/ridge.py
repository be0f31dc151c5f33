"""Ridge regression to class indicators, on features or on random projections (RanPAC)."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from fecam.core.arrays import row_slices
from fecam.errors import SettingsError
from fecam.heads.head import Floats, Labels, MergeableHead
from fecam.heads.moments import BLOCK_ROWS, Moments, add_moments, gram, moments_of
from fecam.validation import check_int, check_number

RIDGES = 10.0 ** np.arange(-8, 9)
"""Candidates for ``ridge="auto"``, as in RanPAC."""


@dataclass(frozen=True, slots=True, eq=False)
class RidgeState:
    """Moments of all samples, and the held-out errors of the candidates."""

    moments: Moments
    errors: Floats
    """Sum of squared errors over all held-out samples, for each of `RIDGES`."""

    @property
    def labels(self) -> Labels:
        """Labels, sorted."""
        return self.moments.labels


class Ridge(MergeableHead[RidgeState]):
    r"""Ridge regression to class indicators.

    The state is the Gram matrix :math:`G = \sum_i x_i x_i^T` (as scatter and means) and the class
    sums :math:`C`, so tasks add exactly. The weights are :math:`(G + \lambda I)^{-1} C`.

    Parameters
    ----------
    ridge : float or "auto"
        :math:`\lambda`. "auto" selects from 10^-8, ..., 10^8 by the squared error on a fifth of
        each task, predicted from the rest of the task. RanPAC uses the last task only; here the
        errors of all tasks are summed, so that their order does not matter.

    Attributes
    ----------
    ridge_ : float
        :math:`\lambda` in use.

    Examples
    --------
    >>> head = Ridge().partial_fit([[0.0, 1.0], [0.1, 1.0]], ["a", "a"])
    >>> head.partial_fit([[1.0, 0.0], [1.0, 0.1]], ["b", "b"]).predict([[0, 3.0], [3, 0]]).tolist()
    ['a', 'b']
    """

    def __init__(self, *, ridge: float | str = "auto") -> None:
        self.ridge = ridge

    def _check_settings(self) -> None:
        if not isinstance(self.ridge, str):
            check_number("ridge", self.ridge)
        elif self.ridge != "auto":
            raise SettingsError(f"ridge={self.ridge!r} must be 'auto' or a number >= 0.")

    def _expand(self, X: Floats) -> Floats:
        """Return the features of the regression."""
        return X

    def _summarize(self, X: Floats, y: Labels, state: RidgeState | None) -> RidgeState:
        return summarize_with_holdout(self._expand(X), y)

    def _add(self, a: RidgeState, b: RidgeState) -> RidgeState:
        return RidgeState(add_moments(a.moments, b.moments), a.errors + b.errors)

    @property
    def ridge_(self) -> float:
        r""":math:`\lambda` in use."""
        return select_ridge(self.state_) if self.ridge == "auto" else float(self.ridge)

    def _derive(self, state: RidgeState) -> Floats:
        return solve(gram(state.moments), self.ridge_, class_sums(state.moments))

    def _score(self, derived: Floats, X: Floats) -> Floats:
        return np.concatenate(
            [self._expand(X[block]) @ derived for block in row_slices(len(X), BLOCK_ROWS)]
        )


class RanPAC(Ridge):
    r"""Ridge regression on random features :math:`\max(x^T W, 0)` (McDonnell et al. 2023).

    W is Gaussian. It is computed from the seed and not stored.

    Parameters
    ----------
    projections : int
        Number of random features; 10,000 in the original. Time and memory grow quadratically.
    ridge : float or "auto"
        As in `Ridge`.
    seed : int
        Seed of W.

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
        return np.maximum(X @ random_projection(X.shape[1], self.projections, self.seed), 0)


@lru_cache(maxsize=4)
def random_projection(n_features: int, projections: int, seed: int) -> Floats:
    """Return the random matrix W of RanPAC."""
    matrix: Floats = np.random.default_rng(seed).normal(size=(n_features, projections))
    matrix.flags.writeable = False
    return matrix


def held_out_mask(y: Labels) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return a mask of the second of every five rows of each class.

    >>> held_out_mask(np.array([0, 1, 0, 0, 2, 2])).tolist()
    [False, False, True, False, False, True]
    """
    codes = np.unique(y, return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], codes[order])
    mask = np.empty(len(y), np.bool_)
    mask[order] = (np.arange(len(y)) - starts) % 5 == 1
    return mask


def summarize_with_holdout(X: Floats, y: Labels) -> RidgeState:
    """Return the moments of a task, and the error of each candidate on the held-out rows."""
    mask = held_out_mask(y)
    moments = moments_of(X[~mask], y[~mask])
    if not mask.any():
        return RidgeState(moments, np.zeros(len(RIDGES)))
    errors = held_out_errors(moments, X[~mask], y[~mask], X[mask], y[mask])
    return RidgeState(add_moments(moments, moments_of(X[mask], y[mask])), errors)


def held_out_errors(
    moments: Moments, X: Floats, y: Labels, test_X: Floats, test_y: Labels
) -> Floats:
    r"""Return the squared error of each of `RIDGES` on held-out samples.

    With fewer samples than features the kernel form is cheaper:
    :math:`h^T (X^T X + \lambda I)^{-1} X^T Y = h^T X^T (X X^T + \lambda I)^{-1} Y`.
    """
    matrix, right, left = gram(moments), class_sums(moments), test_X
    if len(X) < X.shape[1]:
        X = np.asarray(X, np.float64)
        indicators = np.where(y[:, None] == moments.labels, 1.0, 0.0)
        matrix, right, left = X @ X.T, indicators, test_X @ X.T
    targets = test_y[:, None] == moments.labels
    return np.array([np.sum((left @ solve(matrix, r, right) - targets) ** 2) for r in RIDGES])


def select_ridge(state: RidgeState) -> float:
    """Return the ridge with the least error; without held-out rows the mean eigenvalue of G."""
    if state.errors.any():
        return float(RIDGES[state.errors.argmin()])
    return float(np.trace(gram(state.moments)) / len(state.moments.scatter)) or 1.0


def class_sums(moments: Moments) -> Floats:
    """Return the sum of the samples of each class, one column per class."""
    sums: Floats = (moments.classes.means * moments.classes.counts[:, None]).T
    return sums


def solve(matrix: Floats, ridge: float, right: Floats) -> Floats:
    r"""Return :math:`(A + \lambda I)^{-1} B` for a positive semidefinite matrix A."""
    # A ridge below the rounding error of the matrix would leave it singular.
    rounding = len(matrix) * np.finfo(np.float64).eps * np.trace(matrix)
    shift = max(ridge, rounding, np.finfo(np.float64).tiny)
    factor = cho_factor(matrix + shift * np.eye(len(matrix)), overwrite_a=True)
    solution: Floats = cho_solve(factor, right)
    return solution
