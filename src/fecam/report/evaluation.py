"""HTML page of an evaluation: predictions of a model compared with labels."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fecam.bench.evaluation import Evaluation
from fecam.errors import InputError
from fecam.files import write_atomically
from fecam.report.layout import description_list, details, figures, page, section
from fecam.report.tables import GAP, Table, text_table
from fecam.report.text import markup, percent
from fecam.validation import counted

if TYPE_CHECKING:
    from fecam.report.gallery import Picture

MAX_LABELS = 40
"""The confusion matrix of more classes shows the most confused ones."""
MAX_PAIRS = 30
MAX_ROWS = 40
"""Visible rows of the table of classes; the others are collapsed."""


def write_evaluation(evaluation: Evaluation, facts: Mapping[str, str], path: Path | str) -> Path:
    """Write the page as one file; ``facts`` describe model and data by name."""
    path = Path(path)
    text = evaluation_page(evaluation, facts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {error.strerror or error}. Remedy: give a path in a "
            "writable folder"
        ) from None
    return path


def evaluation_page(evaluation: Evaluation, facts: Mapping[str, str]) -> str:
    """Return the page as text."""
    plots = {picture.section: picture for picture in _pictures(evaluation)}
    results = results_table(evaluation).as_html() + _explanation(evaluation)
    parts = [("what", "Model and data", description_list(facts)), ("results", "Results", results)]
    if evaluation.confusions:
        pairs = confusions_table(evaluation).as_html()
        parts.append(("confusions", "Confusions", figures([plots["confusions"]]) + pairs))
    if evaluation.bins:
        parts.append(("calibration", "Calibration", figures([plots["calibration"]])))
    if evaluation.novelty_bins:
        text = "".join(f"<p>{markup(line)}</p>" for line in novelty_sentences(evaluation))
        parts.append(("novelty", "Novelty", figures([plots["novelty"]]) + text))
    parts.append(("classes", "Classes", _classes(evaluation)))
    if evaluation.unknown:
        parts.append(("unknown", "Unknown labels", unknown_table(evaluation).as_html()))
    title = f"Evaluation of {facts.get('model', 'a model')}"
    return page(title, summary_sentence(evaluation), [section(*part) for part in parts])


def summary_sentence(evaluation: Evaluation) -> str:
    """Return one sentence with the accuracy."""
    if evaluation.accuracy is None:
        return "No sample has a label of the model."
    top_k = ""
    if evaluation.top_k > 1 and evaluation.top_k_accuracy is not None:
        top_k = f", {percent(evaluation.top_k_accuracy)} % in the top {evaluation.top_k}"
    correct = percent(evaluation.accuracy)
    return f"{correct} % of {counted(evaluation.count, 'sample')} classified correctly{top_k}."


def novelty_sentences(evaluation: Evaluation) -> list[str]:
    """Return what limits the use of novelty: no separation, or samples without a novelty."""
    sentences = []
    if evaluation.separates is False:
        auroc = percent(evaluation.novelty_auroc or 0.0)
        sentences.append(
            f"Novelty does not separate unknown items from known ones (AUROC {auroc} %; 50 is "
            "chance): these features do not allow it. Remedy: use another encoder, learn more "
            "samples per class, or do not rely on rejection."
        )
    if count := evaluation.n_without_novelty:
        sentences.append(
            f"{count:,} of {evaluation.count + evaluation.n_unknown:,} items have no novelty: the "
            "model cannot tell yet, and rejects none of them. Remedy: learn more samples per class."
        )
    return sentences


# -- tables ----------------------------------------------------------------------------------------


def results_table(evaluation: Evaluation) -> Table:
    """Return the metrics over all samples."""
    k = evaluation.top_k
    metrics = {
        "accuracy %": evaluation.accuracy,
        f"top-{k} accuracy %": evaluation.top_k_accuracy if k > 1 else None,
        "calibration error %": evaluation.calibration_error,
        f"known classes rejected (reject {evaluation.reject:g}) %": evaluation.rejected,
        f"unknown items detected (reject {evaluation.reject:g}) %": evaluation.unknown_rejected,
        "novelty AUROC %": evaluation.novelty_auroc,
        "FPR at 95 % TPR %": evaluation.fpr_at_95_tpr,
    }
    rows = [(name, percent(value)) for name, value in metrics.items() if value is not None]
    return text_table(
        ("metric", "value"), rows, f"{counted(evaluation.count, 'sample')} of known classes"
    )


def classes_table(evaluation: Evaluation) -> Table:
    """Return one row per class that has samples, lowest recall first."""
    rows = []
    results = [result for result in evaluation.classes if result.count]
    for result in sorted(results, key=lambda result: (result.recall is None, result.recall)):
        other = "" if not result.confused else f"{result.confused_with} ({result.confused:,})"
        shares = (_percent(result.recall), _percent(result.precision))
        rows.append((str(result.label), f"{result.count:,}", *shares, other))
    header = ("class", "samples", "recall %", "precision %", "most often predicted as")
    return text_table(header, rows, "Lowest recall first")


def confusions_table(evaluation: Evaluation) -> Table:
    """Return the most frequent confusions."""
    pairs = evaluation.confusions[:MAX_PAIRS]
    rows = [(str(label), str(predicted), f"{count:,}") for label, predicted, count in pairs]
    return text_table(("class", "predicted", "samples"), rows, "Most frequent confusions")


def unknown_table(evaluation: Evaluation) -> Table:
    """Return the number of samples per unknown label."""
    rows = [(str(label), f"{count:,}") for label, count in evaluation.unknown.items()]
    return text_table(("label", "samples"), rows, "Not part of the other metrics")


def reliability_table(evaluation: Evaluation) -> Table:
    """Return the bins of the reliability diagram."""
    rows = [(percent(x.confidence), percent(x.accuracy), f"{x.count:,}") for x in evaluation.bins]
    return text_table(("confidence %", "accuracy %", "samples"), rows, "Reliability")


def _percent(fraction: float | None) -> str:
    return GAP if fraction is None else percent(fraction)


def _classes(evaluation: Evaluation) -> str:
    table = classes_table(evaluation)
    if len(table.rows) <= MAX_ROWS:
        return table.as_html()
    first = Table(table.header, table.rows[:MAX_ROWS], table.caption)
    others = Table(table.header, table.rows[MAX_ROWS:], "The other classes")
    return first.as_html() + details(counted(len(others.rows), "more class"), others.as_html())


def _explanation(evaluation: Evaluation) -> str:
    text = (
        "The calibration error is the mean difference between confidence and accuracy. With reject "
        f"{evaluation.reject:g}, about that fraction of samples of known classes should be "
        "rejected as novel."
    )
    if evaluation.novelty_auroc is not None:
        text += (
            " Novelty AUROC is the probability that an unknown item has a higher novelty than one "
            "of a known class; 50 is chance. FPR at 95 % TPR is the share of unknown items that is "
            "accepted at the threshold of novelty that accepts 95 % of the known items."
        )
    return f"<p>{markup(text)}</p>"


# -- pictures --------------------------------------------------------------------------------------


def _pictures(evaluation: Evaluation) -> list[Picture]:
    from fecam.report.calibration_plots import (  # imports matplotlib
        confusion_map,
        novelty_histogram,
        reliability,
    )
    from fecam.report.gallery import render

    labels = confused_classes(evaluation)
    present = sum(result.count > 0 for result in evaluation.classes)
    which = "" if len(labels) >= present else f" Shows the {len(labels)} most confused classes."
    return [
        *render(
            "confusions",
            "confusions",
            confusion_map(labels, confusion_fractions(evaluation, labels)),
            "Heat map: confusion matrix",
            "Percentage of the samples of each class (row) that are predicted as each class "
            f"(column).{which}",
        ),
        *render(
            "calibration",
            "calibration",
            reliability(evaluation.bins),
            "Reliability diagram: accuracy by confidence",
            "Accuracy of the predictions by confidence. Below the dashed line the model is "
            "overconfident. Bars and dot sizes show the number of samples.",
        ),
        *render(
            "novelty",
            "novelty",
            novelty_histogram(evaluation.novelty_bins, evaluation.reject),
            "Histograms: novelty of known and of unknown items",
            "Share of the known and of the unknown items by novelty. Items to the right of the "
            f"dashed line are rejected at reject {evaluation.reject:g}. The outer bars hold all "
            "values beyond.",
        ),
    ]


def confused_classes(evaluation: Evaluation) -> list[Hashable]:
    """Return the classes to draw: all that have samples, or the most confused ones."""
    present = [result.label for result in evaluation.classes if result.count]
    if len(present) <= MAX_LABELS:
        return present
    errors: dict[Hashable, int] = {}
    for label, predicted, count in evaluation.confusions:
        errors[label] = errors.get(label, 0) + count
        errors[predicted] = errors.get(predicted, 0) + count
    worst = set(sorted(present, key=lambda label: -errors.get(label, 0))[:MAX_LABELS])
    return [label for label in present if label in worst]


def confusion_fractions(evaluation: Evaluation, labels: Sequence[Hashable]) -> NDArray[np.float64]:
    """Return the confusion matrix, normalized by the samples of each class (row)."""
    index = {label: i for i, label in enumerate(labels)}
    fractions = np.zeros((len(labels), len(labels)))
    results = {result.label: result for result in evaluation.classes if result.label in index}
    for label, i in index.items():
        fractions[i, i] = results[label].recall or 0.0
    for label, predicted, count in evaluation.confusions:
        if label in index and predicted in index:
            fractions[index[label], index[predicted]] = count / max(results[label].count, 1)
    return fractions
