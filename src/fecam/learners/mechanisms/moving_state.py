"""Moves all statistics of FeCAM, by a map between the features of two networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fecam.core.linear_map import fit_linear_map, fit_local_map
from fecam.core.state import ClassifierState
from fecam.core.transport import transport
from fecam.heads.head import Floats


@dataclass(frozen=True, kw_only=True)
class MapOptions:
    """How the map of `move_state` is estimated."""

    ridge: float | None = None
    """The penalty of `fit_linear_map`; None: by leave-one-class-out."""
    local: bool = False
    """Whether means also follow the drift of samples near them."""
    residuals: bool = True
    """Whether the residual covariance is added to that of each class."""
    counts: bool = True
    """Whether a moved mean counts as fewer samples."""


def move_state(
    state: ClassifierState, old: Floats, new: Floats, labels: Any, options: MapOptions
) -> ClassifierState:
    """Return the state with the statistics of all its classes moved.

    ``old`` and ``new`` are features of the same images, of other classes with these labels. A whole
    class is left out at a time to choose the penalty, because the map is to be used for classes
    that it was not estimated from.
    """
    before, after = state.transform(old), state.transform(new)
    ridge: float | Literal["auto"] = "auto" if options.ridge is None else options.ridge
    linear_map = fit_linear_map(before, after, ridge=ridge, groups=labels)
    moved = state.transform.power is not None or state.transform.unit
    return transport(
        state,
        linear_map,
        fit_linear_map(old, new, ridge=ridge, groups=labels) if moved else None,
        move_means=fit_local_map(linear_map, before, after) if options.local else None,
        add_residuals=options.residuals,
        effective_counts=options.counts,
    )
