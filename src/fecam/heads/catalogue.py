"""Registry of heads."""

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
from fecam.heads.head import Head
from fecam.heads.ncm import NearestMean
from fecam.heads.ridge import RanPAC, Ridge
from fecam.heads.slda import StreamingLDA
from fecam.heads.teen import Teen
from fecam.registry import Registry, import_class
from fecam.settings import read_metric
from fecam.validation import check_keys


@dataclass(frozen=True)
class Entry:
    """A head in the registry.

    Parameters
    ----------
    name : str
        Name for `make`.
    description : str
        One line.
    mergeable : bool
        Whether two heads can be merged exactly.
    options : mapping
        Options of `make`, with their defaults.
    """

    name: str
    description: str
    mergeable: bool
    options: Mapping[str, Any]


_HEADS: Registry[tuple[Callable[..., Any], str]] = Registry(
    "head",
    {
        "fecam": (FeCAMClassifier, "Mahalanobis distance, one covariance matrix per class"),
        "ncm": (NearestMean, "nearest class mean, Euclidean or cosine"),
        "slda": (StreamingLDA, "streaming linear discriminant analysis"),
        "deesil": (DeeSIL, "one linear SVM per class, trained on its own task"),
        "fetril": (FeTrIL, "linear classifier; translated features of past classes"),
        "gaussian-linear": (GaussianLinear, "linear classifier; Gaussian samples of past classes"),
        "ridge": (Ridge, "ridge regression, ridge selected on held-out samples"),
        "ranpac": (RanPAC, "ridge regression on random features"),
        "fenec": (FeNeC, "several centroids per class under FeCAM's distance"),
        "calibrated-fecam": (CalibratedFeCAM, "FeCAM with few-shot calibration by base classes"),
        "teen": (Teen, "nearest mean by cosine; few-shot means move towards similar base classes"),
    },
    note="A class of your own is written package.module:Class.",
)


def available() -> list[Entry]:
    """Return all heads of the registry.

    Returns
    -------
    list of Entry
        In the order of the documentation.

    Examples
    --------
    >>> [entry.name for entry in available()][:3]
    ['fecam', 'ncm', 'slda']
    """
    return [
        Entry(name, description, hasattr(kind, "merge"), _options(kind))
        for name, (kind, description) in _HEADS.items()
    ]


def make(name: str, **options: Any) -> Any:
    """Create a head.

    Parameters
    ----------
    name : str
        A name from `available`, or ``package.module:Class`` for any estimator with ``partial_fit``,
        ``predict`` and ``classes_`` that accepts new labels at any call.
    **options : object
        Parameters of the head; for ``"fecam"`` also ``preset``.

    Returns
    -------
    estimator
        A head that is not fitted.

    Raises
    ------
    SettingsError
        If the name, an option or a value is invalid.

    Examples
    --------
    >>> make("ncm", metric="cosine")
    NearestMean(metric='cosine')
    """
    kind = _import_class(name) if ":" in str(name) else _HEADS[name][0]
    check_keys(f"the head {name!r}", options, _options(kind))
    preset = options.pop("preset", None) if kind is FeCAMClassifier else None
    head = kind(**options) if preset is None else FeCAMClassifier.from_preset(preset, **options)
    # Estimators check their parameters when they learn, which may be hours later.
    if isinstance(head, FeCAMClassifier):
        read_metric(head.get_params())
    elif isinstance(head, Head):
        head._check_settings()
    return head


def _import_class(name: str) -> Callable[..., Any]:
    kind: Callable[..., Any] = import_class("head", name)
    for method in ("partial_fit", "predict", "get_params"):
        if not hasattr(kind, method):
            raise SettingsError(
                f"the head {name!r} has no {method}: it must be a class with partial_fit(X, y), "
                "predict(X) and classes_; scikit-learn's BaseEstimator has get_params."
            )
    return kind


def _options(kind: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(kind).parameters.values()
    defaults = {parameter.name: parameter.default for parameter in parameters}
    return {"preset": None, **defaults} if kind is FeCAMClassifier else defaults
