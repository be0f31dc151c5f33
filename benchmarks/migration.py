"""What is left of a model's accuracy when its encoder changes: EfficientNet-Lite0 to Lite1.

    python benchmarks/migration.py --root FOLDER [--quick]

FOLDER has CIFAR-100. Images have 128 pixels. A model is taught with 50 images per class under
Lite0 and migrated with images of the training part that it has not seen, without their labels:
first of the same classes, then, for a model of the first 50 classes, of the other 50. Measured on
30 test images per class:

- *anew*: a model that is taught the same images under Lite1, which `fecam migrate` does not have;
- *pseudo-labels*: a new model that learns the images under the old model's labels;
- *map*: means and scatters follow the linear map, and nothing else;
- *map + pseudo-labels*: the same, and then it learns the images of which the old model is sure;
- *effective counts*: the map with the counts that `fecam.core.transport` derives;
- *migrate*: `fecam.migration.migrate`, with the accuracy that it expects.

Features are cached; the first run encodes 36,000 images. Run it again to continue after an
interruption.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fecam import FeCAMClassifier
from fecam.core.linear_map import fit_linear_map
from fecam.core.novelty import novelty_threshold
from fecam.core.transport import transport
from fecam.data import Dataset, load
from fecam.encoders import load as load_encoder
from fecam.features import extract
from fecam.migration import migrate
from reporting import QUICK, RESULTS, markdown, options, say, write
from stamps import CLASSIFIER, git

ENCODERS = ("efficientnet-lite0", "efficientnet-lite1")
RESOLUTION = 128
PARTS = {
    "taught": ("train", 0, 50),
    "unlabeled": ("train", 100, 120),
    "more-unlabeled": ("train", 120, 200),
    "test": ("test", 0, 30),
}
"""Part of the data set, and the range of the images of each class in it."""
SIZES = (2000, 500, 200, 50)
LARGEST = 10000
VARIANTS = 2000
"""Number of images at which effective counts are measured too."""
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


class Taught:
    """A model under each encoder, and their accuracy on test images."""

    def __init__(self, taught: Features, test: Features) -> None:
        self.test = test
        self.old = FeCAMClassifier().fit(taught.old, taught.y)
        anew = FeCAMClassifier().fit(taught.new, taught.y)
        self.facts = {
            "old": self.old.score(test.old, test.y),
            "anew": anew.score(test.new, test.y),
            "rejected by old": _rejected(self.old, test.old),
        }


def measure(taught: Taught, items: Features, what: str) -> dict[str, Any]:
    """Return the accuracy of each way to a model of the new features."""
    say(f"  {len(items.y):,} images of {what} ...")
    old, test = taught.old, taught.test
    done = migrate(old, items.old, items.new)
    estimate = done.estimate
    record = {
        "images": len(items.y),
        "what": what,
        **taught.facts,
        "migrate": done.classifier.score(test.new, test.y),
        "expected": estimate.accuracy,
        "lowest": estimate.lowest_accuracy,
        "expected of old": estimate.accuracy_before,
        "agreement": estimate.agreement,
        "novel": estimate.novel,
        "confidence": float(done.classifier.predict_proba(test.new).max(axis=1).mean()),
        "rejected": _rejected(done.classifier, test.new),
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
        fit_linear_map(before, after, toward_identity=False)
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
        for r in sorted(records, key=lambda r: ("50" in r["what"], r["images"]))
    ]
    return markdown(header, rows)


def main() -> None:
    """Measure, print a table, write results."""
    parser = options(__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder of CIFAR-100")
    args = parser.parse_args()
    images, unlabeled, test = (read(args.root, name) for name in ("taught", "unlabeled", "test"))
    order = np.random.default_rng(0).permutation(len(unlabeled.y))
    known = _Records(args.quick)
    for n in (500,) if args.quick else SIZES[:2]:
        known.add((0, 100), "the same classes", n, images, unlabeled.where(order[:n]), test)
    for what, items in (
        ("the same 50 classes", unlabeled.of(0, 50)),
        ("50 other classes", unlabeled.of(50, 100)),
    ):
        known.add((0, 50), what, len(items.y), images, items, test)
    for n in () if args.quick else SIZES[2:]:
        known.add((0, 100), "the same classes", n, images, unlabeled.where(order[:n]), test)
    if not args.quick:
        every = read(args.root, "unlabeled", "more-unlabeled")
        known.add((0, 100), "the same classes", LARGEST, images, every, test)
    text = table(known.records)
    print(text, flush=True)
    measures = (*CLASSIFIER, "src/fecam/migration.py")
    results = {"records": known.records}
    write("migration", text, results, quick=args.quick, measures=measures)


class _Records:
    """The records of this commit: a run that was interrupted goes on where it stopped."""

    def __init__(self, quick: bool) -> None:
        commit = git("rev-parse", "--short=7", "HEAD").stdout.strip()
        self.folder = QUICK if quick else RESULTS
        self.path = self.folder / f"migration-{commit}.json"
        self.records = json.loads(self.path.read_text()) if self.path.exists() else []
        self._taught: dict[Any, Taught] = {}

    def add(
        self,
        classes: tuple[int, int],
        what: str,
        n: int,
        images: Features,
        items: Features,
        test: Features,
    ) -> None:
        """Measure one case unless it is known."""
        if any((record["what"], record["images"]) == (what, n) for record in self.records):
            return
        if classes not in self._taught:
            self._taught[classes] = Taught(images.of(*classes), test.of(*classes))
        self.records.append(measure(self._taught[classes], items, what))
        self.folder.mkdir(exist_ok=True)
        self.path.write_text(json.dumps(self.records))


if __name__ == "__main__":
    main()
