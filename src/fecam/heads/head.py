"""What all heads share: input that is checked first, knowledge that is replaced as a whole.

A head says what it keeps of a task (`_learn`), what follows from that (`_derive`) and how it scores
a sample (`_score`). Like FeCAM's, its knowledge is immutable: a call that fails changes nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import validate_data

from fecam.core.arrays import Array, to_backend_of, to_numpy
from fecam.core.transforms import Transform
from fecam.errors import InputError, SettingsError
from fecam.inputs import check_features, check_labels, check_range, kind_of

Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]
Labels = np.ndarray[Any, Any]
K = TypeVar("K")
"""What a head knows: a value that holds all of it, in arrays."""


class Head(ClassifierMixin, BaseEstimator, Generic[K]):
    """A classifier on features that learns task by task. One call of `partial_fit` is one task."""

    n_features_in_: int
    """How many features a sample has."""

    _fixed: ClassVar[tuple[str, ...]] = ()
    """Parameters that what was learnt depends on."""

    # ------------------------------------------------------------------ what a head fills in

    def _check_settings(self) -> None:
        """Refuse parameters that cannot be."""

    @abstractmethod
    def _learn(self, before: K | None, X: Floats, y: Labels) -> K:
        """What is known after one more task."""

    def _labels(self, known: Any) -> Labels:
        """The labels in what is known, sorted."""
        labels: Labels = known.labels
        return labels

    def _derive(self, known: K) -> Any:
        """What `_score` needs, made once for what is known."""
        return known

    @abstractmethod
    def _score(self, derived: Any, X: Floats) -> Floats:
        """How near each sample is to each class."""

    # ------------------------------------------------------------------ learning

    def fit(self, X: Any, y: Any) -> Self:
        """Forget everything and learn this task."""
        return self._teach(X, y, None)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn one more task; new labels may come at any call.

        ``classes`` is accepted because scikit-learn's tools pass it; nothing has to be declared.
        """
        return self._teach(X, y, self._known)

    def _teach(self, X: Any, y: Any, before: K | None) -> Self:
        self._check_settings()
        array = check_features(X)
        labels = check_labels(y, array.shape[0])
        if before is not None:
            self._check_fixed()
            validate_data(self, X=X, reset=False, skip_check_array=True)
            self._check_kind(labels, before)
        after = self._learn(before, _numbers(array), labels)
        if before is None:
            validate_data(self, X=X, reset=True, skip_check_array=True)
            self._settings = {name: getattr(self, name) for name in self._fixed}
        return self._hold(after)

    def _combine(self, other: Self, combine: Any) -> Self:
        """Add what another head was taught: the common part of every `merge`."""
        if type(other) is not type(self):
            raise TypeError(
                f"merge takes another {type(self).__name__}, not {type(other).__name__}."
            )
        theirs = other._known
        if theirs is None:
            return self
        here, there = self.get_params(), other.get_params()
        if different := [name for name in here if here[name] != there[name]]:
            name = different[0]
            raise SettingsError(
                f"cannot merge heads with different settings: {name}={here[name]!r} here, "
                f"{name}={there[name]!r} there. Teach one of them anew."
            )
        ours = self._known
        if ours is None:
            self._settings, self.n_features_in_ = other._settings, other.n_features_in_
            return self._hold(theirs)
        if self.n_features_in_ != other.n_features_in_:
            raise InputError(
                f"cannot merge heads of {self.n_features_in_} and {other.n_features_in_} features. "
                "Use the same encoder."
            )
        self._check_kind(self._labels(theirs), ours)
        return self._hold(combine(ours, theirs))

    def _hold(self, known: K) -> Self:
        self._taught = known
        self._made: list[Any] = []  # what was derived, and from what
        return self

    # ------------------------------------------------------------------ answering

    @property
    def classes_(self) -> Labels:
        """The labels taught so far, sorted."""
        return self._labels(self.state_)

    @property
    def state_(self) -> K:
        """All that is kept between tasks, as one value."""
        known = self._known
        if known is None:
            raise NotFittedError(
                f"This {type(self).__name__} knows no class yet: call partial_fit(X, y) first."
            )
        return known

    def predict(self, X: Any) -> Any:
        """The nearest class of each sample."""
        array = self._checked(X)
        labels = self.classes_[self._scores(array).argmax(axis=1)]
        return to_backend_of(labels, array) if kind_of(labels) == "integers" else labels

    def decision_function(self, X: Any) -> Any:
        """How near each sample is to each class, (n, n_classes), also for two classes."""
        array = self._checked(X)
        return to_backend_of(self._scores(array), array)

    def _checked(self, X: Any) -> Array:
        _ = self.state_  # before anything is said about X
        self._check_settings()
        self._check_fixed()
        array = check_features(X)
        validate_data(self, X=X, reset=False, skip_check_array=True)
        return array

    def _scores(self, array: Array) -> Floats:
        return self._score(self._derived, np.asarray(_numbers(array), np.float64))

    @property
    def _derived(self) -> Any:
        """Made anew when the knowledge is another, or a setting."""
        known, settings = self.state_, self.get_params()
        made = self._made
        if not made or made[0] is not known or made[1] != settings:
            made[:] = known, settings, self._derive(known)
        return made[2]

    # ------------------------------------------------------------------ state

    @property
    def _known(self) -> K | None:
        return self.__dict__.get("_taught")

    def __sklearn_is_fitted__(self) -> bool:
        return self._known is not None

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if "_made" in state:
            state["_made"] = []  # derived again where it is needed
        return state

    def _check_fixed(self) -> None:
        for name, value in self._settings.items():
            if getattr(self, name) != value:
                raise SettingsError(
                    f"{name}={getattr(self, name)!r} cannot be set any more: what was learnt was "
                    f"learnt with {name}={value!r}. Teach a new head."
                )

    def _check_kind(self, labels: Labels, known: K) -> None:
        taught = self._labels(known)
        if kind_of(taught) != kind_of(labels):
            raise InputError(
                f"y has {kind_of(labels)} ({labels.tolist()[0]!r}, ...) but the head was taught "
                f"with {kind_of(taught)} ({taught.tolist()[0]!r}, ...). "
                "Use one kind of label throughout."
            )


def _numbers(array: Array) -> Floats:
    numbers: Floats = to_numpy(array)
    check_range(numbers, Transform(None, unit=False), np.float64)
    return numbers


def softmax(scores: Floats) -> Floats:
    """Rows of scores as probabilities."""
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances: Floats = weights / weights.sum(axis=1, keepdims=True)
    return chances
