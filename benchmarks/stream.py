"""A class-incremental stream: learn and predict, everything included.

    python benchmarks/stream.py [--against SRC ...] [--repeats 3] [--quick]

Six tasks, 50 + 5 x 10 classes, d = 512, 500 samples per class. After each task all test samples of
the classes so far are predicted, 10,000 after the last. Then 50 more classes are learned, one per
lesson; the mean over these lessons includes those in which rows are measured. ``--against`` names
the ``src`` folders of other versions, such as a worktree of an older commit: each version runs in
processes of its own, interleaved with the others, on the same synthetic features.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from reporting import markdown, options, say, write
from synthetic import generate

SRC = Path(__file__).resolve().parent.parent / "src"
SETTINGS = ("default", "paper")


def run(path: str, setting: str) -> dict[str, float]:
    """Run the stream once with whatever ``fecam`` this process imports."""
    from fecam import FeCAMClassifier

    data = np.load(path)
    X, y, queries, labels = (data[name] for name in ("X", "y", "queries", "labels"))
    ends = data["ends"].tolist()
    clf = FeCAMClassifier() if setting == "default" else FeCAMClassifier.from_preset(setting)
    learn = predict = 0.0
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        task, seen = (y >= start) & (y < end), labels < end
        batch, batch_labels, tests = X[task], y[task], queries[seen]
        begin = time.perf_counter()
        clf.partial_fit(batch, batch_labels)
        middle = time.perf_counter()
        predicted = clf.predict(tests)
        learn, predict = learn + middle - begin, predict + time.perf_counter() - middle
    result = {"learn": learn, "predict": predict, "total": learn + predict}
    result["accuracy"] = float(np.mean(predicted == labels[labels < ends[-1]]))
    lessons = [(X[y == label], y[y == label]) for label in range(ends[-1], int(y.max()) + 1)]
    begin = time.perf_counter()
    for batch, batch_labels in lessons:
        clf.partial_fit(batch, batch_labels)
    return {**result, "lesson": (time.perf_counter() - begin) / len(lessons)}


def commit_of(folder: str) -> str:
    """Return the commit that a folder is checked out at."""
    command = ["git", "-C", folder, "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def source_folder(path: str) -> str:
    """Return a folder that holds the package; without it, Python would take this version."""
    if not (Path(path) / "fecam" / "__init__.py").is_file():
        raise argparse.ArgumentTypeError(f"{path} does not hold the package fecam: give its src")
    return path


def main() -> None:
    """Run each version and setting in turn, print a table, write results."""
    if sys.argv[1:2] == ["--case"]:
        print(json.dumps(run(*json.loads(sys.argv[2]))))
        return
    parser = options(__doc__)
    parser.add_argument(
        "--against", nargs="*", default=[], type=source_folder, help="src folders of other versions"
    )
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    n_classes, n_samples, n_features = (150, 20, 64) if args.quick else (150, 500, 512)
    features = generate(n_classes, n_samples, n_features, queries=100)
    sources = [str(SRC), *args.against]
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "features.npz")
        arrays = {"X": features.X_train, "y": features.y_train, "queries": features.X_test}
        np.savez(path, labels=features.y_test, ends=[50, 60, 70, 80, 90, 100], **arrays)
        for repeat in range(args.repeats):
            for setting in SETTINGS:
                for source in sources:
                    say(f"repeat {repeat + 1} of {args.repeats}: {setting}, {source} ...")
                    done = subprocess.run(
                        [sys.executable, __file__, "--case", json.dumps([path, setting])],
                        env={**os.environ, "PYTHONPATH": source},
                        stdout=subprocess.PIPE,
                        text=True,
                        check=True,
                    )
                    runs.setdefault((setting, source), []).append(json.loads(done.stdout))
    rows, results = [], []
    for (setting, source), measured in runs.items():
        median = {key: statistics.median(one[key] for one in measured) for key in measured[0]}
        own = statistics.median(one["total"] for one in runs[setting, str(SRC)])
        ratio = median["total"] / own
        version = "this version" if source == str(SRC) else f"commit {commit_of(source)}"
        seconds = [f"{median[key]:.1f} s" for key in ("learn", "predict", "total")]
        lesson = f"{1e3 * median['lesson']:.2f} ms"
        accuracy = f"{100 * median['accuracy']:.1f} %"
        rows.append([setting, version, *seconds, f"{ratio:.2f} x", accuracy, lesson])
        results.append({"setting": setting, "version": version, **median, "ratio": ratio})
    header = ["settings", "version", "learn", "predict", "total", "relative time", "accuracy"]
    header.append("lesson of one class, mean")
    table = markdown(header, rows)
    print(table)
    write("stream", table, {"rows": results}, measures=("src/fecam/core",), quick=args.quick)


if __name__ == "__main__":
    main()
