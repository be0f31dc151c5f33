"""Partial statistics of blocks: their sum depends neither on the blocks nor on the order."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fecam.core.batches import group_by_label, summarize_batch
from fecam.core.lognormal import SAMPLED_ROWS
from fecam.core.scatter import to_dense
from fecam.core.state import ClassifierState
from fecam.core.transforms import Transform
from fecam.encoders import wrap
from helpers.features import relu_features
from helpers.small_encoders import Letters

pa = pytest.importorskip("pyarrow")

from fecam.cli.cluster import with_address  # noqa: E402
from fecam.cli.output import reserve_stdout  # noqa: E402
from fecam.distributed import learning, to_ray  # noqa: E402
from fecam.distributed.cluster import to_table  # noqa: E402
from fecam.distributed.columns import item_columns, items_of, labels_of  # noqa: E402
from fecam.distributed.output_folder import OutputFolder  # noqa: E402
from fecam.distributed.partial_statistics import (  # noqa: E402
    from_tables,
    merge,
    partial_statistics,
    partition,
)
from fecam.distributed.reading import (  # noqa: E402
    ProgressReporter,
    ReadStats,
    Source,
    hashes_of,
    read_block,
)
from fecam.errors import EncoderError, InputError  # noqa: E402

WIDTH = 12
X, Y = relu_features(4, 60, WIDTH, 0)
STATE = ClassifierState(Transform(0.5, True), "full", WIDTH, np.zeros(0, np.float32))


def as_table(X, y):
    column = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), X.shape[1])
    return pa.table({"label": y, "embedding": column})


def summed(table, learned=None):
    stats = ReadStats()
    block = read_block(table, Source(None, "label", None), None, stats)
    return to_table((partial_statistics(block, STATE, learned or {}, stats), stats))


@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(1, 5), st.integers(2, 9))
def test_sum_does_not_depend_on_blocks_or_order(seed, count, partitions, fan_in):
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(Y))
    cuts = np.sort(rng.integers(0, len(Y), count - 1))
    tables = [summed(as_table(X[rows], Y[rows])) for rows in np.split(order, cuts) if len(rows)]
    items = 0
    while len(tables) > 1:
        partials, stats = from_tables(tables[:fan_in])
        items = stats.items
        parts = partition(partials, partitions)
        assert sum(map(len, parts)) == len(partials)
        tables = [*tables[fan_in:], to_table((merge(*parts), stats))]
    total, stats = from_tables(tables)
    assert stats.items == len(Y) and items in (0, len(Y))
    expected = summarize_batch(group_by_label(X, Y, STATE.transform), "full", np.float32)
    whole, _ = from_tables([summed(as_table(X, Y))])
    assert total.keys() == expected.keys()
    for label, statistics in expected.items():
        partial = total[label]
        assert partial.statistics.count == statistics.count
        np.testing.assert_allclose(partial.statistics.mean, statistics.mean, rtol=1e-6)
        a, b = to_dense(partial.statistics.scatter), to_dense(statistics.scatter)
        np.testing.assert_allclose(a, b, atol=1e-6 * np.abs(b).max(), rtol=0)
        assert sorted(partial.hashes) == sorted(whole[label].hashes)
        # The sampled rows do not depend on the blocks either.
        assert len(partial.sample) == SAMPLED_ROWS
        np.testing.assert_array_equal(
            np.sort(partial.sample[:, 0]), np.sort(whole[label].sample[:, 0])
        )


def test_sampled_rows_are_rows_of_the_class():
    partials, _ = from_tables([summed(as_table(X, Y))])
    for label, partial in partials.items():
        features = STATE.transform(X[label == Y])
        gaps = np.abs(partial.sample[:, None, 1:] - features[None]).max(axis=2).min(axis=1)
        assert gaps.max() < 1e-6


def test_learned_items_are_left_out():
    table = as_table(X, Y)
    block = read_block(table, Source(None, "label", None), None, ReadStats())
    hashes = hashes_of(block)
    learned = {0: hashes[Y == 0].tobytes(), 1: hashes[Y == 1][:10].tobytes()}
    partials, stats = from_tables([summed(table, learned)])
    assert stats.n_duplicates == 70 and 0 not in partials
    assert partials[1].statistics.count == 50 and len(partials[1].hashes) == 50


def test_columns_are_found_by_name():
    embedding = as_table(X, Y)
    assert item_columns(embedding, "label", None) == ["embedding"]
    both = embedding.append_column("path", pa.array(["a.png"] * len(Y)))
    assert item_columns(both, "label", None) == ["embedding"]
    assert item_columns(both, "label", "path") == ["path"]
    numbers = pa.table({"label": [1, 2], "a": [0.5, 1.0], "b": [1.0, 2.0]})
    assert item_columns(numbers, "label", None) == ["a", "b"]
    np.testing.assert_array_equal(items_of(numbers, ["a", "b"]), [[0.5, 1], [1, 2]])
    with pytest.raises(InputError, match="Name the one"):
        item_columns(pa.table({"label": [1], "x": ["a"], "y": ["b"]}), "label", None)


@pytest.mark.parametrize(
    "wrap", [lambda t: t, lambda t: pa.concat_tables([t.slice(0, 5), t.slice(5)])]
)
@pytest.mark.parametrize("kind", ["fixed", "list", "large"])
def test_lists_are_read_as_a_matrix(kind, wrap):
    types = {"list": pa.list_(pa.float32()), "large": pa.large_list(pa.float32())}
    table = as_table(X, Y)
    if kind != "fixed":
        column = pa.array([row.tolist() for row in X], types[kind])
        table = table.set_column(1, "embedding", column)
    table = wrap(table).slice(3, 40)
    np.testing.assert_array_equal(items_of(table, ["embedding"]), X[3:43])
    assert labels_of(table, "label")[0].tolist() == Y[3:43].tolist()


def test_unusable_rows_are_counted():
    damaged = X.copy()
    damaged[3, 2] = np.nan
    labels = [None if i == 7 else int(label) for i, label in enumerate(Y)]
    stats = ReadStats()
    block = read_block(as_table(damaged, labels), Source(None, "label", None), None, stats)
    assert (stats.items, stats.unreadable) == (len(Y), 2)
    kept = [i for i in range(len(Y)) if i not in (3, 7)]
    assert block.rows.tolist() == kept
    np.testing.assert_array_equal(block.features, X[kept])
    assert block.labels.tolist() == Y[kept].tolist()


# -- without a cluster -----------------------------------------------------------------------------


def test_texts_go_through_an_encoder():
    texts = ["wave", "whale", "cloud", "sun"]
    table = pa.table({"label": ["sea", "sea", "sky", "sky"], "text": texts})
    stats = ReadStats()
    block = read_block(table, Source(None, "label", None), Letters(), stats)
    assert (block.features == Letters().encode(texts)).all()
    assert block.labels.tolist() == ["sea", "sea", "sky", "sky"] and stats.items == 4


def test_a_file_requires_an_encoder_with_a_fingerprint(tmp_path):
    nameless = wrap(lambda texts: [[len(t)] for t in texts], name="n", kind="texts", n_features=1)
    before = learning._Before.read(tmp_path / "m.fecam", None, nameless)
    with pytest.raises(EncoderError, match="no fingerprint"):
        before.check(learning.SchemaProbe(1, 0.0, None))


def test_progress_reports():
    reports = []
    reporter = ProgressReporter(lambda now: reports.append((now.done, now.total, now.skipped)), 0)
    reporter.update(5, 1)
    reporter.update(9, 1, finished=True)
    assert reports == [(5, 0, 1), (9, 9, 1)], "the total is 0 until the run is finished"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--ray"], ["--ray="]),
        (["a", "--ray", "--json"], ["a", "--ray=", "--json"]),
        (["--ray", "photos"], ["--ray=", "photos"]),
        (["--ray", "s3://bucket/rows"], ["--ray=", "s3://bucket/rows"]),
        (["--ray", "auto", "a"], ["--ray", "auto", "a"]),
        (["--ray", "10.0.0.1:6379"], ["--ray", "10.0.0.1:6379"]),
        (["--ray", "ray://head:10001"], ["--ray", "ray://head:10001"]),
        (["--ray=local", "a"], ["--ray=local", "a"]),
        (["--", "--ray", "a"], ["--", "--ray", "a"]),
    ],
)
def test_an_address_may_be_left_out(words, found):
    assert with_address(words) == found


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("evaluate", "digits", "-m", "m.fecam", "--ray", "--strict"), "--ray takes no --output"),
        (("learn", "digits", "-m", "m.fecam", "--ray", "--strict"), "--ray takes neither"),
        (("predict", "a.jpg", "-m", "m.fecam", "--ray"), "--output FOLDER"),
        (("bench", "digits", "--ray", "--workers", "2"), "--workers is for this machine"),
    ],
)
def test_options_that_a_cluster_rejects(fecam, command, why):
    assert why in " ".join(fecam(*command, code=1).err.split())


def test_only_the_main_thread_prints_to_stdout(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout", sys.stdout)
    reserve_stdout()
    thread = threading.Thread(target=print, args=("a worker died",))
    thread.start()
    thread.join()
    print("{}")
    assert capsys.readouterr() == ("{}\n", "a worker died\n")


def test_paths_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert to_ray._absolute("s3://bucket/a") == "s3://bucket/a"
    (tmp_path / "a.parquet").touch()
    assert to_ray._absolute("a.parquet") == str(tmp_path / "a.parquet")
    assert OutputFolder("answers").address == str(tmp_path / "answers")
    with pytest.raises(InputError, match=r"b\.parquet does not exist"):
        to_ray._absolute("b.parquet")
