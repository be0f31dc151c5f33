"""Plots of features: singular values of covariances, and t-SNE."""

from __future__ import annotations

import numpy as np

from fecam.report.drawing import (
    COLORS,
    DASHES,
    QUIET,
    WIDTH,
    Figure,
    legend,
    new_figure,
    set_log_scale,
    styled,
)
from fecam.report.reading import Run

MAX_VECTOR_POINTS = 1500
"""More points are drawn as pixels, because the page would have megabytes."""


@styled
def singular_values(run: Run) -> Figure | None:
    """Draw the singular values of covariances of old and new classes: one line each, and means."""
    analyses = run.analysis("singular-values")
    if not analyses or not any(analyses[0][kind] for kind in ("old", "new")):
        return None
    spectra = analyses[0]
    figure, axes = new_figure(3.2)
    for kind, color, dash in (("old", COLORS[0], "-"), ("new", COLORS[1], DASHES[1])):
        lines = [np.array(line, dtype=float) for line in spectra[kind]]
        for line in lines:
            line[line <= 0] = np.nan  # fewer samples than features; zero has no logarithm
            axes.plot(np.arange(1, len(line) + 1), line, color=color, linewidth=0.5, alpha=0.45)
        if lines:
            length = min(map(len, lines))
            mean = np.mean([line[:length] for line in lines], axis=0)
            axes.plot(
                np.arange(1, length + 1),
                mean,
                color=color,
                linestyle=dash,
                linewidth=2.2,
                label=f"{kind} classes, mean of {len(lines)}",
                gid=f"curve-{kind}",
            )
    positive = [v for kind in ("old", "new") for line in spectra[kind] for v in line if v > 0]
    if positive:
        set_log_scale(axes.yaxis)
        axes.set_ylim(bottom=max(min(positive), 1e-6 * max(positive)))
    axes.set(xlabel="singular value, from the largest", ylabel="relative to the largest")
    axes.legend(loc="upper right")
    return figure


@styled
def tsne_points(run: Run) -> Figure | None:
    """Draw the t-SNE of features before and after Tukey's transformation, one color per class."""
    analyses = run.analysis("tsne")
    if not analyses:
        return None
    data = analyses[0]
    labels = data["labels"]
    kinds = list(dict.fromkeys(labels))
    colors = np.array([COLORS[kinds.index(label) % len(COLORS)] for label in labels])
    is_new = np.asarray(data["is_new"], dtype=bool)
    groups = (("old class", "o", ~is_new), ("new class", "^", is_new))
    shown = [name for name in ("before", "after") if data.get(name)]
    figure = Figure(figsize=(WIDTH, 3.1))
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for axes, name in zip(panels, shown, strict=True):
        points = np.asarray(data[name], dtype=float)
        for _, marker, rows in groups:
            axes.scatter(
                *points[rows].T,
                c=colors[rows],
                marker=marker,
                s=9,
                linewidths=0,
                alpha=0.75,
                rasterized=len(points) > MAX_VECTOR_POINTS,
            )
        axes.set(title=f"{name} Tukey", xticks=[], yticks=[], box_aspect=1)
        axes.grid(visible=False)
        axes.spines[:].set_visible(True)
    legend(
        figure,
        [
            (name, {"color": QUIET, "linestyle": "", "marker": marker})
            for name, marker, rows in groups
            if rows.any()
        ],
    )
    return figure
