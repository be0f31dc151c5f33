"""`FeCAMClassifier`: FeCAM as a scikit-learn estimator that learns class by class."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from copy import copy as shallow_copy
from os import PathLike
from typing import Any, NamedTuple, Self

import numpy as np
from array_api_compat import device
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import _check_feature_names_in, validate_data

from fecam.core.arrays import Array, empty_on, is_array, namespace, to_backend_of, to_numpy
from fecam.core.batches import ClassRows, group_by_label, summarize_batch
from fecam.core.compression import compressed
from fecam.core.compression_loss import CompressionEstimate, estimate_compression
from fecam.core.distances import Neighbors
from fecam.core.expected import CalibratedPredictor
from fecam.core.expected_distance import has_variance
from fecam.core.explanation import explain_query
from fecam.core.left_out_scores import measured_rows, novelty_scores
from fecam.core.lognormal import novelty_zscore, relative_variance, sample_distances
from fecam.core.metric import Metric
from fecam.core.novelty import MIN_CLASSES, fitted_scale, novelty_threshold
from fecam.core.prior import Prior
from fecam.core.softmax import log_softmax, softmax_logits, softmax_numerators
from fecam.core.state import ClassifierState
from fecam.core.statistics import ClassStatistics
from fecam.core.temperature import fitted_sharpness, reference_sharpness, softmax_temperature
from fecam.core.transforms import Transform, unit_length
from fecam.core.tuning import TUNING, SearchTuning
from fecam.errors import FecamError, InputError, SettingsError
from fecam.inputs import (
    check_features,
    check_labels,
    check_range,
    kind_of,
    repeated_rows,
    single_row,
)
from fecam.labels import check_same_kind
from fecam.presets import preset
from fecam.relabeling import joining, relabeled_priors, renaming
from fecam.results import Explanation
from fecam.settings import (
    PARAMETERS,
    check_compatible,
    check_components,
    check_compressible,
    check_mergeable,
    check_same_transform,
    log_priors,
    read_metric,
)
from fecam.validation import check_int


class Predictions(NamedTuple):
    """Detailed predictions as NumPy arrays: (n, k), and (n,) for the novelty."""

    labels: np.ndarray[Any, Any]
    """The most probable classes first, which without ``priors`` are the nearest."""
    distances: np.ndarray[Any, Any]
    """Squared distances."""
    probabilities: np.ndarray[Any, Any]
    """Probabilities among all classes that are not negligible."""
    novelty: np.ndarray[Any, Any]
    """See `FeCAMClassifier.novelty`."""


class _Ranking(NamedTuple):
    """Samples with the most probable classes of each, as NumPy arrays (n, k)."""

    array: Array
    """The checked samples."""
    queries: Array
    """The same, transformed."""
    predictor: CalibratedPredictor
    neighbors: Neighbors
    """The nearest classes, whatever the priors."""
    indices: np.ndarray[Any, Any]
    distances: np.ndarray[Any, Any]
    probabilities: np.ndarray[Any, Any]
    """NaN if they were not asked for."""


class FeCAMClassifier(ClassifierMixin, TransformerMixin, BaseEstimator):
    """Nearest class by Mahalanobis distance, learned one class after another.

    A class is stored as its count, its means and the scatter of its transformed features: sums
    that depend neither on the order of the samples nor on how they were batched. Everything else
    is derived from them when it is needed.

    Parameters
    ----------
    covariance : {"class", "common", "pooled", "diagonal", "identity"}, default="class"
        One matrix per class (Eq. 10); the paper's common matrix (Eq. 6); the within-class pooled
        matrix; per-class variances; none, which is the nearest class mean. The last two store less.
    tukey : float, "auto" or None, default="auto"
        The power of Eq. 9, 0 for the logarithm. "auto" decides at the first fit and keeps it: 0.5
        if no feature is negative, otherwise none.
    shrinkage : tuple of (float, float), default=(1.0, 0.0)
        The gammas of Eq. 8, for the diagonal and for all other entries.
    normalization : {"correlation", "variance"} or None, default="correlation"
        Eq. 7, or division by the norm of the diagonal. A matrix that all classes share needs none.
    pooling : float or "auto", default="auto"
        Strength, in samples, of the prior that pulls the matrix of a class to the pooled one.
    mean_uncertainty : float, default=1.0
        Squared distances are divided by 1 + this / n, because the mean of n samples is uncertain.
    prototype : {"mean-of-transforms", "transform-of-mean"}, default="mean-of-transforms"
        Which prototype; the paper transforms the mean of the raw features.
    l2 : {"features", "compare"} or None, default="features"
        Where vectors are scaled to unit length: transformed features before all statistics; query
        and prototype only when they are compared; nowhere.
    domains : {"pool", "average"}, default="pool"
        The matrix of a class that is learned again: pooled exactly, or the paper's average of the
        previous matrix and that of the new batch.
    search : {"auto", "exhaustive", "exact", "approximate"}, default="auto"
        How the nearest class is found: by evaluating every class; by pruning classes whose lower
        bound exceeds the best distance; by also pruning on estimates, which is faster and rarely
        differs. "auto" uses the faster of the first two. The first three return the same labels.
    priors : None, "empirical" or dict of {label: weight}, default=None
        Prior probabilities of the classes, which multiply those of `predict_proba`; predictions
        are the most probable classes. None is equal priors, the paper's rule. "empirical" are the
        class counts at the time of the prediction. In a dict, weights are relative, and classes
        that it does not name have the weight 1. With priors, ``search`` has no effect.
    off_diagonal : {"all", "nonzero", "nonzero-twice"}, default="all"
        Entries over which the second mean of Eq. 8 is taken; the public implementations leave out
        zeros, and two of them shrink twice.
    dtype : {"float32", "float64"}, default="float32"
        The precision in which matrices are stored. Means are always stored in double precision.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels learned so far, sorted.
    class_count_ : ndarray of shape (n_classes,)
        Samples per class.
    n_features_in_ : int
        Features per sample.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Column names of the data frame of the first fit, if it was one.
    means_ : ndarray of shape (n_classes, n_features_in_)
        The prototypes of the classes, in the space of the transformed features.
    tukey_ : float or None
        The Tukey power in use.
    state_ : ClassifierState
        All statistics, as one immutable value.

    See Also
    --------
    fecam.open : An encoder, a classifier and a file in one.
    fecam.heads : Other classifiers with the same interface.

    References
    ----------
    D. Goswami, Y. Liu, B. Twardowski, J. van de Weijer. "FeCAM: Exploiting the Heterogeneity of
    Class Distributions in Exemplar-Free Continual Learning". NeurIPS 2023.

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
    feature_names_in_: np.ndarray[Any, Any]

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
        priors: str | Mapping[Any, float] | None = None,
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
        self.priors = priors
        self.off_diagonal = off_diagonal
        self.dtype = dtype

    @classmethod
    def from_preset(cls, name: str, **changes: Any) -> Self:
        """Create a classifier with the settings of the paper or of a public implementation.

        Parameters
        ----------
        name : str
            A key of `fecam.presets.PRESETS`, such as "paper".
        **changes : Any
            Parameters that differ from the preset.

        Returns
        -------
        FeCAMClassifier
            An unfitted classifier.

        Examples
        --------
        >>> FeCAMClassifier.from_preset("few-shot").shrinkage
        (100.0, 100.0)
        """
        return cls(**{**preset(name), **changes})

    # ------------------------------------------------------------------ fitted attributes

    @property
    def classes_(self) -> np.ndarray[Any, Any]:
        """The labels learned so far, sorted."""
        return _labels(self.state_)

    @property
    def class_count_(self) -> np.ndarray[Any, Any]:
        """Samples per class, in the order of `classes_`."""
        return np.asarray([stats.count for stats in self.state_.classes.values()])

    @property
    def means_(self) -> np.ndarray[Any, Any]:
        """The prototypes that distances are measured from, in the order of `classes_`.

        They are prototypes of transformed features, which ``state_.transform(X)`` returns.
        """
        return to_numpy(self._predictor_with_classes().prototypes)

    def covariance_(self, label: Hashable) -> np.ndarray[Any, Any]:
        r"""Return the matrix :math:`\Sigma` with which distances to a class are measured.

        It is the covariance of the transformed features after pooling, shrinkage and
        normalization, times :math:`1 + u / n` (``mean_uncertainty``). So the squared distance is
        :math:`(z - m)^T \Sigma^{-1} (z - m)` with the row :math:`m` of `means_`. To see it without
        normalization, use ``set_params(normalization=None)``.

        Parameters
        ----------
        label : Hashable
            A label that was learned.

        Returns
        -------
        ndarray of shape (n_features, n_features)
            The matrix, also if it is diagonal or common to all classes.

        Raises
        ------
        UnknownLabelError
            If there is no such class.
        """
        predictor = self._predictor_with_classes()
        return to_numpy(predictor.covariance_of(_plain_label(label)))

    @property
    def temperature_(self) -> float:
        """What `predict_proba` divides distances by, before the softmax."""
        predictor = self._predictor_with_classes()
        classes = predictor.state.classes.values()
        reference = reference_sharpness(relative_variance(classes))
        sharpness = fitted_sharpness((stats.calibration for stats in classes), reference)
        return softmax_temperature(predictor.expected_distances(), sharpness)

    @property
    def tukey_(self) -> float | None:
        """The Tukey power in use, as decided at the first fit; None for no power."""
        return self.state_.transform.power

    @property
    def state_(self) -> ClassifierState:
        """All statistics, as one immutable value."""
        state = self._state
        if state is None:
            raise NotFittedError(
                f"This {type(self).__name__} has no classes yet: call partial_fit(X, y) first."
            )
        return state

    @property
    def metric_(self) -> Metric:
        """The distance that the parameters describe, checked against the state."""
        params = self._params()
        metric = read_metric(params)
        if self._state is not None:
            check_compatible(params, metric, self._state)
        return metric

    @property
    def predictor_(self) -> CalibratedPredictor:
        """What predictions need, derived from the state when it is first needed."""
        state, metric = self.state_, self.metric_
        predictor = self._predictor
        if predictor is None or predictor.state is not state or predictor.metric != metric:
            prior = self._prior_under(metric)
            predictor = self._predictor = CalibratedPredictor(
                state, metric, previous=predictor, prior=prior, tuning=self._tuning
            )
        return predictor

    @property
    def prior_(self) -> Prior | None:
        """The pooled prior in use; None before it is needed. See `current_prior`."""
        return None if self._predictor is None else self._predictor.last_prior

    def _prior_under(self, metric: Metric) -> Prior | None:
        """The prior in use, if it was computed for this metric."""
        predictor = self._predictor
        return predictor.last_prior if predictor and predictor.metric == metric else None

    def __sklearn_is_fitted__(self) -> bool:
        return self._state is not None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # the parameter dtype decides, not that of X
        return tags

    # Class attributes, because scikit-learn's __init__ sets parameters only.
    _state: ClassifierState | None = None
    _predictor: CalibratedPredictor | None = None
    _tuning: SearchTuning = TUNING

    # ------------------------------------------------------------------ learning

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn these samples, and discard everything learned before.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Features: a NumPy array, a data frame, or a tensor on any device.
        y : array of shape (n_samples,)
            Labels: booleans, integers or strings, but only one of these kinds.
        sample_weight : array of shape (n_samples,), optional
            How often each sample counts, in whole numbers: 3 equals three copies of the sample,
            0 leaves it out.

        Returns
        -------
        FeCAMClassifier
            The classifier itself.
        """
        return self._learn(X, y, None, sample_weight)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn these samples in addition; new labels may come at any call.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Features.
        y : array of shape (n_samples,)
            Labels of the same kind as before.
        classes : Any, optional
            Ignored. Scikit-learn's tools pass it.
        sample_weight : array of shape (n_samples,), optional
            As for `fit`.

        Returns
        -------
        FeCAMClassifier
            The classifier itself.
        """
        return self._learn(X, y, self._state, sample_weight)

    def unlearn(self, X: Any, y: Any) -> Self:
        """Remove samples exactly, as if they had never been learned.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Features that were learned.
        y : array of shape (n_samples,)
            Their labels. A class without samples is removed.

        Returns
        -------
        FeCAMClassifier
            The classifier itself.

        Raises
        ------
        InputError
            If the samples cannot have been learned.
        """
        state, _ = self.state_, self.metric_  # parameters that do not fit the state are rejected
        self._state = state.unlearn(self.statistics_of(self._checked(X), y))
        return self.refresh()  # the shared prior has seen these samples too

    def forget(self, label: Hashable) -> Self:
        """Remove a class.

        Parameters
        ----------
        label : Hashable
            A label that was learned.

        Returns
        -------
        FeCAMClassifier
            The classifier itself.

        Raises
        ------
        UnknownLabelError
            If there is no such class.
        """
        self._state = self.state_.forget(_plain_label(label))
        return self.refresh()

    def rename(self, label: Hashable, new: Hashable) -> Self:
        """Give a class another label.

        Parameters
        ----------
        label : Hashable
            A label that was learned.
        new : Hashable
            A label that no other class has, of the same type as the other labels.

        Returns
        -------
        FeCAMClassifier
            The classifier itself.

        Raises
        ------
        UnknownLabelError
            If there is no such class.
        InputError
            If another class has the new label; `join` combines two classes.
        """
        return self._relabel(renaming(self.state_, _plain_label(label), _plain_label(new)))

    def join(self, labels: Iterable[Hashable], new: Hashable) -> Self:
        """Combine classes into one, exactly as if their samples had been learned with one label.

        Parameters
        ----------
        labels : iterable of Hashable
            Labels that were learned, two or more; one of them may be ``new``.
        new : Hashable
            The label of the joined class. If another class has it, that class is joined too.

        Returns
        -------
        FeCAMClassifier
            The classifier itself.

        Raises
        ------
        UnknownLabelError
            If there is no class with one of the labels.
        InputError
            If only one class is named.
        SettingsError
            If ``domains="average"`` averaged the matrices of a class.
        """
        plain = [_plain_label(label) for label in labels]
        return self._relabel(joining(self.state_, plain, _plain_label(new)))

    def _relabel(self, names: Mapping[Hashable, Hashable]) -> Self:
        self._state = self.state_.relabel(names)
        if isinstance(self.priors, Mapping):
            self.priors = relabeled_priors(self.priors, names)
        return self.refresh()

    def merge(self, other: FeCAMClassifier) -> Self:
        """Learn everything that another classifier has learned, exactly.

        Parameters
        ----------
        other : FeCAMClassifier
            A classifier with the same parameters.

        Returns
        -------
        FeCAMClassifier
            The classifier itself.

        Raises
        ------
        SettingsError
            If the parameters differ.
        """
        if not isinstance(other, FeCAMClassifier):
            raise TypeError(f"merge takes another FeCAMClassifier, not {type(other).__name__}.")
        ours, theirs = self._state, other._state
        if theirs is None:
            return self
        metric = self.metric_
        check_mergeable(self._params(), ours, other._params(), theirs)
        if ours is None:
            self.set_state(theirs)
            if hasattr(other, "feature_names_in_"):
                self.feature_names_in_ = other.feature_names_in_
        else:
            if ours.classes and theirs.classes:
                _check_kind(_labels(theirs), ours)
            theirs = theirs.to(ours.like)
            self._state = ours.merge(theirs, average_domains=metric.average_domains)
        return self.refresh()

    def refresh(self) -> Self:
        """Bring a lagging prior up to date: the order of the batches then has no effect.

        Returns
        -------
        FeCAMClassifier
            The classifier itself.
        """
        self._predictor = self.predictor_.refreshed()
        return self

    def compress(
        self, n_components: int | str = "auto", *, like: FeCAMClassifier | None = None
    ) -> Self:
        """Project all statistics onto directions that separate the classes.

        The model becomes smaller and faster, and goes on learning from samples with all features.
        It cannot be undone: what the other directions held is lost. `estimate_compression` states
        the expected loss beforehand.

        Parameters
        ----------
        n_components : int or "auto", default="auto"
            Number of directions. "auto" tries 1/8, 1/4 and 1/2 of the features, and takes the
            first with an expected share of unchanged labels of 96 %, otherwise the last.
        like : FeCAMClassifier, optional
            Use the directions of this compressed classifier, so that both can be merged.

        Returns
        -------
        FeCAMClassifier
            The classifier itself.

        Raises
        ------
        InputError
            If there are fewer than two classes, or ``n_components`` is out of range.
        SettingsError
            If the model is compressed already, stores no matrices, or has ``l2="compare"``.

        Examples
        --------
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X, y = rng.random((60, 16)), np.repeat([0, 1, 2], 20)
        >>> X[np.arange(60), y] += 3
        >>> clf = FeCAMClassifier().fit(X, y).compress(4)
        >>> clf.state_.n_features, clf.n_features_in_, clf.score(X, y)
        (4, 16, 1.0)
        """
        if like is not None:
            check_compressible(self.state_, self.metric_)
            check_same_transform(self.state_, like.state_)
            projection = like.state_.transform.projection
            if projection is None:
                raise SettingsError("the classifier `like` is not compressed. Compress it first.")
            return self.set_state(compressed(self.state_, projection))
        return self.set_state(self.compression(n_components)[1])

    def estimate_compression(self, n_components: int | str = "auto") -> CompressionEstimate:
        """Return the expected effect of `compress`; the classifier does not change.

        Samples are drawn from the Gaussians of the classes and classified before and after.

        Parameters
        ----------
        n_components : int or "auto", default="auto"
            As for `compress`.

        Returns
        -------
        CompressionEstimate
            Number of directions, expected share of unchanged labels, and the sizes before and
            after.
        """
        return self.compression(n_components)[0]

    def compression(
        self, n_components: int | str = "auto"
    ) -> tuple[CompressionEstimate, ClassifierState]:
        """Return the expected effect of `compress` and its state; the classifier does not change.

        Parameters
        ----------
        n_components : int or "auto", default="auto"
            As for `compress`.

        Returns
        -------
        tuple of (CompressionEstimate, ClassifierState)
            The state is for `set_state`.
        """
        predictor = self._predictor_with_classes()
        check_compressible(predictor.state, predictor.metric)
        check_components(predictor.state, n_components)
        return estimate_compression(predictor, n_components)  # type: ignore[arg-type]

    def to(self, device_or_array: Any) -> Self:
        """Move the state to a device of torch, or to the library and the device of an array.

        Parameters
        ----------
        device_or_array : str, torch.device or array
            A device such as "cuda" or "cpu"; NumPy arrays on "cpu" remain NumPy arrays. Or any
            array, such as a tensor, of that library on that device.

        Returns
        -------
        FeCAMClassifier
            The classifier itself.

        Raises
        ------
        InputError
            If the machine has no such device.
        """
        array = device_or_array
        if not (isinstance(array, np.ndarray) or is_array(array)):
            array = empty_on(array, self.state_.like)
        xp = namespace(array)
        like = xp.zeros((0,), dtype=getattr(xp, self.dtype), device=device(array))
        return self.set_state(self.state_.to(like))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the state to a ``.fecam`` file, which `fecam.load` opens again.

        Parameters
        ----------
        path : str or PathLike
            The file; one that exists is replaced.
        """
        from fecam.model_file import save  # it needs this module for loading

        save(self, path)

    def copy(self) -> Self:
        """Return an independent classifier with the same state.

        Returns
        -------
        FeCAMClassifier
            A classifier that shares the immutable state; no array is copied.

        Examples
        --------
        >>> clf = FeCAMClassifier().fit([[0.0, 1.0], [1.0, 0.0]], ["cat", "dog"])
        >>> clf.copy().forget("cat").classes_.tolist(), clf.classes_.tolist()
        (['dog'], ['cat', 'dog'])
        """
        other = shallow_copy(self)
        other._predictor = self._predictor  # a value, which pickling leaves out
        return other

    def warm_up(self) -> Self:
        """Derive what predictions need, so that the first one is as fast as all others.

        Returns
        -------
        FeCAMClassifier
            The classifier itself.
        """
        self._predictor_with_classes().warm_up()
        return self

    # ------------------------------------------------------------------ state in and out

    def current_prior(self) -> Prior | None:
        """Return the pooled prior, computed again if it lags too far behind.

        Returns
        -------
        Prior or None
            None if no scatter is stored.
        """
        return self.predictor_.prior

    def empty_state(self, X: Any) -> ClassifierState:
        """Return the state without classes that a first fit starts from.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Features like those to come: they decide ``tukey="auto"``, library and device.

        Returns
        -------
        ClassifierState
            A state without classes.
        """
        array = check_features(X)
        xp = namespace(array)
        power = self.tukey
        if power == "auto":
            power = 0.5 if float(xp.min(array)) >= 0 else None
        transform = Transform(None if power is None else float(power), self.l2 == "features")
        like = xp.zeros((0,), dtype=getattr(xp, self.dtype), device=device(array))
        return ClassifierState(
            transform, read_metric(self._params()).scatter_kind, array.shape[1], like
        )

    def set_state(
        self,
        state: ClassifierState,
        *,
        prior: Prior | None = None,
        previous: FeCAMClassifier | None = None,
    ) -> Self:
        """Replace everything learned by a state.

        Parameters
        ----------
        state : ClassifierState
            The statistics of all classes.
        prior : Prior, optional
            A prior that was derived from this state before.
        previous : FeCAMClassifier, optional
            Precisions of unchanged classes are taken over from this classifier.

        Returns
        -------
        FeCAMClassifier
            The classifier itself.

        Raises
        ------
        SettingsError
            If the parameters do not fit the state.
        """
        params = self._params()
        metric = read_metric(params)
        check_compatible(params, metric, state)
        derived = None if previous is None else previous._predictor
        self._state = state
        self._predictor = CalibratedPredictor(
            state, metric, previous=derived, prior=prior, tuning=self._tuning
        )
        self.n_features_in_ = state.n_features_in
        return self

    def statistics_of(self, X: Any, y: Any) -> dict[Hashable, ClassStatistics]:
        """Return the statistics of a batch; the classifier does not change.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Features.
        y : array of shape (n_samples,)
            Labels.

        Returns
        -------
        dict
            Statistics per label, for `learn_statistics`.
        """
        array = check_features(X)
        labels = check_labels(y, array.shape[0])
        state = self._state
        if state is None:
            state = self.empty_state(array)
        else:
            _check_kind(labels, state)
        rows = self._rows(array, labels, state)
        return summarize_batch(rows, state.scatter_kind, state.like.dtype)

    def learn_statistics(
        self,
        statistics: Mapping[Hashable, ClassStatistics],
        rows: Iterable[tuple[Hashable, Array]] = (),
    ) -> Self:
        """Learn a batch from its statistics.

        Parameters
        ----------
        statistics : mapping
            Statistics per label, as `statistics_of` returns them.
        rows : iterable of (label, array), optional
            A few transformed samples per label; their distances calibrate `novelty`.

        Returns
        -------
        FeCAMClassifier
            The classifier itself.
        """
        check_same_kind(list(statistics)[:1], list(self.state_.classes)[:1])
        return self._learned(self.state_, self.metric_, statistics, dict(rows))

    def _learn(
        self, X: Any, y: Any, before: ClassifierState | None, sample_weight: Any = None
    ) -> Self:
        metric = read_metric(self._params())
        array = check_features(X)
        labels = check_labels(y, array.shape[0])
        if sample_weight is not None:
            rows = repeated_rows(sample_weight, array.shape[0])
            xp = namespace(array)
            array = xp.take(array, xp.asarray(rows, device=device(array)), axis=0)
            labels = labels[rows]
        is_first = before is None
        if before is None:
            before = self.empty_state(array)
        else:
            check_compatible(self._params(), metric, before)
            validate_data(self, X=X, reset=False, skip_check_array=True)
            _check_kind(labels, before)
        grouped = self._rows(array, labels, before)
        statistics = summarize_batch(grouped, before.scatter_kind, before.like.dtype)
        features = {label: class_rows.features for label, class_rows in grouped.items()}
        self._learned(before, metric, statistics, features)
        if is_first:
            validate_data(self, X=X, reset=True, skip_check_array=True)
        return self

    def _learned(
        self,
        before: ClassifierState,
        metric: Metric,
        statistics: Mapping[Hashable, ClassStatistics],
        rows: Mapping[Hashable, Array],
    ) -> Self:
        """Add a batch to a state, measure some of its rows, and use the result."""
        after = before.learn(statistics, average_domains=metric.average_domains)
        previous = self._predictor if before is self._state else None
        old_prior = self._prior_under(metric) if before is self._state else None
        prior = CalibratedPredictor(after, metric, prior=old_prior).updated_prior(may_lag=True)
        dof = sum(stats.count - 1 for stats in after.classes.values())
        moments = {
            label: sample_distances(features, after.classes[label], metric, prior, dof)
            for label, features in rows.items()
        }
        after = after.with_measurements(moments, {})
        predictor = CalibratedPredictor(
            after, metric, previous=previous, prior=prior, tuning=self._tuning
        )
        measured = {}
        with suppress(FecamError):  # a singular or damaged matrix: predictions report it
            measured = measured_rows(predictor, rows)
        # Nothing below can fail, so an error above leaves the classifier unchanged.
        self._state = after.with_measurements({}, measured)
        self._predictor = predictor.with_state(self._state)
        return self

    def _rows(
        self, array: Array, labels: np.ndarray[Any, Any], state: ClassifierState
    ) -> dict[Hashable, ClassRows]:
        array = to_backend_of(array, state.like)
        check_range(array, state.transform, state.like.dtype)
        return group_by_label(array, labels, state.transform)

    # ------------------------------------------------------------------ predicting

    def predict(self, X: Any, *, reject: float | None = None, unknown: Any = None) -> Any:
        """Return the nearest class of each sample, or with ``priors`` the most probable one.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Features.
        reject : float, optional
            Share of samples of known classes that may be rejected, such as 0.05. Samples that fit
            no class get the label ``unknown``; see `novelty`.
        unknown : Any, optional
            The label of rejected samples.

        Returns
        -------
        array of shape (n_samples,)
            Labels. With ``reject`` an array of objects, unless ``unknown`` is of the same kind as
            the labels, such as -1 or "none".
        """
        if reject is None:
            return self.predict_top_k(X, 1)[:, 0]
        threshold = novelty_threshold(reject)
        array, result = self._detailed(X, 1, probabilities=False)
        labels = result.labels[:, 0]
        strings = kind_of(labels) == "strings" and isinstance(unknown, str)
        integers = kind_of(labels) == "integers" and type(unknown) in (int, np.int64)
        if strings or integers:
            labels = labels.astype(np.result_type(labels, np.asarray(unknown)))
        else:
            labels = labels.astype(object)
        for i in np.flatnonzero(result.novelty > threshold):
            labels[i] = unknown  # one by one: it may be a list
        return to_backend_of(labels, array) if integers else labels

    def predict_proba(self, X: Any) -> Any:
        r"""Return the probability of each class.

        It is the softmax of :math:`-\kappa \sqrt{d / E}`, with the squared distance :math:`d` and
        the mean :math:`E` of the expected ones. The sharpness :math:`\kappa` has the smallest loss
        on rows that were left out while they were learned. ``priors`` multiply the probabilities.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Features.

        Returns
        -------
        array of shape (n_samples, n_classes)
            Probabilities, in the order of `classes_`.
        """
        log_proba = self.predict_log_proba(X)
        return namespace(log_proba).exp(log_proba)

    def predict_log_proba(self, X: Any) -> Any:
        """Return the logarithm of `predict_proba`, also of probabilities that underflow.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Features.

        Returns
        -------
        array of shape (n_samples, n_classes)
            Log-probabilities, in the order of `classes_`.
        """
        array, logits = self._logits(X)
        return to_backend_of(log_softmax(logits), array)

    def novelty(self, X: Any) -> Any:
        """Return how little each sample fits the classes, in standard deviations.

        The scale is the same for all models and encoders: about half of the samples of known
        classes lie above 0, and one in twenty above 1.64.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Features.

        Returns
        -------
        array of shape (n_samples,)
            Novelty scores; NaN while the model has too few samples to tell.
        """
        array, result = self._detailed(X, 1, probabilities=False)
        return to_backend_of(result.novelty, array)

    def predict_detailed(self, X: Any, k: int = 1, *, probabilities: bool = True) -> Predictions:
        """Return labels, distances, probabilities and novelty in one pass.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Features.
        k : int, default=1
            Number of classes per sample, the most probable first.
        probabilities : bool, default=True
            Whether to compute probabilities; without them, fewer classes are evaluated and they
            are NaN. Classes less than 1/148 as likely as the nearest are left out of the sum, so
            a probability is slightly larger than that of `predict_proba`.

        Returns
        -------
        Predictions
            NumPy arrays.

        Examples
        --------
        >>> clf = FeCAMClassifier().fit([[0.0, 1.0], [1.0, 0.0]], ["cat", "dog"])
        >>> clf.predict_detailed([[0.1, 0.9]], 2).labels.tolist()
        [['cat', 'dog']]
        """
        return self._detailed(X, k, probabilities=probabilities)[1]

    def explain(
        self, x: Any, *, k: int = 3, label: Hashable = None, n_parts: int = 5
    ) -> Explanation:
        """Return why a sample is predicted as its class.

        Parameters
        ----------
        x : array of shape (n_features,) or (1, n_features)
            Features of one sample.
        k : int, default=3
            Number of nearest classes to describe; all of them if there are fewer.
        label : Hashable, optional
            Class whose distance is decomposed by direction and feature. Default: the nearest.
        n_parts : int, default=5
            Number of directions and of features, those with the largest contributions.

        Returns
        -------
        Explanation
            Distances, novelty, and what they consist of; all parts sum to the squared distance.

        Examples
        --------
        >>> clf = FeCAMClassifier().fit([[0.0, 1.0], [0.2, 1.0], [1.0, 0.0]], ["cat", "cat", "dog"])
        >>> why = clf.explain([0.1, 0.9])
        >>> why.label, [near.label for near in why.nearest], why.explained
        ('cat', ['cat', 'dog'], 'cat')
        """
        check_int("k", k, error=InputError)
        check_int("n_parts", n_parts, 0, error=InputError)
        n_classes = len(self._predictor_with_classes().labels)
        if label is not None:
            self.state_.stats_of(_plain_label(label))
        ranking = self._ranked(
            single_row(x), min(k, n_classes) if label is None else n_classes, probabilities=True
        )
        predictor = ranking.predictor
        indices = ranking.indices[0].tolist()
        explained = indices[0] if label is None else predictor.labels.index(_plain_label(label))
        shown = [i for i, index in enumerate(indices) if i < k or index == explained]
        names = getattr(self, "feature_names_in_", None)
        return explain_query(
            predictor,
            ranking.queries[0, :],
            [indices[i] for i in shown],
            ranking.probabilities[0, shown].tolist(),
            float(self._novelty(ranking.queries, predictor, ranking.neighbors)[0]),
            explained=explained,
            n_parts=n_parts,
            feature_names=None if predictor.state.transform.projection is not None else names,
        )

    def predict_top_k(self, X: Any, k: int) -> Any:
        """Return the nearest classes of each sample, or with ``priors`` the most probable ones.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Features.
        k : int
            Number of classes per sample.

        Returns
        -------
        array of shape (n_samples, k)
            Labels, nearest or most probable first.
        """
        ranking = self._ranked(X, k)
        labels = _labels(ranking.predictor.state)[ranking.indices]
        return labels if kind_of(labels) == "strings" else to_backend_of(labels, ranking.array)

    def decision_function(self, X: Any) -> Any:
        """Return minus the squared distance to each class, also for two classes.

        With ``priors`` it is the logarithm of the prior times the likelihood, as in scikit-learn's
        `LinearDiscriminantAnalysis`: the arguments of the softmax of `predict_proba`.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Features.

        Returns
        -------
        array of shape (n_samples, n_classes)
            Scores, in the order of `classes_`.
        """
        if log_priors(self.priors, self.state_) is not None:
            array, logits = self._logits(X)
            return to_backend_of(logits, array)
        array, distances = self._distances(X)
        return to_backend_of(-distances, array)

    def transform(self, X: Any) -> Any:
        """Return the Mahalanobis distance to each class, not squared.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Features.

        Returns
        -------
        array of shape (n_samples, n_classes)
            Distances, in the order of `classes_`.

        Examples
        --------
        >>> clf = FeCAMClassifier().fit([[0.0, 1.0], [1.0, 0.0]], ["cat", "dog"])
        >>> clf.transform([[0.0, 1.0]]).round(3).tolist(), clf.get_feature_names_out().tolist()
        ([[0.0, 1.0]], ['fecamclassifier_cat', 'fecamclassifier_dog'])
        """
        array, distances = self._distances(X)
        return to_backend_of(namespace(distances).sqrt(distances), array)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray[Any, Any]:
        """Return the names of the columns of `transform`.

        Parameters
        ----------
        input_features : array of str, optional
            Names of the features. They are checked and not used.

        Returns
        -------
        ndarray of str objects
            The lowercase name of this class and a label each.
        """
        _check_feature_names_in(self, input_features, generate_names=False)
        prefix = type(self).__name__.lower()
        return np.asarray([f"{prefix}_{label}" for label in self.classes_.tolist()], dtype=object)

    def _detailed(self, X: Any, k: int, *, probabilities: bool) -> tuple[Array, Predictions]:
        """The checked samples, and their predictions."""
        ranking = self._ranked(X, k, probabilities=probabilities)
        novelty = self._novelty(ranking.queries, ranking.predictor, ranking.neighbors)
        labels = _labels(ranking.predictor.state)[ranking.indices]
        return ranking.array, Predictions(labels, ranking.distances, ranking.probabilities, novelty)

    def _novelty(
        self, queries: Array, predictor: CalibratedPredictor, neighbors: Neighbors
    ) -> np.ndarray[Any, Any]:
        """The novelty of queries; NaN while there is no evidence."""
        classes = list(predictor.state.classes.values())
        distances = to_numpy(neighbors.distances)[:, 0]
        scale = fitted_scale(stats.calibration for stats in classes)
        if scale is not None and len(classes) >= MIN_CLASSES:
            scores = novelty_scores(predictor, queries, neighbors)
            return scale(scores).astype(distances.dtype)
        if not any(map(has_variance, classes)):
            return np.full_like(distances, np.nan)
        nearest, inverse = np.unique(to_numpy(neighbors.indices)[:, 0], return_inverse=True)
        expected = np.asarray(predictor.expected_distances(nearest.tolist()))[inverse]
        variance = relative_variance(classes)
        return np.asarray(novelty_zscore(distances, expected.astype(distances.dtype), variance))

    def _ranked(self, X: Any, k: int, *, probabilities: bool = False) -> _Ranking:
        """The most probable classes of each sample: the nearest ones, if all priors are equal."""
        predictor = self._predictor_with_classes()
        n_classes = len(predictor.labels)
        check_int("k", k, 1, n_classes, note=" (the number of classes)", error=InputError)
        priors = log_priors(self.priors, predictor.state)
        uses_softmax = probabilities or priors is not None
        temperature = self.temperature_ if uses_softmax else 0.0
        array = self._checked(X)
        queries = self._queries(array, predictor)
        n_nearest = int(k) if priors is None else n_classes
        neighbors = predictor.nearest(queries, n_nearest, temperature, self.search)
        indices, distances, softmax_sum = map(to_numpy, neighbors)
        shares = np.full_like(distances, np.nan)
        if priors is not None:
            logits = softmax_logits(distances, temperature)
            logits += priors.astype(logits.dtype)[indices]
            order = np.argsort(-logits, axis=1, kind="stable")[:, :k]
            shares = np.exp(log_softmax(logits)) if probabilities else shares
            indices, distances, shares = (
                np.take_along_axis(values, order, axis=1) for values in (indices, distances, shares)
            )
        elif probabilities:
            shares = softmax_numerators(distances, temperature) / softmax_sum[:, None]
        return _Ranking(array, queries, predictor, neighbors, indices, distances, shares)

    def _logits(self, X: Any) -> tuple[Array, Array]:
        """The checked samples, and the logarithms of unnormalized probabilities."""
        array, distances = self._distances(X)
        logits = softmax_logits(distances, self.temperature_)
        priors = log_priors(self.priors, self.state_)
        if priors is not None:
            logits = logits + namespace(logits).astype(to_backend_of(priors, logits), logits.dtype)
        return array, logits

    def _distances(self, X: Any) -> tuple[Array, Array]:
        predictor = self._predictor_with_classes()
        array = self._checked(X)
        return array, predictor.exhaustive(self._queries(array, predictor))

    def _predictor_with_classes(self) -> CalibratedPredictor:
        predictor = self.predictor_
        if not predictor.labels:
            raise NotFittedError("every class was forgotten: call partial_fit(X, y) first.")
        return predictor

    def queries(self, X: Any, *, unit: bool | None = None) -> Array:
        """Return checked and transformed samples, as ``predictor_`` takes them.

        Parameters
        ----------
        X : array of shape (n_samples, n_features)
            Features.
        unit : bool, optional
            Whether to scale them to unit length after the transform. Default: with
            ``l2="compare"``.

        Returns
        -------
        array of shape (n_samples, n_transformed_features)
            Samples in the space of ``means_``.
        """
        return self._queries(self._checked(X), self._predictor_with_classes(), unit)

    def _checked(self, X: Any) -> Array:
        array = check_features(X)
        validate_data(self, X=X, reset=False, skip_check_array=True)
        return array

    def _queries(
        self, array: Array, predictor: CalibratedPredictor, unit: bool | None = None
    ) -> Array:
        """Samples transformed as the prototypes are."""
        state = predictor.state
        queries = to_backend_of(array, state.like)
        check_range(queries, state.transform, state.like.dtype)
        queries = state.transform(queries)
        unit = predictor.metric.unit_compare if unit is None else unit
        return unit_length(queries) if unit else queries

    # ------------------------------------------------------------------ parameters

    def set_params(self, **params: Any) -> Self:
        """Change parameters, also after learning.

        Parameters
        ----------
        **params : Any
            New values.

        Returns
        -------
        FeCAMClassifier
            The classifier itself.

        Raises
        ------
        SettingsError
            If the stored statistics do not allow the change.
        """
        before = self.get_params()
        super().set_params(**params)
        if self._state is None:
            return self  # as everywhere in scikit-learn, values are checked by fit
        try:
            _ = self.metric_
        except SettingsError:
            super().set_params(**before)
            raise
        return self

    def _params(self) -> dict[str, Any]:
        """What get_params returns, without inspecting signatures: this is on every path."""
        return {name: getattr(self, name) for name in PARAMETERS}

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())  # it may be our own
        state.pop("_predictor", None)  # derived again when it is needed
        return state


def _plain_label(label: Any) -> Hashable:
    """Return a label of NumPy or torch as a Python object."""
    plain: Hashable = label.item() if hasattr(label, "item") else label
    return plain


def _labels(state: ClassifierState) -> np.ndarray[Any, Any]:
    return np.asarray(list(state.classes))


def _check_kind(labels: np.ndarray[Any, Any], state: ClassifierState) -> None:
    check_same_kind(labels[:1].tolist(), _labels(state)[:1].tolist())
