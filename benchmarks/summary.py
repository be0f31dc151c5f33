"""The table of what was to be reached, with what the other benchmarks have measured.

    python benchmarks/summary.py [--quick]

It measures nothing: run `prediction.py` and `bytes_a_class.py` first, or all by `make bench`. What
misses "at least" is marked with (!).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from reference import SETTINGS
from reporting import markdown, options, read, write
from stamps import CLASSIFIER

MISSED = " (!)"
AGREEMENT = 0.999
# The 0.5 and 0.015 of the table, to the byte: 0.53 MB and 16 KB (of 1,024) at d = 512. Half
# a matrix and its diagonal are a little more than half, before any mean is kept.
MOST_BYTES = {500: 0.53 * 2**20 / (4 * 512**2), 5: 16 * 2**10 / (4 * 512**2)}

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """One measured value: what it was measured on, how it reads, and whether it is enough."""

    name: str
    text: str
    good: bool


@dataclass(frozen=True)
class Goal:
    """One line of the table; `figures` finds what was measured for a setting."""

    what: str
    least: str
    aim: str
    figures: Callable[[str], Iterable[Figure]]

    def cell(self, setting: str) -> str:
        """All figures of a setting, or that there are none."""
        found = list(self.figures(setting))
        texts = [f"{one.text} ({one.name}){'' if one.good else MISSED}" for one in found]
        return "; ".join(texts) or "not measured"


class Measured:
    """The results of the other benchmarks."""

    def __init__(self, quick: bool) -> None:
        nothing: dict[str, Any] = {"rows": [], "growth": []}
        self.predictions = [
            read(name, quick=quick) or nothing for name in ("prediction", "prediction_synthetic")
        ]
        self.bytes = read("bytes_a_class", quick=quick) or {"rows": []}

    def rows(self, setting: str, large: bool, batch: int | None = None) -> Iterable[Row]:
        """Yield predictions over 1,000 (``large``) or 100 classes, of a batch size or the largest.

        Real features; for 1,000 classes of 500 samples there are none, and synthetic ones join.
        """
        for document in self.predictions if large else self.predictions[:1]:
            of_setting = [row for row in document["rows"] if row["setting"] == setting]
            for case in ("large",) if large else ("photographs", "small"):
                batches = [row for row in of_setting if row["case"] == case]
                batches = [row for row in batches if batch in (None, row["batch"])]
                yield from batches[-1:]

    def search(self, name: str, large: bool, least: float) -> Callable[[str], Iterable[Figure]]:
        """How many times faster than the dense product, and how often with its answer."""

        def figures(setting: str) -> Iterable[Figure]:
            for row in self.rows(setting, large):
                ratio, share = row["dense_over"][name], row["agreement"][name]
                agrees = name != "approximate" or share >= AGREEMENT
                text = f"{ratio:.1f} x"
                if name == "approximate":
                    text += f" at {100 * share:.2f} %"
                yield Figure(_name(row), text, agrees and ratio >= least)

        return figures

    def public(self, single: bool, least: float) -> Callable[[str], Iterable[Figure]]:
        """How many times faster than the public computation."""

        def figures(setting: str) -> Iterable[Figure]:
            for row in self.rows(setting, large=False, batch=1 if single else 1000):
                ratio = row["public_over_auto"]
                yield Figure(_name(row), f"{ratio:,.0f} x", ratio >= least)

        return figures

    def growth(self, most: float) -> Callable[[str], Iterable[Figure]]:
        """What ten times as many classes cost."""

        def figures(setting: str) -> Iterable[Figure]:
            for name, document in zip(("thousand", "synthetic"), self.predictions, strict=True):
                for one in document["growth"]:
                    if one["setting"] == setting:
                        what = f"{name}, {one['batch']:,} queries"
                        yield Figure(what, f"{one['ratio']:.1f} x", one["ratio"] < most)

        return figures

    def share(self, per_class: int) -> Callable[[str], Iterable[Figure]]:
        """Bytes a class over those of a d x d float32 matrix."""

        def figures(setting: str) -> Iterable[Figure]:
            for row in self.bytes["rows"]:
                if row["setting"] == setting and row["per_class"] == per_class:
                    for place in ("memory", "disk"):
                        value = row["of_dense"][place]
                        yield Figure(place, f"{value:.4f}", value <= MOST_BYTES[per_class])

        return figures


def _name(row: Row) -> str:
    return f"{row['features']}, {row['per_class']} each"


def goals(measured: Measured) -> list[Goal]:
    """What was to be reached, a line each."""
    exact = "exact, against the dense product"
    rough = "approximate, against the dense product"
    public = "auto, against the public computation"
    paper = "bytes per class, of the paper's 4 d^2"
    lossy = "-"
    return [
        Goal(f"{exact}, 100 classes", "3 x", "6 x", measured.search("exact", False, 3)),
        Goal(f"{exact}, 1,000 classes", "6 x", "20 x", measured.search("exact", True, 6)),
        Goal(f"{rough}, 100 classes", "6 x", "15 x", measured.search("approximate", False, 6)),
        Goal(
            f"{rough}, 1,000 classes",
            "15 x",
            "50 x",
            measured.search("approximate", True, 15),
        ),
        Goal(f"{public}, batch of 1,000", "50 x", "-", measured.public(False, 50)),
        Goal(f"{public}, one query", "1,000 x", "-", measured.public(True, 1000)),
        Goal("exact cost from 100 to 1,000 classes", "< 6 x", "-", measured.growth(6)),
        Goal(f"{paper}, n = 500", "0.5", lossy, measured.share(500)),
        Goal(f"{paper}, n = 5", "0.015", lossy, measured.share(5)),
    ]


def main() -> None:
    """Put the table together, print it, write it."""
    args = options(__doc__).parse_args()
    rows = [
        [goal.what, goal.least, goal.aim, *(goal.cell(setting) for setting in SETTINGS)]
        for goal in goals(Measured(args.quick))
    ]
    header = ["what", "at least", "aim", *(f"measured, {setting}" for setting in SETTINGS)]
    text = markdown(header, rows)
    print(text)
    write("summary", text, {"header": header, "rows": rows}, quick=args.quick, measures=CLASSIFIER)


if __name__ == "__main__":
    main()
