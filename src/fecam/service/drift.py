"""Drift per class: whether the items it is predicted for are still like those it has learned.

Of items of learned classes, 5 % have a novelty above its 5 % point. The answers of each class are
counted in windows of `WINDOW`. A window gives an alarm if the number of its items above that point
has a probability of at most `FALSE_ALARM_RATE` while a tenth of the items are above it: the novelty
of a class may be off by a factor of two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from scipy.special import bdtrc

from fecam.core.novelty import novelty_threshold

WINDOW = 100
"""Answers per window: the fewest that tell a fifth from a tenth in most windows."""
KNOWN_SHARE = 0.05
TOLERATED_SHARE = 0.1
"""Share of items above the 5 % point of novelty that is no drift."""
FALSE_ALARM_RATE = 0.001
"""Per window and class, at most."""
MIN_ALARM = next(
    k for k in range(1, WINDOW) if bdtrc(k - 1, WINDOW, TOLERATED_SHARE) <= FALSE_ALARM_RATE
)
"""Items above the point that give an alarm: 21 of 100."""

_THRESHOLD = novelty_threshold(KNOWN_SHARE)


class WindowResult(NamedTuple):
    """A complete window of a class."""

    label: str
    share: float
    """Share of items above the 5 % point of novelty."""
    alarm: bool


class DriftMonitor:
    """Counts the answers of each class in windows.

    >>> monitor = DriftMonitor()
    >>> list(monitor.observe(["owl"] * 100, [0.0] * 70 + [3.0] * 30))
    [WindowResult(label='owl', share=0.3, alarm=True)]
    """

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int]] = {}

    def observe(self, labels: Iterable[str], novelty: Iterable[float]) -> Iterable[WindowResult]:
        """Count answers; yield the windows that they complete. A novelty of NaN is not counted."""
        for label, value in zip(labels, novelty, strict=True):
            if math.isnan(value):
                continue
            total, above = self._counts.get(label, (0, 0))
            total, above = total + 1, above + (value > _THRESHOLD)
            if total == WINDOW:
                yield WindowResult(label, above / WINDOW, above >= MIN_ALARM)
                total = above = 0
            self._counts[label] = total, above
