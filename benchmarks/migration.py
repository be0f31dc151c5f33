"""What is left of a model's accuracy when its encoder changes: EfficientNet-Lite0 to Lite1.

    python benchmarks/migration.py --root FOLDER [--quick]

FOLDER has CIFAR-100. Images have 128 pixels. A model is taught with 100 images per class under
Lite0 and migrated with images of the training part that it has not seen, without their labels:
first of the same classes, then, for a model of the first 50 classes, of the other 50. Measured on
30 test images per class:

- *anew*: a model that is taught the same images under Lite1, which `fecam migrate` does not have;
- *pseudo-labels*: a new model that learns the images under the old model's labels;
- *map*: means and scatters follow the linear map, and nothing else;
- *map + pseudo-labels*: the same, and then it learns the images of which the old model is sure;
- *effective counts*, *residual covariance*: the map with what `fecam.core.transport` can add;
- *migrate*: `fecam.migration.migrate`, with the accuracy that it expects.

Features are cached; the first run encodes 46,000 images.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fecam import FeCAMClassifier
from fecam.core.calibration import novelty_threshold
from fecam.core.feature_map import fit_feature_map
from fecam.core.transport import transport
from fecam.data import Dataset, load
from fecam.encoders import load as load_encoder
from fecam.features import extract
from fecam.migration import MIN_ITEMS, migrate
from reporting import markdown, options, say, write
from stamps import CLASSIFIER

ENCODERS = ("efficientnet-lite0", "efficientnet-lite1")
RESOLUTION = 128
PARTS = {
    "taught": ("train", 0, 50),
    "more-taught": ("train", 50, 100),
    "unlabeled": ("train", 100, 120),
    "more-unlabeled": ("train", 120, 200),
    "test": ("test", 0, 30),
}
"""Part of the data set, and the range of the images of each class in it."""
SIZES = (50, 200, 500, 2000, 10000)
OTHER_CLASSES = 2000
VARIANTS = 2000
"""Number of images at which variants of the map are measured too."""
SURE = 0.7
"""Probability from which on *map + pseudo-labels* learns an image."""


class Features:
    """Features of one part under both encoders, with labels."""

    def __init__(self, parts: list[tuple[Any, Any, Any]]) -> None:
        self.old, self.new, self.y = (
            np.concatenate([np.asarray(part[i]) for part in parts]) for i in range(3)
        )

    def where(self, rows: Any) -> Features:
        """Return some rows."""
        return Features([(self.old[rows], self.new[rows], self.y[rows])])

    def of(self, first: int, last: int) -> Features:
        """Return the rows of a range of classes."""
        return self.where((self.y >= first) & (self.y < last))


def read(root: Path, *names: str) -> Features:
    """Return the features of some parts."""
    data = load("cifar100", root=root)
    encoders = [load_encoder(name, resolution=RESOLUTION) for name in ENCODERS]
    return Features([_part(data, encoders, *PARTS[name]) for name in names])


def _part(data: Dataset, encoders: list[Any], where: str, start: int, stop: int) -> Any:
    rows = getattr(data, where)
    labels = data.labels[rows]
    chosen = [rows[labels == label][start:stop] for label in range(len(data.label_names))]
    part = data.subset(np.sort(np.concatenate(chosen)))
    say(f"  {len(part):,} images ...")
    old, new = (extract(part, encoder).items for encoder in encoders)
    return old, new, part.labels


def measure(taught: Features, items: Features, test: Features, what: str) -> dict[str, Any]:
    """Return the accuracy of each way to a model of the new features."""
    say(f"  {len(items.y):,} images of {what} ...")
    old = FeCAMClassifier().fit(taught.old, taught.y)
    anew = FeCAMClassifier().fit(taught.new, taught.y)
    done = migrate(old, items.old, items.new)
    estimate = done.estimate
    record = {
        "images": len(items.y),
        "what": what,
        "old": old.score(test.old, test.y),
        "anew": anew.score(test.new, test.y),
        "migrate": done.classifier.score(test.new, test.y),
        "expected": estimate.accuracy,
        "lowest": estimate.lowest_accuracy,
        "expected of old": estimate.accuracy_before,
        "agreement": estimate.agreement,
        "novel": estimate.novel,
        "confidence": float(done.classifier.predict_proba(test.new).max(axis=1).mean()),
        "rejected": _rejected(done.classifier, test.new),
        "rejected by old": _rejected(old, test.old),
    }
    return record | {name: clf.score(test.new, test.y) for name, clf in _others(old, items)}


def _rejected(clf: FeCAMClassifier, X: Any) -> float:
    return float(np.mean(clf.novelty(X) > novelty_threshold(0.05)))


def _others(old: FeCAMClassifier, items: Features) -> Iterator[tuple[str, FeCAMClassifier]]:
    probabilities = old.predict_proba(items.old)
    labels = old.classes_[probabilities.argmax(axis=1)]
    yield "pseudo-labels", FeCAMClassifier().fit(items.new, labels)
    state = old.state_
    maps = [
        fit_feature_map(before, after, toward_identity=False)
        for before, after in (
            (state.transform(items.old), state.transform(items.new)),
            (items.old, items.new),
        )
    ]
    moved = transport(state, *maps, add_residuals=False, effective_counts=False)
    yield "map", FeCAMClassifier().set_state(moved)
    if len(items.y) == VARIANTS:
        widened = transport(state, *maps, add_residuals=False)
        yield "map with effective counts", FeCAMClassifier().set_state(widened)
        noisy = transport(state, *maps, effective_counts=False)
        yield "map with residual covariance", FeCAMClassifier().set_state(noisy)
    sure = probabilities.max(axis=1) >= SURE
    both = FeCAMClassifier().set_state(moved)
    if sure.any():
        both.partial_fit(items.new[sure], labels[sure])
    yield "map + pseudo-labels", both


def table(records: list[dict[str, Any]]) -> str:
    """Return the records as Markdown."""
    shown = ("old", "anew", "pseudo-labels", "map", "map + pseudo-labels", "migrate")
    header = [
        *("images", "of", "old encoder", *shown[1:]),
        *("share of anew", "expected", "novel images"),
    ]
    rows = [
        [
            f"{r['images']:,}",
            r["what"],
            *(f"{100 * r[name]:.1f}" for name in shown),
            f"{100 * r['migrate'] / r['anew']:.0f} %",
            f"{100 * r['lowest']:.0f} to {100 * r['expected of old']:.0f}: "
            f"{100 * r['expected']:.1f}",
            f"{100 * r['novel']:.0f} %",
        ]
        for r in records
    ]
    return markdown(header, rows)


def main() -> None:
    """Measure, print a table, write results."""
    parser = options(__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder of CIFAR-100")
    args = parser.parse_args()
    taught = read(args.root, "taught") if args.quick else read(args.root, "taught", "more-taught")
    unlabeled = (
        read(args.root, "unlabeled")
        if args.quick
        else read(args.root, "unlabeled", "more-unlabeled")
    )
    test = read(args.root, "test")
    order = np.random.default_rng(0).permutation(len(unlabeled.y))
    records = [
        measure(taught, unlabeled.where(order[:n]), test, "the same classes")
        for n in SIZES
        if MIN_ITEMS <= n <= (500 if args.quick else len(order))
    ]
    half = taught.of(0, 50), test.of(0, 50)
    for what, pool in (
        ("the same 50 classes", unlabeled.of(0, 50)),
        ("50 other classes", unlabeled.of(50, 100)),
    ):
        rows = np.random.default_rng(0).permutation(len(pool.y))[:OTHER_CLASSES]
        records.append(measure(half[0], pool.where(rows), half[1], what))
        if args.quick:
            break
    text = table(records)
    print(text, flush=True)
    measures = (*CLASSIFIER, "src/fecam/migration.py")
    write("migration", text, {"records": records}, quick=args.quick, measures=measures)


if __name__ == "__main__":
    main()
