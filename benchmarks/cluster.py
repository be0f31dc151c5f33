"""Learning on a cluster against one process: what Ray costs, and what more workers bring.

    python benchmarks/cluster.py [--quick]

200,000 x 512 embeddings of 100 classes in Parquet files. One process reads them file by file and
learns each with `partial_fit`, or reads them all and learns them with `fit`; Ray reads and learns
them with 1, 2, ... workers on as many cores, BLAS with one thread everywhere. The first run of a
cluster, in which workers start and import what they need, is reported apart: it does not grow with
the data. Bytes and seconds of a block, from which the cost for any number of images follows, are
measured in this process.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is there
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import logging
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fecam import FeCAMClassifier
from fecam.core.transforms import Transform
from fecam.distributed.lessons import Plan, add_up, pack, parts_of
from fecam.distributed.reading import Account, Source, read_block
from reporting import markdown, once, options, say, write


def make_files(folder: Path, files: int, rows: int, width: int, classes: int) -> None:
    """Embeddings as a ReLU leaves them, the classes mixed."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(classes, width)).astype(np.float32)
    for at in range(files):
        y = rng.integers(0, classes, rows)
        X = np.maximum(centres[y] + rng.normal(size=(rows, width)).astype(np.float32), 0)
        column = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), width)
        pq.write_table(pa.table({"label": y, "embedding": column}), folder / f"{at:03}.parquet")


def rows_of(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The embeddings of a file, or of all in a folder, and their labels."""
    table = pq.read_table(path)
    column = table.column("embedding").combine_chunks()
    X = column.flatten().to_numpy().reshape(table.num_rows, -1)
    return X, table.column("label").to_numpy()


def alone(folder: Path) -> FeCAMClassifier:
    """One process, one file after the other."""
    clf = FeCAMClassifier(tukey=0.5)
    for path in sorted(folder.glob("*.parquet")):
        clf.partial_fit(*rows_of(path))
    return clf


def on_ray(folder: Path, workers: int, repeats: int) -> dict[str, Any]:
    """Seconds of the first run on a new cluster, and of the best of the next ones."""
    import ray
    import ray.data

    from fecam.distributed import learn

    ray.init(
        num_cpus=workers,
        include_dashboard=False,
        object_store_memory=2**30,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False

    def run() -> FeCAMClassifier:
        data = ray.data.read_parquet(str(folder))
        return learn(data, classifier=FeCAMClassifier(tukey=0.5))

    try:
        first = once(run)
        return {"workers": workers, "first": first, "next": min(once(run) for _ in range(repeats))}
    finally:
        ray.shutdown()


def block_costs(folder: Path) -> dict[str, float]:
    """Seconds and bytes of one block: read from a table, summed up, added to another."""
    table = pq.read_table(sorted(folder.glob("*.parquet"))[0])
    width = table.column("embedding").type.list_size
    plan = Plan(Transform(0.5, True), "full", width, "float32", False)
    source = Source(None, "label", None)

    def summed() -> Any:
        account = Account()
        block = read_block(table, source, None, account)
        return pack(parts_of(block, plan, {}, account), account, plan)

    found = summed()
    start = time.perf_counter()
    add_up([found] * 8, plan)
    return {
        "rows": table.num_rows,
        "seconds_to_sum": once(summed),
        "seconds_to_add_8": time.perf_counter() - start,
        "bytes_in": table.nbytes,
        "bytes_out": found.nbytes,
    }


def run(quick: bool) -> dict[str, Any]:
    """All of it."""
    files, rows, width, classes = (4, 500, 64, 5) if quick else (8, 25_000, 512, 100)
    repeats = 1 if quick else 3
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        say(f"writing {files} files of {rows:,} x {width} ...")
        make_files(folder, files, rows, width, classes)
        say("one process ...")
        single = min(once(lambda: alone(folder)) for _ in range(repeats))
        whole = min(
            once(lambda: FeCAMClassifier(tukey=0.5).fit(*rows_of(folder))) for _ in range(repeats)
        )
        say("one block ...")
        costs = block_costs(folder)
        clusters = []
        cores = len(os.sched_getaffinity(0))
        for workers in [1] if quick else sorted({1, *range(2, cores + 1, 2)}):
            say(f"Ray with {workers} workers ...")
            clusters.append(on_ray(folder, workers, repeats))
    about = {"rows": files * rows, "width": width, "classes": classes, "cores": cores}
    return {**about, "single": single, "whole": whole, "clusters": clusters, "block": costs}


def table(results: dict[str, Any]) -> str:
    """Seconds and ratios."""
    single = results["single"]
    whole = results["whole"]
    lines = [
        ["one process, file by file", f"{single:.1f} s", f"{single / whole:.2f} x", "-"],
        ["one process, all at once", f"{whole:.1f} s", "1.00 x", "-"],
    ]
    for one in results["clusters"]:
        name = f"Ray, {one['workers']} worker{'s' if one['workers'] > 1 else ''}"
        ratio = f"{one['next'] / whole:.2f} x"
        lines.append([name, f"{one['next']:.1f} s", ratio, f"{one['first']:.1f} s"])
    size = f"{results['rows']:,} x {results['width']}, {results['classes']} classes"
    return markdown([size, "time", "of all at once", "first run of a new cluster"], lines)


def main() -> None:
    """Measure, print a table, write results."""
    args = options(__doc__).parse_args()
    results = run(args.quick)
    text = table(results)
    print(text)
    write("cluster", text, results, quick=args.quick)


if __name__ == "__main__":
    main()
