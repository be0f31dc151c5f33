"""Curves and bars of runs, one function each: a figure, or None where there is nothing to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.bench.metrics import MeanStd, adds_classes, mean_over_seeds
from fecam.report.drawing import (
    COLOURS,
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
    logarithmic,
    look,
    new_figure,
    short,
    styled,
)
from fecam.report.reading import Run
from fecam.report.text import size

MOST_HEADS = 16
"""More curves than that cannot be told apart; the best by average accuracy are drawn."""


def shown_heads(run: Run) -> list[str]:
    """The heads that are drawn: all, or the best by average if there are too many."""
    if len(run.heads) <= MOST_HEADS:
        return list(run.heads)
    means = {row["head"]: row["average"]["mean"] if row["average"] else -1 for row in run.summary}
    best = set(sorted(means, key=lambda head: -means[head])[:MOST_HEADS])
    return [head for head in run.heads if head in best]


# -- curves ----------------------------------------------------------------------------------------


@styled
def accuracy_curves(run: Run) -> Figure | None:
    """Accuracy after each task, a curve a head, with the spread over seeds as a band."""
    curves = {head: mean_over_seeds(run.heads[head], "accuracy") for head in shown_heads(run)}
    return _curves(curves, "accuracy, %", 100)


@styled
def storage_curves(run: Run) -> Figure | None:
    """Bytes kept after each task, a curve a head."""
    curves = {head: mean_over_seeds(run.heads[head], "bytes") for head in shown_heads(run)}
    figure = _curves(curves, "kept", 1)
    if figure is not None:
        (axes,) = figure.axes
        values = [value.mean for curve in curves.values() for value in curve.values()]
        if min(values) > 0 and max(values) > 30 * min(values):
            logarithmic(axes.yaxis, size)
        else:
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: size(value)))
    return figure


@styled
def joint_curves(runs: Mapping[str, Run]) -> Figure | None:
    """Accuracy of the heads of several runs: a colour and marker a head, a dash a run.

    They are drawn over the number of classes where tasks bring classes, otherwise over tasks.
    """
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
    for place, (name, head, seeds) in enumerate(curves):
        curve = mean_over_seeds(seeds, "accuracy")
        x = (
            [mean for mean, _ in mean_over_seeds(seeds, "classes").values()]
            if over_classes
            else None
        )
        style = {**look(heads.index(head)), "linestyle": DASHES[list(runs).index(name) % 3]}
        _curve(axes, curve, 100, style, f"curve-{place}", x)
    axes.set_xlabel("classes learnt" if over_classes else "task")
    axes.set_ylabel("accuracy, %")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(
        figure,
        [(head, look(at)) for at, head in enumerate(heads)]
        + [(name, {"color": QUIET, "linestyle": DASHES[at % 3]}) for at, name in enumerate(runs)],
    )
    return figure


def _curves(curves: Mapping[str, Mapping[int, MeanStd]], title: str, scale: float) -> Figure | None:
    if not any(curves.values()):
        return None
    figure, axes = new_figure(3.1 + 0.19 * legend_rows(list(curves)))
    for place, curve in enumerate(curves.values()):
        _curve(axes, curve, scale, look(place), f"curve-{place}")
    axes.set_xlabel("task")
    axes.set_ylabel(title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10, min_n_ticks=1))
    most = max(map(len, curves.values()))
    axes.set_xlim(1 - min(0.5, 0.05 * most), most + min(0.5, 0.05 * most))
    legend(figure, [(head, look(place)) for place, head in enumerate(curves)])
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
    spread = scale * np.array([value.std or 0 for value in curve.values()])
    # Along many tasks markers would hide the curve.
    axes.plot(x, mean, gid=name, markevery=max(1, len(curve) // 12), **style)
    if spread.any():
        axes.fill_between(
            x, mean - spread, mean + spread, color=style["color"], alpha=0.15, linewidth=0
        )


# -- bars ------------------------------------------------------------------------------------------


@styled
def old_new_all_bars(run: Run) -> Figure | None:
    """Accuracy at the end on old, new and all classes, three bars a head."""
    names = {"old": "old", "new": "new", "last": "all"}
    rows = {row["head"]: row for row in run.summary if row["old"] and row["new"]}
    heads = [head for head in shown_heads(run) if head in rows]
    if not heads:
        return None
    figure, axes = new_figure(0.9 + 0.46 * len(heads))
    y = np.arange(len(heads))[::-1]
    for place, (metric, name) in enumerate(names.items()):
        values = [rows[head][metric] for head in heads]
        axes.barh(
            y + 0.26 * (1 - place),
            [100 * value["mean"] for value in values],
            height=0.24,
            xerr=[100 * (value["std"] or 0) for value in values]
            if any(value["std"] for value in values)
            else None,
            error_kw={"ecolor": QUIET, "elinewidth": 0.8},
            color=(COLOURS[5], COLOURS[4], COLOURS[0])[place],
            hatch=("", "////", "")[place],
            edgecolor="white",
            linewidth=0,
            label=name,
        )
    _name_rows(axes, y, heads)
    axes.set_xlim(0, 100)
    axes.set_xlabel("accuracy at the end, %")
    figure.legend(loc="outside upper left", ncols=3)
    return figure


@styled
def time_bars(run: Run) -> Figure | None:
    """Seconds to learn and to predict all tasks, a bar each a head."""
    rows = {row["head"]: row for row in run.summary if row["seconds_to_learn"]}
    heads = [head for head in shown_heads(run) if head in rows]
    if not heads:
        return None
    figure = Figure(figsize=(WIDTH, 0.9 + 0.26 * len(heads)))
    panels = figure.subplots(1, 2, sharey=True)
    y = np.arange(len(heads))[::-1]
    for axes, metric, title, colour in zip(
        panels,
        ("seconds_to_learn", "seconds_to_predict"),
        ("to learn, s", "to predict, s"),
        (COLOURS[0], COLOURS[2]),
        strict=True,
    ):
        values = np.array([rows[head][metric]["mean"] for head in heads])
        axes.barh(y, values, height=0.62, color=colour)
        if values.min() > 0 and values.max() > 30 * values.min():
            logarithmic(axes.xaxis)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.set_title(title)
        axes.grid(visible=False, axis="y")
    _name_rows(panels[0], y, heads)
    panels[1].tick_params(axis="y", length=0)
    return figure


def _name_rows(axes: Axes, y: NDArray[Any], heads: Sequence[str]) -> None:
    axes.set_yticks(y, [short(head, 26) for head in heads])
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.grid(visible=False, axis="y")
