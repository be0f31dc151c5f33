"""Model files with several programs, invalid arguments and damaged histories."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import fecam
from fecam import load
from fecam.errors import FecamError, InputError, ModelFileError
from fecam.model_file import descriptors
from fecam.model_file import file as file_module
from fecam.model_file.integrity import check, compact
from helpers.features import relu_features

X, Y = relu_features(3, 12, 6, 0)
LABELS = np.asarray(["cat", "dog", "owl"])[Y]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "birds.fecam"


@pytest.fixture
def other(tmp_path):
    return tmp_path / "other.fecam"


def learn(path, features=X, labels=LABELS, **options):
    with fecam.open(path) as model:
        return model.learn(features, labels, **options)


def names(path):
    with fecam.open(path, readonly=True) as model:
        return [record.label for record in model.classes]


# ---------------------------------------------------------------------- several programs

ANOTHER = """
import sys, fecam
with fecam.open(sys.argv[1]) as model:
    model.learn([[1.0, 2, 3, 4, 5, 6], [2.0, 1, 4, 3, 6, 5]], [sys.argv[2]] * 2)
"""


def learn_in_another_program(path, label):
    subprocess.run([sys.executable, "-c", ANOTHER, str(path), label], check=True, timeout=60)


def test_no_batch_is_lost_between_two_programs(path):
    """The locks of SQLite hold although the file is also read without it."""
    with fecam.open(path) as model:
        model.learn(X, LABELS)
        model.learn(X[:2] + 1, ["a1"] * 2)
        assert len(model.steps) == 2 and names(path)  # opens and closes the file
        learn_in_another_program(path, "b1")
        model.learn(X[:2] + 2, ["a2"] * 2)
        learn_in_another_program(path, "b2")
        model.forget("cat")
    assert names(path) == ["a1", "a2", "b1", "b2", "dog", "owl"]
    assert check(path) == [] and os.listdir(path.parent) == [path.name]


def test_no_file_descriptor_leaks(path):
    learn(path)
    before = dict(descriptors._open)
    for _ in range(3):
        with fecam.open(path) as model:
            model.learn(X + 1, LABELS, allow_duplicates=True)
        load(path)
    assert descriptors._open == before


def during_encoding(monkeypatch, happens):
    """Let something happen while a result is being encoded."""
    from fecam.model.labeled_items import LabeledItems

    encode = LabeledItems.encode

    def meanwhile(*arguments):
        monkeypatch.setattr(LabeledItems, "encode", encode)
        happens()
        return encode(*arguments)

    monkeypatch.setattr(LabeledItems, "encode", meanwhile)


def test_concurrent_identical_batches_count_once(path, monkeypatch):
    learn(path, X[:2], LABELS[:2])
    during_encoding(monkeypatch, lambda: learn(path))
    result = learn(path)
    assert (
        result.step is None and not result.n_learned and sum(result.n_duplicates.values()) == len(X)
    )
    assert [one.count for one in fecam.open(path).classes] == [12] * 3


def test_file_created_by_another_program_keeps_its_wal(path, monkeypatch):
    with fecam.open(path) as first:

        def begin():
            first.learn(X, LABELS)
            first.learn(X[:2] + 1, ["emu"] * 2)

        during_encoding(monkeypatch, begin)
        with pytest.raises(ModelFileError, match="another program has just created it"):
            learn(path)
        assert names(path) == ["cat", "dog", "emu", "owl"]
        first.forget("cat")
    assert names(path) == ["dog", "emu", "owl"]


def test_merge_checks_concurrently_learned_samples(path, other):
    learn(path, X[:2] + 1, LABELS[:2])
    learn(other)
    with fecam.open(path) as model:
        model.learn(X[:2] + 2, LABELS[:2])
        with fecam.open(path) as second:
            second.merge(other)
        with pytest.raises(InputError, match="have both learned"):
            model.merge(other)


def test_another_program_can_grow_the_file(path):
    features, labels = relu_features(40, 50, 64, 0)
    with fecam.open(path) as model:
        model.learn(features[:3], labels[:3])
        model.learn(features[3:6], labels[3:6])
        learn(path, features, labels)
        assert model.forget(0).counts == {0: -50}
        assert len(model.classes) == 39


def test_query_limits_grow_with_the_file(path, monkeypatch):
    limits = []
    monkeypatch.setattr(file_module, "set_limits", lambda db, size: limits.append(size))
    features, labels = relu_features(10, 200, 64, 0)
    with fecam.open(path) as model:
        model.learn(features[:3], labels[:3])
        model.learn(features, labels)
    assert limits[-1] > limits[0] + 10 * 64 * 65 * 2


@pytest.mark.parametrize(
    ("put", "eager"), [(os.replace, 0), (os.replace, 2**25), (shutil.copyfile, 2**25)]
)
def test_replaced_file_is_reopened(path, other, monkeypatch, put, eager):
    monkeypatch.setattr(file_module, "EAGER_BYTES", eager)
    learn(path)
    learn(other, X + 1, np.where(LABELS == "owl", "emu", LABELS))
    expected = load(other).decision_function(X).tolist()
    with fecam.open(path) as model:
        model.predict(X)
        put(other, path)
        assert model.reload() and not model.reload()
        assert [record.label for record in model.classes] == ["cat", "dog", "emu"]
        assert model.classifier.decision_function(X).tolist() == expected
        model.forget("cat")
    assert names(path) == ["dog", "emu"] and check(path) == []


def test_file_replaced_while_writing(path, other):
    learn(other, X, np.where(LABELS == "owl", "emu", LABELS))
    with fecam.open(path) as model:
        model.learn(X, LABELS)
        model.learn(X[:2] + 1, ["yak"] * 2)
        os.replace(other, path)
        model.learn(X[:2] + 1, ["ant"] * 2)
    assert names(path) == ["ant", "cat", "dog", "emu"] and check(path) == []


def test_doctor_reports_a_wal(path):
    learn(path)
    with fecam.open(path) as model:
        model.forget("cat")
        assert any(one.what == "log" and "birds.fecam-wal" in one.state for one in doctor(path))
    assert not any(one.what == "log" for one in doctor(path))


def doctor(path):
    from fecam.cli.doctor import _check_file

    return list(_check_file(path, compact=False, yes=True))


@pytest.mark.parametrize("version", [1, 2])
def test_old_files_are_compacted(path, version):
    shutil.copy(Path(__file__).parents[1] / "helpers" / "files" / f"version-{version}.fecam", path)
    before = load(path).classes_.tolist()
    compact(path)
    assert load(path).classes_.tolist() == before and check(path) == []


# ---------------------------------------------------------------------- history


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE steps SET settings = '[1]'",
        """UPDATE steps SET settings = '{"tukey": 3}'""",
        """UPDATE steps SET settings = '{"foo": "3"}'""",
        "UPDATE changes SET before = 77",
        "UPDATE changes SET before = (SELECT max(record) FROM classes)",
        """UPDATE changes SET after = (SELECT record FROM classes WHERE label = '"owl"')""",
        """UPDATE steps SET counts = '{"[1]": 3}'""",
    ],
)
def test_damaged_history_leaves_the_model_usable(path, sql):
    learn(path)
    learn(path, X[:2] + 1, ["cat", "dog"])
    with closing(sqlite3.connect(path)) as db:
        db.execute(sql + " WHERE " + ("number" if "steps" in sql else "step") + " = 2")
        db.commit()
    before = load(path).decision_function(X).tolist()
    with fecam.open(path) as model, pytest.raises(ModelFileError, match=r"damaged|does not match"):
        assert model.undo() == []
    if "counts" not in sql:
        assert load(path).decision_function(X).tolist() == before


def test_undo_of_too_many_steps_changes_nothing(path):
    learn(path)
    with fecam.open(path) as model:
        model.forget("cat")
        with pytest.raises(InputError, match=r"count=5 must be .* from 1 to 2"):
            model.undo(5)
        assert [step.undone for step in model.steps] == [False, False]


# ---------------------------------------------------------------------- callers


@pytest.mark.parametrize(
    "labels",
    ["cow", None, 3, [1.5] * 3, [b"x"] * 3, [["a"]] * 3, [2**70] * 3, ["x\0"] * 3, np.ones((3, 2))],
)
@pytest.mark.parametrize("begun", [False, True])
def test_invalid_labels(path, labels, begun):
    if begun:
        learn(path)
    with fecam.open(path) as model, pytest.raises(InputError, match="label"):
        model.learn(X[:3] + 1, labels)
    assert path.exists() == begun


def test_invalid_notes(path):
    for _ in range(2):
        for note in ("x\udcff", None):
            with pytest.raises(InputError, match=r"the note .* is not text"):
                learn(path, X + 1, note=note)
        learn(path)


def test_merge_of_a_file_whose_name_is_not_unicode(path, tmp_path):
    strange = tmp_path / "x\udcff.fecam"
    learn(strange)
    with fecam.open(path) as model:
        assert model.merge(strange).note == "merged x?.fecam"


def test_missing_folder_raises_before_the_work(tmp_path):
    with pytest.raises(ModelFileError, match=r"no folder .*nowhere.*Create it"):
        fecam.open(tmp_path / "nowhere" / "birds.fecam")


def test_error_names_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelFileError, match=r"^\.: it is a folder"):
        fecam.open(".")


def test_large_model_after_close(path, monkeypatch):
    monkeypatch.setattr(file_module, "EAGER_BYTES", 0)
    learn(path)
    with fecam.open(path) as model:
        pass
    with pytest.raises(FecamError, match=r"was closed. Open it again"):
        model.classifier.state_.classes["cat"].scatter.data.sum()


def test_read_only_file_raises_before_the_work(path, monkeypatch):
    learn(path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    during_encoding(monkeypatch, lambda: pytest.fail("encoded for nothing"))
    with fecam.open(path) as model:
        with pytest.raises(ModelFileError, match="may not be written to"):
            model.learn(X + 1, LABELS)
        assert len(model.predict(X)) == len(X)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (sqlite3.OperationalError("attempt to write a readonly database"), "may be read and"),
        (sqlite3.OperationalError("database or disk is full"), "disk has room"),
        (sqlite3.DatabaseError("database disk image is malformed"), "It is damaged"),
    ],
)
def test_full_disk_is_not_reported_as_damage(path, error, says):
    with pytest.raises(ModelFileError, match=says), file_module.translate_errors(path):
        raise error


@pytest.mark.parametrize("eager", [0, 2**25])
def test_means_longer_than_the_file_are_rejected(path, monkeypatch, eager):
    monkeypatch.setattr(file_module, "EAGER_BYTES", eager)
    learn(path)
    monkeypatch.setattr(file_module, "check_header", lambda _: (200, 3))
    with pytest.raises(ModelFileError, match="more than its size allows"):
        load(path)
