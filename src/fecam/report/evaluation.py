"""The page of an evaluation: how a model fares on labelled samples."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fecam.bench.evaluation import Evaluation
from fecam.bench.results import replace_text
from fecam.errors import InputError
from fecam.report.layout import details, figures, listed, page, section
from fecam.report.tables import GAP, Cell, Table
from fecam.report.text import markup, percent

if TYPE_CHECKING:
    from fecam.report.gallery import Picture

MOST_LABELS = 40
"""A picture of more classes shows those that are confused most."""
MOST_PAIRS = 30
MOST_ROWS = 40
"""Of the table of classes, before the rest is to be unfolded."""


def write_evaluation(found: Evaluation, facts: Mapping[str, str], path: Path | str) -> Path:
    """Write the page, everything in one file; ``facts`` say what was judged, by name."""
    path = Path(path)
    text = evaluation_page(found, facts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, text)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror or error}. Give a path in a folder that "
            "may be written to"
        ) from None
    return path


def evaluation_page(found: Evaluation, facts: Mapping[str, str]) -> str:
    """The page as text."""
    plots = _pictures(found)
    sections = [
        section("what", "What was judged", listed(facts)),
        section("results", "Results", results_table(found).as_html() + _words(found)),
    ]
    if found.confusions:
        pairs = confusions_table(found).as_html()
        sections.append(section("confusions", "Confusions", _shown(plots, "confusions") + pairs))
    if found.bins:
        sections.append(section("calibration", "Calibration", _shown(plots, "calibration")))
    sections.append(section("classes", "Class by class", _classes(found)))
    if found.unknown:
        table = unknown_table(found).as_html()
        sections.append(section("unknown", "Labels never taught", table))
    title = f"Evaluation of {facts.get('model', 'a model')}"
    return page(title, summary_sentence(found), sections)


def summary_sentence(found: Evaluation) -> str:
    """One sentence."""
    if found.accuracy is None:
        return "No sample has a label that the model was taught."
    nearest = ""
    if found.top_k > 1 and found.top_k_accuracy is not None:
        nearest = f", {percent(found.top_k_accuracy)} % among the nearest {found.top_k}"
    return f"{percent(found.accuracy)} % of {found.count:,} samples recognised{nearest}."


# -- tables ----------------------------------------------------------------------------------------


def results_table(found: Evaluation) -> Table:
    """The numbers of the whole."""
    shown = {
        "accuracy %": found.accuracy,
        f"among the nearest {found.top_k} %": found.top_k_accuracy if found.top_k > 1 else None,
        "calibration error %": found.calibration_error,
        f"turned away (reject {found.reject:g}) %": found.rejected,
        "never taught, turned away %": found.unknown_rejected,
        "novelty AUROC %": found.novelty_auroc,
    }
    rows = [
        (Cell(name), Cell(percent(value))) for name, value in shown.items() if value is not None
    ]
    return Table(("what", "value"), tuple(rows), f"Of {found.count:,} samples of known classes")


def classes_table(found: Evaluation) -> Table:
    """Every class, the worst first; those without samples are left out."""
    rows = []
    for one in sorted(found.classes, key=lambda one: (one.recall is None, one.recall)):
        if not one.count:
            continue
        mistaken = "" if one.confused_with is None else f"{one.confused_with} ({one.confused:,})"
        rows.append(
            (
                Cell(str(one.label)),
                Cell(f"{one.count:,}"),
                Cell(_percent(one.recall)),
                Cell(_percent(one.precision)),
                Cell(mistaken),
            )
        )
    header = ("class", "samples", "recall %", "precision %", "mostly mistaken for")
    return Table(header, tuple(rows), "The worst recall first")


def confusions_table(found: Evaluation) -> Table:
    """The most frequent confusions."""
    rows = [
        (Cell(str(label)), Cell(str(taken)), Cell(f"{count:,}"))
        for label, taken, count in found.confusions[:MOST_PAIRS]
    ]
    return Table(("class", "taken for", "samples"), tuple(rows), "The most frequent confusions")


def unknown_table(found: Evaluation) -> Table:
    """Samples with labels that the model was never taught."""
    rows = [(Cell(str(label)), Cell(f"{count:,}")) for label, count in found.unknown.items()]
    return Table(("label", "samples"), tuple(rows), "Counted apart from everything else")


def _percent(share: float | None) -> str:
    return GAP if share is None else percent(share)


def _classes(found: Evaluation) -> str:
    table = classes_table(found)
    if len(table.rows) <= MOST_ROWS:
        return table.as_html()
    first = Table(table.header, table.rows[:MOST_ROWS], table.caption)
    rest = Table(table.header, table.rows[MOST_ROWS:], "The others")
    return first.as_html() + details(f"{len(rest.rows):,} more classes", rest.as_html())


def _words(found: Evaluation) -> str:
    words = (
        "The calibration error is how far the model's confidence is from its accuracy, on the "
        f"average. At {found.reject:g}, about that share of samples of known classes should be "
        "turned away as none of these."
    )
    if found.novelty_auroc is not None:
        words += (
            " Novelty AUROC is how often a sample with a label never taught looks newer than one "
            "of a known class: 50 is chance."
        )
    return f"<p>{markup(words)}</p>"


# -- pictures --------------------------------------------------------------------------------------


def _shown(plots: Sequence[Picture], name: str) -> str:
    chosen = [plot for plot in plots if plot.section == name]
    return figures(chosen) if chosen else ""


def _pictures(found: Evaluation) -> list[Picture]:
    from fecam.report.calibration_plots import confusion_map, reliability
    from fecam.report.drawing import as_png, as_svg  # loads matplotlib
    from fecam.report.gallery import Picture

    shown = confused_classes(found)
    counted = sum(one.count > 0 for one in found.classes)
    which = "" if len(shown) >= counted else f" Shown are the {len(shown)} that are confused most."
    drawn = [
        (
            "confusions",
            confusion_map(shown, confusion_shares(found, shown)),
            "Heat map: what the samples of each class were taken for",
            "Of the samples of each class (row) the percentage that was taken for each class "
            f"(column).{which}",
        ),
        (
            "calibration",
            reliability(found.bins),
            "Reliability diagram: accuracy by confidence",
            "The accuracy of samples by the confidence of the answers; on the dashed line both "
            "agree, below it the model is too sure of itself. The bars and the sizes of the dots "
            "say how many samples there are of each confidence.",
        ),
    ]
    return [
        Picture(name, name, label, caption, as_svg(figure), as_png(figure))
        for name, figure, label, caption in drawn
        if figure is not None
    ]


def confused_classes(found: Evaluation) -> list[Hashable]:
    """The classes to be drawn: all that have samples, or those that are confused most."""
    present = [one.label for one in found.classes if one.count]
    if len(present) <= MOST_LABELS:
        return present
    blame: dict[Hashable, int] = {}
    for label, taken, count in found.confusions:
        blame[label] = blame.get(label, 0) + count
        blame[taken] = blame.get(taken, 0) + count
    worst = sorted(present, key=lambda label: -blame.get(label, 0))[:MOST_LABELS]
    return [label for label in present if label in set(worst)]


def confusion_shares(found: Evaluation, labels: Sequence[Hashable]) -> NDArray[np.float64]:
    """Of the samples of each class (row), the share that was taken for each class (column)."""
    places = {label: at for at, label in enumerate(labels)}
    shares = np.zeros((len(labels), len(labels)))
    counts = np.ones(len(labels))
    for one in found.classes:
        if one.label in places:
            at = places[one.label]
            counts[at] = max(one.count, 1)
            shares[at, at] = round((one.recall or 0.0) * one.count)
    for label, taken, count in found.confusions:
        if label in places and taken in places:
            shares[places[label], places[taken]] = count
    return shares / counts[:, None]
