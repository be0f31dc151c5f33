"""Draws the pictures of the documentation: ``python docs/pictures/make.py``; needs matplotlib.

`digits.svg`: handwritten digits learned one after another, with many and with few samples of each.
After each new digit, the accuracy over all digits learned so far, averaged over random splits.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fecam import FeCAMClassifier

HERE = Path(__file__).parent
SPLITS = 20
PANELS = {"all samples (about 90 per digit)": None, "5 samples per digit": 5}
HEADS = {
    # name: preset (None is the default), color, marker
    "nearest mean": ("ncm", "#8a8f98", "s"),
    "paper": ("paper", "#c2571a", "^"),
    "fecam, default": (None, "#1f5fbf", "o"),
}
INK, FAINT, PAPER = "#24292f", "#d9dde3", "#ffffff"


def accuracies(preset: str | None, samples: int | None, split: int) -> list[float]:
    """Return the accuracy over all digits seen so far, after each of the ten."""
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.5, stratify=y, random_state=split)
    clf = FeCAMClassifier() if preset is None else FeCAMClassifier.from_preset(preset)
    curve = []
    for digit in range(10):
        new, seen = np.flatnonzero(y == digit)[:samples], y_test <= digit
        clf.partial_fit(X[new], y[new])
        curve.append(clf.score(X_test[seen], y_test[seen]))
    return curve


def draw() -> None:
    """Draw and save `digits.svg`."""
    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": "fecam",
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
        "font.size": 11,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": FAINT,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with mpl.rc_context(style):
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, facecolor=PAPER)
        for axis, (title, samples) in zip(axes, PANELS.items(), strict=True):
            for name, (preset, color, marker) in HEADS.items():
                curves = [accuracies(preset, samples, split) for split in range(SPLITS)]
                mean = 100 * np.mean(curves, axis=0)
                print(f"{title:32} {name:16} " + " ".join(f"{value:5.1f}" for value in mean))
                axis.plot(mean, color=color, marker=marker, markersize=5, label=name)
            axis.set(title=title, xlabel="last digit learned", xticks=range(10), ylim=(80, 100.6))
            axis.grid(axis="y", color=FAINT, linewidth=0.8)
            axis.set_axisbelow(True)
            axis.set_facecolor(PAPER)
            axis.spines[["top", "right", "left"]].set_visible(False)
            axis.tick_params(length=0)
            axis.title.set_size(11)
        axes[0].set_ylabel("accuracy over all digits so far (%)")
        axes[0].legend(loc="lower left", frameon=False)
        figure.tight_layout()
        figure.savefig(HERE / "digits.svg", metadata={"Date": None}, facecolor=PAPER)
        plt.close(figure)


if __name__ == "__main__":
    draw()
