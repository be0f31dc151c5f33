"""CIFAR-100 from pixels to accuracy, through the product's own loaders, encoders and features.

    python benchmarks/photographs.py --root FOLDER [--network FOLDER] [--quick]

Two tables. First: EfficientNet-Lite0, all classes at once: accuracy, seconds to learn and to
predict, images a second while encoding. Second: a ResNet-18 that was trained on the first 50
classes only (``benchmarks/first_task.py`` trains it) and frozen; then five tasks of ten classes
(order: seed 1993). Accuracy is the share of test images of the classes seen so far: the mean over
the six steps, the last, and that of old and of new classes at the end.
FOLDER holds the official ``cifar-100-python``; by default the environment variable FECAM_CIFAR100
names it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from fecam import FeCAMClassifier
from fecam.data import Dataset, load
from fecam.encoders import load as load_encoder
from fecam.features import FeatureStore, Progress, extract
from reporting import markdown, options, say, write

RESOLUTION = 128
HEADS = {
    "nearest mean": lambda: FeCAMClassifier.from_preset("ncm"),
    "common matrix": lambda: FeCAMClassifier.from_preset("paper", covariance="common"),
    "paper": lambda: FeCAMClassifier.from_preset("paper"),
    "default": FeCAMClassifier,
}


def encoded(data: Dataset, name: str, **settings: Any) -> tuple[Dataset, float | None]:
    """Features of the data set, and images a second if they were not in the cache."""
    encoder = load_encoder(name, **settings)
    start, first, said = time.monotonic(), None, [0.0]

    def report(now: Progress) -> None:
        nonlocal first
        first = now.done if first is None else first
        if time.monotonic() - said[0] > 20:
            said[0] = time.monotonic()
            rate = (now.done - first) / max(said[0] - start, 1e-9)
            left = (now.total - now.done) / rate if rate else float("nan")
            say(f"  {now.done:,} of {now.total:,}, {rate:.0f} a second, {left:.0f} s left")

    found = extract(data, encoder, cache=FeatureStore(), report=report)
    rate = None if first is None else (len(data) - first) / (time.monotonic() - start)
    return found, rate


def all_at_once(features: Dataset) -> list[dict[str, Any]]:
    """Each head taught everything, then asked everything."""
    X, y = np.asarray(features.items), features.labels
    rows = []
    for name, make in HEADS.items():
        if name == "common matrix":
            continue
        say(f"  {name} ...")
        start = time.perf_counter()
        clf = make().fit(X[features.train], y[features.train])
        taught = time.perf_counter()
        right = clf.predict(X[features.test]) == y[features.test]
        asked = time.perf_counter()
        rows.append(
            {
                "head": name,
                "accuracy": float(right.mean()),
                "seconds_to_learn": taught - start,
                "seconds_to_predict": asked - taught,
            }
        )
    return rows


def stream(features: Dataset, order: np.ndarray, base: int, step: int) -> list[dict[str, Any]]:
    """Each head taught the base classes, then some more at a time."""
    X, y = np.asarray(features.items), features.labels
    train, test = features.train, features.test
    rows = []
    for name, make in HEADS.items():
        say(f"  {name} ...")
        clf, steps = make(), []
        for end in range(base, len(order) + 1, step):
            start = 0 if end == base else end - step
            new = train[np.isin(y[train], order[start:end])]
            clf.partial_fit(X[new], y[new])
            seen = test[np.isin(y[test], order[:end])]
            right = clf.predict(X[seen]) == y[seen]
            steps.append(float(right.mean()))
        old = np.isin(y[seen], order[:base])
        rows.append(
            {
                "head": name,
                "steps": steps,
                "average": float(np.mean(steps)),
                "last": steps[-1],
                "old": float(right[old].mean()),
                "new": float(right[~old].mean()),
            }
        )
    return rows


def main() -> None:
    """Measure, print tables, write results."""
    parser = options(__doc__)
    parser.add_argument("--root", type=Path, default=os.environ.get("FECAM_CIFAR100"))
    parser.add_argument("--network", type=Path, help="folder that benchmarks/first_task.py wrote")
    args = parser.parse_args()
    data = load("cifar100", root=args.root)
    if args.quick:
        data = data.subset(np.flatnonzero(np.arange(len(data)) % 40 == 0))
    say(f"{len(data):,} images through efficientnet-lite0 at {RESOLUTION} px ...")
    features, rate = encoded(data, "efficientnet-lite0", resolution=RESOLUTION)
    results: dict[str, Any] = {"images_a_second": rate, "all_at_once": all_at_once(features)}
    lines = [
        [
            one["head"],
            f"{100 * one['accuracy']:.1f} %",
            f"{one['seconds_to_learn']:.1f} s",
            f"{one['seconds_to_predict']:.1f} s",
        ]
        for one in results["all_at_once"]
    ]
    text = markdown(["head", "accuracy", "learn", "predict"], lines)
    if rate:
        text += f"\n\nEncoding: {rate:.0f} images a second."
    write("photographs", text, results, quick=args.quick)
    print(text, flush=True)
    if args.network is not None:
        features, _ = encoded(data, f"resnet18:{args.network / 'encoder.safetensors'}")
        order = np.random.RandomState(1993).permutation(100)
        results = {"stream": stream(features, order, 50, 10)}
        lines = [
            [one["head"], *(f"{100 * one[k]:.1f} %" for k in ("average", "last", "old", "new"))]
            for one in results["stream"]
        ]
        text = markdown(["head", "average", "last", "old classes", "new classes"], lines)
        write("first_task_stream", text, results, quick=args.quick)
        print(text, flush=True)


if __name__ == "__main__":
    main()
