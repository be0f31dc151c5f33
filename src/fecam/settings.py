"""The parameters of the classifier, checked, and turned into the values that the maths takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from fecam.core.metric import Metric
from fecam.core.state import ClassifierState
from fecam.core.statistics import ScatterKind
from fecam.errors import InputError, SettingsError
from fecam.validation import suggestion

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


PARAMETERS = ("tukey", "shrinkage", "pooling", "mean_uncertainty", *CHOICES)

_HOLDS: Mapping[ScatterKind, tuple[ScatterKind, ...]] = {
    "full": ("full", "diagonal", "none"),
    "diagonal": ("diagonal", "none"),
    "none": ("none",),
}
_KEPT: Mapping[ScatterKind, str] = {
    "full": "a matrix a class",
    "diagonal": "only variances",
    "none": "only means",
}


def read_metric(params: Mapping[str, Any]) -> Metric:
    """The metric that these parameters describe; `SettingsError` names one that cannot be."""
    for name in CHOICES:
        _check_choice(name, params[name])
    if not isinstance(params["tukey"], str) and params["tukey"] is not None:
        _number("tukey", params["tukey"], at_least=-math.inf)
    elif params["tukey"] not in ("auto", None):
        raise SettingsError(f"tukey={params['tukey']!r} must be 'auto', a number, or None.")
    pooling = params["pooling"]
    if isinstance(pooling, str):
        if pooling != "auto":
            raise SettingsError(f"pooling={pooling!r} must be 'auto' or a number of samples >= 0.")
    else:
        pooling = _number("pooling", pooling)
    return Metric(
        covariance=params["covariance"],
        shrinkage=_gammas(params["shrinkage"]),
        off_diagonal=params["off_diagonal"],
        normalization=params["normalization"],
        pooling=pooling,
        mean_uncertainty=_number("mean_uncertainty", params["mean_uncertainty"]),
        transform_of_mean=params["prototype"] == "transform-of-mean",
        unit_compare=params["l2"] == "compare",
        average_domains=params["domains"] == "average",
    )


def check_fits(params: Mapping[str, Any], metric: Metric, known: ClassifierState) -> None:
    """Refuse settings that what was taught cannot serve.

    Statistics are sums of transformed features, so the transform cannot be exchanged under them,
    and a matrix that was never kept cannot be asked for.
    """
    power, unit = known.transform.power, known.transform.unit
    if params["tukey"] != "auto" and params["tukey"] != power:
        raise _too_late("tukey", params["tukey"], repr(power))
    if (params["l2"] == "features") != unit:
        raise _too_late("l2", params["l2"], "'features'" if unit else "something else")
    if not str(known.like.dtype).endswith(params["dtype"]):
        raise _too_late("dtype", params["dtype"], str(known.like.dtype))
    if metric.needs not in _HOLDS[known.scatter_kind]:
        raise SettingsError(
            f"covariance={metric.covariance!r} needs matrices that were never kept: this model was "
            f"taught with a leaner covariance, which "
            f"keeps {_KEPT[known.scatter_kind]}. Teach a new model."
        )
    if metric.average_domains:
        for label, one in known.classes.items():
            if one.n_batches > 1 and one.domain_mean_covariance is None:
                raise SettingsError(
                    f"domains='average' needs the average over the {one.n_batches} visits of class "
                    f"{label!r}, which was taught with domains='pool'. Teach a new model."
                )


def check_mergeable(
    params: Mapping[str, Any],
    state: ClassifierState | None,
    other_params: Mapping[str, Any],
    other_state: ClassifierState,
) -> None:
    """Reject classifiers whose statistics cannot be added."""
    same = read_metric(params) == read_metric(other_params)
    if not same or params["dtype"] != other_params["dtype"]:
        name = next(
            name
            for name in params
            if name not in ("search", "tukey") and params[name] != other_params[name]
        )
        raise SettingsError(
            f"cannot merge models with different settings: {name}={params[name]!r} here, "
            f"{name}={other_params[name]!r} there. Make them equal with set_params, or learn one "
            "of them again."
        )
    if state is None:
        check_fits(params, read_metric(params), other_state)
    elif state.n_features != other_state.n_features:
        raise InputError(
            f"cannot merge models of {state.n_features} and {other_state.n_features} features. "
            "Use the same encoder."
        )
    elif state.transform != other_state.transform:
        raise SettingsError(
            f"cannot merge models with Tukey powers {state.transform.power} and "
            f"{other_state.transform.power}, as tukey='auto' chose from their first samples. Set "
            "tukey for both and learn again."
        )


def _too_late(name: str, value: Any, taught: str) -> SettingsError:
    return SettingsError(
        f"{name}={value!r} cannot be set any more: what was learnt was learnt with {name} = "
        f"{taught}, and its statistics depend on it. Teach a new model."
    )


def _check_choice(name: str, value: Any) -> None:
    choices = CHOICES[name]
    if any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
        return
    hint = suggestion(value, (choice for choice in choices if choice is not None))
    listed = ", ".join(map(repr, choices))
    raise SettingsError(f"{name}={value!r} must be one of {listed}.{hint}")


def _number(name: str, value: Any, *, at_least: float = 0.0) -> float:
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
        if math.isfinite(number) and number >= at_least:
            return number
    bound = "" if at_least == -math.inf else f" >= {at_least:g}"
    raise SettingsError(f"{name}={value!r} must be a finite number{bound}.")


def _gammas(value: Any) -> tuple[float, float]:
    try:
        g1, g2 = value
    except (TypeError, ValueError):
        raise SettingsError(
            f"shrinkage={value!r} must be two numbers (g1, g2) >= 0, as in shrinkage=(1, 1)."
        ) from None
    return _number("shrinkage[0]", g1), _number("shrinkage[1]", g2)
