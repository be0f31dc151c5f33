"""The settings of the paper and of each public implementation, by name.

What each of these implementations computes was read in its code. Where it shrinks twice with
gamma, ``shrinkage`` holds the gamma * (2 + gamma) of one pass to the same end: "twice (1, 1)" is
(3, 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fecam.errors import SettingsError
from fecam.validation import suggestion

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

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
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
    }
)


def preset(name: str) -> dict[str, Any]:
    """The parameters of a preset.

    >>> preset("few-shot")["shrinkage"]
    (100.0, 100.0)
    """
    try:
        return dict(PRESETS[name])
    except (KeyError, TypeError):
        raise SettingsError(
            f"there is no preset {name!r}.{suggestion(name, PRESETS)} "
            f"Known: {', '.join(map(repr, PRESETS))}."
        ) from None
