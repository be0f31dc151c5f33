"""Prediction against the dense whitening product, and against what public implementations do.

    python benchmarks/prediction.py [--data both|real|synthetic] [--quick]

The dense product measures every class with a cached d x d float32 matrix; the public computation
inverts each class's matrix at each call and builds an N x N product. All are asked the same queries
in one process, repeats interleaved; a ratio of 3 x says that `fecam` takes a third of the time.
Real features are those of CIFAR-100 (500 samples a class) and of `thousand` (60); the synthetic
ones have 500 samples a class. Agreement is the share of queries with the dense product's answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import problems
import reference
from fecam import FeCAMClassifier
from problems import Problem
from reference import SEARCHES, SETTINGS, asking, searching
from reporting import markdown, once, options, read, say, side_by_side, write
from stamps import CLASSIFIER

Cases = Mapping[str, Callable[[], Problem]]
"""The problems of one kind of data, by name; two of them, "small" and "large", show growth."""


def cases(data: str, quick: bool) -> Cases:
    """What is measured: 100 and 1,000 classes at d = 512."""
    width, few, many, asked = (64, 10, 30, 200) if quick else (512, 100, 1000, 5000)
    some = 50 if quick else 500
    if data == "synthetic":
        return {
            "small": lambda: problems.made_up(few, some, width, asked),
            "large": lambda: problems.made_up(many, some, width, asked),
        }
    return {
        "photographs": lambda: problems.real("cifar100", few, some, width, asked),
        "small": lambda: problems.real("thousand", few, 60, width, asked),
        "large": lambda: problems.real("thousand", many, 60, width, asked),
    }


def measure(
    clf: FeCAMClassifier, problem: Problem, batches: Mapping[int, int], public: bool
) -> list[dict[str, Any]]:
    """Seconds for each size of batch (with its number of repeats), and agreement."""
    say("  deriving what each search needs, and the dense matrices ...")
    answers = {search: searching(clf, search) for search in SEARCHES}
    answers["dense"] = reference.Dense(clf).predict
    labels = {name: answer(problem.queries) for name, answer in answers.items()}
    agreement = {name: float(np.mean(labels[name] == labels["dense"])) for name in SEARCHES}
    exact = float(np.mean(labels["exact"] == labels["exhaustive"]))
    found = []
    for batch, repeats in batches.items():
        say(f"  {batch} queries a call, {repeats} repeats ...")
        tasks = {name: asking(answer, problem.queries, batch) for name, answer in answers.items()}
        seconds = side_by_side(tasks, repeats)
        if public and batch <= 1000:
            say(f"  {batch} queries the public way, once ...")
            seconds["public"] = once(asking(reference.Public(clf).predict, problem.queries, batch))
        found.append(
            {
                "batch": batch,
                "seconds": seconds,
                "dense_over": {name: seconds["dense"] / seconds[name] for name in SEARCHES},
                "public_over_auto": seconds.get("public", 0.0) / seconds["auto"] or None,
                "agreement": agreement,
                "certified_equals_exhaustive": exact,
                "queries_compared": len(problem.queries),
            }
        )
    return found


def growth(
    small: FeCAMClassifier, large: FeCAMClassifier, queries: Mapping[str, np.ndarray]
) -> list[dict[str, Any]]:
    """Certified search over few and over many classes, the same number of queries each.

    A set of few classes has fewer queries; they are asked over and over.
    """
    found = []
    for batch in (1000, max(map(len, queries.values()))):
        tasks = {
            name: asking(searching(clf, "exact"), np.resize(queries[name], (batch, width)), batch)
            for name, clf in (("small", small), ("large", large))
            for width in [clf.n_features_in_]
        }
        seconds = side_by_side(tasks, repeats=7)
        ratio = seconds["large"] / seconds["small"]
        found.append({"batch": batch, "seconds": seconds, "ratio": ratio})
    return found


def run(data: str, quick: bool) -> dict[str, Any]:
    """All settings on all problems of one kind of data."""
    rows: list[dict[str, Any]] = []
    growths: list[dict[str, Any]] = []
    left_out: list[str] = []
    for setting in SETTINGS:
        models, queries = {}, {}
        for case, make in cases(data, quick).items():
            try:
                problem = make()
            except problems.UnavailableError as error:
                say(f"left out: {error}")
                left_out.append(str(error))
                continue
            say(f"{setting}: {problem}: teaching ...")
            clf = reference.fitted(setting, problem.batches())
            large = case == "large"
            # More repeats where they cost little: medians of short times need them.
            batches = {1: 5, 100: 3} if quick else {1: 15 if large else 51, 1000: 3 if large else 7}
            if len(problem.queries) >= 5000 and not quick:
                batches[5000] = 3
            about = {
                "case": case,
                "features": problem.features,
                "setting": setting,
                "classes": problem.classes,
                "per_class": problem.per_class,
                "width": problem.width,
            }
            for found in measure(clf, problem, batches, public=data == "real" and not large):
                rows.append({**about, **found})
            if case in ("small", "large"):
                models[case], queries[case] = clf, problem.queries
        say(f"{setting}: exact search, {' against '.join(models)} ...")
        if len(models) == 2:
            for grown in growth(models["small"], models["large"], queries):
                growths.append({"setting": setting, **grown})
    return {"rows": rows, "growth": growths, "left_out": sorted(set(left_out))}


def grow_again(data: str, quick: bool, results: dict[str, Any]) -> dict[str, Any]:
    """The results of an earlier run, with how exact search grows measured anew."""
    growths = []
    for setting in SETTINGS:
        made = {case: make() for case, make in cases(data, quick).items() if case != "photographs"}
        models = {case: reference.fitted(setting, one.batches()) for case, one in made.items()}
        asked = {case: one.queries for case, one in made.items()}
        for grown in growth(models["small"], models["large"], asked):
            growths.append({"setting": setting, **grown})
    return {**results, "growth": growths}


def table(results: Mapping[str, Any]) -> str:
    """Ratios for every problem, setting and batch; then how exact search grows."""
    lines = []
    for row in results["rows"]:
        ratios = [f"{row['dense_over'][name]:.2f} x" for name in SEARCHES]
        share = [f"{100 * row['agreement'][name]:.2f} %" for name in ("exact", "approximate")]
        public = row["public_over_auto"]
        lines.append(
            [
                row["features"],
                f"{row['classes']:,}",
                str(row["per_class"]),
                row["setting"],
                f"{row['batch']:,}",
                f"{1e3 * row['seconds']['dense']:.1f} ms",
                *ratios,
                *share,
                f"{public:,.0f} x" if public else "-",
            ]
        )
    header = ["features", "classes", "n", "settings", "queries", "dense product"]
    header += list(SEARCHES)
    header += ["exact agrees", "approximate agrees", "auto against public"]
    grown = [
        [one["setting"], f"{one['batch']:,}", f"{one['ratio']:.2f} x"] for one in results["growth"]
    ]
    second = markdown(["settings", "queries", "exact: time at 1,000 over 100 classes"], grown)
    return f"{markdown(header, lines)}\n\n{second}"


def main() -> None:
    """Measure, print tables, write results."""
    parser = options(__doc__, data=("both", "real", "synthetic"))
    parser.add_argument(
        "--growth", action="store_true", help="only measure growth anew; keep all other results"
    )
    args = parser.parse_args()
    for data in ("real", "synthetic") if args.data == "both" else (args.data,):
        name = "prediction" if data == "real" else f"prediction_{data}"
        before = read(name, quick=args.quick) if args.growth else None
        results = run(data, args.quick) if before is None else grow_again(data, args.quick, before)
        text = table(results)
        print(text, end="\n\n", flush=True)
        write(name, text, {"data": data, **results}, quick=args.quick, measures=CLASSIFIER)


if __name__ == "__main__":
    main()
