"""Draw the layers of the package and list its modules, from the imports and docstrings.

    python docs/scripts/architecture.py

Writes ``docs/pictures/architecture.svg`` and ``docs/generated/inventory.md``; a test compares both
with the code. A box lies above every box that it imports. Lines that follow from others are left
out, and so are lines to the bottom row, which all may import.
"""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fecam"
PICTURE = ROOT / "docs" / "pictures" / "architecture.svg"
INVENTORY = ROOT / "docs" / "generated" / "inventory.md"

PATH_OF_DATA = (
    "encoders",
    "features",
    "scenarios",
    "core.transforms",
    "core.statistics",
    "core.covariance",
    "core.precision",
    "core.search",
    "classifier",
    "bench.metrics",
    "report",
)
"""The modules that data passes, in this order; raw input comes before, and a page after."""

BOX, GAP, ROW, MARGIN = (112, 30), 16, 74, 24
WIDTH = 1000
STYLE = """
  text { font: 13px "DejaVu Sans", Verdana, Arial, sans-serif; fill: #24292f; text-anchor: middle }
  .small { font-size: 11px; fill: #57606a }
  .box { fill: #f3f6fb; stroke: #8aa4cc }
  .data { fill: #e3edfb; stroke: #1f5fbf; stroke-width: 1.6 }
  .line { stroke: #b3bdcb; fill: none }
  .arrow { stroke: #1f5fbf; stroke-width: 1.6; fill: none; marker-end: url(#head) }
"""

Edges = dict[str, set[str]]


def main() -> None:
    """Write the picture and the inventory."""
    graph = grimp.build_graph("fecam", cache_dir=None)
    PICTURE.write_text(picture(graph), encoding="utf-8")
    INVENTORY.parent.mkdir(exist_ok=True)
    INVENTORY.write_text(inventory(), encoding="utf-8")


def imports(graph: grimp.ImportGraph) -> Edges:
    """Return what each package or module below ``fecam`` imports of the others."""
    edges: Edges = {name: set() for name in map(_part, graph.find_children("fecam"))}
    del edges["__main__"]
    excused = _excused()
    for module in graph.modules - {"fecam", "fecam.__main__"}:
        for imported in graph.find_modules_directly_imported_by(module) - {"fecam"}:
            pair = (_part(module), _part(imported))
            if pair[0] != pair[1] and pair not in excused:
                edges[pair[0]].add(pair[1])
    return edges


def _part(module: str) -> str:
    return module.split(".")[1]


def _excused() -> set[tuple[str, str]]:
    """Return the imports that the contract of the layers permits against their direction."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = project["tool"]["importlinter"]["contracts"][0]
    pairs = [line.split(" -> ") for line in contract.get("ignore_imports", [])]
    return {(_part(a), _part(b)) for a, b in pairs if "." in a and "." in b}


def ranks(edges: Edges) -> dict[str, int]:
    """Return the row of each box: one above the highest that it imports."""
    result: dict[str, int] = {}

    def rank(name: str) -> int:
        if name not in result:
            result[name] = 1 + max(map(rank, edges[name]), default=-1)
        return result[name]

    for name in sorted(edges):
        rank(name)
    return result


def without_implied(edges: Edges) -> Edges:
    """Return the imports that do not follow from others."""

    def reached(name: str) -> set[str]:
        return edges[name].union(*map(reached, edges[name])) if edges[name] else set()

    return {a: {b for b in edges[a] if all(b not in reached(c) for c in edges[a])} for a in edges}


def picture(graph: grimp.ImportGraph) -> str:
    """Return the layers, and below them the path of data, as SVG."""
    for module in PATH_OF_DATA:
        if f"fecam.{module}" not in graph.modules:
            raise ValueError(f"PATH_OF_DATA names fecam.{module}, which does not exist.")
    edges = imports(graph)
    places, height = _places(edges)
    on_path = {module.split(".")[0] for module in PATH_OF_DATA}
    lines, boxes = [], []
    for name, (x, y) in places.items():
        for other in sorted(without_implied(edges)[name]):
            to_x, to_y = places[other]
            if to_y < height:
                lines.append(_curve(x, y + BOX[1], to_x, to_y))
        boxes.append(_box(x, y, name, "box data" if name in on_path else "box"))
    steps, below = _path_of_data(height + ROW)
    marker = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#1f5fbf"/></marker>'
    )
    note = f'<text class="small" x="{WIDTH / 2:.0f}" y="{height + BOX[1] + 20}">'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {below}" role="img">',
            f"<style>{STYLE}</style>",
            f"<defs>{marker}</defs>",
            f'<rect width="{WIDTH}" height="{below}" fill="#ffffff"/>',
            *lines,
            *boxes,
            f"{note}all of the above may import this row</text>",
            *steps,
            "</svg>\n",
        ]
    )


def _places(edges: Edges) -> tuple[dict[str, tuple[float, int]], int]:
    """Return the center of each box's upper edge, and the height of the bottom row."""
    rows = defaultdict(list)
    for name, rank in ranks(edges).items():
        rows[rank].append(name)
    places: dict[str, tuple[float, int]] = {}
    for rank in sorted(rows, reverse=True):
        names = sorted(rows[rank], key=lambda name: (_above(name, edges, places), name))
        y = MARGIN + ROW * (max(rows) - rank)
        step = WIDTH / len(names) if len(names) > 1 else WIDTH
        for i, name in enumerate(names):
            shift = step / 6 * (-1) ** rank if rank and len(names) < 4 else 0
            places[name] = ((i + 0.5) * step + shift, y)
    return places, MARGIN + ROW * max(rows)


def _above(name: str, edges: Edges, places: dict[str, tuple[float, int]]) -> float:
    """Return the mean place of the boxes above that import this one."""
    importers = [places[other][0] for other in places if name in edges[other]]
    return sum(importers) / len(importers) if importers else WIDTH / 2


def _path_of_data(y: int) -> tuple[list[str], int]:
    """Return the boxes and arrows of the path of data in two rows, and where they end."""
    names = ["raw input", *PATH_OF_DATA, "page"]
    row = (len(names) + 1) // 2
    step = (WIDTH - 2 * MARGIN) / row
    places = [
        (MARGIN + (i % row + 0.5) * step, y + MARGIN + (ROW if i >= row else 0))
        for i in range(len(names))
    ]
    title = f'<text class="small" x="{WIDTH / 2:.0f}" y="{y + 6}">the path of data</text>'
    marks = [title]
    for i, ((a, top), (b, bottom)) in enumerate(pairwise(places)):
        middle = BOX[1] / 2
        if top == bottom:
            path = f"M{a + BOX[0] / 2:.0f} {top + middle:.0f} L{b - BOX[0] / 2:.0f} "
            marks.append(f'<path class="arrow" d="{path}{top + middle:.0f}"/>')
        else:
            turn = (top + BOX[1] + bottom) / 2
            path = f"M{a:.0f} {top + BOX[1]} V{turn:.0f} H{b:.0f} V{bottom}"
            marks.append(f'<path class="arrow" d="{path}"/>')
        marks.append(_box(a, top, names[i], "box data" if i else "box"))
    marks.append(_box(*places[-1], names[-1], "box"))
    return marks, y + MARGIN + ROW + BOX[1] + MARGIN


def _box(x: float, y: float, name: str, kind: str) -> str:
    width, height = BOX
    return (
        f'<rect class="{kind}" x="{x - width / 2:.0f}" y="{y:.0f}" width="{width}" '
        f'height="{height}" rx="5"/><text x="{x:.0f}" y="{y + height / 2 + 4.5:.0f}">{name}</text>'
    )


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    middle = (y + to_y) / 2
    curve = f"C{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} {to_x:.0f} {to_y:.0f}"
    return f'<path class="line" d="M{x:.0f} {y:.0f} {curve}"/>'


def inventory() -> str:
    """Return a list of all packages and modules, each with the summary of its docstring."""
    lines = []
    packages = sorted(path.parent for path in SOURCE.rglob("__init__.py"))
    for package in packages:
        name = ".".join(package.relative_to(SOURCE.parent).parts)
        modules = sorted(path for path in package.glob("*.py") if path.name != "__init__.py")
        lines += [f"**`{name}`**: {summary(package / '__init__.py')}", ""]
        lines += [f"- `{path.name}`: {summary(path)}" for path in modules]
        lines += [""] * bool(modules)
    return "\n".join(lines).rstrip() + "\n"


def summary(path: Path) -> str:
    """Return the first sentence of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split()) or "(no docstring)"


if __name__ == "__main__":
    main()
