"""Statistics of blocks as tables: however blocks are cut and added up, the sum is the same."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fecam.core.batches import group_by_label, summarize_batch
from fecam.core.calibration import ROWS
from fecam.core.scatter import to_dense
from fecam.core.transforms import Transform
from fecam.encoders import wrap
from helpers.features import relu_features
from helpers.small_encoders import Letters

pa = pytest.importorskip("pyarrow")

from fecam.cli.cluster import with_address  # noqa: E402
from fecam.cli.output import reserve_stdout  # noqa: E402
from fecam.distributed import learning, sending  # noqa: E402
from fecam.distributed.columns import item_columns, items_of, labels_of  # noqa: E402
from fecam.distributed.folder import Folder  # noqa: E402
from fecam.distributed.lessons import Plan, add_up, pack, parts_of, split, unpack  # noqa: E402
from fecam.distributed.reading import Account, Source, Teller, marks_in, read_block  # noqa: E402
from fecam.errors import EncoderError, InputError  # noqa: E402

WIDTH = 12
X, Y = relu_features(4, 60, WIDTH, 0)
PLAN = Plan(Transform(0.5, True), "full", WIDTH, "float32", True)


def as_table(X, y):
    column = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), X.shape[1])
    return pa.table({"label": y, "embedding": column})


def summed(table, known=None):
    account = Account()
    block = read_block(table, Source(None, "label", None), None, account)
    return pack(parts_of(block, PLAN, known or {}, account), account, PLAN)


@given(st.integers(0, 2**32 - 1), st.integers(1, 30), st.integers(1, 5), st.integers(2, 9))
def test_cutting_and_adding_up_change_nothing(seed, count, heaps, fan):
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(Y))
    cuts = np.sort(rng.integers(0, len(Y), count - 1))
    tables = [summed(as_table(X[some], Y[some])) for some in np.split(order, cuts) if len(some)]
    items = 0
    while len(tables) > 1:
        parts, account = add_up(tables[:fan], PLAN)
        items = account.items
        heaped = split(parts, heaps)
        assert sum(map(len, heaped)) == len(parts)
        again, _ = add_up([pack(some, None, PLAN) for some in heaped], PLAN)
        tables = [*tables[fan:], pack(again, account, PLAN)]
    found, account = unpack(tables[0], PLAN)
    assert account.items == len(Y) and items in (0, len(Y))
    expected = summarize_batch(group_by_label(X, Y, PLAN.transform), "full", np.float32)
    whole, _ = unpack(summed(as_table(X, Y)), PLAN)
    assert found.keys() == expected.keys()
    for label, one in expected.items():
        part = found[label]
        assert part.statistics.count == one.count
        np.testing.assert_allclose(part.statistics.mean, one.mean, rtol=1e-6)
        a, b = to_dense(part.statistics.scatter), to_dense(one.scatter)
        np.testing.assert_allclose(a, b, atol=1e-6 * np.abs(b).max(), rtol=0)
        assert sorted(part.marks) == sorted(whole[label].marks)
        # The rows that are left to be measured do not depend on the cuts either.
        assert len(part.sample) == ROWS
        np.testing.assert_array_equal(
            np.sort(part.sample[:, 0]), np.sort(whole[label].sample[:, 0])
        )


def test_sampled_rows_are_rows_of_the_class():
    parts, _ = unpack(summed(as_table(X, Y)), PLAN)
    for label, part in parts.items():
        features = PLAN.transform(X[label == Y])
        gaps = np.abs(part.sample[:, None, 1:] - features[None]).max(axis=2).min(axis=1)
        assert gaps.max() < 1e-6


def test_what_was_taught_before_is_left_out():
    table = as_table(X, Y)
    block = read_block(table, Source(None, "label", None), None, Account())
    marks = marks_in(block)
    parts, account = unpack(summed(table, {0: marks[Y == 0], 1: marks[Y == 1][:10]}), PLAN)
    assert account.n_duplicates == 70 and 0 not in parts
    assert parts[1].statistics.count == 50 and len(parts[1].marks) == 50


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
def test_lists_are_read_as_they_lie(kind, wrap):
    types = {"list": pa.list_(pa.float32()), "large": pa.large_list(pa.float32())}
    table = as_table(X, Y)
    if kind != "fixed":
        column = pa.array([row.tolist() for row in X], types[kind])
        table = table.set_column(1, "embedding", column)
    table = wrap(table).slice(3, 40)
    np.testing.assert_array_equal(items_of(table, ["embedding"]), X[3:43])
    assert labels_of(table, "label")[0].tolist() == Y[3:43].tolist()


def test_rows_that_cannot_be_used_are_counted():
    spoilt = X.copy()
    spoilt[3, 2] = np.nan
    labels = [None if at == 7 else int(label) for at, label in enumerate(Y)]
    account = Account()
    block = read_block(as_table(spoilt, labels), Source(None, "label", None), None, account)
    assert (account.items, account.unreadable) == (len(Y), 2)
    kept = [at for at in range(len(Y)) if at not in (3, 7)]
    assert block.rows.tolist() == kept
    np.testing.assert_array_equal(block.features, X[kept])
    assert block.labels.tolist() == Y[kept].tolist()


# -- what needs no cluster -------------------------------------------------------------------------


def test_texts_go_through_an_encoder():
    texts = ["wave", "whale", "cloud", "sun"]
    table = pa.table({"label": ["sea", "sea", "sky", "sky"], "text": texts})
    account = Account()
    block = read_block(table, Source(None, "label", None), Letters(), account)
    assert (block.features == Letters().encode(texts)).all()
    assert block.labels.tolist() == ["sea", "sea", "sky", "sky"] and account.items == 4


def test_a_file_wants_an_encoder_with_a_fingerprint(tmp_path):
    nameless = wrap(lambda texts: [[len(t)] for t in texts], name="n", kind="texts", n_features=1)
    known = learning._Known.of(tmp_path / "m.fecam", None, nameless)
    with pytest.raises(EncoderError, match="no fingerprint"):
        known.check(learning.Glance(1, 0.0, None))


def test_what_is_told_of_the_progress():
    heard = []
    teller = Teller(lambda now: heard.append((now.done, now.total, now.skipped)), 0)
    teller.tell(5, 1)
    teller.tell(9, 1, at_the_end=True)
    assert heard == [(5, 0, 1), (9, 9, 1)], "0 until somebody knows, and at the end all"


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
def test_what_does_not_go_with_a_cluster(fecam, command, why):
    assert why in " ".join(fecam(*command, code=1).err.split())


def test_the_standard_output_is_the_main_threads(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout", sys.stdout)
    reserve_stdout()
    thread = threading.Thread(target=print, args=("a worker died",))
    thread.start()
    thread.join()
    print("{}")
    assert capsys.readouterr() == ("{}\n", "a worker died\n")


def test_paths_mean_the_same_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sending._everywhere("s3://bucket/a") == "s3://bucket/a"
    (tmp_path / "a.parquet").touch()
    assert sending._everywhere("a.parquet") == str(tmp_path / "a.parquet")
    assert Folder("answers").address == str(tmp_path / "answers")
    with pytest.raises(InputError, match=r"b\.parquet does not exist"):
        sending._everywhere("b.parquet")
