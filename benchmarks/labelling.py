"""Accuracy against the number of labels, for several ways to choose what to label next.

    python benchmarks/labelling.py [--quick] [NAME ...]

Sets that are not named keep the results of an earlier run.

A pool of training samples has no labels at first. A default classifier learns as many random
samples as there are classes, which covers about two thirds of the classes. Then as many are chosen,
labeled and learned, again and again. `fecam.suggestion.suggest` is compared with a random choice
and with the samples of the smallest margin between the two most probable classes, from the same
first samples. Accuracy is that on the test samples, averaged over seeds.

Saved labels: how many fewer `suggest` needs for the accuracy that the random choice reaches with
3 and with 6 labels per class (interpolated).

Wrong labels: 5 % of the labels of a pool are changed to random other classes, a default classifier
learns all of it, and `fecam.suggestion.find_mislabeled` lists suspects. Precision and recall are
over the changed labels; the last column is the precision of as many suspects as were changed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import feature_sets
from fecam import FeCAMClassifier
from fecam.suggestion import find_mislabeled, suggest
from reporting import TABLES, markdown, options, read, say, write
from stamps import CLASSIFIER

SETS = {"digits": (10, 80), "glyphs": (30, 30), "cifar100": (30, 30), "texts": (41, 60)}
"""Number of classes, and of samples per class in the pool."""
ROUNDS = 6
SEEDS = 2
NOISE = 0.05
SHOWN, SAVED_AT = (1, 2, 3, 4, 6), (3, 6)
"""Labels per class in the table."""
Curve = list[float]


def pool(name: str, seed: int) -> tuple[Any, Any, Any, Any]:
    """Return random samples of random classes, and the test samples of those classes."""
    features, rng = feature_sets.load(name), np.random.default_rng(seed)
    n_classes, per_class = SETS[name]
    labels = rng.permutation(np.unique(features.y_train))[:n_classes]
    rows = np.concatenate(
        [rng.permutation(np.flatnonzero(features.y_train == label))[:per_class] for label in labels]
    )
    test = np.isin(features.y_test, labels)
    return (
        features.X_train[rows],
        features.y_train[rows],
        features.X_test[test],
        features.y_test[test],
    )


def chosen(method: str, clf: FeCAMClassifier, X: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Return the rows to label next."""
    if method == "random":
        return np.random.default_rng(seed).permutation(len(X))[:n]
    if method == "margin":
        probabilities = clf.predict_detailed(X, 2).probabilities
        return np.argsort(probabilities[:, 0] - probabilities[:, 1], kind="stable")[:n]
    return np.asarray([suggestion.item for suggestion in suggest(clf, X, n)])


def curve(name: str, method: str, seed: int) -> Curve:
    """Return the accuracy after each round."""
    X, y, X_test, y_test = pool(name, seed)
    n = len(np.unique(y))
    labeled = np.random.default_rng(100 + seed).permutation(len(y))[:n]
    accuracies = []
    for i in range(ROUNDS):
        clf = FeCAMClassifier().fit(X[labeled], y[labeled])
        accuracies.append(float(clf.score(X_test, y_test)))
        if i < ROUNDS - 1:
            left = np.setdiff1d(np.arange(len(y)), labeled)
            labeled = np.concatenate(
                [labeled, left[chosen(method, clf, X[left], n, 1000 * seed + i)]]
            )
    return accuracies


def saved(random: Curve, other: Curve, rounds: int) -> float:
    """Return the share of labels that are saved at the accuracy of some rounds of random choice."""
    numbers = np.arange(1, len(other) + 1)
    needed = np.interp(random[rounds - 1], np.maximum.accumulate(other), numbers)
    return float(1 - needed / rounds)


def noise(name: str, seed: int) -> dict[str, float]:
    """Return precision and recall of wrong labels."""
    X, y, _, _ = pool(name, seed)
    rng = np.random.default_rng(seed)
    wrong = rng.permutation(len(y))[: round(NOISE * len(y))]
    labels = np.unique(y)
    noisy = y.copy()
    for i in wrong:
        noisy[i] = rng.choice(labels[labels != y[i]])
    clf = FeCAMClassifier().fit(X, noisy)
    suspects = [suspect.item for suspect in find_mislabeled(clf, X, noisy)]
    hits = np.isin(suspects, wrong)
    return {
        "suspects": len(suspects),
        "precision": float(np.mean(hits)) if suspects else 0.0,
        "recall": float(hits.sum() / len(wrong)),
        "precision_first": float(np.mean(hits[: len(wrong)])) if suspects else 0.0,
    }


def plot(results: dict[str, dict[str, list[Curve]]]) -> None:
    """Write the curves as a picture of the docs."""
    from fecam.report.drawing import COLORS, Figure, as_svg, legend, styled

    @styled
    def draw() -> Figure:
        figure = Figure(figsize=(8.4, 2.6))
        panels = figure.subplots(1, len(results), squeeze=False)[0]
        styles = {
            "suggest": {"color": COLORS[0], "linestyle": "-"},
            "random": {"color": COLORS[1], "linestyle": "--"},
            "margin": {"color": COLORS[2], "linestyle": ":"},
        }
        for axes, (name, methods) in zip(panels, results.items(), strict=True):
            for method, curves in methods.items():
                mean = 100 * np.mean(curves, axis=0)
                axes.plot(np.arange(1, len(mean) + 1), mean, **styles[method])
            axes.set(title=name, xlabel="labels per class")
        panels[0].set_ylabel("accuracy, %")
        legend(figure, list(styles.items()))
        return figure

    (TABLES.parent / "pictures" / "labelling.svg").write_bytes(as_svg(draw()))


def curves_table(results: dict[str, dict[str, list[Curve]]]) -> str:
    """One row per set and method."""
    rows = []
    for name, methods in results.items():
        random = np.mean(methods["random"], axis=0).tolist()
        for method, curves in methods.items():
            mean = np.mean(curves, axis=0).tolist()
            accuracies = [f"{100 * mean[i - 1]:.1f}" for i in SHOWN]
            fewer = [f"{100 * saved(random, mean, i):.0f}" for i in SAVED_AT]
            rows.append([name, method, *accuracies, *([""] * 2 if method == "random" else fewer)])
    header = ["features", "choice", *(f"{i} per class" for i in SHOWN)]
    return markdown([*header, "labels saved % at 3", "at 6"], rows)


def noise_table(results: dict[str, list[dict[str, float]]]) -> str:
    """One row per set."""
    rows = []
    for name, runs in results.items():
        mean = {key: np.mean([run[key] for run in runs]) for key in runs[0]}
        n_classes, per_class = SETS[name]
        rows.append(
            [
                f"{name}, {n_classes} x {per_class}",
                f"{mean['suspects']:.0f}",
                f"{100 * mean['precision']:.1f}",
                f"{100 * mean['recall']:.1f}",
                f"{100 * mean['precision_first']:.1f}",
            ]
        )
    return markdown(
        [
            "samples",
            "suspects",
            "precision %",
            "recall %",
            "precision of the first 5 % of all samples %",
        ],
        rows,
    )


def main() -> None:
    """Measure, print tables, write results and the picture."""
    parser = options(__doc__)
    parser.add_argument("names", metavar="NAME", nargs="*", choices=[[], *SETS], help="a set")
    args = parser.parse_args()
    names = ["digits"] if args.quick else args.names or list(SETS)
    paths = (*CLASSIFIER, "src/fecam/suggestion.py")
    wrong, curves = {}, {}
    for name in names:
        say(f"{name}: wrong labels")
        wrong[name] = [noise(name, seed) for seed in range(SEEDS)]
        curves[name] = {}
        for method in ("suggest", "random", "margin"):
            say(f"{name}: {method}")
            curves[name][method] = [curve(name, method, seed) for seed in range(SEEDS)]
    for title, results, table in (
        ("mislabeled", wrong, noise_table),
        ("labelling", curves, curves_table),
    ):
        earlier = {} if args.quick else dict((read(title) or {"results": {}})["results"])
        merged: dict[str, Any] = {**earlier, **results}
        merged = {name: merged[name] for name in SETS if name in merged}
        told = table(merged)
        print(told)
        write(title, told, {"results": merged}, quick=args.quick, measures=paths)
    if not args.quick:
        plot(merged)


if __name__ == "__main__":
    main()
