"""Every head by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fecam.classifier import FeCAMClassifier
from fecam.errors import SettingsError
from fecam.heads.calibrated import CalibratedFeCAM
from fecam.heads.deesil import DeeSIL
from fecam.heads.fenec import FeNeC
from fecam.heads.fetril import FeTrIL
from fecam.heads.gaussian_linear import GaussianLinear
from fecam.heads.head import Head
from fecam.heads.ncm import NearestMean
from fecam.heads.ridge import RanPAC, Ridge
from fecam.heads.slda import StreamingLDA
from fecam.registry import Registry
from fecam.settings import read_metric
from fecam.validation import check_keys


@dataclass(frozen=True)
class Entry:
    """A head that can be asked for."""

    name: str
    """As `make` knows it."""
    description: str
    mergeable: bool
    """Whether two of them can be merged, exactly."""
    options: Mapping[str, Any]
    """What `make` takes, with the defaults."""


def _fecam(*, preset: str | None = None, **parameters: Any) -> FeCAMClassifier:
    if preset is None:
        return FeCAMClassifier(**parameters)
    return FeCAMClassifier.from_preset(preset, **parameters)


_HEADS: Registry[tuple[Callable[..., Any], str]] = Registry(
    "head",
    {
        "fecam": (
            FeCAMClassifier,
            "Mahalanobis distance, a matrix a class; all variants by options",
        ),
        "ncm": (NearestMean, "nearest class mean, Euclidean or cosine"),
        "slda": (StreamingLDA, "linear discriminant analysis with one running covariance"),
        "deesil": (DeeSIL, "one linear SVM a class, trained on its own task"),
        "fetril": (FeTrIL, "a linear classifier; new samples, moved, stand for past classes"),
        "gaussian-linear": (
            GaussianLinear,
            "a linear classifier; Gaussians stand for past classes",
        ),
        "ridge": (Ridge, "ridge regression, the ridge chosen on samples held out"),
        "ranpac": (RanPAC, "ridge regression on random features"),
        "fenec": (FeNeC, "several centroids a class under FeCAM's distance"),
        "calibrated-fecam": (
            CalibratedFeCAM,
            "FeCAM; classes of few samples borrow from the first task",
        ),
    },
    note="A class of your own is written package.module:Class.",
)


def available() -> list[Entry]:
    """All heads.

    >>> [entry.name for entry in available()][:3]
    ['fecam', 'ncm', 'slda']
    """
    return [
        Entry(name, description, hasattr(kind, "merge"), _options(kind))
        for name, (kind, description) in _HEADS.items()
    ]


def make(name: str, **options: Any) -> Any:
    """A new head of that name; an option that it does not have, or cannot have so, is refused.

    ``package.module:Class`` is a head of your own: any estimator with ``partial_fit``, ``predict``
    and ``classes_`` that takes new labels at any call.

    >>> make("ncm", metric="cosine")
    NearestMean(metric='cosine')
    >>> make("ncm", metrik="cosine")
    Traceback (most recent call last):
    ...
    fecam.errors.SettingsError: the head 'ncm' has no option 'metrik'. Did you mean 'metric'? Available: metric.
    """  # noqa: E501
    kind = _own(name) if ":" in str(name) else _HEADS[name][0]
    check_keys(f"the head {name!r}", options, _options(kind))
    head = _fecam(**options) if kind is FeCAMClassifier else kind(**options)
    _check_values(head)
    return head


def _own(name: str) -> Callable[..., Any]:
    """A class of the user's, from a module that Python finds."""
    module, _, attribute = name.partition(":")
    try:
        kind: Callable[..., Any] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"the head {name!r} cannot be had: {error}. Write package.module:Class, of a module "
            "that is installed or lies in the current folder."
        ) from error
    for verb in ("partial_fit", "predict", "get_params"):
        if not hasattr(kind, verb):
            raise SettingsError(
                f"the head {name!r} has no {verb}: it must be a class with partial_fit(X, y), "
                "predict(X) and classes_; scikit-learn's BaseEstimator brings get_params."
            )
    return kind


def _check_values(head: Any) -> None:
    """Estimators look at their parameters only when they learn: here, that may be hours away."""
    if isinstance(head, FeCAMClassifier):
        read_metric(head.get_params())
    elif isinstance(head, Head):
        head._check_settings()


def _options(kind: Callable[..., Any]) -> dict[str, Any]:
    own = {one.name: one.default for one in inspect.signature(kind).parameters.values()}
    return {"preset": None, **own} if kind is FeCAMClassifier else own
