"""Checks of the classifier's parameters, and their translation into a `Metric`."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.core.metric import Metric
from fecam.core.state import ClassifierState
from fecam.core.statistics import ScatterKind
from fecam.errors import InputError, SettingsError
from fecam.labels import first_kind
from fecam.validation import check_choice, check_int, check_number

CHOICES: Mapping[str, tuple[str | None, ...]] = {
    "covariance": ("class", "common", "pooled", "diagonal", "identity"),
    "normalization": ("correlation", "variance", None),
    "prototype": ("transform-of-mean", "mean-of-transforms"),
    "l2": ("features", "compare", None),
    "domains": ("pool", "average"),
    "search": ("auto", "exhaustive", "exact", "approximate"),
    "off_diagonal": ("all", "nonzero", "nonzero-twice"),
    "dtype": ("float32", "float64"),
}
"""The allowed values of parameters that have a fixed set of them."""

PARAMETERS = ("tukey", "shrinkage", "pooling", "mean_uncertainty", "priors", *CHOICES)
"""The names of all parameters."""

_STORED: Mapping[ScatterKind, str] = {
    "none": "only means",
    "diagonal": "only variances",
    "full": "matrices",
}
"""What a model with each kind of scatter stores per class. Each kind includes those before it."""


def read_metric(params: Mapping[str, Any]) -> Metric:
    """Return the metric that the parameters define; raise `SettingsError` for an invalid one."""
    for name, choices in CHOICES.items():
        check_choice(name, params[name], choices)
    if not isinstance(params["tukey"], str) and params["tukey"] is not None:
        check_number("tukey", params["tukey"], -math.inf)
    elif params["tukey"] not in ("auto", None):
        raise SettingsError(f"tukey={params['tukey']!r} must be 'auto', a number, or None.")
    pooling = params["pooling"]
    if isinstance(pooling, str):
        if pooling != "auto":
            raise SettingsError(f"pooling={pooling!r} must be 'auto' or a number of samples >= 0.")
    else:
        pooling = check_number("pooling", pooling)
    _check_priors(params["priors"])
    return Metric(
        covariance=params["covariance"],
        shrinkage=_check_gammas(params["shrinkage"]),
        off_diagonal=params["off_diagonal"],
        normalization=params["normalization"],
        pooling=pooling,
        mean_uncertainty=check_number("mean_uncertainty", params["mean_uncertainty"]),
        transform_of_mean=params["prototype"] == "transform-of-mean",
        unit_compare=params["l2"] == "compare",
        average_domains=params["domains"] == "average",
    )


def log_priors(priors: Any, state: ClassifierState) -> NDArray[np.float64] | None:
    """Return the logarithm of the prior probability of each class; None if all are equal.

    Classes that a mapping does not name have the weight 1.
    """
    if priors is None:
        return None
    if isinstance(priors, str):  # "empirical"
        weights = [float(stats.count) for stats in state.classes.values()]
    else:
        given, learned = first_kind(priors), first_kind(state.classes)
        if None not in (given, learned) and given != learned:
            raise SettingsError(
                f"the labels in priors are {given} ({next(iter(priors))!r}, ...), those of the "
                f"model are {learned} ({next(iter(state.classes))!r}, ...). Use the labels of the "
                "model."
            )
        weights = [float(priors.get(label, 1.0)) for label in state.classes]
    if len(set(weights)) < 2:
        return None
    return np.asarray(np.log(weights) - np.log(math.fsum(weights)))


def check_compatible(params: Mapping[str, Any], metric: Metric, state: ClassifierState) -> None:
    """Raise `SettingsError` if the state cannot be used with these parameters.

    Statistics are sums of transformed features, so the transform cannot change after learning, and
    a scatter that was not stored cannot be computed later.
    """
    power, unit = state.transform.power, state.transform.unit
    if params["tukey"] != "auto" and params["tukey"] != power:
        raise _cannot_change("tukey", params["tukey"], repr(power))
    if (params["l2"] == "features") != unit:
        raise _cannot_change("l2", params["l2"], "'features'" if unit else "another value")
    if not str(state.like.dtype).endswith(params["dtype"]):
        raise _cannot_change("dtype", params["dtype"], str(state.like.dtype))
    kinds = list(_STORED)
    if kinds.index(metric.scatter_kind) > kinds.index(state.scatter_kind):
        raise SettingsError(
            f"covariance={metric.covariance!r} needs {_STORED[metric.scatter_kind]} per class, but "
            f"this model stores {_STORED[state.scatter_kind]}. Learn a new model."
        )
    if metric.unit_compare and state.transform.projection is not None:
        raise SettingsError(
            "l2='compare' needs the lengths of all features, which a compressed model does not "
            "have. Use l2=None, or learn a new model."
        )
    if metric.average_domains:
        for label, stats in state.classes.items():
            if stats.n_batches > 1 and stats.domain_mean_covariance is None:
                raise SettingsError(
                    f"domains='average' needs the average over the {stats.n_batches} batches of "
                    f"class {label!r}, which was learned with domains='pool'. Learn a new model."
                )


def check_mergeable(
    params: Mapping[str, Any],
    state: ClassifierState | None,
    other_params: Mapping[str, Any],
    other_state: ClassifierState,
) -> None:
    """Raise if the statistics of two classifiers cannot be merged."""
    equal = read_metric(params) == read_metric(other_params)
    if not equal or params["dtype"] != other_params["dtype"]:
        name = next(
            name
            for name in params
            if name not in ("search", "tukey", "priors") and params[name] != other_params[name]
        )
        raise SettingsError(
            f"cannot merge models with different settings: {name}={params[name]!r} here, "
            f"{name}={other_params[name]!r} there. Make them equal with set_params, or learn one "
            "of them again."
        )
    if state is None:
        check_compatible(params, read_metric(params), other_state)
    else:
        check_same_transform(state, other_state, "merge")
        if not state.transform.same_projection(other_state.transform):
            raise SettingsError(
                f"cannot merge models of {_components(state)} and {_components(other_state)} that "
                "do not have the same projection. Compress one model, and the other with "
                "compress(like=...) of the first."
            )


def check_same_transform(
    state: ClassifierState, other: ClassifierState, what: str = "compress"
) -> None:
    """Raise if two states have other features, before any projection."""
    if state.n_features_in != other.n_features_in:
        raise InputError(
            f"cannot {what} models of {state.n_features_in} and {other.n_features_in} features. "
            "Use the same encoder."
        )
    ours, theirs = state.transform, other.transform
    if ours.power != theirs.power:
        raise SettingsError(
            f"cannot {what} models with Tukey powers {ours.power} and {theirs.power}, as "
            "tukey='auto' chose from their first samples. Set tukey for both and learn them again."
        )
    if ours.unit != theirs.unit:
        raise SettingsError(
            f"cannot {what} models of which only one has l2='features'. Learn one of them again."
        )


def check_compressible(state: ClassifierState, metric: Metric) -> None:
    """Raise if statistics cannot be projected."""
    if state.transform.projection is not None:
        raise SettingsError(
            f"this model is compressed already, to {_components(state)}. Compress the model that "
            "it was made from."
        )
    if state.scatter_kind != "full":
        raise SettingsError(
            f"a model that stores {_STORED[state.scatter_kind]} per class cannot be compressed: "
            "the projection needs matrices. It is small already."
        )
    if metric.unit_compare:
        raise SettingsError(
            "a model with l2='compare' cannot be compressed: it needs the lengths of all features. "
            "Use set_params(l2=None), or learn a new model with l2='features'."
        )


def check_components(state: ClassifierState, n_components: int | str) -> None:
    """Raise if no direction separates classes, or there are fewer than ``n_components``."""
    if len(state.classes) < 2:
        raise InputError(
            "compress needs two classes or more: directions are chosen to separate them. Learn "
            "another class first."
        )
    if n_components == "auto":
        return
    if isinstance(n_components, str):
        raise InputError(f"n_components={n_components!r} must be 'auto' or an integer.")
    note = " (the number of features)"
    check_int("n_components", n_components, 1, state.n_features, note=note, error=InputError)


def _check_priors(priors: Any) -> None:
    if priors is None or (isinstance(priors, str) and priors == "empirical"):
        return
    if not isinstance(priors, Mapping):
        raise SettingsError(
            f"priors={priors!r} must be None, 'empirical' or a mapping from labels to weights, as "
            "in priors={'cat': 3, 'dog': 1}."
        )
    kinds = {first_kind([label]) for label in priors}
    if None in kinds or len(kinds) > 1:
        raise SettingsError(
            f"priors={priors!r}: its labels must be booleans, integers or strings, and only one "
            "of these kinds."
        )
    for label, weight in priors.items():
        note = ". To remove a class, use forget"
        check_number(f"priors[{label!r}]", weight, above=0.0, note=note)


def _components(state: ClassifierState) -> str:
    if state.transform.projection is None:
        return f"{state.n_features} features"
    return f"{state.n_features} of {state.n_features_in} components"


def _cannot_change(name: str, value: Any, learned: str) -> SettingsError:
    return SettingsError(
        f"{name}={value!r} cannot be set after learning: the statistics depend on {name}, which "
        f"was {learned}. Learn a new model."
    )


def _check_gammas(value: Any) -> tuple[float, float]:
    try:
        g1, g2 = value
    except (TypeError, ValueError):
        raise SettingsError(
            f"shrinkage={value!r} must be two numbers (g1, g2) >= 0, as in shrinkage=(1, 1)."
        ) from None
    return check_number("shrinkage[0]", g1), check_number("shrinkage[1]", g2)
