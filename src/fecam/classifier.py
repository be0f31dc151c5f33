"""`FeCAMClassifier`: FeCAM as a scikit-learn estimator that learns class by class."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from copy import copy as shallow_copy
from os import PathLike
from typing import Any, Self

import numpy as np
from array_api_compat import device
from sklearn.utils.validation import validate_data

from fecam.core.arrays import Array, empty_on, is_array, namespace, to_backend_of
from fecam.core.batches import ClassRows, group_by_label, summarize_batch
from fecam.core.compression import compressed
from fecam.core.compression_loss import CompressionEstimate, estimate_compression
from fecam.core.expected import CalibratedPredictor
from fecam.core.learning import learn_batch
from fecam.core.metric import Metric
from fecam.core.prior import Prior
from fecam.core.state import ClassifierState
from fecam.core.statistics import ClassStatistics
from fecam.core.transforms import Transform, auto_power
from fecam.errors import SettingsError
from fecam.inputs import check_features, check_range, check_samples
from fecam.labels import check_same_kind, plain_label
from fecam.mahalanobis import MahalanobisClassifier
from fecam.presets import preset
from fecam.relabeling import joining, relabeled_priors, renaming
from fecam.settings import (
    check_compatible,
    check_components,
    check_compressible,
    check_mergeable,
    check_same_transform,
    read_metric,
)


class FeCAMClassifier(MahalanobisClassifier):
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
        self._state = self.state_.forget(plain_label(label))
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
        return self._relabel(renaming(self.state_, plain_label(label), plain_label(new)))

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
        plain = [plain_label(label) for label in labels]
        return self._relabel(joining(self.state_, plain, plain_label(new)))

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
                check_same_kind(list(theirs.classes), list(ours.classes))
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
        return self.set_state(self.state_.to(_empty(array, self.dtype)))

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

    # ------------------------------------------------------------------ state in and out

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
        power = auto_power(array) if self.tukey == "auto" else self.tukey
        transform = Transform(None if power is None else float(power), self.l2 == "features")
        scatter_kind = read_metric(self._params()).scatter_kind
        return ClassifierState(transform, scatter_kind, array.shape[1], _empty(array, self.dtype))

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
        array, labels = check_samples(X, y)
        state = self.empty_state(array) if self._state is None else self._state
        return _summarized(_grouped(array, labels, state), state)

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
        check_same_kind(list(statistics), list(self.state_.classes))
        return self._learned(self.state_, self.metric_, statistics, dict(rows))

    def _learn(
        self, X: Any, y: Any, before: ClassifierState | None, sample_weight: Any = None
    ) -> Self:
        metric = read_metric(self._params())
        array, labels = check_samples(X, y, sample_weight)
        is_first = before is None
        if before is None:
            before = self.empty_state(array)
        else:
            check_compatible(self._params(), metric, before)
            validate_data(self, X=X, reset=False, skip_check_array=True)
        grouped = _grouped(array, labels, before)
        features = {label: rows.features for label, rows in grouped.items()}
        self._learned(before, metric, _summarized(grouped, before), features)
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
        in_use = before is self._state
        predictor = learn_batch(
            before,
            metric,
            statistics,
            rows,
            previous=self._predictor if in_use else None,
            prior=self._prior_under(metric) if in_use else None,
            tuning=self._tuning,
        )
        self._state, self._predictor = predictor.state, predictor
        return self

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

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())  # it may be our own
        state.pop("_predictor", None)  # derived again when it is needed
        return state


def _empty(array: Array, dtype: str) -> Array:
    """Return an empty array of the library and the device of another."""
    xp = namespace(array)
    return xp.zeros((0,), dtype=getattr(xp, dtype), device=device(array))


def _grouped(
    array: Array, labels: np.ndarray[Any, Any], state: ClassifierState
) -> dict[Hashable, ClassRows]:
    """Return the rows of each label, transformed as in this state."""
    check_same_kind(labels[:1].tolist(), list(state.classes))
    array = to_backend_of(array, state.like)
    check_range(array, state.transform, state.like.dtype)
    return group_by_label(array, labels, state.transform)


def _summarized(
    rows: Mapping[Hashable, ClassRows], state: ClassifierState
) -> dict[Hashable, ClassStatistics]:
    return summarize_batch(rows, state.scatter_kind, state.like.dtype)
