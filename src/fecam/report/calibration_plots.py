"""Plots of an evaluation: confusion matrix, reliability diagram, histograms of novelty."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.bench.evaluation import BINS, Bin, NoveltyBin
from fecam.core.novelty import novelty_threshold
from fecam.report.drawing import COLORS, QUIET, WIDTH, Figure, new_figure, shorten, styled
from fecam.report.maps import heatmap


@styled
def confusion_map(labels: Sequence[Hashable], fractions: NDArray[Any]) -> Figure | None:
    """Draw the confusion matrix in percent of each class."""
    if not len(labels):
        return None
    side = min(1.6 + 0.42 * len(labels), 1.6 * WIDTH)
    figure, axes = new_figure(side, side + 0.5)
    heatmap(axes, 100 * fractions, "of the class, %", 0, 100)
    names = [shorten(str(label), 16) for label in labels]
    small = 8 if len(labels) <= 20 else 6
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=small)
    axes.set_yticks(range(len(names)), names, fontsize=small)
    axes.set(xlabel="predicted", ylabel="class")
    axes.invert_yaxis()
    return figure


@styled
def reliability(bins: Sequence[Bin]) -> Figure | None:
    """Draw accuracy by confidence, and the fraction of samples per bin."""
    if not bins:
        return None
    figure, axes = new_figure(3.4)
    total = sum(each.count for each in bins)
    confidence = np.array([each.confidence for each in bins])
    centers = (np.clip(np.ceil(confidence * BINS), 1, BINS) - 0.5) / BINS
    weights = np.array([each.count / total for each in bins])
    axes.bar(centers, weights, width=0.9 / BINS, color=COLORS[5], alpha=0.45, label="samples")
    axes.plot([0, 1], [0, 1], color=QUIET, linewidth=1, linestyle=(0, (5, 3)))
    accuracy = [each.accuracy for each in bins]
    axes.plot(confidence, accuracy, color=COLORS[0], linewidth=0.8, alpha=0.5)
    axes.scatter(
        confidence,
        accuracy,
        s=10 + 60 * np.sqrt(weights),
        color=COLORS[0],
        label="accuracy",
        gid="curve-reliability",
        clip_on=False,
        zorder=3,
    )
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="confidence", ylabel="accuracy")
    axes.legend(loc="upper left")
    return figure


@styled
def novelty_histogram(bins: Sequence[NoveltyBin], reject: float) -> Figure | None:
    """Draw the shares of known and of unknown samples by novelty, and the threshold."""
    if not bins:
        return None
    figure, axes = new_figure(3.0)
    edges = [bins[0].low, *(each.high for each in bins)]
    sides = (("known", COLORS[0], ""), ("unknown", COLORS[1], "////"))
    for side, color, hatch in sides:
        counts = np.array([getattr(each, side) for each in bins])
        if counts.any():
            axes.stairs(
                counts / counts.sum(),
                edges,
                fill=True,
                color=color,
                alpha=0.5,
                hatch=hatch,
                label=f"{side}, {counts.sum():,} items",
                gid=f"histogram-{side}",
            )
    axes.axvline(novelty_threshold(reject), color=QUIET, linewidth=1, linestyle=(0, (5, 3)))
    axes.set(xlabel="novelty, standard deviations", ylabel="share of items")
    axes.legend(loc="upper right")
    return figure
