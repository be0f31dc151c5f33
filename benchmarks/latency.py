"""One query at a time, against the dense whitening product and the public computation.

    python benchmarks/latency.py [--data both|real|synthetic] [--quick]

Median microseconds of a query over 10, 100 and 1,000 classes at d = 512, and how many times longer
the others take: per class a vector-matrix product with a cached matrix; or what the public
implementations do, which is to invert every matrix for every call. Queries differ from call to
call, repeats are interleaved. The public way takes minutes at 1,000 classes and is left out there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import problems
import reference
from problems import Problem
from reference import SEARCHES, SETTINGS, asking, searching
from reporting import markdown, once, options, say, side_by_side, write
from stamps import CLASSIFIER

MOST_PUBLIC = 100
"""Classes up to which the public computation is measured."""


def cases(data: str, quick: bool) -> Iterator[Problem]:
    """The problems of one kind of data."""
    width, sizes = (64, (5, 10, 30)) if quick else (512, (10, 100, 1000))
    some = 50 if quick else 500
    if data == "synthetic":
        yield from (problems.made_up(classes, some, width, 500) for classes in sizes)
        return
    plan = [("cifar100", classes, some) for classes in sizes[:2]]
    plan += [("thousand", classes, 60) for classes in sizes]
    for name, classes, per_class in plan:
        try:
            yield problems.real(name, classes, per_class, width, 500)
        except problems.UnavailableError as error:
            say(f"left out: {error}")


def measure(problem: Problem, setting: str, repeats: int) -> dict[str, Any]:
    """Seconds of one query, and the ratios."""
    say(f"{setting}: {problem}: teaching ...")
    clf = reference.fitted(setting, problem.batches())
    answers = {search: searching(clf, search) for search in SEARCHES}
    answers["dense"] = reference.Dense(clf).predict
    say(f"  one query at a time, {repeats} repeats ...")
    tasks = {name: asking(answer, problem.queries, 1) for name, answer in answers.items()}
    seconds = side_by_side(tasks, repeats)
    if problem.classes <= MOST_PUBLIC:
        say("  one query the public way, once ...")
        seconds["public"] = once(asking(reference.Public(clf).predict, problem.queries, 1))
    return {
        "features": problem.features,
        "setting": setting,
        "classes": problem.classes,
        "per_class": problem.per_class,
        "width": problem.width,
        "seconds": seconds,
        "dense_over": {name: seconds["dense"] / seconds[name] for name in SEARCHES},
        "public_over_auto": seconds.get("public", 0.0) / seconds["auto"] or None,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Microseconds of each search and of what it is compared with; ratios for `auto`."""

    def line(row: Mapping[str, Any]) -> list[str]:
        public = row["public_over_auto"]
        return [
            row["features"],
            f"{row['classes']:,}",
            str(row["per_class"]),
            row["setting"],
            *(f"{1e6 * row['seconds'][name]:,.0f}" for name in (*SEARCHES, "dense")),
            f"{1e6 * row['seconds']['public']:,.0f}" if public else "-",
            f"{row['dense_over']['auto']:.2f} x",
            f"{public:,.0f} x" if public else "-",
        ]

    header = ["features", "classes", "n", "settings", *(f"{name}, µs" for name in SEARCHES)]
    header += ["dense, µs", "public, µs", "auto against dense", "auto against public"]
    return markdown(header, [line(row) for row in rows])


def main() -> None:
    """Measure, print a table, write results."""
    args = options(__doc__, data=("both", "real", "synthetic")).parse_args()
    rows = []
    for data in ("real", "synthetic") if args.data == "both" else (args.data,):
        for problem in cases(data, args.quick):
            repeats = 5 if args.quick else 15 if problem.classes > 100 else 101
            rows += [measure(problem, setting, repeats) for setting in SETTINGS]
    text = table(rows)
    print(text)
    write("latency", text, {"data": args.data, "rows": rows}, quick=args.quick, measures=CLASSIFIER)


if __name__ == "__main__":
    main()
