"""Draw accuracy against the bytes that a method keeps between tasks, from records.

    python benchmarks/kept_bytes.py

Reads ``docs/records`` of `EXPERIMENTS`, which `experiments.py` writes, and runs nothing. Writes
``docs/pictures/kept-bytes.svg`` and the table ``docs/tables/kept_bytes.md``. Everything counts that
is needed to learn the next task and to predict: networks, statistics and images, but not the copy
of the network that exists while a task is learned. For a head that is its statistics and the
network of the first task.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

from fecam.bench.metrics import summarize
from records import RECORDS, read_records, task_records
from reporting import markdown, write
from stamps import EXPERIMENTS as PATHS
from stamps import LEARNERS, Stamp

EXPERIMENTS = ("cifar100-memory", "cifar100-memory-sizes")
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "kept-bytes.svg"
OLD_NETWORK = "old network"
COLORS = {"head": "#c2571a", "both": "#2c8a4b", "learner": "#1f5fbf"}
LEGEND = {
    "head": "the network of the first task and statistics",
    "both": "a method with a memory, and FeCAM",
    "learner": "methods that train the network",
}


@dataclass(frozen=True)
class Point:
    """A method, what it keeps after the last task, and its accuracy in percent."""

    label: str
    kind: str
    """A key of `COLORS`."""
    exemplars: int
    kept: int
    average: float
    last: float

    @property
    def family(self) -> str:
        """The label without the number of exemplars: points of a family are joined."""
        return re.sub(r", [\d,]+$", "", self.label)


def points(contents: Iterable[dict[str, Any]]) -> Iterator[Point]:
    """Yield a point per method of some experiments with one network."""
    every = list(contents)
    networks = {
        content["results"][-1]["bytes_by_kind"]["network"]
        for content in every
        if content["learner"] == "ft"
    }
    for content in every:
        (row,) = summarize(task_records(content))
        last = content["results"][-1]
        if content["learner"] is None:
            kept, kind = last["bytes"] + max(networks), "head"
        else:
            sizes = last["bytes_by_kind"]
            kept = sum(size for name, size in sizes.items() if name != OLD_NETWORK)
            kind = "learner" if content["head_options"] is None else "both"
        count = (content["options"] or {}).get("exemplars", 0)
        average, final = (100 * row[name]["mean"] for name in ("average", "last"))
        yield Point(content["head"], kind, count, kept, average, final)


def draw(rows: list[Point]) -> None:
    """Write the picture."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fecam", "font.size": 9}):
        figure, axis = plt.subplots(figsize=(9, 5.2))
        for family in dict.fromkeys(row.family for row in rows):
            line = sorted((row for row in rows if row.family == family), key=lambda r: r.kept)
            axis.plot(
                [row.kept / 1e6 for row in line], [row.last for row in line],
                color=COLORS[line[0].kind], marker="o", markersize=4, linewidth=1,
            )  # fmt: skip
        for row in rows:
            name = f"{row.family}, {row.exemplars:,}" if row.exemplars else row.family
            left = row.kind == "head"  # beside each other, heads and learners often overlap
            axis.annotate(
                name, (row.kept / 1e6, row.last), xytext=(-4 if left else 4, -2.5),
                textcoords="offset points", fontsize=7.5, color=COLORS[row.kind],
                horizontalalignment="right" if left else "left",
            )  # fmt: skip
        for kind in COLORS:
            axis.plot([], [], color=COLORS[kind], marker="o", markersize=4, label=LEGEND[kind])
        axis.set(
            xscale="log", xlabel="kept between tasks after the last one, MB",
            ylabel="accuracy after the last task, %",
        )  # fmt: skip
        low, high = axis.get_xlim()
        axis.set_xlim(low / 1.2, high * 1.25)
        axis.xaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(mpl.ticker.NullFormatter())
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, fontsize=8)
        figure.tight_layout()
        figure.savefig(PICTURE, metadata={"Date": None})


def table(rows: list[Point]) -> str:
    """Return the figures of the picture, the smallest memory first."""
    header = ["method", "exemplars", "kept, MB", "average %", "last %"]
    lines = [
        [row.label, f"{row.exemplars:,}", f"{row.kept / 1e6:.2f}", f"{row.average:.1f}",
         f"{row.last:.1f}"]
        for row in sorted(rows, key=lambda row: row.kept)
    ]  # fmt: skip
    return markdown(header, lines)


def main() -> None:
    """Read, draw and write."""
    contents = [one for name in EXPERIMENTS for one in read_records(RECORDS / name)]
    if not contents:
        raise SystemExit(f"no records of {' or '.join(EXPERIMENTS)} in {RECORDS}.")
    rows = list(points(contents))
    draw(rows)
    oldest = min(contents, key=lambda content: content["started"])
    measures = (*PATHS, *LEARNERS)
    stamp = Stamp(oldest["git"]["commit"][:7], oldest["started"][:10], measures)
    text, results = table(rows), {"points": [vars(row) for row in rows]}
    write("kept_bytes", text, results, measures=measures, stamp=stamp)
    print(text)


if __name__ == "__main__":
    main()
