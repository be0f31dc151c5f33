"""All plots of a run with captions."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fecam.bench.metrics import adds_classes
from fecam.report import plots
from fecam.report.drawing import Figure, as_png, as_svg
from fecam.report.maps import matrix_map, shrinkage_grid, shrinkage_map
from fecam.report.reading import Run
from fecam.report.text import duration, percent, size


@dataclass(frozen=True)
class Picture:
    """A plot as SVG and PNG, with its texts."""

    section: str
    name: str
    label: str
    """Alternative text: the kind of plot."""
    caption: str
    svg: bytes
    png: bytes


def render(
    section: str, name: str, figure: Figure | None, label: str, caption: str
) -> list[Picture]:
    """Return the figure as a list of one picture, or an empty list without a figure."""
    if figure is None:
        return []
    return [Picture(section, name, label, caption, as_svg(figure), as_png(figure))]


def pictures(run: Run) -> list[Picture]:
    """Return all plots that the records of a run allow, in the order of the page."""
    return [picture for plot in _plots(run) for picture in render(*plot)]


def joint_picture(runs: Mapping[str, Run]) -> list[Picture]:
    """Return the accuracy curves of several runs in one plot, if there are any."""
    caption = "Accuracy on all classes so far. Color and marker show the head, dashes the run."
    label = "Curves: accuracy of the heads of all runs"
    return render("curves", "joint", plots.joint_curves(runs), label, caption)


def _plots(run: Run) -> Iterator[tuple[str, str, Figure | None, str, str]]:
    omitted = _omitted_heads(run)
    yield (
        "curves",
        "accuracy",
        plots.accuracy_curves(run),
        "Curves: accuracy of each head after each task",
        f"Accuracy on all test rows so far, after each task{_seeds(run)}."
        f"{_best(run, 'last', 'ends highest, at', _percent)}{omitted}",
    )
    yield (
        "curves",
        "few-shot",
        plots.few_shot_curves(run),
        "Curves: accuracy of each head on base and on later classes, and their harmonic mean",
        "Accuracy on the classes of the first task (base), on those of all later tasks (later), "
        f"and their harmonic mean, after each task{_seeds(run)}."
        f"{_best(run, 'harmonic', 'has the highest harmonic mean at the end,', _percent)}{omitted}",
    )
    yield (
        "old-new",
        "old-new-all",
        plots.old_new_all_bars(run),
        "Bars: accuracy of each head on old, new and all classes",
        "Accuracy after the last task on earlier classes (old), on its own classes (new), and on "
        f"all classes.{_best(run, 'new', 'is best on new classes, at', _percent)}{omitted}",
    )
    for i, head in enumerate(plots.shown_heads(run), 1):
        if all(map(adds_classes, run.heads[head].values())):
            columns = "the classes of each task (column) after each task (row). A column that"
            columns += " fades downward shows forgetting."
        else:
            columns = "each part of the test rows (column) after each task (row). "
            columns += _parts(run, head)
        yield (
            "matrices",
            f"matrix-{i}",
            matrix_map(run, head),
            f"Heat map: accuracy of {head} on each part after each task",
            f"{head}: accuracy on {columns}",
        )
    yield (
        "singular-values",
        "singular-values",
        plots.singular_values(run),
        "Curves: singular values of covariances of old and new classes",
        "Singular values of the covariance matrices of some classes, each divided by its largest. "
        "Old classes are those of the first task. A flat curve means variance in many directions.",
    )
    yield (
        "tsne",
        "tsne",
        plots.tsne_points(run),
        "Two scatter plots: features before and after Tukey's transformation, by class",
        "t-SNE of the features of some classes, before and after Tukey's transformation. Each "
        "class has a color, repeated after seven; triangles are new classes. Distances between "
        "distant groups have no meaning.",
    )
    grid = shrinkage_grid(run)
    if grid is not None:
        first, second, values = grid
        best, gamma1, gamma2 = max(
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
            f"Average accuracy for each pair of shrinkages. The best is {percent(best)} % at "
            f"γ₁ = {gamma1:g}, γ₂ = {gamma2:g}.",
        )
    yield (
        "storage",
        "storage",
        plots.storage_curves(run),
        "Curves: memory of each head after each task",
        f"Memory of each head after each task.{_best(run, 'bytes', 'needs least,', size, min)}"
        f"{omitted}",
    )
    fastest = _best(run, "seconds_to_learn", "learns fastest,", duration, min)
    yield (
        "time",
        "time",
        plots.time_bars(run),
        "Bars: seconds to learn and to predict",
        f"Seconds over all tasks, without the encoder.{fastest}{omitted}",
    )


def _percent(fraction: float) -> str:
    return f"{percent(fraction)} %"


def _seeds(run: Run) -> str:
    n_seeds = max((row["seeds"] for row in run.summary), default=0)
    return (
        f", mean of {n_seeds} seeds with a band of ± one standard deviation" if n_seeds > 1 else ""
    )


def _best(
    run: Run, metric: str, verb: str, show: Callable[[float], str], select: Callable[..., str] = max
) -> str:
    means = {row["head"]: row[metric]["mean"] for row in run.summary if row[metric]}
    if len(means) < 2:
        return ""
    best = select(means, key=lambda head: means[head])
    return f" {best} {verb} {show(means[best])}."


def _omitted_heads(run: Run) -> str:
    shown = len(plots.shown_heads(run))
    if shown == len(run.heads):
        return ""
    return f" Shows the {shown} best of {len(run.heads)} heads by average; the tables list all."


def _parts(run: Run, head: str) -> str:
    tasks = next(iter(run.heads[head].values()))
    names = [part[0] for part in tasks[-1]["parts"]]
    return "Parts: " + ", ".join(f"{number} {name}" for number, name in enumerate(names, 1)) + "."
