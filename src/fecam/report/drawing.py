"""Style, palette, legends and files of all plots. The only module that imports matplotlib.

Figures are small enough for a phone. Colors are distinguishable for color-blind readers, and every
head also has a marker.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec

from fecam.errors import needs_extra
from fecam.report.text import plain

with needs_extra("drawing a report", "report"):
    import matplotlib.style
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter as FuncFormatter
    from matplotlib.ticker import MaxNLocator as MaxNLocator
    from matplotlib.ticker import NullFormatter

INK, QUIET, LINE = "#23303c", "#5d6b78", "#dde3e8"
"""Colors of text, axes and grids; `inline_svg` replaces them by CSS variables (dark mode)."""
# The palette of Okabe and Ito without black and without yellow, which is too pale for lines.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1")
MARKERS = "osD^vPX*<>"
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)))
WIDTH = 4.8
STYLE: dict[str, Any] = {
    **dict.fromkeys(("text.color", "axes.titlecolor", "legend.labelcolor"), INK),
    **dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), QUIET),
    **dict.fromkeys(("axes.edgecolor", "grid.color", "xtick.color", "ytick.color"), LINE),
    **dict.fromkeys(("axes.spines.right", "axes.spines.top", "legend.frameon"), False),
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelsize": 9.5,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "font.size": 9.5,
    "grid.linewidth": 0.7,
    "legend.fontsize": 9,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.5,
    "savefig.dpi": 180,
    "svg.fonttype": "none",
    "svg.hashsalt": "fecam",  # deterministic files
    "text.parse_math": False,  # dollar signs in labels are literal
}

P = ParamSpec("P")


@contextmanager
def _style() -> Iterator[None]:
    """Apply the style regardless of user settings; ignore warnings about missing glyphs."""
    with matplotlib.style.context(["default", STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Gg]lyph")
        yield


def styled(draw: Callable[P, Figure | None]) -> Callable[P, Figure | None]:
    """Wrap a function so that it draws in the style of the report."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure | None:
        with _style():
            return draw(*args, **kwargs)

    return drawn


# -- figures and legends ---------------------------------------------------------------------------


def new_figure(height: float, width: float = WIDTH) -> tuple[Figure, Axes]:
    """Return a figure with one panel; sizes in inches."""
    figure = Figure(figsize=(width, height))
    return figure, figure.add_subplot()


def line_style(index: int) -> dict[str, Any]:
    """Return color, marker and dash of a head; neighbors differ in color and marker."""
    return {
        "color": COLORS[index % len(COLORS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index // len(COLORS) % len(DASHES)],
    }


def set_log_scale(axis: Any, show: Callable[[float], str] = "{:g}".format) -> None:
    """Set a logarithmic scale with plain numbers as tick labels."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_formatter(FuncFormatter(lambda value, _: show(value)))
    axis.set_minor_formatter(NullFormatter())


def shorten(label: str, max_length: int = 34) -> str:
    """Return the label, truncated to fit into a plot."""
    label = plain(label)
    return label if len(label) <= max_length else label[: max_length - 1] + "…"


def _legend_columns(labels: Sequence[str]) -> int:
    longest = max((len(shorten(label)) for label in labels), default=0)
    return min(len(labels), 3 if longest <= 13 else 2 if longest <= 24 else 1)


def legend_rows(labels: Sequence[str]) -> int:
    """Return the number of lines of a legend."""
    return -(-len(labels) // max(1, _legend_columns(labels)))


def legend(figure: Figure, entries: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Add a legend below the plot."""
    # matplotlib omits labels that start with an underscore; a zero-width space prevents that.
    labels = [re.sub("^_", "\u200b_", shorten(label)) for label, _ in entries]
    figure.legend(
        [Line2D([], [], **style) for _, style in entries],
        labels,
        loc="outside lower left",
        ncols=_legend_columns(labels),
    )


# -- files -----------------------------------------------------------------------------------------


def as_svg(figure: Figure) -> bytes:
    """Return a deterministic SVG file."""
    return _saved(figure, "svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))


def as_png(figure: Figure) -> bytes:
    """Return a PNG file with a white background."""
    return _saved(figure, "png", metadata={"Software": None})


def _saved(figure: Figure, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    with _style():
        figure.savefig(file, format=kind, facecolor="white", **options)
        figure.set_layout_engine("none")  # the layout is computed once for both files
    return file.getvalue()


def inline_svg(svg: bytes, name: str, label: str) -> str:
    """Return the SVG for embedding in a page; ``name`` is prepended to every id."""
    text = svg.decode()
    text = text[text.index("<svg") :]
    root, body = text.split(">", 1)
    view = re.search(r'viewBox="[^"]*"', root)
    assert view is not None
    body = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", body)
    body = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", body)
    for color, variable in ((INK, "ink"), (QUIET, "quiet"), (LINE, "line")):
        body = body.replace(color, f"var(--{variable})")
    body = body.replace("fill: #ffffff", "fill: none", 1)  # the white background
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{view[0]} role="img" aria-label="{label}">{body}'
    )
