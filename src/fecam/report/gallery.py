"""All plots of a run, each with a caption that says what is seen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fecam.bench.metrics import adds_classes
from fecam.report.drawing import Figure, as_png, as_svg
from fecam.report.embedding_plots import singular_values, tsne_points
from fecam.report.maps import matrix_map, shrinkage_grid, shrinkage_map
from fecam.report.plots import (
    accuracy_curves,
    joint_curves,
    old_new_all_bars,
    shown_heads,
    storage_curves,
    time_bars,
)
from fecam.report.reading import Run
from fecam.report.text import duration, percent, size


@dataclass(frozen=True)
class Picture:
    """A plot as files, and its words."""

    section: str
    name: str
    label: str
    """For those who cannot see it: what kind of plot this is."""
    caption: str
    svg: bytes
    png: bytes


def pictures(run: Run) -> list[Picture]:
    """Every plot that the records of a run give, in the order of the page."""
    return [
        Picture(section, name, label, caption, as_svg(figure), as_png(figure))
        for section, name, figure, label, caption in _plots(run)
        if figure is not None
    ]


def joint_picture(runs: Mapping[str, Run]) -> Picture | None:
    """The accuracy curves of several runs in one plot."""
    figure = joint_curves(runs)
    if figure is None:
        return None
    caption = "Accuracy on all classes so far: a colour and a marker a head, a dash a run."
    label = "Curves: accuracy of the heads of all runs"
    return Picture("curves", "joint", label, caption, as_svg(figure), as_png(figure))


def _plots(run: Run) -> Iterator[tuple[str, str, Figure | None, str, str]]:
    yield (
        "curves",
        "accuracy",
        accuracy_curves(run),
        "Curves: accuracy of each head after each task",
        f"Accuracy on all test rows so far, after each task{_seeds(run)}."
        f"{_winner(run, 'last', 'ends highest')}{_left_out(run)}",
    )
    yield (
        "old-new",
        "old-new-all",
        old_new_all_bars(run),
        "Bars: accuracy of each head on old, new and all classes",
        "Accuracy after the last task on the classes before it, on its own, and on all."
        f"{_winner(run, 'new', 'knows the new classes best')}{_left_out(run)}",
    )
    for place, head in enumerate(shown_heads(run)):
        growing = all(map(adds_classes, run.heads[head].values()))
        yield (
            "matrices",
            f"matrix-{place + 1}",
            matrix_map(run, head),
            f"Heat map: accuracy of {head} on each part after each task",
            f"{head}: the accuracy on the classes of each task (column) after each task (row). "
            "Down a column one sees what is forgotten."
            if growing
            else f"{head}: the accuracy on each part of the test rows (column) after each task "
            f"(row). {_parts(run, head)}",
        )
    yield (
        "singular-values",
        "singular-values",
        singular_values(run),
        "Curves: singular values of covariances of old and new classes",
        "Singular values of the covariances of some classes, each divided by its largest. Old "
        "classes are those of the first task; the flatter a line, the more directions a "
        "class spreads in.",
    )
    yield (
        "tsne",
        "tsne",
        tsne_points(run),
        "Two scatter plots: features before and after Tukey's transformation, by class",
        "Features of some classes laid out in the plane by t-SNE, before and after Tukey's "
        "transformation: a colour a class, repeated after seven, and triangles for new ones. "
        "Distances between far groups mean nothing.",
    )
    grid = shrinkage_grid(run)
    if grid is not None:
        first, second, values = grid
        best = max(
            (values[i, j], a, b)
            for i, a in enumerate(first)
            for j, b in enumerate(second)
            if values[i, j] == values[i, j]
        )
        yield (
            "shrinkage",
            "shrinkage",
            shrinkage_map(run),
            "Heat map: average accuracy over both shrinkages",
            f"Average accuracy at each pair of shrinkages. The best is {percent(best[0])} % at "
            f"γ₁ = {best[1]:g}, γ₂ = {best[2]:g}.",
        )
    yield (
        "storage",
        "storage",
        storage_curves(run),
        "Curves: bytes kept by each head after each task",
        f"What each head keeps after each task.{_least(run, 'bytes', 'keeps least')}"
        f"{_left_out(run)}",
    )
    yield (
        "time",
        "time",
        time_bars(run),
        "Bars: seconds to learn and to predict",
        "Seconds over all tasks, without the encoder, on the machine named above."
        f"{_least(run, 'seconds_to_learn', 'learns fastest')}{_left_out(run)}",
    )


def _seeds(run: Run) -> str:
    most = max((row["seeds"] for row in run.summary), default=0)
    if most < 2:
        return ""
    return f", mean of {most} seeds in a band of one standard deviation either way"


def _winner(run: Run, metric: str, verb: str) -> str:
    known = [row for row in run.summary if row[metric]]
    if len(known) < 2:
        return ""
    best = max(known, key=lambda row: row[metric]["mean"])
    return f" {best['head']} {verb}, at {percent(best[metric]['mean'])} %."


def _least(run: Run, metric: str, verb: str) -> str:
    known: list[dict[str, Any]] = [row for row in run.summary if row[metric]]
    if len(known) < 2:
        return ""
    best = min(known, key=lambda row: row[metric]["mean"])
    show = size if metric == "bytes" else duration
    return f" {best['head']} {verb}, {show(best[metric]['mean'])}."


def _left_out(run: Run) -> str:
    shown = len(shown_heads(run))
    if shown == len(run.heads):
        return ""
    return f" Drawn are the {shown} best of {len(run.heads)} heads by average; the tables have all."


def _parts(run: Run, head: str) -> str:
    """The names behind the numbers of the columns."""
    tasks = next(iter(run.heads[head].values()))
    names = [part[0] for part in tasks[-1]["parts"]]
    return "Parts: " + ", ".join(f"{at} {name}" for at, name in enumerate(names, 1)) + "."
