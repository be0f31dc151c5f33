"""What all plots share: matplotlib, a look, a palette, legends, files.

This is the only file that imports matplotlib; whoever draws has it from here. Figures are small, so
that they can be read on a phone, in colours that the colour-blind can tell apart, and every head
has a marker as well.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec

from fecam.errors import MissingPackageError
from fecam.report.text import plain

try:
    import matplotlib.style
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter as FuncFormatter
    from matplotlib.ticker import MaxNLocator as MaxNLocator
    from matplotlib.ticker import NullFormatter
except ModuleNotFoundError:
    raise MissingPackageError("drawing a report", "matplotlib", "report") from None

INK, QUIET, LINE = "#23303c", "#5d6b78", "#dde3e8"
"""Of text, of axes, of grids: `inline_svg` hands them over to the page, for its dark form."""
# Okabe and Ito's palette without its yellow, which is too pale for lines, and without black.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1")
MARKERS = "osD^vPX*<>"
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)))
WIDTH = 4.8
STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": LINE,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": QUIET,
    "axes.labelsize": 9.5,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "font.size": 9.5,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.5,
    "savefig.dpi": 180,
    "svg.fonttype": "none",
    "svg.hashsalt": "fecam",  # the same run, the same file
    "text.color": INK,
    "text.parse_math": False,  # a label with dollars is a label
    "xtick.color": LINE,
    "xtick.labelcolor": QUIET,
    "ytick.color": LINE,
    "ytick.labelcolor": QUIET,
}

P = ParamSpec("P")


@contextmanager
def _style() -> Iterator[None]:
    """Our look whatever the user's settings; characters that no typeface has are no warning."""
    with matplotlib.style.context(["default", STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Gg]lyph")
        yield


def styled(draw: Callable[P, Figure | None]) -> Callable[P, Figure | None]:
    """Draw a plot in our look."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure | None:
        with _style():
            return draw(*args, **kwargs)

    return drawn


# -- figures and legends ---------------------------------------------------------------------------


def new_figure(height: float, width: float = WIDTH) -> tuple[Figure, Axes]:
    """A figure with one panel; sizes in inches."""
    figure = Figure(figsize=(width, height))
    return figure, figure.add_subplot()


def look(place: int) -> dict[str, Any]:
    """Colour, marker and dash of the nth head; neighbours differ in the first two."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": DASHES[place // len(COLOURS) % len(DASHES)],
    }


def logarithmic(axis: Any, show: Callable[[float], str] = "{:g}".format) -> None:
    """A logarithmic scale with numbers in plain figures."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_formatter(FuncFormatter(lambda value, _: show(value)))
    axis.set_minor_formatter(NullFormatter())


def short(label: str, most: int = 34) -> str:
    """A label that fits into a plot."""
    label = plain(label)
    return label if len(label) <= most else label[: most - 1] + "…"


def _legend_columns(labels: Sequence[str]) -> int:
    longest = max((len(short(label)) for label in labels), default=0)
    return min(len(labels), 3 if longest <= 13 else 2 if longest <= 24 else 1)


def legend_rows(labels: Sequence[str]) -> int:
    """How many lines a legend takes."""
    return -(-len(labels) // max(1, _legend_columns(labels)))


def legend(figure: Figure, entries: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """A legend below the plot, where it hides nothing."""
    # A zero-width space before an underscore, or matplotlib would leave the label out.
    labels = [re.sub("^_", "\u200b_", short(label)) for label, _ in entries]
    figure.legend(
        [Line2D([], [], **look) for _, look in entries],
        labels,
        loc="outside lower left",
        ncols=_legend_columns(labels),
    )


# -- files -----------------------------------------------------------------------------------------


def as_svg(figure: Figure) -> bytes:
    """An SVG file: the same bytes for the same figure."""
    return _saved(figure, "svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))


def as_png(figure: Figure) -> bytes:
    """A PNG file on white."""
    return _saved(figure, "png", metadata={"Software": None})


def _saved(figure: Figure, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    with _style():
        figure.savefig(file, format=kind, facecolor="white", **options)
        figure.set_layout_engine("none")  # laid out once: the second file has it for nothing
    return file.getvalue()


def inline_svg(svg: bytes, name: str, label: str) -> str:
    """An SVG as a part of a page: as wide as there is room, in the page's colours, with a label.

    ``name`` goes before every id, so that several pictures can share a page.
    """
    text = svg.decode()
    text = text[text.index("<svg") :]
    root, rest = text.split(">", 1)
    view = re.search(r'viewBox="[^"]*"', root)
    assert view is not None, "matplotlib always writes one"
    rest = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", rest)
    rest = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", rest)
    for colour, variable in ((INK, "ink"), (QUIET, "quiet"), (LINE, "line")):
        rest = rest.replace(colour, f"var(--{variable})")
    rest = rest.replace("fill: #ffffff", "fill: none", 1)  # the white sheet below all
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{view[0]} role="img" aria-label="{label}">{rest}'
    )
