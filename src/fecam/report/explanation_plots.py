"""Bar charts of an explanation."""

from fecam.report.drawing import COLORS, Axes, Figure, legend, shorten, styled
from fecam.results import Explanation

PARTS = {"from_samples": "its samples", "from_prior": "prior", "from_shrinkage": "shrinkage"}
"""Fields of the parts of a distance, and their names in the legend."""
ROW = 0.27
"""Height of a bar with its margin, in inches."""


@styled
def explanation_bars(name: str, explanation: Explanation) -> Figure | None:
    """Draw the distances to the nearest classes, and the parts of one of them."""
    counts = [
        len(explanation.nearest), len(explanation.directions) + 1, len(explanation.features) + 1
    ]  # fmt: skip
    figure = Figure(figsize=(5.2, 1.9 + ROW * sum(counts)))
    classes, directions, features = figure.subplots(3, 1, height_ratios=counts)
    _distances(classes, explanation)
    _bars(
        directions,
        f"distance to {explanation.explained}, by direction",
        [
            *((str(part.number), part.contribution) for part in explanation.directions),
            ("others", explanation.other_directions),
        ],
    )
    _bars(
        features,
        f"distance to {explanation.explained}, by feature",
        [
            *((part.name, part.contribution) for part in explanation.features),
            ("others", explanation.other_features),
        ],
    )
    colors = zip(PARTS.values(), COLORS, strict=False)
    legend(figure, [(text, {"color": color, "linewidth": 6}) for text, color in colors])
    return figure


def _distances(axes: Axes, explanation: Explanation) -> None:
    """Draw a stacked bar per class, and a mark at the distance of a typical sample."""
    names = [shorten(str(near.label), 20) for near in explanation.nearest]
    places = range(len(names))
    left = [0.0] * len(names)
    for part, color in zip(PARTS, COLORS, strict=False):
        widths = [max(getattr(near, part), 0.0) for near in explanation.nearest]
        axes.barh(places, widths, left=left, color=color, height=0.7)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    expected = [near.expected for near in explanation.nearest]
    axes.plot(expected, places, "k|", markersize=11, markeredgewidth=2)
    axes.set(title="squared distance (line: a typical sample)", yticks=places, yticklabels=names)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def _bars(axes: Axes, title: str, parts: list[tuple[str, float]]) -> None:
    names = [shorten(name, 20) for name, _ in parts]
    axes.barh(range(len(parts)), [value for _, value in parts], color=COLORS[0], height=0.7)
    axes.set(title=title, yticks=range(len(parts)), yticklabels=names)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
