"""A cluster learns what one machine learns. Ray runs for real: two nodes with a processor each."""

from __future__ import annotations

import io
import os
import warnings

import numpy as np
import pytest

import fecam
from conftest import relu_features, signed_features
from fecam import FeCAMClassifier
from fecam.core.scatter import dense
from fecam.encoders import wrap
from fecam.errors import InputError
from small_encoders import Colours, Letters

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("ray")

# Threads of Ray outlive what they were made for, and say so.
_QUIET = pytest.mark.filterwarnings(
    "ignore::ResourceWarning",
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::pytest.PytestUnhandledThreadExceptionWarning",
)
# Two nodes take minutes to start and stop on a busy machine, longer than all other tests together.
_ASKED = pytest.mark.skipif(
    not os.environ.get("FECAM_CLUSTER"), reason="starts a cluster: make test-cluster runs it"
)
pytestmark = [_QUIET, _ASKED]

STORE = 80 * 2**20


@pytest.fixture(scope="module")
def cluster():
    here = os.path.dirname(__file__)
    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # or a busy machine would let workers starve
        "OPENBLAS_NUM_THREADS": "1",
        # Workers find the encoders of the tests.
        "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]),
    }
    before = dict(os.environ)
    os.environ.update(settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
        import ray.data
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
        found = Cluster(initialize_head=True, head_node_args=head)
        found.add_node(num_cpus=1, object_store_memory=STORE)
        ray.init(address=found.address, log_to_driver=False, logging_level="ERROR")
        ray.data.DataContext.get_current().enable_progress_bars = False
    yield found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.shutdown()
        found.shutdown()
    os.environ.clear()
    os.environ.update(before)


def blocks(columns, count=6):
    """A data set of so many blocks."""
    import ray

    tables = [
        pa.table({name: values[at::count] for name, values in columns.items()})
        for at in range(count)
    ]
    return ray.data.from_arrow(tables)


def lists(X):
    return pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), X.shape[1])


def assert_same(found, expected, X):
    """The same statistics, to rounding, and the same answers."""
    assert found.classes_.tolist() == expected.classes_.tolist()
    assert found.class_count_.tolist() == expected.class_count_.tolist()
    for label, one in expected.knowledge_.classes.items():
        other = found.knowledge_.classes[label]
        assert other.visits == one.visits
        for a, b in (
            (other.mean, one.mean),
            (other.raw_mean, one.raw_mean),
            (dense(other.scatter), dense(one.scatter)),
        ):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * np.abs(b).max())
    assert (found.predict(X) == expected.predict(X)).all()
    # It is calibrated with other rows of each class, so it agrees as two samples of 32 do.
    np.testing.assert_allclose(found.novelty(X), expected.novelty(X), atol=0.15, rtol=0.2)


def picture(colour, seed, size=12):
    from PIL import Image

    rng = np.random.default_rng(seed)
    noise = rng.normal(0, 30, (size, size, 3))
    pixels = np.clip(np.asarray(colour) + noise, 0, 255).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "png")
    return stream.getvalue()


COLOURS = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}


@pytest.mark.parametrize("features", [relu_features, signed_features])
def test_embeddings_in_parquet(cluster, tmp_path, features):
    import ray

    from fecam.distributed import learn

    X, y = features(5, 60, 16, 0)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order], y[order]
    for at in range(4):
        table = pa.table({"label": y[at::4], "embedding": lists(X[at::4])})
        pq.write_table(table, tmp_path / f"{at}.parquet")
    heard = []
    found = learn(ray.data.read_parquet(str(tmp_path)), report=heard.append)
    assert_same(found, FeCAMClassifier().fit(X, y), X)
    assert heard[-1].done == len(y) and heard[-1].skipped == 0


def test_many_blocks_and_columns_of_numbers(cluster):
    from fecam.distributed import learn

    X, y = relu_features(3, 70, 5, 1)
    names = np.asarray(["wren", "tit", "robin"])[y]
    columns = {"label": names, **{f"x{at}": X[:, at] for at in range(5)}}
    found = learn(blocks(columns, 20), classifier=FeCAMClassifier.from_preset("paper"))
    assert_same(found, FeCAMClassifier.from_preset("paper").fit(X, names), X)


def test_images_through_an_encoder_into_a_file(cluster, tmp_path):
    from fecam.distributed import teach

    pictures = [(name, picture(rgb, seed)) for seed in range(8) for name, rgb in COLOURS.items()]
    columns = {
        "label": [name for name, _ in pictures] + ["red"],
        "bytes": [data for _, data in pictures] + [b"no image"],
    }
    path = tmp_path / "m.fecam"
    found = teach(blocks(columns, 5), encoder=Colours(), into=path, concurrency=1)
    assert (found.unreadable, found.known) == (1, 0) and len(found.reasons) == 1
    assert found.taught == {"red": 8, "green": 8, "blue": 8}

    alone = tmp_path / "alone.fecam"
    with fecam.open(alone, encoder=Colours()) as model:
        model.learn([data for _, data in pictures], [name for name, _ in pictures])
        X = model.encode([data for _, data in pictures])
        expected = model.classifier
    with fecam.open(path, encoder=Colours()) as model:
        assert_same(model.classifier, expected, X)
        assert [one.count for one in model.classes] == [8, 8, 8]

    # The file remembers its items: they are not taught twice.
    columns["bytes"][0] = picture(COLOURS["red"], 99)
    more = teach(blocks(columns, 3), encoder=Colours(), into=path, concurrency=1)
    assert more.taught == {"red": 1} and more.known == 23 and more.unreadable == 1
    with fecam.open(path, encoder=Colours()) as model:
        assert sum(one.count for one in model.classes) == 25
        assert [step.what for step in model.steps] == ["learn", "learn"]


def test_a_node_that_dies_changes_nothing(cluster, tmp_path):
    """Its blocks are made again, and counted once."""
    import ray

    from fecam.distributed import learn

    node = cluster.add_node(num_cpus=2, object_store_memory=STORE)
    X, y = relu_features(4, 120, 12, 3)
    killed = []

    def slow(table):
        import time
        from uuid import uuid4

        import ray

        (tmp_path / f"{ray.get_runtime_context().get_node_id()} {uuid4()}").touch()
        time.sleep(0.25)
        return table

    def kill(progress):
        busy = {path.name.split()[0] for path in tmp_path.iterdir()}
        if not killed and node.node_id in busy:
            killed.append(progress.done)
            cluster.remove_node(node, allow_graceful=False)

    data = blocks({"label": y, "embedding": lists(X)}, 32)
    data = data.map_batches(slow, batch_format="pyarrow", batch_size=None)
    found = learn(data, report=kill)
    assert killed and killed[0] < len(y), "it died while there was work to do"
    assert sum(one["Alive"] for one in ray.nodes()) == 2
    assert_same(found, FeCAMClassifier().fit(X, y), X)


def test_predict_goes_on_where_it_was_stopped(cluster, tmp_path):
    from fecam.distributed import evaluate, predict

    X, y = relu_features(4, 50, 10, 4)
    clf = FeCAMClassifier().fit(X, y)
    data = blocks({"id": np.arange(len(y)), "label": y, "embedding": lists(X)}, 5)
    folder = tmp_path / "answers"
    first = predict(data, clf, output=folder, top=2, concurrency=1)
    assert (first.items, first.parts, first.kept) == (len(y), 5, 0)
    parts = sorted(folder.glob("part-*.parquet"))
    times = {path: path.stat().st_mtime_ns for path in parts}
    parts[0].unlink()
    parts[1].write_bytes(b"PAR1 but broken")
    again = predict(data, clf, output=folder, top=2, concurrency=1)
    assert (again.items, again.parts, again.kept) == (len(y), 5, 3)
    assert all(path.stat().st_mtime_ns == times[path] for path in parts[2:])
    rows = pq.read_table(folder).sort_by("id")
    assert rows.column("id").to_pylist() == list(range(len(y)))
    assert rows.column("answer").to_pylist() == clf.predict(X).tolist()
    assert rows.column("nearest").to_pylist() == clf.predict_top_k(X, 2).tolist()
    np.testing.assert_allclose(rows.column("novelty").to_numpy(), clf.novelty(X), rtol=1e-4)
    with pytest.raises(InputError, match="holds answers of another model"):
        predict(data, clf, output=folder, top=1)
    judged = evaluate(data, clf, concurrency=1)
    assert judged.accuracy == clf.score(X, y) and judged.labelled == len(y)


def test_texts(cluster):
    from fecam.distributed import learn

    words = {"sea": ["wave", "whale", "water", "shell"], "sky": ["cloud", "sun", "bird", "blue"]}
    texts = [f"{a} {b}" for many in words.values() for a in many for b in many]
    labels = np.repeat(list(words), 16)
    found = learn(blocks({"label": labels, "text": texts}, 3), encoder=Letters(), concurrency=1)
    X = Letters().encode(texts)
    assert_same(found, FeCAMClassifier().fit(X, labels), X)


def test_mistakes_are_named(cluster, tmp_path):
    from fecam.distributed import learn

    X, y = relu_features(2, 200, 4, 5)
    with pytest.raises(InputError, match="no column 'kind'"):
        learn(blocks({"label": y, "embedding": lists(X)}), label="kind")
    X[-1, 0] = -1  # not among the rows that are looked at first
    with pytest.raises(InputError, match="tukey=None"):
        learn(blocks({"label": y, "embedding": lists(X)}))
    X[-1, 0] = np.nan
    found = learn(blocks({"label": y, "embedding": lists(X)}))
    assert found.class_count_.tolist() == [200, 199]
    nameless = wrap(lambda texts: [[len(t)] for t in texts], name="n", kind="texts", width=1)
    data = blocks({"label": y, "text": ["a"] * len(y)})
    with pytest.raises(ValueError, match="no fingerprint"):
        learn(data, encoder=nameless, into=tmp_path / "m.fecam", concurrency=1)


def test_the_commands_work_on_the_cluster(cluster, tmp_path, monkeypatch):
    import json

    from typer.testing import CliRunner

    from fecam.cli.app import app

    X, y = relu_features(3, 40, 8, 6)
    pq.write_table(pa.table({"label": y, "embedding": lists(X)}), tmp_path / "rows.parquet")
    model, answers = tmp_path / "m.fecam", tmp_path / "answers"

    def run(*words):
        done = CliRunner().invoke(app, [*map(str, words), "--ray", "auto", "--json"])
        assert done.exit_code == 0, done.output + repr(done.exception)
        found, _ = json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("{") :])
        return found

    told = run("learn", tmp_path / "rows.parquet", "-m", model)
    assert told["taught"] == {"0": 40, "1": 40, "2": 40} and told["unreadable"] == 0
    with fecam.open(model) as opened:
        assert_same(opened.classifier, FeCAMClassifier().fit(X, y), X)
        expected = opened.predict(X)
    told = run("predict", tmp_path / "rows.parquet", "-m", model, "--output", answers)
    assert (told["items"], told["parts"]) == (len(y), 1)
    assert pq.read_table(answers).column("answer").to_pylist() == expected


def test_without_ray_the_extra_is_named(monkeypatch, tmp_path):
    import sys

    from fecam.distributed import learn
    from fecam.errors import MissingPackageError

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match=r"fecam\[ray\]"):
        learn(None)
