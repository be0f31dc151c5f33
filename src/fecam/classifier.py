"""`FeCAMClassifier`: the method as a scikit-learn estimator that learns class by class."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from copy import copy as shallow_copy
from numbers import Real
from os import PathLike
from statistics import NormalDist
from typing import Any, NamedTuple, Self

import numpy as np
from array_api_compat import device
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import validate_data

from fecam.core.arrays import Array, namespace, to_backend_of, to_numpy
from fecam.core.batches import Rows, group_by_label, summarize_batch
from fecam.core.cache import FactorCache
from fecam.core.calibration import relative_variance, sample_distances, surprise, temperature
from fecam.core.metric import Metric
from fecam.core.panel import Found, likelihoods
from fecam.core.prior import Prior
from fecam.core.state import ClassifierState
from fecam.core.statistics import ClassStatistics
from fecam.core.transforms import Transform, unit_length
from fecam.errors import InputError, SettingsError
from fecam.inputs import check_features, check_labels, check_range, kind_of
from fecam.presets import preset
from fecam.settings import PARAMETERS, check_fits, read_metric


class Predictions(NamedTuple):
    """What a classifier makes of some samples, as NumPy arrays: (n, k) and for novelty (n,)."""

    labels: np.ndarray[Any, Any]
    """The nearest classes, nearest first."""
    distances: np.ndarray[Any, Any]
    """Squared."""
    probabilities: np.ndarray[Any, Any]
    """Among all classes that are likely."""
    novelty: np.ndarray[Any, Any]
    """See `FeCAMClassifier.novelty`."""


class FeCAMClassifier(ClassifierMixin, BaseEstimator):
    """Nearest class by Mahalanobis distance, taught one class after another.

    A class is kept as its count, its means and the scatter of its transformed features: sums, from
    which order and batches cannot be told. All that follows from them is derived when it is needed.

    Parameters
    ----------
    covariance : {"class", "common", "pooled", "diagonal", "identity"}
        One matrix a class (Eq. 10); the paper's common matrix (Eq. 6); the within-class pooled
        matrix; a class's variances; none, which is the nearest class mean. The last two keep less.
    tukey : float, "auto" or None
        The power of Eq. 9, 0 for the logarithm. "auto" decides at the first fit and keeps it: 0.5
        where no feature is negative, otherwise none.
    shrinkage : (float, float)
        The gammas of Eq. 8, for the diagonal and for all other entries.
    normalization : {"correlation", "variance", None}
        Eq. 7, or division by the norm of the diagonal. A matrix that all classes share needs none.
    pooling : float or "auto"
        How many samples the prior that pulls a class's matrix to the pooled one is worth.
    mean_uncertainty : float
        Squared distances are divided by 1 + this / n, as a prototype of n samples is uncertain.
    prototype : {"mean-of-transforms", "transform-of-mean"}
        Which prototype; the paper transforms the mean of the raw features.
    l2 : {"features", "compare", None}
        Where unit length comes in: transformed features before all statistics; query and prototype
        only when they are compared; nowhere.
    domains : {"pool", "average"}
        What a class that comes back does to its matrix: exact pooling, or the paper's average of
        the previous matrix and the one of this call.
    search : {"auto", "exhaustive", "exact", "approximate"}
        How the nearest class is found: by measuring every class; by proving that most cannot be
        nearest; by measuring only those that look near, which is faster still and nearly always
        the same. "auto" takes whichever of the first two is faster: their answers are the same.
    off_diagonal : {"all", "nonzero", "nonzero-twice"}
        Which entries the second mean of Eq. 8 is taken over; the public implementations leave out
        zeros, and two of them shrink twice.
    dtype : {"float32", "float64"}
        The precision in which matrices are kept. Means are always kept in double precision.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cats, dogs = rng.random((20, 8)), rng.random((20, 8)) + 1
    >>> clf = FeCAMClassifier()
    >>> clf.partial_fit(cats, ["cat"] * 20).partial_fit(dogs, ["dog"] * 20).classes_.tolist()
    ['cat', 'dog']
    >>> clf.forget("cat").classes_.tolist()
    ['dog']
    """

    n_features_in_: int
    """How many features a sample has."""
    feature_names_in_: np.ndarray[Any, Any]
    """The columns of the data frame it was taught with, if it was one."""

    def __init__(
        self,
        *,
        covariance: str = "class",
        tukey: float | str | None = "auto",
        shrinkage: tuple[float, float] = (1.0, 0.0),
        normalization: str | None = "correlation",
        pooling: float | str = "auto",
        mean_uncertainty: float = 1.0,
        prototype: str = "mean-of-transforms",
        l2: str | None = "features",
        domains: str = "pool",
        search: str = "auto",
        off_diagonal: str = "all",
        dtype: str = "float32",
    ) -> None:
        self.covariance = covariance
        self.tukey = tukey
        self.shrinkage = shrinkage
        self.normalization = normalization
        self.pooling = pooling
        self.mean_uncertainty = mean_uncertainty
        self.prototype = prototype
        self.l2 = l2
        self.domains = domains
        self.search = search
        self.off_diagonal = off_diagonal
        self.dtype = dtype

    @classmethod
    def from_preset(cls, name: str, **changes: Any) -> Self:
        """A classifier with the settings of the paper or of a public implementation.

        >>> FeCAMClassifier.from_preset("few-shot").shrinkage
        (100.0, 100.0)
        """
        return cls(**{**preset(name), **changes})

    # ------------------------------------------------------------------ what was taught

    @property
    def classes_(self) -> np.ndarray[Any, Any]:
        """The labels taught so far, sorted."""
        return _labels(self._fitted())

    @property
    def class_count_(self) -> np.ndarray[Any, Any]:
        """How many samples of each class were taught, in the order of `classes_`."""
        return np.asarray([one.count for one in self._fitted().classes.values()])

    @property
    def tukey_(self) -> float | None:
        """Tukey's power in use, as decided at the first fit; None for no power."""
        return self._fitted().transform.power

    @property
    def state_(self) -> ClassifierState:
        """All that was taught, as one immutable value."""
        return self._fitted()

    def __sklearn_is_fitted__(self) -> bool:
        return self._state is not None

    @property
    def _state(self) -> ClassifierState | None:
        return self.__dict__.get("_taught")

    def _fitted(self) -> ClassifierState:
        knowledge = self._state
        if knowledge is None:
            raise NotFittedError(
                f"This {type(self).__name__} knows no class yet: call partial_fit(X, y) first."
            )
        return knowledge

    # ------------------------------------------------------------------ learning

    def fit(self, X: Any, y: Any) -> Self:
        """Forget everything and learn these samples."""
        return self._learn(X, y, None)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn these samples on top of what is known; new labels may come at any call.

        ``classes`` is accepted because scikit-learn's tools pass it; nothing has to be declared.
        """
        return self._learn(X, y, self._state)

    def unlearn(self, X: Any, y: Any) -> Self:
        """Take samples back out, as if they had never come; a class left empty is gone."""
        known = self._fitted()
        _ = self.metric_  # settings that do not fit what was taught are refused here too
        array = self._checked(X)
        labels = check_labels(y, array.shape[0])
        _check_kind(labels, known)
        rows = self._rows(array, labels, known)
        self._taught = known.unlearn(summarize_batch(rows, known.scatter_kind, known.like.dtype))
        return self.refresh()  # the shared prior has seen them too

    def forget(self, label: Hashable) -> Self:
        """Remove a class without a trace."""
        plain = label.item() if hasattr(label, "item") else label  # of NumPy or torch
        self._taught = self._fitted().forget(plain)
        return self.refresh()

    def merge(self, other: FeCAMClassifier) -> Self:
        """Add all that another model was taught, exactly as if it had been taught here."""
        if not isinstance(other, FeCAMClassifier):
            raise TypeError(f"merge takes another FeCAMClassifier, not {type(other).__name__}.")
        theirs = other._state
        if theirs is None:
            return self
        metric = self.metric_
        _check_mergeable(self, other)
        ours = self._state
        if ours is None:
            self.set_state(theirs)
            if hasattr(other, "feature_names_in_"):
                self.feature_names_in_ = other.feature_names_in_
        else:
            theirs = theirs.on(ours.like)
            self._taught = ours.merge(theirs, average_domains=metric.average_domains)
        return self.refresh()

    def refresh(self) -> Self:
        """Bring a lagging prior up to date: after it the order of lessons does not matter."""
        known = self._fitted()
        self._derived.renew(known)
        return self

    def to(self, array: Any) -> Self:
        """Move what was taught to the library and the device of an array, such as a tensor."""
        known = self._fitted()
        xp = namespace(array)
        anchor = xp.zeros((0,), dtype=getattr(xp, self.dtype), device=device(array))
        return self.set_state(known.on(anchor))

    def save(self, path: str | PathLike[str]) -> None:
        """Write all that was taught to a ``.fecam`` file, which `fecam.load` opens again."""
        from fecam.model_file import save  # it needs this module for loading

        save(self, path)

    def copy(self) -> Self:
        """A classifier that knows what this one knows, and goes its own way.

        Nothing is copied, so it takes no time: what was taught is never changed in place.

        >>> clf = FeCAMClassifier().fit([[0.0, 1.0], [1.0, 0.0]], ["cat", "dog"])
        >>> clf.copy().forget("cat").classes_.tolist(), clf.classes_.tolist()
        (['dog'], ['cat', 'dog'])
        """
        other = shallow_copy(self)
        if self._state is not None:
            other._derived = self._derived.fork()
        return other

    def warm_up(self) -> Self:
        """Derive now what answers need, so that the first one comes as fast as all others.

        >>> FeCAMClassifier().fit([[0.0, 1.0], [1.0, 0.0]], ["cat", "dog"]).warm_up().classes_
        array(['cat', 'dog'], dtype='<U3')
        """
        self._derived.prepare(self._knowing(), self.metric_)
        return self

    # ------------------------------------------------------------------ state in and out

    @property
    def metric_(self) -> Metric:
        """The distance that the parameters describe, checked against the state."""
        params = self._params()
        metric = read_metric(params)
        if self._state is not None:
            check_fits(params, metric, self._state)
        return metric

    @property
    def prior_(self) -> Prior | None:
        """The pooled prior in use; None before it is needed. See `current_prior`."""
        return self._derived.prior if self._state is not None else None

    def current_prior(self) -> Prior | None:
        """Return the pooled prior, recomputed if it lags too far behind the statistics."""
        state = self._fitted()
        return self._derived.renewed_prior(state, self.metric_, may_lag=False)

    def empty_state(self, X: Any) -> ClassifierState:
        """Return the state without classes that a first fit on features like ``X`` starts from."""
        array = check_features(X)
        xp = namespace(array)
        power = self.tukey
        if power == "auto":
            power = 0.5 if float(xp.min(array)) >= 0 else None
        transform = Transform(None if power is None else float(power), self.l2 == "features")
        like = xp.zeros((0,), dtype=getattr(xp, self.dtype), device=device(array))
        return ClassifierState(transform, read_metric(self._params()).needs, array.shape[1], like)

    def set_state(
        self,
        state: ClassifierState,
        *,
        prior: Prior | None = None,
        previous: FeCAMClassifier | None = None,
    ) -> Self:
        """Replace all that was learned by ``state``.

        ``prior`` is one that was derived before from this state. Factors of unchanged classes are
        taken over from a ``previous`` classifier with the same parameters.
        """
        self._taught, self._derived = state, FactorCache()
        self.n_features_in_ = state.n_features
        if previous is not None and previous._params() == self._params():
            self._derived = previous._derived.fork()
        if prior is not None or previous is not None:
            self._derived.start_from(self.metric_, prior)
        return self

    def statistics_of(self, X: Any, y: Any) -> dict[Hashable, ClassStatistics]:
        """Return the statistics of a batch, per label; the classifier stays as it is."""
        array = check_features(X)
        labels = check_labels(y, array.shape[0])
        state = self._state or self.empty_state(array)
        rows = self._rows(array, labels, state)
        return summarize_batch(rows, state.scatter_kind, state.like.dtype)

    def learn_statistics(
        self,
        statistics: Mapping[Hashable, ClassStatistics],
        rows: Iterable[tuple[Hashable, Array]] = (),
    ) -> Self:
        """Learn a batch from its statistics, as `statistics_of` returns them.

        ``rows`` are a few transformed samples per label: their distances calibrate `novelty`.
        """
        metric = self.metric_
        after = self._fitted().learn(statistics, average_domains=metric.average_domains)
        prior = FactorCache().renewed_prior(after, metric, may_lag=False)
        moments = {
            label: sample_distances(features, after.classes[label], metric, prior)
            for label, features in rows
        }
        return self.set_state(after.with_distance_moments(moments)).refresh()

    def _learn(self, X: Any, y: Any, before: ClassifierState | None) -> Self:
        metric = read_metric(self._params())
        array = check_features(X)
        labels = check_labels(y, array.shape[0])
        fresh = before is None
        if before is None:
            before = self.empty_state(array)
        else:
            check_fits(self._params(), metric, before)
            validate_data(self, X=X, reset=False, skip_check_array=True)
            _check_kind(labels, before)
        rows = self._rows(array, labels, before)
        lesson = summarize_batch(rows, before.scatter_kind, before.like.dtype)
        after = before.learn(lesson, average_domains=metric.average_domains)
        derived = FactorCache() if fresh else self._derived
        prior = derived.renewed_prior(after, metric, may_lag=True)
        sampled = {
            label: sample_distances(some.features, after.classes[label], metric, prior)
            for label, some in rows.items()
        }
        # Only now, with nothing left that could fail, is the model touched.
        if fresh:
            validate_data(self, X=X, reset=True, skip_check_array=True)
        self._taught, self._derived = after.with_distance_moments(sampled), derived
        return self

    def _rows(
        self, array: Array, labels: np.ndarray[Any, Any], known: ClassifierState
    ) -> dict[Hashable, Rows]:
        array = to_backend_of(array, known.like)
        check_range(array, known.transform, known.like.dtype)
        return group_by_label(array, labels, known.transform)

    # ------------------------------------------------------------------ answering

    def predict(self, X: Any, *, reject: float | None = None, unknown: Any = None) -> Any:
        """The nearest class of each sample.

        With ``reject=0.05`` a sample that fits no class is answered by ``unknown``; then about one
        in twenty samples of *known* classes is turned away too, see `novelty`. As ``None`` goes
        into no array of integers, the answer is an array of objects unless ``unknown`` is a label
        of the same kind, such as -1 or "none".
        """
        if reject is None:
            return self.predict_top_k(X, 1)[:, 0]
        limit = novelty_threshold(reject)
        array, result = self._detailed(X, 1, probabilities=False)
        is_novel, labels = result.novelty > limit, result.labels[:, 0]
        strings = kind_of(labels) == "strings" and isinstance(unknown, str)
        integers = kind_of(labels) == "integers" and type(unknown) in (int, np.int64)
        if strings or integers:
            labels = labels.astype(np.result_type(labels, np.asarray(unknown)))
        else:
            labels = labels.astype(object)
        for position in np.flatnonzero(is_novel):
            labels[position] = unknown  # one by one: it may be a list
        return to_backend_of(labels, array) if integers else labels

    def predict_proba(self, X: Any) -> Any:
        r"""The probability of each class, (n, n_classes), in the order of `classes_`.

        :math:`\mathrm{softmax}(-d^2 / \tau)`. In hundreds of dimensions squared distances differ by
        hundreds, and their plain softmax is 0 or 1. The temperature :math:`\tau` is the expected
        squared distance times its relative variance, which counts only as many dimensions as vary
        independently.
        """
        known = self._knowing()
        array = self._checked(X)
        distances = self._distances(array, known)
        xp = namespace(distances)
        expected = self._derived.expected(known, self.metric_)
        variance = relative_variance(known.classes.values())
        closer = xp.min(distances, axis=1, keepdims=True) - distances
        weights = xp.exp(closer / temperature(expected, variance))
        return to_backend_of(weights / xp.sum(weights, axis=1, keepdims=True), array)

    def novelty(self, X: Any) -> Any:
        """How little each sample fits the class that is nearest to it, in standard deviations.

        The scale is the same for all classes and encoders: of samples of known classes about half
        lie above 0 and one in twenty above 1.64, whatever the class.
        """
        array, result = self._detailed(X, 1, probabilities=False)
        return to_backend_of(result.novelty, array)

    def predict_detailed(self, X: Any, k: int = 1, *, probabilities: bool = True) -> Predictions:
        """All that can be said about each sample, in one go: its ``k`` nearest classes.

        For a probability classes that are less than 1/148 as likely as the nearest one are left
        out, so not every class has to be measured: it is a little larger than that of
        `predict_proba`, mostly by one in a hundred. Without probabilities (they are NaN then) fewer
        still are measured, far fewer of a shortlist.

        >>> clf = FeCAMClassifier().fit([[0.0, 1.0], [1.0, 0.0]], ["cat", "dog"])
        >>> clf.predict_detailed([[0.1, 0.9]], 2).labels.tolist()
        [['cat', 'dog']]
        """
        return self._detailed(X, k, probabilities=probabilities)[1]

    def _detailed(self, X: Any, k: int, *, probabilities: bool) -> tuple[Array, Predictions]:
        """The checked samples, and what is made of them."""
        known = self._knowing()
        self._check_k(k, known)
        array = self._checked(X)
        metric, variance = self.metric_, relative_variance(known.classes.values())
        warmth = 0.0
        if probabilities:
            warmth = temperature(self._derived.expected(known, metric), variance)
        found = self._nearest(array, known, int(k), warmth)
        order, distances, weights = map(to_numpy, found)
        asked, back = np.unique(order[:, 0], return_inverse=True)
        expected = np.asarray(self._derived.expected(known, metric, asked.tolist()))[back]
        scores = surprise(distances[:, 0], expected.astype(distances.dtype), variance)
        shares = np.full_like(distances, np.nan)
        if probabilities:
            shares = likelihoods(distances, warmth) / weights[:, None]
        return array, Predictions(_labels(known)[order], distances, shares, scores)

    def _check_k(self, k: Any, known: ClassifierState) -> None:
        if not isinstance(k, (int, np.integer)) or not 1 <= k <= len(known.classes):
            raise InputError(
                f"k={k!r} must be a whole number from 1 to {len(known.classes)}, the number of "
                "classes taught."
            )

    def predict_top_k(self, X: Any, k: int) -> Any:
        """The labels of the ``k`` nearest classes of each sample, nearest first: (n, k)."""
        known = self._knowing()
        self._check_k(k, known)
        array = self._checked(X)
        order = self._nearest(array, known, int(k)).order
        labels = _labels(known)[to_numpy(order)]
        return to_backend_of(labels, array) if kind_of(labels) == "integers" else labels

    def decision_function(self, X: Any) -> Any:
        """Minus the squared distance to each class, (n, n_classes), also for two classes."""
        known = self._knowing()
        array = self._checked(X)
        return to_backend_of(-self._distances(array, known), array)

    def _knowing(self) -> ClassifierState:
        known = self._fitted()
        if not known.classes:
            raise NotFittedError("every class was forgotten: call partial_fit(X, y) first.")
        return known

    def _checked(self, X: Any) -> Array:
        array = check_features(X)
        validate_data(self, X=X, reset=False, skip_check_array=True)
        return array

    def _distances(self, array: Array, known: ClassifierState) -> Array:
        metric = self.metric_
        queries = self._queries(array, known, metric)
        return self._derived.panel(known, metric).distances(queries)

    def _nearest(self, array: Array, known: ClassifierState, k: int, warmth: float = 0.0) -> Found:
        """The nearest classes; of a temperature the weights of all that are likely."""
        metric = self.metric_
        queries = self._queries(array, known, metric)
        if self.search != "exhaustive":
            found = self._derived.at_a_glance(queries, k, known, metric, warmth)
            if found is not None:
                return found
        search = None
        if self.search != "exhaustive" and 4 * k <= len(known.classes):
            search = self._derived.search(known, metric)
        wanted = self.search != "auto" or (search and search.is_worth_it(queries.shape[0]))
        if search is None or not wanted:
            return self._derived.panel(known, metric).find(queries, k, warmth)
        return search.find(queries, k, warmth, certain=self.search != "approximate")

    def _queries(self, array: Array, known: ClassifierState, metric: Metric) -> Array:
        """Samples as the classes' factors take them."""
        queries = to_backend_of(array, known.like)
        check_range(queries, known.transform, known.like.dtype)
        queries = known.transform(queries)
        return unit_length(queries) if metric.unit_compare else queries

    # ------------------------------------------------------------------ settings

    def set_params(self, **params: Any) -> Self:
        """Change settings, also after learning; what the statistics cannot serve is refused."""
        before = self.get_params()
        super().set_params(**params)
        if self._state is None:
            return self  # as everywhere in scikit-learn, values are looked at when learning begins
        try:
            _ = self.metric_
        except SettingsError:
            super().set_params(**before)
            raise
        return self

    def _params(self) -> dict[str, Any]:
        """What get_params tells, without looking at signatures each time: this is a hot path."""
        return {name: getattr(self, name) for name in PARAMETERS}

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())  # it may be our own
        if "_derived" in state:
            state["_derived"] = FactorCache()  # derived again where it is needed
        return state


def novelty_threshold(reject: float) -> float:
    """The novelty above which this share of samples of known classes lies.

    >>> round(novelty_limit(0.05), 2)
    1.64
    """
    if not isinstance(reject, Real) or not 0 < reject < 1:
        raise InputError(
            f"reject={reject!r} must lie between 0 and 1: the share of samples of known "
            "classes that may be turned away, such as 0.05."
        )
    return -NormalDist().inv_cdf(float(reject))


def _labels(known: ClassifierState) -> np.ndarray[Any, Any]:
    return np.asarray(list(known.classes))


def _check_kind(labels: np.ndarray[Any, Any], known: ClassifierState) -> None:
    taught = _labels(known)
    if len(taught) and kind_of(taught) != kind_of(labels):
        raise InputError(
            f"y has {kind_of(labels)} ({labels.tolist()[0]!r}, ...) but the model was taught with "
            f"{kind_of(taught)} ({taught.tolist()[0]!r}, ...). Use one kind of label throughout."
        )


def _check_mergeable(ours: FeCAMClassifier, theirs: FeCAMClassifier) -> None:
    here, there = ours.get_params(), theirs.get_params()
    if read_metric(here) != read_metric(there) or ours.dtype != theirs.dtype:
        name = next(n for n in here if n not in ("search", "tukey") and here[n] != there[n])
        raise SettingsError(
            f"cannot merge models with different settings: {name}={here[name]!r} here, "
            f"{name}={there[name]!r} there. Use set_params to make them equal, or teach one anew."
        )
    a, b = ours._state, theirs._state
    if b is None:
        return
    if a is None:
        check_fits(here, read_metric(here), b)
        return
    if a.n_features != b.n_features:
        raise InputError(
            f"cannot merge models of {a.n_features} and {b.n_features} features. "
            "Use the same encoder."
        )
    if a.transform != b.transform:
        raise SettingsError(
            f"cannot merge models with Tukey powers {a.transform.power} and {b.transform.power}, "
            "as tukey='auto' chose from their first samples. Set tukey for both and teach anew."
        )
    if a.classes and b.classes:
        _check_kind(_labels(b), a)
