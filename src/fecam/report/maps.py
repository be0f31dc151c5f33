"""Heat maps: the accuracy matrix of a head, accuracy over a grid of shrinkages."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.bench.metrics import accuracy_matrix, adds_classes, is_complete
from fecam.report.drawing import WIDTH, Axes, Figure, new_figure, styled
from fecam.report.reading import Run
from fecam.validation import is_number

MAX_VECTOR_CELLS = 500
"""More cells are drawn as pixels, because the page would have megabytes."""


@styled
def matrix_map(run: Run, head: str) -> Figure | None:
    """Draw the accuracy on each part of the test rows after each task, mean over seeds."""
    matrices = [accuracy_matrix(tasks) for tasks in run.heads[head].values() if is_complete(tasks)]
    matrices = [matrix for matrix in matrices if matrix.shape == matrices[0].shape]
    if not matrices or matrices[0].shape[0] < 2:
        return None
    tasks = next(iter(run.heads[head].values()))
    matrix = 100 * np.mean(matrices, axis=0)
    side = 0.6 + 0.42 * min(max(matrix.shape), 9)
    figure, axes = new_figure(min(side, 3.8), min(side + 0.4, WIDTH))
    heatmap(axes, matrix, "accuracy, %", 0, 100)
    columns = "the classes of task" if adds_classes(tasks) else "part"
    axes.set(xlabel=f"tested on {columns}", ylabel="after task")
    _number(axes.xaxis, matrix.shape[1])
    _number(axes.yaxis, matrix.shape[0])
    axes.invert_yaxis()
    return figure


@styled
def shrinkage_map(run: Run) -> Figure | None:
    """Draw the average accuracy over a grid of shrinkage pairs, if the heads form one."""
    grid = shrinkage_grid(run)
    if grid is None:
        return None
    first, second, values = grid
    figure, axes = new_figure(0.9 + 0.4 * len(first), min(1.2 + 0.6 * len(second), WIDTH))
    heatmap(axes, 100 * values, "average accuracy, %")
    axes.set(xlabel="γ₂, off the diagonal", ylabel="γ₁, on the diagonal")
    axes.set_xticks(range(len(second)), [f"{value:g}" for value in second])
    axes.set_yticks(range(len(first)), [f"{value:g}" for value in first])
    return figure


def shrinkage_grid(run: Run) -> tuple[list[float], list[float], NDArray[np.float64]] | None:
    """Return both gammas and the average accuracy at each pair, NaN where a pair is missing.

    None unless there are at least four pairs, two values of each gamma, and no other difference
    between the heads.
    """
    means = {row["head"]: row["average"]["mean"] for row in run.summary if row["average"]}
    families: dict[str, dict[tuple[float, float], float]] = {}
    for head, mean in means.items():
        options = dict(next(iter(run.heads[head].values()))[0].get("options") or {})
        pair = options.pop("shrinkage", None)
        if isinstance(pair, list) and len(pair) == 2 and all(map(is_number, pair)):
            families.setdefault(repr(sorted(options.items())), {})[pair[0], pair[1]] = mean
    grid = max(families.values(), key=len, default={})
    first, second = (sorted({pair[i] for pair in grid}) for i in (0, 1))
    if len(grid) < 4 or min(len(first), len(second)) < 2:
        return None
    values = np.array([[grid.get((a, b), np.nan) for b in second] for a in first])
    return (first, second, values) if np.isnan(values).mean() <= 0.5 else None


def heatmap(
    axes: Axes,
    values: NDArray[Any],
    title: str,
    low: float | None = None,
    high: float | None = None,
) -> None:
    """Draw values as colors, with numbers in the cells or, in large matrices, a color bar."""
    rows, columns = values.shape
    edges = np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5
    colors: dict[str, Any] = {"cmap": "viridis", "vmin": low, "vmax": high, "edgecolors": "face"}
    as_pixels = values.size > MAX_VECTOR_CELLS
    mesh = axes.pcolormesh(*edges, values, rasterized=as_pixels, **colors)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    if max(values.shape) <= 9:
        for (row, column), value in np.ndenumerate(values):
            if not np.isnan(value):
                color = "#101820" if np.asarray(mesh.norm(value)) > 0.6 else "#fefefe"
                text = f"{value:.0f}" if high == 100 else f"{value:.1f}"
                axes.text(column, row, text, ha="center", va="center", fontsize=8, color=color)
    else:
        bar = axes.figure.colorbar(mesh, ax=axes, label=title, shrink=0.9)
        bar.outline.set_visible(False)


def _number(axis: Any, count: int) -> None:
    """Label positions 0, 1, ... as 1, 2, ..., at most ten of them."""
    step = max(1, -(-count // 10))
    axis.set_ticks(range(0, count, step), [str(i + 1) for i in range(0, count, step)])
