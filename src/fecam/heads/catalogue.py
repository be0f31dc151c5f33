"""Every head by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fecam.classifier import FeCAMClassifier
from fecam.errors import SettingsError
from fecam.heads.calibrated import CalibratedFeCAM
from fecam.heads.deesil import DeeSIL
from fecam.heads.fenec import FeNeC
from fecam.heads.fetril import FeTrIL
from fecam.heads.gaussian_linear import GaussianLinear
from fecam.heads.ncm import NearestMean
from fecam.heads.ridge import RanPAC, Ridge
from fecam.heads.slda import StreamingLDA
from fecam.settings import read_metric
from fecam.suggestions import suggestion


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


_HEADS: Mapping[str, tuple[Callable[..., Any], str]] = {
    "fecam": (FeCAMClassifier, "Mahalanobis distance, a matrix a class; all variants by options"),
    "ncm": (NearestMean, "nearest class mean, Euclidean or cosine"),
    "slda": (StreamingLDA, "linear discriminant analysis with one running covariance"),
    "deesil": (DeeSIL, "one linear SVM a class, trained on its own task"),
    "fetril": (FeTrIL, "a linear classifier; new samples, moved, stand for past classes"),
    "gaussian-linear": (GaussianLinear, "a linear classifier; Gaussians stand for past classes"),
    "ridge": (Ridge, "ridge regression, the ridge chosen on samples held out"),
    "ranpac": (RanPAC, "ridge regression on random features"),
    "fenec": (FeNeC, "several centroids a class under FeCAM's distance"),
    "calibrated-fecam": (
        CalibratedFeCAM,
        "FeCAM; classes of few samples borrow from the first task",
    ),
}


def available() -> list[Entry]:
    """All heads.

    >>> [entry.name for entry in available()][:3]
    ['fecam', 'ncm', 'slda']
    """
    return [
        Entry(name, description, hasattr(kind, "merge"), _options(name))
        for name, (kind, description) in _HEADS.items()
    ]


def make(name: str, **options: Any) -> Any:
    """A new head of that name; an option that it does not have, or cannot have so, is refused.

    >>> make("ncm", metric="cosine")
    NearestMean(metric='cosine')
    >>> make("ncm", metrik="cosine")
    Traceback (most recent call last):
    ...
    fecam.errors.SettingsError: the head 'ncm' has no option 'metrik'. Did you mean 'metric'? It has: metric.
    """  # noqa: E501
    if name not in _HEADS:
        raise SettingsError(
            f"there is no head {name!r}.{suggestion(name, _HEADS)} Known: {', '.join(_HEADS)}."
        )
    known = _options(name)
    for option in options:
        if option not in known:
            raise SettingsError(
                f"the head {name!r} has no option {option!r}.{suggestion(option, known)} "
                f"It has: {', '.join(known)}."
            )
    kind = _HEADS[name][0]
    head = _fecam(**options) if kind is FeCAMClassifier else kind(**options)
    _check_values(head)
    return head


def _check_values(head: Any) -> None:
    """Estimators look at their parameters only when they learn: here, that may be hours away."""
    if isinstance(head, FeCAMClassifier):
        read_metric(head.get_params())
    else:
        head._check_settings()


def _options(name: str) -> dict[str, Any]:
    kind = _HEADS[name][0]
    own = {one.name: one.default for one in inspect.signature(kind).parameters.values()}
    return {"preset": None, **own} if kind is FeCAMClassifier else own
