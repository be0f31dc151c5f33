"""Explanations of predictions as sentences, bar charts and an HTML page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fecam.core.novelty import novelty_threshold
from fecam.report.text import markup
from fecam.results import ClassDistance, Explanation
from fecam.validation import counted

if TYPE_CHECKING:
    from fecam.report.gallery import Picture

FEW_SAMPLES = 10
"""Number of samples below which a class is said to have few."""
MAX_ITEMS = 100
"""Items on a page."""


def sentences(explanation: Explanation) -> list[str]:
    """Return what an explanation says, in words."""
    first = explanation.nearest[0]
    told = []
    if len(explanation.nearest) > 1:
        second = explanation.nearest[1]
        told.append(
            f"{first.label} is {100 * first.probability:.0f} % probable, then {second.label} with "
            f"{100 * second.probability:.0f} %; the margin between their distances is "
            f"{explanation.margin:.3g}."
        )
    if first.expected > 0:
        told.append(
            f"Its distance to {first.label} is {first.distance / first.expected:.1f} times that of "
            "a typical sample."
        )
    told.append(_novelty_sentence(explanation.novelty))
    explained = _of(explanation)
    total = explained.distance
    if total > 0 and explained.count < FEW_SAMPLES and explained.from_prior > 0.5 * total:
        told.append(
            f"{explained.label} has {counted(explained.count, 'sample')}: "
            f"{100 * explained.from_prior / total:.0f} % of the distance to it is measured with "
            "the variance that all classes share."
        )
    if total > 0 and explanation.directions:
        share = sum(part.contribution for part in explanation.directions) / total
        told.append(
            f"{counted(len(explanation.directions), 'direction')} of {explained.label} make "
            f"{100 * share:.0f} % of the distance to it."
        )
    return told


def _novelty_sentence(novelty: float) -> str:
    if math.isnan(novelty):
        return "The model has too few samples to tell whether it fits a class at all."
    limit = novelty_threshold(0.05)
    if novelty > limit:
        return f"It fits no class: novelty {novelty:.1f}; 5 % of known items exceed {limit:.2f}."
    return f"It fits a known class: novelty {novelty:.1f}; 5 % of known items exceed {limit:.2f}."


def _of(explanation: Explanation) -> ClassDistance:
    """Return the class whose distance is decomposed."""
    return next(near for near in explanation.nearest if near.label == explanation.explained)


def explanation_picture(name: str, explanation: Explanation) -> Picture:
    """Return bar charts of an explanation: distances to the classes, directions and features."""
    from fecam.report.explanation_plots import explanation_bars
    from fecam.report.gallery import render

    label = "Bars: the distances to the nearest classes, and the parts of one of them"
    caption = (
        f"{name}. Distances by what the matrix of the class is made from; the parts of the "
        f"distance to {explanation.explained} by direction and by feature."
    )
    (picture,) = render("why", "why", explanation_bars(name, explanation), label, caption)
    return picture


def explanation_page(
    names: Sequence[str], explanations: Sequence[Explanation], kind: str, model: str
) -> str:
    """Return a page with a section per item; images are shown."""
    from fecam.report.groups import image_element
    from fecam.report.layout import figures, page, section

    sections = []
    shown = list(zip(names, explanations, strict=True))[:MAX_ITEMS]
    for i, (name, explanation) in enumerate(shown, 1):
        text = "".join(f"<p>{markup(sentence)}</p>" for sentence in sentences(explanation))
        picture = image_element(name) if kind == "images" else ""
        charts = figures([explanation_picture(name, explanation)], f"item-{i}-")
        title = f"{name}: {explanation.label}"
        sections.append(section(f"item-{i}", title, picture + text + charts))
    lead = f"{counted(len(names), 'item')} explained by {model}."
    if len(names) > MAX_ITEMS:
        lead += f" The first {MAX_ITEMS} are shown."
    return page("Why these classes", lead, sections)
