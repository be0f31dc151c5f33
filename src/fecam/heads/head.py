"""Base classes of the heads: input checks, immutable state, merging.

A subclass defines the state after one more task, the values derived from it (`_derive`) and the
scores of samples (`_score`). A call replaces the state as a whole, so a call that raises changes
nothing.
"""

from abc import abstractmethod
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import validate_data

from fecam.core.arrays import Array, to_backend_of, to_numpy
from fecam.core.transforms import Transform
from fecam.errors import InputError, SettingsError
from fecam.inputs import check_features, check_labels, check_range, kind_of
from fecam.labels import check_same_kind

Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]
Labels = np.ndarray[Any, Any]
S = TypeVar("S")
"""State of a head: an immutable value that holds all its arrays."""


class Head(ClassifierMixin, BaseEstimator, Generic[S]):
    """A classifier on features that learns task by task; one call of `partial_fit` is one task.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels learned so far, sorted.
    state_ : object
        All values that are stored between tasks.
    n_features_in_ : int
        Number of features.
    """

    n_features_in_: int
    _fixed: ClassVar[tuple[str, ...]] = ()
    """Parameters that cannot change after the first task, because the state depends on them."""
    _state: S | None = None

    def _check_settings(self) -> None:
        """Raise for invalid parameters."""

    @abstractmethod
    def _learn(self, state: S | None, X: Floats, y: Labels) -> S:
        """Return the state after one more task."""

    def _labels(self, state: Any) -> Labels:
        """Return the sorted labels of a state."""
        labels: Labels = state.labels
        return labels

    def _derive(self, state: S) -> Any:
        """Return what `_score` needs; computed once per state."""
        return state

    @abstractmethod
    def _score(self, derived: Any, X: Floats) -> Floats:
        """Return the scores of samples, shape (n_samples, n_classes)."""

    # ------------------------------------------------------------------ learning

    def fit(self, X: Any, y: Any) -> Self:
        """Learn this task only; earlier tasks are discarded."""
        return self._update(X, y, None)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn one more task; labels may be new. scikit-learn may pass ``classes``: ignored."""
        return self._update(X, y, self._state)

    def _update(self, X: Any, y: Any, state: S | None) -> Self:
        self._check_settings()
        array = check_features(X)
        labels = check_labels(y, array.shape[0])
        if state is not None:
            self._check_fixed()
            validate_data(self, X=X, reset=False, skip_check_array=True)
            self._check_kind(labels, state)
        state_after = self._learn(state, _to_floats(array), labels)
        if state is None:
            validate_data(self, X=X, reset=True, skip_check_array=True)
            self._settings = {name: getattr(self, name) for name in self._fixed}
        return self._set_state(state_after)

    def _set_state(self, state: S) -> Self:
        self._state = state
        self._cache: list[Any] = []  # mutated in place: `predict` must not assign attributes
        return self

    # ------------------------------------------------------------------ prediction

    @property
    def classes_(self) -> Labels:
        """Labels learned so far, sorted."""
        return self._labels(self.state_)

    @property
    def state_(self) -> S:
        """All values that are stored between tasks."""
        if self._state is None:
            raise NotFittedError(
                f"This {type(self).__name__} has no classes yet: call partial_fit(X, y) first."
            )
        return self._state

    def predict(self, X: Any) -> Any:
        """Return the class with the highest score of each sample."""
        array = self._checked(X)
        labels = self.classes_[self._scores(array).argmax(axis=1)]
        return labels if kind_of(labels) == "strings" else to_backend_of(labels, array)

    def decision_function(self, X: Any) -> Any:
        """Return the scores, (n_samples, n_classes), also for two classes."""
        array = self._checked(X)
        return to_backend_of(self._scores(array), array)

    def _softmax(self, X: Any) -> Any:
        array = self._checked(X)
        return to_backend_of(softmax(self._scores(array), axis=1), array)

    def _checked(self, X: Any) -> Array:
        _ = self.state_  # raises before X is checked
        self._check_settings()
        self._check_fixed()
        array = check_features(X)
        validate_data(self, X=X, reset=False, skip_check_array=True)
        return array

    def _scores(self, array: Array) -> Floats:
        """Return the scores; derived values are cached for the same state and parameters."""
        state, params, cache = self.state_, self.get_params(), self._cache
        if not cache or cache[0] is not state or cache[1] != params:
            cache[:] = state, params, self._derive(state)
        return self._score(cache[2], np.asarray(_to_floats(array), np.float64))

    def __sklearn_is_fitted__(self) -> bool:
        return self._state is not None

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        return {**state, "_cache": []} if "_cache" in state else state

    def _check_fixed(self) -> None:
        for name, value in self._settings.items():
            if getattr(self, name) != value:
                raise SettingsError(
                    f"{name}={getattr(self, name)!r} cannot be changed after learning with "
                    f"{name}={value!r}. Create a new head."
                )

    def _check_kind(self, labels: Labels, state: S) -> None:
        check_same_kind(labels[:1].tolist(), self._labels(state)[:1].tolist(), "head")


class MergeableHead(Head[S]):
    """A head whose state is a sum over tasks, so that two heads can be merged exactly."""

    @abstractmethod
    def _summarize(self, X: Floats, y: Labels, state: S | None) -> S:
        """Return the state of one task; ``state`` has the choices made at the first task."""

    @abstractmethod
    def _add(self, a: S, b: S) -> S:
        """Return the state of both."""

    def _learn(self, state: S | None, X: Floats, y: Labels) -> S:
        task = self._summarize(X, y, state)
        return task if state is None else self._add(state, task)

    def merge(self, other: Self) -> Self:
        """Add all tasks of another head, exactly as if this one had learned them."""
        if type(other) is not type(self):
            raise TypeError(
                f"merge takes another {type(self).__name__}, not {type(other).__name__}."
            )
        if other._state is None:
            return self
        ours, theirs = self.get_params(), other.get_params()
        for name, value in ours.items():
            if value != theirs[name]:
                raise SettingsError(
                    f"cannot merge heads with different parameters: {name}={value!r} and "
                    f"{name}={theirs[name]!r}. Use the same parameters for both."
                )
        if self._state is None:
            self._settings, self.n_features_in_ = other._settings, other.n_features_in_
            return self._set_state(other._state)
        if self.n_features_in_ != other.n_features_in_:
            raise InputError(
                f"cannot merge heads of {self.n_features_in_} and {other.n_features_in_} features. "
                "Use the same encoder."
            )
        self._check_kind(other.classes_, self._state)
        return self._set_state(self._add(self._state, other._state))


def _to_floats(array: Array) -> Floats:
    values: Floats = to_numpy(array)
    check_range(values, Transform(None, unit=False), np.float64)
    return values
