"""Synthetic features beside the real ones that they imitate.

    python benchmarks/synthetic_check.py              # two tables: all statistics, other sizes
    python benchmarks/synthetic_check.py --refit 8    # fit the constants of synthetic.py anew

The real ones are the first 512 features of CIFAR-100 (see feature_sets.py), 500 samples a class.
What is compared is what the search for the nearest class depends on: spectra, how much the classes'
matrices differ, accuracy, and how much farther than the nearest class the others are, the excess
(d2 of a class - d2 of the nearest) / d2 of the nearest. Spectra are those of the features at the
power 0.5 and unit length, as the default sees them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

import numpy as np

import feature_sets
from fecam import FeCAMClassifier
from fecam.core.metric import class_covariance
from fecam.core.prior import make_prior
from reporting import markdown, write
from stamps import CLASSIFIER
from synthetic import FITTED, Shape, generate

CLASSES, SAMPLES, WIDTH = 100, 500, 512
QUERIES = 20  # a class
# Other sizes (samples a class, features), which the constants are not fitted to.
OTHERS = ((50, 512), (5, 512), (500, 256), (500, 768), (500, 1280))
OTHERS_SHOWN = ("accuracy", *(f"excess, {percent} %" for percent in (1, 5, 25, 50)))
SHARES = (1, 10, 50, 100, 200)
# What the fit counts as one unit off: so much of these, and this share of all others.
MISS = {"zeros": 0.01, "in a class": 0.01, "variance": 0.01, "accuracy": 0.01, "second": 0.03}
MISS_RELATIVELY = 0.05


def statistics(data: feature_sets.FeatureSet) -> dict[str, float]:
    """Everything that is compared, by its name in the table."""
    labels = np.unique(data.y_train)
    by_class = [data.X_train[data.y_train == label] for label in labels]
    silent = (data.X_train == 0).mean(axis=0)
    return {
        "zeros": float(silent.mean()),
        "zeros, deviation over features": float(silent.std()),
        "constant features in a class": share_constant(by_class),
        "constant features in a class, of 5 samples": share_constant([X[:5] for X in by_class]),
        **spectrum(by_class),
        **answers("nearest mean", FeCAMClassifier(covariance="identity"), data),
        **answers("paper", FeCAMClassifier.from_preset("paper"), data),
        **answers("default", FeCAMClassifier(), data),
    }


def share_constant(by_class: list[np.ndarray]) -> float:
    """The share of features that do not vary within a class."""
    return float(np.mean([np.ptp(X, axis=0) == 0 for X in by_class]))


def spectrum(by_class: list[np.ndarray]) -> dict[str, float]:
    """How the variance within classes, and that of their means, is spread over directions."""
    means, scatter, freedom = [], 0.0, 0
    for X in by_class:
        Z = np.sqrt(X, dtype=np.float64)
        Z /= np.linalg.norm(Z, axis=1, keepdims=True)
        means.append(Z.mean(axis=0))
        Z -= means[-1]
        scatter, freedom = scatter + Z.T @ Z, freedom + len(Z) - 1
    within = np.linalg.eigvalsh(scatter / freedom)[::-1]
    between = np.linalg.eigvalsh(np.cov(np.stack(means), rowvar=False))[::-1]
    parts = np.maximum(within / within.sum(), 1e-300)
    return {
        **{f"variance within, top {k}": float(parts[:k].sum()) for k in SHARES},
        "effective rank within": float(np.exp(-np.sum(parts * np.log(parts)))),
        "between / within": float(between.sum() / within.sum()),
        **{
            f"variance between, top {k}": float(between[:k].sum() / between.sum())
            for k in (1, 10, 30)
        },
    }


def answers(name: str, clf: FeCAMClassifier, data: feature_sets.FeatureSet) -> dict[str, float]:
    """Accuracy, how far the other classes are, and how much the precision matrices differ."""
    clf.fit(data.X_train, data.y_train)
    distances = -clf.decision_function(data.X_test).astype(np.float64)
    right = clf.classes_[distances.argmin(axis=1)] == data.y_test
    distances.sort(axis=1)
    best = distances[:, 0]
    low, high = np.quantile(best, [0.1, 0.9])
    excess = distances[:, 1:] / best[:, None] - 1
    result = {
        "accuracy": float(right.mean()),
        "best, 90 % / 10 %": float(high / low),
        **{f"second / best, {q} %": 1 + quantile(excess[:, 0], q) for q in (10, 50, 90)},
        **{f"excess, {q} %": quantile(excess, q) for q in (1, 5, 25, 50)},
    }
    if clf.covariance == "class":
        result["precisions differ"] = difference(clf)
    return {f"{name}: {key}": value for key, value in result.items()}


def difference(clf: FeCAMClassifier) -> float:
    """The norm of a class's inverse matrix minus the mean one, over the norm of the latter."""
    classes, metric = list(clf.state_.classes.values()), clf.metric_
    prior = make_prior(classes, metric.pooling) if metric.has_prior else None
    precisions = np.stack(
        [np.linalg.inv(class_covariance(one, metric, prior)).astype(np.float32) for one in classes]
    )
    mean = precisions.mean(axis=0)
    gaps = [np.linalg.norm(precision - mean) for precision in precisions]
    return float(np.mean(gaps) / np.linalg.norm(mean))


def quantile(values: np.ndarray, percent: float) -> float:
    """One quantile of all values."""
    return float(np.quantile(values, percent / 100))


def real(samples: int, width: int) -> feature_sets.FeatureSet:
    """The real features, cut to the first samples and queries of a class and the first features."""
    data = feature_sets.load("cifar100")
    train = first_rows(data.y_train, samples)
    test = first_rows(data.y_test, QUERIES)
    return feature_sets.FeatureSet(
        data.name,
        data.X_train[train, :width],
        data.y_train[train],
        data.X_test[test, :width],
        data.y_test[test],
        data.label_names,
        data.description,
    )


def first_rows(y: np.ndarray, count: int) -> np.ndarray:
    """The first rows of each class."""
    return np.concatenate([np.flatnonzero(y == label)[:count] for label in np.unique(y)])


def misses(found: Mapping[str, float], wanted: Mapping[str, float]) -> np.ndarray:
    """How far each statistic is off, in the units of `MISS`."""
    result = []
    for name, target in wanted.items():
        allowed = next((miss for part, miss in MISS.items() if part in name), None)
        if allowed is None:
            result.append(np.log(found[name] / target) / MISS_RELATIVELY)
        else:
            result.append((found[name] - target) / allowed)
    return np.asarray(result)


def refit(start: Shape, steps: int) -> Iterator[tuple[float, Shape]]:
    """Yield better and better constants, each with its loss; a step takes minutes.

    Damped Gauss-Newton steps towards the least squares of all misses, in the logarithms of the
    constants. The same random numbers are used throughout, so the statistics change smoothly.
    """
    wanted = statistics(real(SAMPLES, WIDTH))
    names = [field.name for field in fields(Shape) if field.name not in ("offset", "scale")]

    def shape_at(point: np.ndarray) -> Shape:
        positive = dict(zip(names, np.exp(point[1:]).tolist(), strict=True))
        for name in ("family", "ambiguity"):
            positive[name] = min(positive[name], 0.95)
        return Shape(offset=float(point[0]), scale=start.scale, **positive)

    def off(point: np.ndarray) -> np.ndarray:
        data = generate(CLASSES, SAMPLES, WIDTH, queries=QUERIES // 2, shape=shape_at(point))
        return misses(statistics(data), wanted)

    def loss(miss: np.ndarray) -> float:
        # Nearly linear far out: one that cannot be met should not pull all others along.
        return float(np.mean(np.sqrt(1 + miss**2) - 1))

    point = np.array([start.offset, *(np.log(getattr(start, name)) for name in names)])
    here, small = off(point), 0.05
    yield loss(here), shape_at(point)
    for _ in range(steps):
        slopes = [(off(point + one) - here) / small for one in small * np.eye(len(point))]
        weights = (1 + here**2) ** -0.25
        J, r = (np.stack(slopes) * weights).T, here * weights
        square = J.T @ J
        trials = [(loss(here), point, here)]
        for damping in (0.003, 0.03, 0.3):
            ridge = damping * np.trace(square) / len(point) * np.eye(len(point))
            trial = point - np.clip(np.linalg.solve(square + ridge, J.T @ r), -0.4, 0.4)
            miss = off(trial)
            trials.append((loss(miss), trial, miss))
        best, point, here = min(trials, key=lambda one: one[0])
        yield best, shape_at(point)


def check() -> None:
    """Measure, print two tables, write results."""
    sizes = ((SAMPLES, WIDTH), *OTHERS)
    records, start = [], time.perf_counter()
    for samples, width in sizes:
        spent = time.perf_counter() - start
        print(f"{samples} x {width} ({spent:.0f} s so far) ...", file=sys.stderr)
        both = {
            "real": statistics(real(samples, width)),
            "synthetic": statistics(generate(CLASSES, samples, width, queries=QUERIES)),
        }
        records.append({"samples": samples, "features": width, **both})

    rows = [
        [name, shown(value), shown(records[0]["synthetic"][name])]
        for name, value in records[0]["real"].items()
    ]
    table = markdown(["statistic", "real", "synthetic"], rows)
    others = markdown(
        ["samples", "features", "settings", *OTHERS_SHOWN],
        [
            [str(record["samples"]), str(record["features"]), name]
            + [
                " / ".join(shown(record[kind][f"{name}: {key}"]) for kind in ("real", "synthetic"))
                for key in OTHERS_SHOWN
            ]
            for record in records
            for name in ("paper", "default")
        ],
    )
    print(f"{table}\n\nreal / synthetic:\n\n{others}")
    write(
        "synthetic_check",
        f"{table}\n\nOther sizes, real / synthetic:\n\n{others}",
        {"records": records},
        measures=CLASSIFIER,
    )


def shown(value: float) -> str:
    """Three decimals, unless the number is large."""
    return f"{value:.3f}" if value < 100 else f"{value:.0f}"


def main() -> None:
    """Compare, or fit anew."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--refit", type=int, metavar="STEPS", help="fit the constants anew")
    steps = parser.parse_args().refit
    if steps is None:
        check()
        return
    for loss, shape in refit(FITTED, steps):
        print(f"{loss:.3f}  {shape}", flush=True)
    size = generate(CLASSES, 50, WIDTH, shape=shape).X_train.mean() / shape.scale
    print(replace(shape, scale=float(real(50, WIDTH).X_train.mean() / size)))


if __name__ == "__main__":
    main()
