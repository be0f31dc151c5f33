"""`MahalanobisClassifier`: fitted attributes and predictions of a learned state."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import _check_feature_names_in, validate_data

from fecam.core.arrays import Array, namespace, to_backend_of, to_numpy
from fecam.core.expected import CalibratedPredictor
from fecam.core.explanation import explain_query
from fecam.core.metric import Metric
from fecam.core.novelty import novelty_threshold
from fecam.core.predictions import (
    Predictions,
    Ranking,
    class_logits,
    novelty_of,
    rank,
    temperature_of,
    with_class,
    with_novelty,
)
from fecam.core.prior import Prior
from fecam.core.softmax import log_softmax
from fecam.core.state import ClassifierState
from fecam.core.transforms import unit_length
from fecam.core.tuning import TUNING, SearchTuning
from fecam.errors import InputError
from fecam.inputs import check_features, check_range, kind_of, single_row
from fecam.labels import plain_label
from fecam.results import Explanation
from fecam.settings import PARAMETERS, check_compatible, log_priors, read_metric
from fecam.validation import check_int


class MahalanobisClassifier(ClassifierMixin, TransformerMixin, BaseEstimator):
    """A classifier that measures Mahalanobis distances to classes; a subclass learns them.

    All that it holds is the parameters, an immutable state, and a predictor derived from both.
    """

    n_features_in_: int
    feature_names_in_: np.ndarray[Any, Any]
    search: str
    priors: str | Mapping[Any, float] | None

    # Class attributes, because scikit-learn's __init__ sets parameters only.
    _state: ClassifierState | None = None
    _predictor: CalibratedPredictor | None = None
    _tuning: SearchTuning = TUNING

    # ------------------------------------------------------------------ fitted attributes

    @property
    def classes_(self) -> np.ndarray[Any, Any]:
        """The labels learned so far, sorted."""
        return np.asarray(list(self.state_.classes))

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
        return to_numpy(predictor.covariance_of(plain_label(label)))

    @property
    def temperature_(self) -> float:
        """What `predict_proba` divides distances by, before the softmax."""
        return temperature_of(self._predictor_with_classes())

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

    def __sklearn_is_fitted__(self) -> bool:
        return self._state is not None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # the parameter dtype decides, not that of X
        return tags

    def current_prior(self) -> Prior | None:
        """Return the pooled prior, computed again if it lags too far behind.

        Returns
        -------
        Prior or None
            None if no scatter is stored.
        """
        return self.predictor_.prior

    def warm_up(self) -> Self:
        """Derive what predictions need, so that the first one is as fast as all others.

        Returns
        -------
        FeCAMClassifier
            The classifier itself.
        """
        self._predictor_with_classes().warm_up()
        return self

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
        return _like_samples(
            _with_unknown(result.labels[:, 0], result.novelty > threshold, unknown), array
        )

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
        >>> from fecam import FeCAMClassifier
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
        >>> from fecam import FeCAMClassifier
        >>> clf = FeCAMClassifier().fit([[0.0, 1.0], [0.2, 1.0], [1.0, 0.0]], ["cat", "cat", "dog"])
        >>> why = clf.explain([0.1, 0.9])
        >>> why.label, [near.label for near in why.nearest], why.explained
        ('cat', ['cat', 'dog'], 'cat')
        """
        check_int("k", k, error=InputError)
        check_int("n_parts", n_parts, 0, error=InputError)
        n_classes = len(self._predictor_with_classes().labels)
        if label is not None:
            self.state_.stats_of(plain_label(label))
        _, ranking = self._ranked(single_row(x), min(k, n_classes), probabilities=True)
        predictor = ranking.predictor
        explained = int(ranking.indices[0, 0])
        if label is not None:
            explained = predictor.labels.index(plain_label(label))
            ranking = with_class(ranking, explained, log_priors(self.priors, predictor.state))
        names = getattr(self, "feature_names_in_", None)
        return explain_query(
            predictor,
            ranking.queries[0, :],
            ranking.indices[0].tolist(),
            ranking.probabilities[0].tolist(),
            float(novelty_of(ranking)[0]),
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
        array, ranking = self._ranked(X, k)
        return _like_samples(ranking.labels, array)

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
        >>> from fecam import FeCAMClassifier
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

    # ------------------------------------------------------------------ private

    def _params(self) -> dict[str, Any]:
        """What get_params returns, without inspecting signatures: this is on every path."""
        return {name: getattr(self, name) for name in PARAMETERS}

    def _prior_under(self, metric: Metric) -> Prior | None:
        """The prior in use, if it was computed for this metric."""
        predictor = self._predictor
        return predictor.last_prior if predictor and predictor.metric == metric else None

    def _predictor_with_classes(self) -> CalibratedPredictor:
        predictor = self.predictor_
        if not predictor.labels:
            raise NotFittedError("every class was forgotten: call partial_fit(X, y) first.")
        return predictor

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

    def _ranked(self, X: Any, k: int, *, probabilities: bool = False) -> tuple[Array, Ranking]:
        """The checked samples, and the most probable classes of each."""
        predictor = self._predictor_with_classes()
        n_classes = len(predictor.labels)
        check_int("k", k, 1, n_classes, note=" (the number of classes)", error=InputError)
        priors = log_priors(self.priors, predictor.state)
        array = self._checked(X)
        queries = self._queries(array, predictor)
        ranking = rank(predictor, queries, int(k), priors, self.search, probabilities=probabilities)
        return array, ranking

    def _detailed(self, X: Any, k: int, *, probabilities: bool) -> tuple[Array, Predictions]:
        """The checked samples, and their predictions."""
        array, ranking = self._ranked(X, k, probabilities=probabilities)
        return array, with_novelty(ranking)

    def _distances(self, X: Any) -> tuple[Array, Array]:
        """The checked samples, and their squared distances to all classes."""
        predictor = self._predictor_with_classes()
        array = self._checked(X)
        return array, predictor.exhaustive(self._queries(array, predictor))

    def _logits(self, X: Any) -> tuple[Array, Array]:
        """The checked samples, and the logarithms of unnormalized probabilities."""
        array, distances = self._distances(X)
        return array, class_logits(self.predictor_, distances, log_priors(self.priors, self.state_))


def _like_samples(labels: np.ndarray[Any, Any], array: Array) -> Any:
    """Return labels in the library of the samples; strings and objects stay in NumPy."""
    return labels if kind_of(labels) == "strings" else to_backend_of(labels, array)


def _with_unknown(
    labels: np.ndarray[Any, Any], is_unknown: np.ndarray[Any, Any], unknown: Any
) -> np.ndarray[Any, Any]:
    """Return labels with ``unknown`` in some places; objects unless it is of the same kind."""
    strings = kind_of(labels) == "strings" and isinstance(unknown, str)
    integers = kind_of(labels) == "integers" and type(unknown) in (int, np.int64)
    same_kind = strings or integers
    dtype = np.result_type(labels, np.asarray(unknown)) if same_kind else np.dtype(object)
    labels = labels.astype(dtype)
    for i in np.flatnonzero(is_unknown):
        labels[i] = unknown  # one by one: it may be a list
    return labels
