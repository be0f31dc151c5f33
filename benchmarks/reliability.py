"""Draw the reliability diagrams of the documentation: accuracy by stated probability.

    python benchmarks/reliability.py

Classes of every set (see feature_sets.py) are learned in ten batches, as in `calibration.py`.
Writes ``docs/pictures/reliability.svg``.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

import feature_sets
from calibration import former, learned, subset
from fecam.bench.metrics import confidence_bins

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "reliability.svg"
BINS = 15
COLORS = {"former": "#c2571a", "now": "#1f5fbf"}


def curve(confidence: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the mean confidence and the accuracy of each bin of ten or more samples."""
    bins = confidence_bins(confidence, BINS)
    points = [
        (confidence[bins == b].mean(), right[bins == b].mean())
        for b in np.unique(bins)
        if np.count_nonzero(bins == b) >= 10
    ]
    return np.transpose(points)


def curves(name: str) -> dict[str, np.ndarray]:
    """Return the curves of one set by both definitions of probability."""
    X, y, X_test, y_test = subset(feature_sets.load(name), 50)
    clf = learned(X, y, np.random.default_rng(0).permutation(np.unique(y)), 10)
    result = {}
    for label, probabilities in (("former", former(clf, X_test)[0]), ("now", None)):
        shares = clf.predict_proba(X_test) if probabilities is None else probabilities
        right = clf.classes_[shares.argmax(axis=1)] == y_test
        result[label] = curve(shares.max(axis=1).astype(np.float64), right)
    return result


def main() -> None:
    """Measure and draw."""
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fecam", "font.size": 10}):
        figure, axes = plt.subplots(1, len(feature_sets.NAMES), figsize=(10, 2.9), sharey=True)
        for axis, name in zip(axes, feature_sets.NAMES, strict=True):
            axis.plot([0, 1], [0, 1], color="#8a8f98", linewidth=1, linestyle="--")
            for label, (confidence, accuracy) in curves(name).items():
                axis.plot(
                    confidence, accuracy, color=COLORS[label], linewidth=1, marker="o",
                    markersize=4, label=label,
                )  # fmt: skip
            axis.set(title=name, xlabel="probability", xlim=(0, 1), ylim=(0, 1.02))
            axis.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylabel("accuracy")
        axes[0].legend(loc="upper left", frameon=False)
        figure.tight_layout()
        figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
