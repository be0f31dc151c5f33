"""Learning on a cluster against one process: what Ray costs, and what more workers bring.

    python benchmarks/cluster.py [--quick]

200,000 x 512 embeddings of 100 classes in Parquet files. One process reads them file by file and
learns each with `partial_fit`, or reads them all and learns them with `fit`; Ray reads and learns
them on 1, 2, ... nodes with a processor each, BLAS with one thread everywhere. The first run of a
cluster, in which workers start and import what they need, is reported apart: it does not grow with
the data.

Then, in this process, what the parts of the work cost a block and a class, and from that on paper
what 100 million images of 10,000 classes cost on 64 machines.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is imported
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fecam import FeCAMClassifier
from fecam.core.state import ClassifierState
from fecam.core.transforms import Transform
from fecam.distributed.cluster import to_table
from fecam.distributed.partial_statistics import from_tables, partial_statistics
from fecam.distributed.reading import ReadStats, Source, read_block
from fecam.distributed.tree_reduce import FAN_IN, MAX_PARTITIONS
from reporting import markdown, once, options, say, write
from stamps import CLASSIFIER


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
    from ray.cluster_utils import Cluster

    from fecam.distributed import learn
    from fecam.distributed.cluster import connect, require_ray

    node = {"num_cpus": 1, "object_store_memory": 2**29}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        for _ in range(workers - 1):
            cluster.add_node(**node)
        connect(cluster.address)
        ray = require_ray()

        def run() -> FeCAMClassifier:
            data = ray.data.read_parquet(str(folder))
            return learn(data, classifier=FeCAMClassifier(tukey=0.5)).classifier

        first = once(run)
        return {"workers": workers, "first": first, "next": min(once(run) for _ in range(repeats))}
    finally:
        require_ray().shutdown()
        cluster.shutdown()


# -- on paper --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Paper:
    """The size of the estimated problem, and the machines."""

    images: int = 100_000_000
    image_bytes: int = 100_000
    classes: int = 10_000
    width: int = 768
    machines: int = 64
    # Of a machine, assumed:
    cores: int = 16
    memory: float = 64e9
    network: float = 1.25e9
    """Bytes per second."""
    encoded: float = 100.0
    """Images per second, on all of its cores or a small GPU."""

    @property
    def block(self) -> int:
        """Images of a block of 128 MiB, as Ray cuts them."""
        return 2**27 // self.image_bytes

    @property
    def blocks(self) -> int:
        """All of them."""
        return -(-self.images // self.block)


def table_of(paper: Paper, labels: np.ndarray) -> tuple[Any, ClassifierState, float]:
    """The statistics of rows with such labels, and the seconds to make them."""
    like = np.zeros(0, np.float32)
    state = ClassifierState(Transform(0.5, True), "full", paper.width, like)
    rng = np.random.default_rng(0)
    X = np.maximum(rng.normal(size=(len(labels), paper.width)).astype(np.float32), 0)
    column = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), paper.width)
    block = pa.table({"label": labels, "embedding": column})

    def summed() -> Any:
        stats = ReadStats()
        read = read_block(block, Source(None, "label", None), None, stats)
        return to_table((partial_statistics(read, state, None, stats), stats))

    table = summed()
    return table, state, once(summed)


def level_costs(paper: Paper, level: int, sampled: int) -> dict[str, float]:
    """Return number and size of tables, each of ``FAN_IN`` to the power of the level blocks.

    The classes of an item are as good as chance, so a table of few blocks holds most classes once.
    """
    rng = np.random.default_rng(level)
    items = paper.block * FAN_IN**level
    share = items / paper.classes
    there = paper.classes * -np.expm1(-share)
    if level == 0:
        labels = rng.integers(0, paper.classes, items)
    else:  # some classes represent all; a class of many samples does not grow further
        count = min(max(round(items / there), 1), 2 * paper.width)
        labels = np.repeat(np.arange(sampled), count)
    table, _, seconds = table_of(paper, labels)
    kinds = len(np.unique(labels))

    def add() -> Any:
        return to_table(from_tables([table] * FAN_IN))

    tables = -(-paper.blocks // FAN_IN**level)
    return {
        "tables": tables,
        "bytes": table.nbytes / kinds * there,
        "seconds_to_sum": seconds,
        "seconds_to_add": once(add) / kinds * there if tables > 1 else 0.0,
    }


def driver_costs(paper: Paper, sampled: int) -> dict[str, float]:
    """Return the cost of each class for the driver at the end, in seconds and bytes."""
    labels = np.repeat(np.arange(sampled), 2 * paper.width)
    table, state, _ = table_of(paper, labels)
    clf = FeCAMClassifier(tukey=0.5)
    with tempfile.TemporaryDirectory() as place:
        start = time.perf_counter()
        partials, _ = from_tables([table])
        rows = ((label, partial.sample[:, 1:]) for label, partial in partials.items())
        statistics = {label: partial.statistics for label, partial in partials.items()}
        clf.set_state(state).learn_statistics(statistics, rows)
        absorbed = time.perf_counter()
        file = Path(place) / "m.fecam"
        clf.save(file)
        written = time.perf_counter() - absorbed
        size = file.stat().st_size
    return {
        "seconds": (absorbed - start) / sampled,
        "seconds_to_write": written / sampled,
        "bytes": size / sampled,
    }


def estimate(paper: Paper, quick: bool) -> dict[str, Any]:
    """The costs of all, from those that were measured here."""
    sampled = 4 if quick else 16
    levels = []
    while not levels or levels[-1]["tables"] > 1:
        say(f"statistics of {FAN_IN ** len(levels):,} blocks ...")
        levels.append(level_costs(paper, len(levels), sampled))
    say("the driver ...")
    driver = driver_costs(paper, sampled)
    cores = paper.machines * paper.cores
    moved = sum(one["tables"] * one["bytes"] for one in levels)
    adding = sum(one["tables"] / FAN_IN * one["seconds_to_add"] for one in levels)
    partitions = min(cores, MAX_PARTITIONS)
    sums = sum(one["tables"] for one in levels[2:]) * partitions
    # A file remembers its items by eight bytes each.
    model = paper.classes * driver["bytes"] + 8 * paper.images
    hours = {
        "encoding": paper.images / paper.encoded / paper.machines / 3600,
        "statistics of blocks": paper.blocks * levels[0]["seconds_to_sum"] / cores / 3600,
        "adding up": adding / cores / 3600,
        "sending statistics": moved / paper.machines / paper.network / 3600,
        "the driver": paper.classes * (driver["seconds"] + driver["seconds_to_write"]) / 3600
        + model / paper.network / 3600,
    }
    return {
        "paper": asdict(paper),
        "levels": levels,
        "driver": driver,
        "hours": hours,
        "blocks": paper.blocks,
        "bytes_moved": moved,
        "tasks": paper.blocks + levels[1]["tables"] + sums,
        "objects": paper.blocks + levels[1]["tables"] * (partitions + 1) + sums,
        "model_bytes": model,
        # At the end it holds the model, the statistics it was made of, and a partition in transit.
        "driver_bytes": 2 * model + model / partitions,
    }


def size(count: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def duration(hours: float) -> str:
    """Return hours, or minutes for short times."""
    return f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.1f} min"


def paper_table(found: dict[str, Any]) -> str:
    """Return the estimate as a table, with the first limit."""
    paper, hours = Paper(**found["paper"]), found["hours"]
    first = found["levels"][0]
    together = max(hours["encoding"], hours["sending statistics"])
    together += hours["statistics of blocks"] + hours["adding up"]
    full = found["driver_bytes"] / paper.memory
    waits = hours["the driver"] / (together + hours["the driver"])
    if full > 1:
        breaks = "the driver's memory"
    elif waits > 0.5:
        breaks = "the driver's time: all others wait for it"
    else:
        breaks = f"the driver's memory: {full:.0%} of it is used"

    lines = [
        ["blocks of 128 MiB", f"{found['blocks']:,} of {paper.block:,} images"],
        [
            f"reading and encoding, {paper.encoded:,.0f} images per second and machine (assumed)",
            duration(hours["encoding"]),
        ],
        [
            f"statistics of a block: {first['seconds_to_sum']:.2f} s, {size(first['bytes'])}",
            f"{duration(hours['statistics of blocks'])} on {paper.cores} cores per machine",
        ],
        [
            f"reducing, {FAN_IN} tables at a time in {len(found['levels']) - 1} levels",
            f"{duration(hours['adding up'])} on the same cores",
        ],
        [
            "statistics sent, if every table is read on another machine",
            f"{size(found['bytes_moved'])}, {size(found['bytes_moved'] / paper.machines)} a "
            f"machine: {duration(hours['sending statistics'])} at 10 Gbit/s",
        ],
        [
            "tasks, and objects that Ray tracks",
            f"{found['tasks']:,} and {found['objects']:,}",
        ],
        [
            f"the model: {size(found['driver']['bytes'])} per class, 8 bytes per image",
            size(found["model_bytes"]),
        ],
        [
            "the driver alone: fetching, measuring "
            f"({1000 * found['driver']['seconds']:.0f} ms per class) and writing",
            f"{duration(hours['the driver'])}, {size(found['driver_bytes'])} of memory",
        ],
        ["all of it, encoding beside sending", duration(together + hours["the driver"])],
        [f"breaks first, with {paper.memory / 1e9:.0f} GB per machine", breaks],
    ]
    what = f"{paper.images:,} images, {paper.classes:,} classes, d = {paper.width}"
    return markdown([what, f"{paper.machines} machines"], lines)


# -- all of it -------------------------------------------------------------------------------------


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
        clusters = []
        cores = len(os.sched_getaffinity(0))
        for workers in [1] if quick else sorted({1, *range(2, cores + 1, 2)}):
            say(f"Ray with {workers} workers ...")
            clusters.append(on_ray(folder, workers, repeats))
    small = Paper(images=1_000_000, classes=100, width=64)
    on_paper = estimate(small if quick else Paper(), quick)
    about = {"rows": files * rows, "width": width, "classes": classes, "cores": cores}
    return {**about, "single": single, "whole": whole, "clusters": clusters, "on_paper": on_paper}


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
    on_paper = paper_table(results["on_paper"])
    print(f"{text}\n\n{on_paper}")
    write(
        "cluster", text, results, quick=args.quick, measures=(*CLASSIFIER, "src/fecam/distributed")
    )
    write(
        "cluster_on_paper",
        on_paper,
        results["on_paper"],
        quick=args.quick,
        measures=(*CLASSIFIER, "src/fecam/distributed"),
    )


if __name__ == "__main__":
    main()
