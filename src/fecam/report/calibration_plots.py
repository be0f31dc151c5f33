"""Plots of an evaluation: what was taken for what, and how sure the model was."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.bench.evaluation import BINS, Bin
from fecam.report.drawing import COLOURS, QUIET, WIDTH, Figure, new_figure, short, styled
from fecam.report.maps import heatmap


@styled
def confusion_map(labels: Sequence[Hashable], shares: NDArray[Any]) -> Figure | None:
    """A row a class: what its samples were taken for, in percent."""
    if not len(labels):
        return None
    side = min(1.6 + 0.42 * len(labels), 1.6 * WIDTH)
    figure, axes = new_figure(side, side + 0.5)
    heatmap(axes, 100 * shares, "of the class, %", 0, 100)
    names = [short(str(label), 16) for label in labels]
    small = 8 if len(labels) <= 20 else 6
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=small)
    axes.set_yticks(range(len(names)), names, fontsize=small)
    axes.set_xlabel("taken for")
    axes.set_ylabel("class")
    axes.invert_yaxis()
    return figure


@styled
def reliability(bins: Sequence[Bin]) -> Figure | None:
    """Accuracy by confidence, and how many samples there are of each."""
    if not bins:
        return None
    figure, axes = new_figure(3.4)
    total = sum(one.count for one in bins)
    confidence = np.array([one.confidence for one in bins])
    place = (np.clip(np.ceil(confidence * BINS), 1, BINS) - 0.5) / BINS
    share = np.array([one.count / total for one in bins])
    axes.bar(place, share, width=0.9 / BINS, color=COLOURS[5], alpha=0.45, label="share of samples")
    axes.plot([0, 1], [0, 1], color=QUIET, linewidth=1, linestyle=(0, (5, 3)))
    accuracy = [one.accuracy for one in bins]
    axes.plot(confidence, accuracy, color=COLOURS[0], linewidth=0.8, alpha=0.5)
    area = 10 + 60 * np.sqrt(share)  # a dot of few samples says little
    axes.scatter(
        confidence,
        accuracy,
        s=area,
        color=COLOURS[0],
        label="accuracy",
        gid="curve-reliability",
        clip_on=False,
        zorder=3,
    )
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="confidence", ylabel="accuracy")
    axes.legend(loc="upper left")
    return figure
