"""A lesson of one class into a model of a hundred, and the query that follows, in CPU time.

    python benchmarks/lessons.py [--against SRC ...] [--lessons 50] [--quick]

Classes of 500 samples of 512 synthetic features. A model of 100 classes, which has answered a
query, learns further classes one by one; after each it predicts one sample. Most lessons measure no
rows, so the mean is over lessons in which the model grows by half; the dearest is stated too.
``--against`` names the ``src`` folders of other versions, such as a worktree of an older commit.
Each version has a process of its own. They take turns lesson by lesson, in CPU time with one
thread, so that the ratios hardly depend on the load of the machine. Ratios are to the first version
that ``--against`` names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from reporting import markdown, options, say, write
from stream import SRC, commit_of, source_folder
from synthetic import generate

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def run(path: str, n_before: int) -> None:
    """Learn a class and predict a sample for each line of the standard input; print the seconds."""
    from fecam import FeCAMClassifier

    data = np.load(path)
    X, y, queries = data["X"], data["y"], data["queries"]
    before = y < n_before
    clf = FeCAMClassifier().partial_fit(X[before], y[before])
    clf.predict(queries)
    lessons = iter([(X[y == label], y[y == label]) for label in range(n_before, int(y.max()) + 1)])
    for _ in sys.stdin:
        batch, labels = next(lessons)
        begin = time.process_time()
        clf.partial_fit(batch, labels)
        middle = time.process_time()
        clf.predict(queries[:1])
        print(json.dumps([middle - begin, time.process_time() - middle]), flush=True)


def main() -> None:
    """Let the versions take turns, print a table, write results."""
    if sys.argv[1:2] == ["--case"]:
        run(*json.loads(sys.argv[2]))
        return
    parser = options(__doc__)
    parser.add_argument(
        "--against", nargs="*", default=[], type=source_folder, help="src folders of other versions"
    )
    parser.add_argument("--lessons", type=int, default=50, help="default: %(default)s")
    args = parser.parse_args()
    n_before, n_samples, n_features = (20, 30, 64) if args.quick else (100, 500, 512)
    features = generate(n_before + args.lessons, n_samples, n_features, queries=100)
    sources = [str(SRC), *args.against]
    seconds: dict[str, list[list[float]]] = {source: [] for source in sources}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "features.npz")
        np.savez(path, X=features.X_train, y=features.y_train, queries=features.X_test)
        workers: dict[str, subprocess.Popen[str]] = {
            source: subprocess.Popen(
                [sys.executable, __file__, "--case", json.dumps([path, n_before])],
                env={**os.environ, "PYTHONPATH": source, **dict.fromkeys(THREADS, "1")},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for source in sources
        }
        for lesson in range(args.lessons):
            say(f"lesson {lesson + 1} of {args.lessons}")
            for source, worker in workers.items():
                assert worker.stdin is not None
                assert worker.stdout is not None
                worker.stdin.write("\n")
                worker.stdin.flush()
                seconds[source].append(json.loads(worker.stdout.readline()))
        for worker in workers.values():
            worker.communicate()
    reference = np.asarray(seconds[sources[min(1, len(args.against))]])
    rows, results = [], []
    for source, measured in seconds.items():
        times = np.asarray(measured)
        version = "this version" if source == str(SRC) else f"commit {commit_of(source)}"
        columns: dict[str, Any] = {}
        for name, values, others in (
            ("lesson", times[:, 0], reference[:, 0]),
            ("lesson and query", times.sum(axis=1), reference.sum(axis=1)),
        ):
            columns |= {
                f"{name}: mean": f"{1e3 * values.mean():.1f} ms",
                f"{name}: median": f"{1e3 * np.median(values):.1f} ms",
                f"{name}: dearest": f"{1e3 * values.max():.1f} ms",
                f"{name}: ratio of means": f"{values.mean() / others.mean():.2f} x",
            }
        rows.append([version, *columns.values()])
        results.append({"version": version, "seconds": measured})
    table = markdown(["version", *columns], rows)
    print(table)
    write("lessons", table, {"rows": results}, measures=("src/fecam/core",), quick=args.quick)


if __name__ == "__main__":
    main()
