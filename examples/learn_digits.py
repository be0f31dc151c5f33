"""Handwritten digits, taught one after another: what a class costs, and what is forgotten.

`make demo` runs this. After each new digit, three classifiers that were taught the same samples
answer for *all* digits seen so far. None of them keeps a sample; none sees an old digit again.
"""

from __future__ import annotations

import time

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fecam import FeCAMClassifier


def main() -> None:
    """Teach ten digits and print a table."""
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(
        X.astype(np.float32), y, test_size=0.5, stratify=y, random_state=0
    )
    heads = {
        "nearest mean": FeCAMClassifier.from_preset("ncm"),
        "paper": FeCAMClassifier.from_preset("paper"),
        "default": FeCAMClassifier(),
    }
    print(__doc__)
    print(f"{'taught':>6}  {'samples':>7}  " + "  ".join(f"{name:>12}" for name in heads))
    history: dict[str, list[float]] = {name: [] for name in heads}
    seconds = 0.0
    for digit in range(10):
        new, seen = y == digit, y_test <= digit
        for name, head in heads.items():
            start = time.perf_counter()
            head.partial_fit(X[new], y[new])
            seconds += (time.perf_counter() - start) if name == "default" else 0.0
            history[name].append(head.score(X_test[seen], y_test[seen]))
        scores = "  ".join(f"{100 * history[name][-1]:11.1f}%" for name in heads)
        print(f"{digit:>6}  {int(new.sum()):>7}  {scores}")
    average = "  ".join(f"{100 * float(np.mean(history[name])):11.1f}%" for name in heads)
    print(f"{'average':>15}  {average}")

    clf = heads["default"]
    print(f"\nTeaching ten digits to the default took {1000 * seconds:.0f} ms. Afterwards:")
    noise = np.random.default_rng(0).permuted(X_test[:200], axis=1)  # pixels, no digits any more
    known = np.mean(clf.predict(X_test, reject=0.05, unknown=-1) == -1)
    strange = np.mean(clf.predict(noise, reject=0.05, unknown=-1) == -1)
    print(f"- asked to turn away 5 % of real digits it turned away {100 * known:.1f} %,")
    print(f"  and {100 * strange:.1f} % of pictures with shuffled pixels;")
    clf.forget(8)
    rest = y_test != 8
    print(f"- told to forget the 8, it knows {clf.classes_.tolist()}")
    print(f"  and is right about {100 * clf.score(X_test[rest], y_test[rest]):.1f} % of them.")


if __name__ == "__main__":
    main()
