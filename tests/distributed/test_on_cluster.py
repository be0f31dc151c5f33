"""A cluster gives the same results as one machine. Ray runs two nodes with a processor each.

All tests share one cluster, which starts slowly: run this file in one process, as `make test` does.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from scipy.stats import spearmanr

import fecam
from fecam import FeCAMClassifier
from fecam.bench import runner, spec
from fecam.core.scatter import to_dense
from fecam.errors import ClusterError, InputError
from helpers.features import relu_features, signed_features
from helpers.ray_cluster import STORE, threads_outlive_it, two_nodes
from helpers.small_encoders import Colours

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("ray")

pytestmark = threads_outlive_it


@pytest.fixture(scope="module")
def cluster():
    with two_nodes() as found:
        yield found


def program(*commands, folder):
    """Run commands in a process; return the JSON documents of its stdout, and its stderr."""
    script = "import json, sys; from fecam.cli.app import app\n"
    script += "for one in json.loads(sys.argv[1]): app(one, standalone_mode=False)"
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(commands)],
        cwd=folder, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found, rest = [], done.stdout
    while rest:
        one, end = json.JSONDecoder().raw_decode(rest)
        found.append(one)
        rest = rest[end:].removeprefix("\n")
    return found, done.stderr


def blocks(columns, count=6):
    """Return a data set of ``count`` blocks."""
    import ray

    tables = [
        pa.table({name: values[at::count] for name, values in columns.items()})
        for at in range(count)
    ]
    return ray.data.from_arrow(tables)


def lists(X):
    return pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), X.shape[1])


def assert_same(found, expected, X):
    """Assert equal statistics, to rounding, and equal predictions."""
    assert found.classes_.tolist() == expected.classes_.tolist()
    assert found.class_count_.tolist() == expected.class_count_.tolist()
    for label, one in expected.state_.classes.items():
        other = found.state_.classes[label]
        assert other.n_batches == one.n_batches
        for a, b in (
            (other.mean, one.mean),
            (other.raw_mean, one.raw_mean),
            (to_dense(other.scatter), to_dense(one.scatter)),
        ):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * np.abs(b).max())
    assert (found.predict(X) == expected.predict(X)).all()
    # Calibrated with other rows of each class, so it agrees as two samples of 32 do.
    # Its scale follows from a few rows of each class, which are not the same ones.
    assert spearmanr(found.novelty(X), expected.novelty(X)).statistic > 0.98
    np.testing.assert_allclose(found.novelty(X), expected.novelty(X), atol=0.8)


def picture(colour, seed, size=12):
    from PIL import Image

    rng = np.random.default_rng(seed)
    noise = rng.normal(0, 30, (size, size, 3))
    pixels = np.clip(np.asarray(colour) + noise, 0, 255).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "png")
    return stream.getvalue()


COLOURS = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}


# -- learning --------------------------------------------------------------------------------------


def test_embeddings_in_parquet(cluster, tmp_path, monkeypatch):
    import ray

    from fecam.distributed import learn, learning

    X, y = relu_features(5, 60, 16, 0)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order], y[order]
    X[-1, 0] = np.nan
    for at in range(4):
        table = pa.table({"label": y[at::4], "embedding": lists(X[at::4])})
        pq.write_table(table, tmp_path / f"{at}.parquet")
    heard, file = [], tmp_path / "m.fecam"
    data = ray.data.read_parquet(str(tmp_path))
    found = learn(data, into=file, total=len(y), report=heard.append)
    assert_same(found.classifier, FeCAMClassifier().fit(X[:-1], y[:-1]), X[:-1])
    assert (found.unreadable, found.n_duplicates) == (1, 0)
    assert all(one.total == len(y) for one in heard)
    assert (heard[-1].done, heard[-1].skipped) == (len(y), 1)

    # The file has the hashes of its items: they are not learned twice. Neither a file nor a given
    # transform needs a probe.
    def no_probe(*arguments):
        raise AssertionError("the first rows were read apart")

    monkeypatch.setattr(learning, "probe", no_probe)
    again = learn(data, into=file)
    assert (again.n_learned, again.n_duplicates, again.unreadable) == ({}, len(y) - 1, 1)
    given = learn(data, classifier=FeCAMClassifier(tukey=0.5)).classifier
    assert_same(given, FeCAMClassifier(tukey=0.5).fit(X[:-1], y[:-1]), X[:-1])


def test_many_blocks_and_columns_of_numbers(cluster):
    from fecam.distributed import learn

    X, y = signed_features(3, 70, 5, 1)
    names = np.asarray(["wren", "tit", "robin"])[y]
    columns = {"label": names, **{f"x{at}": X[:, at] for at in range(5)}}
    heard = []
    found = learn(blocks(columns, 20), report=heard.append)
    assert_same(found.classifier, FeCAMClassifier().fit(X, names), X)
    assert {one.total for one in heard} == {len(y)}, "Ray knows how many there are, and is asked"


def test_images_through_an_encoder_into_a_file(cluster, tmp_path):
    from fecam.distributed import learn

    pictures = [(name, picture(rgb, seed)) for seed in range(8) for name, rgb in COLOURS.items()]
    columns = {
        "label": [name for name, _ in pictures] + ["red"],
        "bytes": [data for _, data in pictures] + [b"no image"],
    }
    path = tmp_path / "m.fecam"
    found = learn(blocks(columns, 5), encoder=Colours(), into=path, concurrency=1)
    assert (found.unreadable, found.n_duplicates) == (1, 0) and len(found.reasons) == 1
    assert found.n_learned == {"red": 8, "green": 8, "blue": 8}

    alone = tmp_path / "alone.fecam"
    with fecam.open(alone, encoder=Colours()) as model:
        model.learn([data for _, data in pictures], [name for name, _ in pictures])
        X = model.encode([data for _, data in pictures])
        expected = model.classifier
    with fecam.open(path, encoder=Colours()) as model:
        assert_same(model.classifier, expected, X)
        assert [one.count for one in model.classes] == [8, 8, 8]
        assert [step.what for step in model.steps] == ["learn"]


def test_invalid_data_are_errors(cluster):
    from fecam.distributed import learn

    X, y = relu_features(2, 200, 4, 5)
    with pytest.raises(InputError, match="no column 'kind'"):
        learn(blocks({"label": y, "embedding": lists(X)}), label="kind")
    X[-1, 0] = -1  # not among the first rows, which are probed
    with pytest.raises(InputError, match="tukey=None"):
        learn(blocks({"label": y, "embedding": lists(X)}))
    with pytest.raises(InputError, match="holds no item"):
        learn(blocks({"label": y[:0], "embedding": lists(X[:0])}, 1))


# -- faults ----------------------------------------------------------------------------------------


def test_a_node_that_dies_changes_nothing(cluster, tmp_path, monkeypatch):
    """It dies with a complete block and with one that it computes; both are recomputed."""
    import ray

    from fecam.distributed import learn, learning

    node = cluster.add_node(num_cpus=1, object_store_memory=STORE)
    doomed = node.node_id
    X, y = relu_features(4, 48, 160, 3)  # statistics too large to be sent along with messages

    def begun():
        return len(list(tmp_path.glob(f"{doomed} *")))

    def slow(table):
        from uuid import uuid4

        import ray

        if not (tmp_path / "work").exists():  # the schema is being probed
            return table
        here = ray.get_runtime_context().get_node_id()
        (tmp_path / f"{here} {uuid4()}").touch()
        # The doomed node makes a block, begins another, and waits for its end; the others wait
        # until it is there.
        limit = time.monotonic() + 60
        waits = (lambda: begun() > 1) if here == doomed else (lambda: begun() < 2)
        while waits() and time.monotonic() < limit:
            time.sleep(0.05)
        return table

    def look(*arguments):
        found = looked(*arguments)
        (tmp_path / "work").touch()
        return found

    def kill():
        while begun() < 2 and not done:
            time.sleep(0.05)
        if not done:
            cluster.remove_node(node, allow_graceful=False)
            killed.append(True)

    looked = learning.probe
    monkeypatch.setattr(learning, "probe", look)
    killed, done = [], []
    killer = threading.Thread(target=kill)
    killer.start()
    data = blocks({"label": y, "embedding": lists(X)}, 12)
    data = data.map_batches(slow, batch_format="pyarrow", batch_size=None)
    try:
        found = learn(data)
    finally:
        done.append(True)
        killer.join()
    assert killed, "it died while there was work to do"
    assert len(list(tmp_path.glob("* *"))) > 12, "the block that it was making was made again"
    assert_same(found.classifier, FeCAMClassifier().fit(X, y), X)
    while doomed in {one["NodeID"] for one in ray.nodes() if one["Alive"]}:
        time.sleep(0.1)  # no later request should be sent there


def test_lost_results_are_recomputed(cluster, monkeypatch, tmp_path):
    """Where Ray cannot recompute them alone, the run is repeated, three times at most."""
    import ray

    from fecam.distributed import learn, learning

    def is_lost(one):
        try:
            return ray.get(one) is None
        except ray.exceptions.ObjectLostError:
            return True

    @ray.remote(num_cpus=0)
    class Holder:
        def hold(self, table):
            return [ray.put(table)]

    holder = Holder.remote()
    (dead,) = ray.get(holder.hold.remote(pa.table({"sample": np.zeros(100_000)})))
    ray.kill(holder)  # what it holds is lost with it, sooner or later
    while not is_lost(dead):
        time.sleep(0.1)
    X, y = relu_features(3, 40, 16, 8)
    data = blocks({"label": y, "embedding": lists(X)}, 2)
    fetch, tries = learning._fetch, []

    def lose(results):
        tries.append(True)
        return fetch([dead] if len(tries) <= losses else results)

    monkeypatch.setattr(learning, "_fetch", lose)
    losses = 2
    assert_same(learn(data).classifier, FeCAMClassifier().fit(X, y), X)
    assert len(tries) == 3
    tries.clear()
    losses, file = 3, tmp_path / "m.fecam"
    with pytest.raises(ClusterError, match="has lost results 3 times"):
        learn(data, into=file)
    assert len(tries) == 3 and not file.exists()


# -- answering -------------------------------------------------------------------------------------


def test_predict_resumes(cluster, tmp_path):
    from fecam.distributed import predict

    X, y = relu_features(4, 50, 10, 4)
    clf = FeCAMClassifier().fit(X, y)
    data = blocks({"id": np.arange(len(y)), "label": y, "embedding": lists(X)}, 5)
    folder, heard = tmp_path / "answers", []
    first = predict(data, clf, output=folder, top=2, concurrency=1, report=heard.append)
    assert (first.items, first.files, first.reused) == (len(y), 5, 0)
    assert [(one.done, one.total) for one in heard][-1] == (len(y), len(y))
    parts = sorted(folder.glob("part-*.parquet"))
    times = {path: path.stat().st_mtime_ns for path in parts}
    parts[0].unlink()
    parts[1].write_bytes(b"PAR1 but broken")
    again = predict(data, clf, output=folder, top=2, concurrency=1)
    assert (again.items, again.files, again.reused) == (len(y), 5, 3)
    assert all(path.stat().st_mtime_ns == times[path] for path in parts[2:])
    rows = pq.read_table(folder).sort_by("id")
    assert rows.column("id").to_pylist() == list(range(len(y)))
    assert rows.column("answer").to_pylist() == clf.predict(X).tolist()
    assert rows.column("nearest").to_pylist() == clf.predict_top_k(X, 2).tolist()
    np.testing.assert_allclose(rows.column("novelty").to_numpy(), clf.novelty(X), rtol=1e-4)
    with pytest.raises(InputError, match="holds answers of another model"):
        predict(data, clf, output=folder, top=1)


def test_similar_and_equal_blocks_are_all_predicted(cluster, tmp_path):
    from ray.data import from_arrow

    from fecam.distributed import predict

    X = np.random.default_rng(0).random((8, 3), np.float32)
    clf = FeCAMClassifier().fit(X, [0, 1] * 4)
    tables = [
        pa.table({"item": lists(X), "name": [f"{of}{at}" for at in range(8)]}) for of in "aba"
    ]
    folder = tmp_path / "answers"
    for kept in (0, 3):  # and once more, when all is there
        found = predict(from_arrow(tables), clf, output=folder, concurrency=1)
        names = [
            name
            for part in folder.glob("part-*.parquet")
            for name in pq.read_table(part).column("name").to_pylist()
        ]
        assert sorted(names) == sorted(name for one in tables for name in one["name"].to_pylist())
        assert (found.items, found.files) == (24, 3) and found.reused >= kept


# -- the program -----------------------------------------------------------------------------------


MORTAL = """
import os
from pathlib import Path

from fecam.heads.ncm import NearestMean


class Mortal(NearestMean):
    '''Its process ends with its first lesson, and leaves a trace.'''

    def __init__(self, *, trace=""):
        super().__init__()
        self.trace = trace

    def partial_fit(self, X, y):
        if self.trace and not Path(self.trace).exists():
            Path(self.trace).touch()
            os._exit(1)
        return super().partial_fit(X, y)
"""
EXPERIMENT = """
seeds = [1993, 1994]
analyses = []

[dataset]
name = "digits"
as_features = true

[scenario]
kind = "class-incremental"
base = 4
increment = 3

[[heads]]
name = "fecam"

[[heads]]
name = "mortal:Mortal"
label = "mortal"
trace = "TRACE"
"""


def test_commands(cluster, place, monkeypatch):
    """They print what one machine prints, although a worker dies."""
    X, y = relu_features(3, 40, 8, 6)
    y[0] = 1  # something to get wrong
    pq.write_table(pa.table({"label": y, "embedding": lists(X)}), place / "rows.parquet")
    trace = place / "trace"
    (place / "mortal.py").write_text(MORTAL)
    (place / "mine.toml").write_text(EXPERIMENT.replace("TRACE", str(trace)))
    on = ["--ray", cluster.address, "--json"]
    (learned, answered, evaluated, *records), said = program(
        ["learn", "rows.parquet", "-m", "m.fecam", *on],
        ["predict", "rows.parquet", "-m", "m.fecam", "--output", "answers", *on],
        ["evaluate", "rows.parquet", "-m", "m.fecam", *on],
        ["bench", "mine.toml", *on],
        folder=place,
    )
    assert learned["learned"] == {"0": 39, "1": 41, "2": 40} and learned["unreadable"] == 0
    # Without Ray, and not in this process, into whose standard output Ray may write at any moment.
    (_, counted), _ = program(
        ["learn", "rows.parquet", "-m", "alone.fecam", "--json"],
        ["evaluate", "rows.parquet", "-m", "alone.fecam", "--json"],
        folder=place,
    )
    with fecam.open("m.fecam") as model, fecam.open("alone.fecam") as alone:
        assert_same(model.classifier, alone.classifier, X)
        expected = alone.predict(X)

    assert (answered["items"], answered["files"]) == (len(y), 1)
    assert pq.read_table("answers").column("answer").to_pylist() == expected

    assert 0.9 < evaluated["accuracy"] == pytest.approx(counted["accuracy"])
    assert sum(one["count"] for one in evaluated["classes"]) == evaluated["items"] == len(y)
    wrong = sum(one["count"] for one in evaluated["confusions"])
    assert wrong == sum(one["count"] - one["correct"] for one in evaluated["classes"]) >= 1

    assert trace.exists(), "a worker has died"
    monkeypatch.syspath_prepend(place)
    mine = spec.load(place / "mine.toml")
    alone = list(runner.run(mine, place / "alone", workers=1))
    assert untimed(records) == untimed(alone)
    for told in ("120/120", "12/12"):
        assert told in said, "people hear how far it has come"
    # Where processes start slowly, Ray itself tells how many there are.
    ours = [line for line in said.splitlines() if "PYTHON worker processes" not in line]
    assert not [line for line in ours if "INFO" in line or "WARNING" in line]


def test_an_experiment_resumes(cluster, place):
    from fecam.distributed.experiments import run_on_ray

    (place / "mine.toml").write_text(EXPERIMENT.split('[[heads]]\nname = "mortal')[0])
    mine = spec.load(place / "mine.toml")
    records = list(runner.run(mine, place / "run", workers=1))
    kept = place / "run" / "records.jsonl"
    kept.write_text("".join(kept.read_text().splitlines(keepends=True)[:-1]))
    asked = []

    def watched(units):
        asked.extend((head.label, prepared.scenario.seed) for prepared, head in units)
        return run_on_ray(units)

    again = runner.run(mine, place / "run", executor=watched)
    assert untimed(again) == untimed(records)
    assert asked == [("fecam", 1994)]


def untimed(records):
    """Records by what they are of, without what no two runs share."""
    times = ("seconds_to_learn", "seconds_to_predict")
    return {
        (one["head"], one["seed"], one["task"]): {k: v for k, v in one.items() if k not in times}
        for one in records
    }


# -- without a cluster -----------------------------------------------------------------------------


def test_no_cluster_at_the_address(monkeypatch):
    import ray

    from fecam.distributed.cluster import connect

    def refuse(**options):
        raise ConnectionError("nobody is there\nand a long story")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(ClusterError, match=r"at head:6379 \(nobody is there\)"):
        connect("head:6379")


def test_missing_ray_names_the_extra(monkeypatch):
    from fecam.distributed import learn
    from fecam.errors import MissingPackageError

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match=r"pip install .*\[ray\]"):
        learn(None)
