"""The cost of the model file: adding a class to a large one, and opening it for a first prediction.

    python benchmarks/model_file.py [--classes 1000] [--repeats 15] [--quick]

Side by side: learning a class (500 x 512) in memory, the same into a file of 1,000 classes, and a
bare write with an fsync. Then, each in a process of its own and with the system's cache of files
emptied before (that takes root; without it the file is in memory, and the table says so): reading
the file's bytes, and opening it and answering one query.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import fecam
import problems
from fecam import FeCAMClassifier
from reporting import apart, markdown, once, options, say, write
from stamps import MODEL_FILE

WIDTH, PER_CLASS = 512, 500


def make(path: Path, classes: int) -> Any:
    """Write a model of ``classes`` classes and return queries."""
    problem = problems.made_up(classes, PER_CLASS, WIDTH, queries=8)
    clf = FeCAMClassifier()
    for label, X in problem.batches():
        clf.partial_fit(X, np.full(len(X), label))
    clf.save(path)
    return np.asarray(problem.queries)


def learn_times(path: Path, repeats: int) -> dict[str, float]:
    """Return the seconds to learn in memory, into the file, and of an fsync; the growth."""
    rng = np.random.default_rng(0)
    seconds: dict[str, list[float]] = {"memory": [], "file": [], "fsync": []}
    before = path.stat().st_size
    with fecam.open(path) as model, tempfile.TemporaryFile(dir=path.parent) as other:
        for number in range(repeats + 1):  # the first opens what stays open
            X = rng.gamma(2.0, size=(PER_CLASS, WIDTH)).astype(np.float32)
            labels = np.full(PER_CLASS, 10**6 + number)
            copy = model.classifier.copy()
            found = {
                "memory": once(lambda: copy.partial_fit(X, labels)),  # noqa: B023
                "file": once(lambda: model.learn(X, labels)),  # noqa: B023
                "fsync": once(lambda: (other.write(b"x" * 4096), other.flush(), os.fsync(other))),
            }
            for name, value in found.items():
                seconds[name].append(value)
        packed = statistics.median(one.bytes for one in model.classes if one.label >= 10**6)
    growth = (path.stat().st_size - before) / (repeats + 1)
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    return {**medians, "growth": growth, "packed": packed}


def empty_cache() -> bool:
    """Let the system forget what it has read; whether it may be told to."""
    subprocess.run(["sync"], check=False)
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


def measure(case: dict[str, Any]) -> dict[str, float]:
    """Seconds to read a file, or to open it and answer, in a process of its own."""
    path, query = Path(case["path"]), np.asarray(case["query"], np.float32)
    FeCAMClassifier().fit([[0.0, 1.0], [1.0, 0.0]], [0, 1]).predict([[0.0, 1.0]])  # all is imported
    cold = empty_cache()
    start = time.perf_counter()
    if case["what"] == "read":
        with path.open("rb", buffering=0) as file:
            while file.read(2**22):
                pass
    else:
        fecam.load(path).predict(query)
    return {"seconds": time.perf_counter() - start, "cold": cold}


def main() -> None:
    """Measure, print a table, write results."""
    parser = options(__doc__)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--case", type=json.loads, help="for itself: one case, in its own process")
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure(args.case)))
        return
    classes, repeats = (20, 3) if args.quick else (args.classes, args.repeats)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.fecam"
        say(f"learning {classes} classes ...")
        queries = make(path, classes)
        size = path.stat().st_size
        say("learning one more ...")
        lesson = learn_times(path, repeats)
        found: dict[str, list[float]] = {"read": [], "answer": []}
        cold = True
        for number in range(3 if args.quick else 5):
            for what in found:
                say(f"first answer, {number + 1}: {what} ...")
                case = {
                    "what": what,
                    "path": str(path),
                    "query": queries[number : number + 1].tolist(),
                }
                answer = apart(__file__, case)
                cold = cold and bool(answer["cold"])
                found[what].append(answer["seconds"])
    first = {name: statistics.median(values) for name, values in found.items()}
    factor = (lesson["file"] - lesson["fsync"]) / lesson["memory"]
    rows = [
        ["learn a class in memory", f"{1e3 * lesson['memory']:.1f} ms", "-"],
        ["an fsync", f"{1e3 * lesson['fsync']:.1f} ms", "-"],
        ["learn it into the file", f"{1e3 * lesson['file']:.1f} ms", "at most 3 x, and an fsync"],
        ["without the fsync, against memory", f"{factor:.2f} x", "3 x"],
        [
            "growth of the file, against the packed size",
            f"{lesson['growth'] / lesson['packed']:.3f}",
            "1.10",
        ],
        [
            f"read {size / 1e6:.0f} MB, {'cold' if cold else 'from memory'}",
            f"{first['read']:.2f} s",
            "-",
        ],
        ["open and answer a first query", f"{first['answer']:.2f} s", "-"],
        ["against reading", f"{first['answer'] / first['read']:.2f} x", "2 x"],
    ]
    table = markdown(
        [f"{classes:,} classes, d = {WIDTH}, n = {PER_CLASS}", "measured", "goal"], rows
    )
    print(table)
    write(
        "model_file",
        table,
        {"lesson": lesson, "first": first, "cold": cold},
        quick=args.quick,
        measures=MODEL_FILE,
    )


if __name__ == "__main__":
    main()
