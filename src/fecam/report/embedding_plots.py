"""What features look like: the spectra of their covariances, and their places in the plane."""

from __future__ import annotations

import numpy as np

from fecam.report.drawing import (
    COLOURS,
    DASHES,
    QUIET,
    WIDTH,
    Figure,
    legend,
    logarithmic,
    new_figure,
    styled,
)
from fecam.report.reading import Run

MOST_POINTS = 1500
"""More points than that are drawn as pixels, or the page would weigh megabytes."""


@styled
def singular_values(run: Run) -> Figure | None:
    """Singular values of the covariances of old and new classes: a thin line a class, and means."""
    found = run.analysis("singular-values")[:1]
    if not found or not any(found[0][kind] for kind in ("old", "new")):
        return None
    figure, axes = new_figure(3.2)
    for kind, colour, dash in (("old", COLOURS[0], "-"), ("new", COLOURS[1], DASHES[1])):
        lines = [np.array(line, dtype=float) for line in found[0][kind]]
        for line in lines:
            line[line <= 0] = np.nan  # fewer samples than features: zero has no logarithm
        for line in lines:
            axes.plot(np.arange(1, len(line) + 1), line, color=colour, linewidth=0.5, alpha=0.45)
        if lines:
            length = min(map(len, lines))
            mean = np.mean([line[:length] for line in lines], axis=0)
            axes.plot(
                np.arange(1, length + 1),
                mean,
                color=colour,
                linestyle=dash,
                linewidth=2.2,
                label=f"{kind} classes, mean of {len(lines)}",
                gid=f"curve-{kind}",
            )
    positive = [v for kind in ("old", "new") for line in found[0][kind] for v in line if v > 0]
    if positive:
        logarithmic(axes.yaxis)
        axes.set_ylim(bottom=max(min(positive), 1e-6 * max(positive)))
    axes.set_xlabel("singular value, from the largest")
    axes.set_ylabel("share of the largest")
    axes.legend(loc="upper right")
    return figure


@styled
def tsne_points(run: Run) -> Figure | None:
    """Features in the plane before and after Tukey's transformation: a colour a class."""
    found = run.analysis("tsne")[:1]
    if not found:
        return None
    labels = found[0]["labels"]
    kinds = list(dict.fromkeys(labels))
    colours = np.array([COLOURS[kinds.index(label) % len(COLOURS)] for label in labels])
    is_new = np.asarray(found[0]["is_new"], dtype=bool)
    groups = (("old class", "o", ~is_new), ("new class", "^", is_new))
    shown = [name for name in ("before", "after") if found[0].get(name)]
    figure = Figure(figsize=(WIDTH, 3.1))
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for axes, name in zip(panels, shown, strict=True):
        points = np.asarray(found[0][name], dtype=float)
        for _, marker, rows in groups:
            axes.scatter(
                *points[rows].T,
                c=colours[rows],
                marker=marker,
                s=9,
                linewidths=0,
                alpha=0.75,
                rasterized=len(points) > MOST_POINTS,
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
