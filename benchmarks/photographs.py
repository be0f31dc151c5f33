"""CIFAR-100 from pixels to accuracy, through the product's own loader, encoder and features.

    python benchmarks/photographs.py --root FOLDER [--quick]

EfficientNet-Lite0 at 128 pixels, all classes at once: accuracy, seconds to learn 50,000 images and
to predict 10,000, and how many images per second are encoded (2,000 of them, past the cache).
FOLDER holds the official ``cifar-100-python``; by default the environment variable FECAM_CIFAR100
names it. Streams of tasks are experiments: ``benchmarks/experiments.py``.
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
from fecam.features import Progress, extract
from fecam.features.store import FeatureStore
from reporting import markdown, once, options, say, write
from stamps import CLASSIFIER

RESOLUTION = 128
HEADS = {
    "nearest mean": lambda: FeCAMClassifier.from_preset("ncm"),
    "paper": lambda: FeCAMClassifier.from_preset("paper"),
    "default": FeCAMClassifier,
}


class Said:
    """Prints the progress of an extraction."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, now: Progress) -> None:
        """Print the progress."""
        if time.monotonic() - self.last > 20:
            self.last = time.monotonic()
            say(f"  {now.done:,} of {now.total:,}")


def measure(features: Dataset, name: str) -> dict[str, Any]:
    """Return accuracy and times of one head."""
    say(f"  {name} ...")
    X, y = np.asarray(features.items), features.labels
    start = time.perf_counter()
    clf = HEADS[name]().fit(X[features.train], y[features.train])
    taught = time.perf_counter()
    right = clf.predict(X[features.test]) == y[features.test]
    asked = time.perf_counter()
    return {
        "head": name,
        "accuracy": float(right.mean()),
        "seconds_to_learn": taught - start,
        "seconds_to_predict": asked - taught,
    }


def main() -> None:
    """Measure, print a table, write results."""
    parser = options(__doc__)
    parser.add_argument("--root", type=Path, default=os.environ.get("FECAM_CIFAR100"))
    args = parser.parse_args()
    data = load("cifar100", root=args.root)
    if args.quick:
        data = data.subset(np.flatnonzero(np.arange(len(data)) % 40 == 0))
    encoder = load_encoder("efficientnet-lite0", resolution=RESOLUTION)
    some = data.subset(np.arange(0, len(data), -(-len(data) // 2000)))
    say(f"{len(some):,} images through efficientnet-lite0 at {RESOLUTION} px ...")
    rate = len(some) / min(once(lambda: extract(some, encoder, cache=False)) for _ in range(3))
    say(f"  {rate:.0f} images per second; all {len(data):,}, unless they are in the cache ...")
    features = extract(data, encoder, cache=FeatureStore(), report=Said())
    rows = [measure(features, name) for name in HEADS]
    text = markdown(
        ["head", "accuracy", "learn", "predict", "encoding"],
        [
            [
                one["head"],
                f"{100 * one['accuracy']:.1f} %",
                f"{one['seconds_to_learn']:.1f} s",
                f"{one['seconds_to_predict']:.1f} s",
                f"{rate:.0f} images per second",
            ]
            for one in rows
        ],
    )
    write(
        "photographs",
        text,
        {"images_a_second": rate, "rows": rows},
        quick=args.quick,
        measures=(*CLASSIFIER, "src/fecam/encoders"),
    )
    print(text, flush=True)


if __name__ == "__main__":
    main()
