"""Parameters of the paper and of each public implementation, by name.

They follow the code of these implementations. Two passes of shrinkage with gamma are equivalent to
one with gamma * (2 + gamma), which is what ``shrinkage`` holds: (3, 3) for two passes with (1, 1).
"""

from collections.abc import Mapping
from typing import Any

from fecam.registry import Registry

_PAPER: dict[str, Any] = {
    "covariance": "class",
    "tukey": 0.5,
    "l2": "compare",
    "prototype": "transform-of-mean",
    "shrinkage": (1.0, 1.0),
    "off_diagonal": "all",
    "normalization": "correlation",
    "pooling": 0.0,
    "mean_uncertainty": 0.0,
    "domains": "pool",
}
_VIT: dict[str, Any] = {
    **_PAPER,
    "tukey": None,
    "l2": "features",
    "prototype": "mean-of-transforms",
    "shrinkage": (1.0, 0.0),
}
_TWICE = {"shrinkage": (3.0, 3.0), "off_diagonal": "nonzero-twice"}

PRESETS: Registry[Mapping[str, Any]] = Registry(
    "preset",
    {
        "paper": _PAPER,
        "few-shot": {**_PAPER, "shrinkage": (100.0, 100.0)},
        "vit": _VIT,
        "official-resnet": {**_PAPER, **_TWICE},
        "official-vit": {**_VIT, "off_diagonal": "nonzero", "domains": "average"},
        "avalanche": {**_PAPER, **_TWICE, "prototype": "mean-of-transforms"},
        "ncm": {
            **_PAPER,
            "covariance": "identity",
            "tukey": None,
            "l2": None,
            "prototype": "mean-of-transforms",
        },
    },
)
"""The parameters of each preset."""


def preset(name: str) -> dict[str, Any]:
    """Return the parameters of a preset.

    Parameters
    ----------
    name : str
        A key of `PRESETS`.

    Returns
    -------
    dict
        Parameters of `fecam.FeCAMClassifier`.

    Raises
    ------
    SettingsError
        If there is no such preset.

    Examples
    --------
    >>> preset("few-shot")["shrinkage"]
    (100.0, 100.0)
    """
    return dict(PRESETS[name])
