"""Curves, bars and points of runs. Each function returns a figure, or None without data."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.bench.metrics import MeanStd, adds_classes, base_later_curves, mean_over_seeds
from fecam.report.drawing import (
    COLORS,
    DASHES,
    INK,
    QUIET,
    WIDTH,
    Axes,
    Figure,
    FuncFormatter,
    MaxNLocator,
    legend,
    legend_rows,
    line_style,
    new_figure,
    set_log_scale,
    shorten,
    styled,
)
from fecam.report.reading import Run
from fecam.report.tables import is_few_shot
from fecam.report.text import size

MAX_HEADS = 16
"""More curves are not distinguishable; the best by average accuracy are drawn."""
MAX_VECTOR_POINTS = 1500
"""More points are drawn as pixels, because the page would have megabytes."""


def shown_heads(run: Run) -> list[str]:
    """Return the heads to draw: all, or the best by average accuracy."""
    if len(run.heads) <= MAX_HEADS:
        return list(run.heads)
    means = {row["head"]: row["average"]["mean"] if row["average"] else -1 for row in run.summary}
    best = set(sorted(means, key=lambda head: -means[head])[:MAX_HEADS])
    return [head for head in run.heads if head in best]


# -- curves ----------------------------------------------------------------------------------------


@styled
def accuracy_curves(run: Run) -> Figure | None:
    """Draw the accuracy after each task, one curve per head, with a band over seeds."""
    curves = {head: mean_over_seeds(run.heads[head], "accuracy") for head in shown_heads(run)}
    return _curves(curves, "accuracy, %", 100)


@styled
def few_shot_curves(run: Run) -> Figure | None:
    """Draw base accuracy, later accuracy and their harmonic mean after each task."""
    heads = shown_heads(run)
    curves = [base_later_curves(run.heads[head]) for head in heads]
    if not is_few_shot(run) or not any(harmonic for _, _, harmonic in curves):
        return None
    figure = Figure(figsize=(WIDTH, 5.4 + 0.19 * legend_rows(heads)))
    panels = figure.subplots(3, 1, sharex=True)
    titles = ("base, %", "later, %", "harmonic, %")
    for part, (axes, title) in enumerate(zip(panels, titles, strict=True)):
        for i, own in enumerate(curves):
            if own[part]:
                _curve(axes, own[part], 100, line_style(i), f"few-shot-{part}-{i}")
        axes.set(ylabel=title)
    panels[-1].set(xlabel="task")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10, min_n_ticks=1))
    legend(figure, [(head, line_style(i)) for i, head in enumerate(heads)])
    return figure


@styled
def storage_curves(run: Run) -> Figure | None:
    """Draw the memory after each task, one curve per head."""
    curves = {head: mean_over_seeds(run.heads[head], "bytes") for head in shown_heads(run)}
    figure = _curves(curves, "memory", 1)
    if figure is not None:
        (axes,) = figure.axes
        values = [value.mean for curve in curves.values() for value in curve.values()]
        if min(values) > 0 and max(values) > 30 * min(values):
            set_log_scale(axes.yaxis, size)
        else:
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: size(value)))
    return figure


@styled
def joint_curves(runs: Mapping[str, Run]) -> Figure | None:
    """Draw the accuracy of runs by classes or tasks: color and marker per head, dash per run."""
    heads = list(dict.fromkeys(head for run in runs.values() for head in run.heads))
    curves = [
        (name, head, seeds)
        for name, run in runs.items()
        for head, seeds in run.heads.items()
        if head in shown_heads(run)
    ]
    if not curves:
        return None
    over_classes = all(
        adds_classes(tasks) and all(record.get("classes") for record in tasks)
        for _, _, seeds in curves
        for tasks in seeds.values()
    )
    figure, axes = new_figure(3.1 + 0.19 * (legend_rows(heads) + legend_rows(list(runs))))
    for i, (name, head, seeds) in enumerate(curves):
        curve = mean_over_seeds(seeds, "accuracy")
        counts = mean_over_seeds(seeds, "classes") if over_classes else {}
        x = [mean for mean, _ in counts.values()] or None
        style = {**line_style(heads.index(head)), "linestyle": DASHES[list(runs).index(name) % 3]}
        _curve(axes, curve, 100, style, f"curve-{i}", x)
    axes.set(xlabel="classes learned" if over_classes else "task", ylabel="accuracy, %")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(
        figure,
        [(head, line_style(i)) for i, head in enumerate(heads)]
        + [(name, {"color": QUIET, "linestyle": DASHES[i % 3]}) for i, name in enumerate(runs)],
    )
    return figure


def _curves(curves: Mapping[str, Mapping[int, MeanStd]], title: str, scale: float) -> Figure | None:
    if not any(curves.values()):
        return None
    figure, axes = new_figure(3.1 + 0.19 * legend_rows(list(curves)))
    for i, curve in enumerate(curves.values()):
        _curve(axes, curve, scale, line_style(i), f"curve-{i}")
    n_tasks = max(map(len, curves.values()))
    margin = min(0.5, 0.05 * n_tasks)
    axes.set(xlabel="task", ylabel=title, xlim=(1 - margin, n_tasks + margin))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10, min_n_ticks=1))
    legend(figure, [(head, line_style(i)) for i, head in enumerate(curves)])
    return figure


def _curve(
    axes: Axes,
    curve: Mapping[int, MeanStd],
    scale: float,
    style: Mapping[str, Any],
    name: str,
    x: Sequence[float] | None = None,
) -> None:
    x = [task + 1 for task in curve] if x is None else x
    mean = scale * np.array([value.mean for value in curve.values()])
    std = scale * np.array([value.std or 0 for value in curve.values()])
    # At most about 12 markers, so that they do not hide the curve.
    axes.plot(x, mean, gid=name, markevery=max(1, len(curve) // 12), **style)
    if std.any():
        axes.fill_between(x, mean - std, mean + std, color=style["color"], alpha=0.15, linewidth=0)


# -- bars ------------------------------------------------------------------------------------------


@styled
def old_new_all_bars(run: Run) -> Figure | None:
    """Draw the last accuracy on old, new and all classes, three bars per head."""
    names = {"old": "old", "new": "new", "last": "all"}
    rows = {row["head"]: row for row in run.summary if row["old"] and row["new"]}
    heads = [head for head in shown_heads(run) if head in rows]
    if not heads:
        return None
    figure, axes = new_figure(0.9 + 0.46 * len(heads))
    y = np.arange(len(heads))[::-1]
    for i, (metric, name) in enumerate(names.items()):
        means = [100 * rows[head][metric]["mean"] for head in heads]
        deviations = [100 * (rows[head][metric]["std"] or 0) for head in heads]
        axes.barh(
            y + 0.26 * (1 - i),
            means,
            height=0.24,
            xerr=deviations if any(deviations) else None,
            error_kw={"ecolor": QUIET, "elinewidth": 0.8},
            color=(COLORS[5], COLORS[4], COLORS[0])[i],
            hatch=("", "////", "")[i],
            edgecolor="white",
            linewidth=0,
            label=name,
        )
    _name_rows(axes, y, heads)
    axes.set(xlim=(0, 100), xlabel="last accuracy, %")
    figure.legend(loc="outside upper left", ncols=3)
    return figure


@styled
def time_bars(run: Run) -> Figure | None:
    """Draw the seconds to learn and to predict all tasks, one bar per head."""
    rows = {row["head"]: row for row in run.summary if row["seconds_to_learn"]}
    heads = [head for head in shown_heads(run) if head in rows]
    if not heads:
        return None
    figure = Figure(figsize=(WIDTH, 0.9 + 0.26 * len(heads)))
    panels = figure.subplots(1, 2, sharey=True)
    y = np.arange(len(heads))[::-1]
    for axes, metric, title, color in zip(
        panels,
        ("seconds_to_learn", "seconds_to_predict"),
        ("to learn, s", "to predict, s"),
        (COLORS[0], COLORS[2]),
        strict=True,
    ):
        values = np.array([rows[head][metric]["mean"] for head in heads])
        axes.barh(y, values, height=0.62, color=color)
        if values.min() > 0 and values.max() > 30 * values.min():
            set_log_scale(axes.xaxis)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.set_title(title)
        axes.grid(visible=False, axis="y")
    _name_rows(panels[0], y, heads)
    panels[1].tick_params(axis="y", length=0)
    return figure


def _name_rows(axes: Axes, y: NDArray[Any], heads: Sequence[str]) -> None:
    axes.set_yticks(y, [shorten(head, 26) for head in heads])
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.grid(visible=False, axis="y")


# -- features --------------------------------------------------------------------------------------


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
    maps = [name for name in ("before", "after") if data.get(name)]
    figure = Figure(figsize=(WIDTH, 3.1))
    panels = figure.subplots(1, len(maps), squeeze=False)[0]
    for axes, name in zip(panels, maps, strict=True):
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
    style = {"color": QUIET, "linestyle": ""}
    shown = [(name, {**style, "marker": marker}) for name, marker, rows in groups if rows.any()]
    legend(figure, shown)
    return figure
