"""Steps of a model file: they write only changed classes, are atomic and can be undone."""

from __future__ import annotations

import copy
import os
import pickle
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fecam
from fecam import FeCAMClassifier, load
from fecam.core import learning
from fecam.errors import InputError, ModelFileError, UndoError, UnknownLabelError
from fecam.model_file import lazy_matrices
from fecam.model_file.descriptors import Connection
from fecam.model_file.file import ModelFile
from fecam.model_file.integrity import check, compact, file_info
from helpers.features import relu_features
from helpers.same_models import arrays_of

X, Y = relu_features(4, 12, 6, 0)
NAMES = np.asarray(["cat", "dog", "owl", "tit"])
LABELS = NAMES[Y]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "birds.fecam"


@pytest.fixture
def lazily(monkeypatch):
    """Read every file lazily."""
    monkeypatch.setattr("fecam.model_file.file.EAGER_BYTES", 0)


def learn(path, features=X, labels=LABELS, **options):
    with fecam.open(path) as model:
        return model.learn(features, labels, **options)


def state(path):
    clf = load(path)
    return (
        arrays_of(clf),
        clf.get_params(),
        clf.decision_function(X).tolist() if len(clf.state_.classes) else None,
    )


# ---------------------------------------------------------------------- one step


def test_step_records_counts_note_and_time(path):
    learn(path, note="the garden")
    with fecam.open(path) as model:
        assert model.steps[0].what == "learn" and model.steps[0].note == "the garden"
        assert model.steps[0].counts == dict.fromkeys(NAMES.tolist(), 12)
        step = model.forget("dog", note="a mistake")
        assert (step.what, step.note, step.counts) == ("forget", "a mistake", {"dog": -12})
        result = model.unlearn(X[Y == 0][:5], ["cat"] * 5)
        assert model.steps[0].counts == {"cat": -5} and result.n_learned == {"cat": 5}
        assert [step.number for step in model.steps] == [3, 2, 1]
        by_label = {record.label: record for record in model.classes}
    assert by_label["cat"].count == 7 and by_label["cat"].note == "the garden"
    assert by_label["cat"].learned <= by_label["cat"].changed


def test_a_renamed_class_keeps_its_origin_and_its_samples(path):
    learn(path, note="the garden", author="camera")
    before = state(path)
    with fecam.open(path) as model:
        assert model.steps[0].author == "camera"
        learned = {record.label: record.learned for record in model.classes}
        step = model.rename("dog", "wolf", note="a mistake", author="ann")
        assert (step.what, step.author) == ("rename", "ann")
        assert step.counts == {"dog": -12, "wolf": 12}
        by_label = {record.label: record for record in model.classes}
        assert by_label["wolf"].learned == learned["dog"]
        assert by_label["wolf"].note == "the garden"
        again = model.learn(X[Y == 1], ["wolf"] * 12)
        assert again.n_duplicates == {"wolf": 12}, "its samples are known"
        model.unlearn(X[Y == 1][:4], ["wolf"] * 4)
        model.undo(2)
    assert state(path) == before and check(path) == []


def test_joined_classes_are_one_class_with_all_samples(path, tmp_path):
    learn(path)
    names = np.where(np.isin(LABELS, ["cat", "owl"]), "cat", LABELS)
    learn(tmp_path / "at-once.fecam", X, names)
    with fecam.open(path) as model:
        step = model.join(["owl"], "cat")
        assert step.what == "join" and step.counts == {"owl": -12, "cat": 12}
        at_once = load(tmp_path / "at-once.fecam").decision_function(X)
        np.testing.assert_allclose(model.classifier.decision_function(X), at_once, rtol=1e-4)
        assert model.learn(X, names).n_duplicates == {"cat": 24, "dog": 12, "tit": 12}
        before = state(path)
        for change, message in (
            (lambda: model.rename("cat", "dog"), "Join the classes"),
            (lambda: model.rename("cat", "cat"), "is the old one"),
            (lambda: model.join(["cat"], "cat"), "two classes or more"),
            (lambda: model.rename("cat", 3), "one kind of label"),
        ):
            with pytest.raises(InputError, match=message):
                change()
        assert state(path) == before
        assert model.undo()[0].what == "join"
    assert load(path).classes_.tolist() == ["cat", "dog", "owl", "tit"] and check(path) == []


def test_only_changed_classes_are_written(path):
    features, labels = relu_features(30, 40, 64, 0)
    learn(path, features, labels)
    before = records(path)
    size = path.stat().st_size
    packed = 64 * 65 // 2 * 4 + 64 * 12 + 40 * 8  # triangle, two means, hashes
    prior = 64 * 65 // 2 * 8  # it lags from now on, so a reader cannot derive it
    learn(path, features[:40] + 0.5, np.full(40, 99))
    after = records(path)
    assert before.items() < after.items() and len(after) == len(before) + 1
    assert packed <= path.stat().st_size - size < 1.35 * packed + prior, "a page is 1 KB here"


def records(path):
    with closing(sqlite3.connect(path)) as db:
        return dict(db.execute("SELECT id, checksum FROM records"))


def test_failed_learn_changes_nothing(path):
    learn(path)
    before = state(path)
    with fecam.open(path) as model:
        known = model.classifier
        with pytest.raises(InputError, match="7"):
            model.learn(np.ones((2, 7)), ["cat", "dog"])
        with pytest.raises(InputError, match=r"whole|integers|kind"):
            model.learn(X[:2] + 3, [1, 2])
        with pytest.raises(UnknownLabelError, match="never learned"):
            model.forget("emu")
        with pytest.raises(InputError, match="not among those"):
            model.unlearn(X[:1] + 5, ["cat"])
        assert model.classifier is known and model.version == 1
    assert state(path) == before


def test_full_disk_loses_nothing(path):
    """A real limit of the system on the size of files stands in for the disk."""
    learn(path)
    before = state(path)
    program = (
        "import resource, sys, numpy as np, fecam\n"
        "model = fecam.open(sys.argv[1])\n"
        "size = model.path.stat().st_size\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (size + 4096, size + 4096))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "try:\n"
        "    model.learn(np.random.default_rng(0).random((400, 6)), [str(i) for i in range(400)])\n"
        "except fecam.errors.ModelFileError as error: print(error)\n"
        "print(model.version, len(model.classes))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=120
    )
    assert "birds.fecam" in done.stdout and "disk" in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1] == "1 4"
    assert state(path) == before and check(path) == []


# ---------------------------------------------------------------------- undoing


def test_undo_of_a_wrong_batch_is_exact(path):
    learn(path)
    before = state(path)
    learn(path, X[:7] + 1, ["cat"] * 7)
    assert state(path) != before
    with fecam.open(path) as model:
        (step,) = model.undo()
        assert step.undone and not step.can_undo
    assert state(path) == before
    assert check(path) == []


VERBS = st.lists(
    st.tuples(
        st.sampled_from(["learn", "new", "forget", "unlearn", "merge", "save", "undo"]),
        st.integers(0, 10**6),
    ),
    max_size=8,
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(verbs=VERBS)
def test_any_steps_can_be_undone_one_by_one(tmp_path, verbs):
    path = Path(tempfile.mkdtemp(dir=tmp_path)) / "birds.fecam"
    learn(path)
    states = [state(path)]
    for verb, seed in verbs:
        if verb == "undo":
            if len(states) > 1:
                with fecam.open(path) as model:
                    model.undo()
                states.pop()
                assert state(path) == states[-1]
        elif act(path, verb, np.random.default_rng(seed)):
            states.append(state(path))
    with fecam.open(path) as model:
        for expected in reversed(states[:-1]):
            model.undo()
            assert arrays_of(model.classifier) == expected[0]
            assert state(path) == expected
        model.undo()
        assert model.classes == [] and model.steps[-1].undone
        with pytest.raises(UndoError, match="nothing to undo"):
            model.undo()
    assert check(path) == []


def act(path, verb, rng):
    """One random step; whether it changed anything."""
    with fecam.open(path) as model:
        version, known = model.version, [record.label for record in model.classes]
        features = rng.random((5, 6)).astype(np.float32)
        if verb == "forget" and known:
            model.forget(known[rng.integers(len(known))])
        elif verb == "unlearn" and known:
            label = known[rng.integers(len(known))]
            model.learn(features, [label] * 5, allow_duplicates=True)
            model.unlearn(features[:2], [label] * 2)
            model.undo()  # so that it counts as one step
        elif verb == "merge":
            other = path.with_suffix(".other")
            same = {"mean_uncertainty": model.classifier.mean_uncertainty}
            FeCAMClassifier(**same).fit(features, ["dog", "emu"] * 2 + ["emu"]).save(other)
            model.merge(other)
        elif verb == "save":
            clf = load(path)
            if not len(clf.state_.classes):
                return False
            clf.set_params(mean_uncertainty=float(rng.random())).save(path)
            model.reload()
        elif verb in ("learn", "new"):
            label = f"new {rng.integers(1000)}" if verb == "new" or not known else known[0]
            model.learn(features, [label] * 5, allow_duplicates=True)
        return model.version != version


def test_history_is_bounded(path, monkeypatch):
    monkeypatch.setattr("fecam.model_file.writing.UNDO_STEPS", 4)
    monkeypatch.setattr("fecam.model_file.journal.prune_history.__defaults__", (4,))
    features, labels = relu_features(3, 40, 32, 0)
    sizes = []
    with fecam.open(path) as model:
        model.learn(features, labels)
        for number in range(12):
            model.learn(features[:40] + number + 1, labels[:40])
            sizes.append(path.stat().st_size)
        assert [step.can_undo for step in model.steps] == [True] * 4 + [False] * 9
        model.undo(4)
        with pytest.raises(UndoError, match="cannot be undone"):
            model.undo()
        assert model.classes[0].count == 40 * 9
    assert max(sizes[6:]) - sizes[5] < 0.15 * sizes[5], "what is dropped makes room for the next"


def test_purge_leaves_no_trace(path):
    features = np.random.default_rng(3).random((9, 6)).astype(np.float32)
    learn(path)
    learn(path, features, ["secret agent"] * 9, note="of a person")
    held = load(path).state_.classes["secret agent"]
    traces = [b"secret agent", held.mean.tobytes(), held.raw_mean.tobytes()]
    assert all(trace in path.read_bytes() for trace in traces)
    with fecam.open(path) as model:
        model.forget("secret agent")
        assert all(trace in path.read_bytes() for trace in traces), "it can still be undone"
        model.undo()
        step = model.forget("secret agent", purge=True)
        assert not step.can_undo
        model.undo()  # the step before it, which changed no other class
    content = path.read_bytes()
    assert not any(trace in content for trace in traces)
    assert load(path).classes_.tolist() == NAMES.tolist() or check(path) == []


def test_compact_drops_the_history_and_free_pages(path):
    features, labels = relu_features(20, 70, 64, 0)
    learn(path, features, labels)
    with fecam.open(path) as model:
        for label in range(15):
            model.forget(label)
        known = arrays_of(model.classifier)
    assert file_info(path).history_bytes > 0
    before, after = compact(path)
    assert after < 0.5 * before and after == path.stat().st_size
    assert arrays_of(load(path)) == known and check(path) == []
    with fecam.open(path) as model, pytest.raises(ModelFileError, match="dropped"):
        model.undo()


# ---------------------------------------------------------------------- matrices read when needed


def test_matrices_stay_in_the_file(path, lazily, monkeypatch):
    learn(path)
    monkeypatch.setattr(learning, "measured_rows", lambda predictor, batch: {})  # reads neighbors
    read = []
    fetch = lazy_matrices.fetch
    monkeypatch.setattr(
        lazy_matrices, "fetch", lambda db, n, row: (read.append(row.label), fetch(db, n, row))[1]
    )
    clf = load(path)
    assert clf.classes_.tolist() == NAMES.tolist() and clf.class_count_.tolist() == [12] * 4
    with fecam.open(path) as model:
        model.learn(X[:3] + 1, ["emu"] * 3)
        assert read == []
        model.learn(X[:3] + 2, ["owl"] * 3)
        assert set(read) == {'"owl"'}
        model.forget("emu")
        assert set(read) == {'"owl"'}
    assert len(clf.decision_function(X)) == len(X)
    assert set(read) == {f'"{name}"' for name in NAMES}


def test_lazy_and_eager_reading_agree(path, monkeypatch):
    FeCAMClassifier(domains="average").partial_fit(X, LABELS).partial_fit(X + 1, LABELS).save(path)
    eager = load(path)
    monkeypatch.setattr("fecam.model_file.file.EAGER_BYTES", 0)
    monkeypatch.setattr("fecam.model_file.lazy_matrices.CACHE_BYTES", 100)  # about one class
    lazy = load(path)
    assert isinstance(lazy.state_.classes["owl"].scatter, lazy_matrices.LazyScatter)
    for ask in ("decision_function", "predict_proba", "novelty", "predict"):
        np.testing.assert_array_equal(getattr(lazy, ask)(X), getattr(eager, ask)(X))
    assert arrays_of(lazy) == arrays_of(eager)
    for other in (pickle.loads(pickle.dumps(load(path))), copy.deepcopy(load(path))):
        assert arrays_of(other) == arrays_of(eager)
        assert type(other.state_.classes["owl"].scatter).__name__ == "Scatter"
    lazy.save(path.with_name("copy"))
    assert arrays_of(load(path.with_name("copy"))) == arrays_of(eager)


def test_lazy_model_moves_to_tensors(path, lazily):
    torch = pytest.importorskip("torch")
    learn(path)
    moved = load(path).to(torch.zeros(1))
    assert moved.predict(torch.as_tensor(X)).tolist() == load(path).predict(X).tolist()


def test_threads_can_share_a_lazy_model(path, lazily):
    learn(path)
    expected = load(path).predict(X).tolist()
    clf = load(path)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(clf.copy().predict(X).tolist()))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 6


def test_flipped_bit_is_reported_by_class(path, lazily):
    features, labels = relu_features(4, 40, 24, 0)
    learn(path, features, NAMES[labels])
    scatter = load(path).state_.classes["owl"].scatter.data.tobytes()
    content = bytearray(path.read_bytes())
    at = content.index(scatter[:100])
    content[at + 50] ^= 16
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r'class "owl" is damaged.*Restore'):
        load(path).predict(features)
    (problem,) = check(path)
    assert 'class "owl" is damaged' in problem
    with fecam.open(path) as model:
        model.learn(features[:4] + 1, ["emu"] * 4)
        model.forget("owl", purge=True)  # what is damaged can be taken out
        assert len(model.predict(features)) == len(features)
    assert check(path) == []


def test_damaged_lazy_files_are_rejected_or_intact(path, lazily):
    learn(path)
    content, whole = path.read_bytes(), arrays_of(load(path))
    chance = random.Random(0)
    for _ in range(150):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= chance.randrange(1, 256)
        path.write_bytes(damaged)
        with suppress(ModelFileError):
            assert arrays_of(load(path)) == whole


# ---------------------------------------------------------------------- several programs


def test_reader_keeps_its_snapshot(path, lazily):
    learn(path)
    with fecam.open(path, readonly=True) as reader, fecam.open(path) as writer:
        before = arrays_of(reader.classifier)
        writer.learn(X[:5] + 1, ["cat"] * 5)
        writer.forget("dog")
        assert arrays_of(reader.classifier) == before and reader.version == 1
        assert reader.reload() and not reader.reload()
        assert arrays_of(reader.classifier) == arrays_of(writer.classifier)
        assert reader.version == writer.version == 3


def test_reader_of_a_removed_record_raises(path, lazily):
    learn(path)
    old = load(path)
    with fecam.open(path) as writer:
        writer.forget("dog", purge=True)
    with pytest.raises(ModelFileError, match=r"another program changed.*Open it again"):
        old.predict(X)


def test_reload_keeps_unchanged_classes(path):
    learn(path)
    with fecam.open(path) as reader:
        held = reader.classifier.state_.classes
        learn(path, X[:5] + 1, ["cat"] * 5)
        assert reader.reload()
        now = reader.classifier.state_.classes
        assert [now[name] is held[name] for name in NAMES] == [False, True, True, True]


def test_two_programs_can_learn_at_once(path):
    learn(path)
    program = (
        "import sys, numpy as np, fecam\n"
        "with fecam.open(sys.argv[1]) as model:\n"
        "    for number in range(15):\n"
        "        X = np.random.default_rng(number).random((4, 6))\n"
        "        model.learn(X, [f'{sys.argv[2]} {number}'] * 4)\n"
    )
    workers = [
        subprocess.Popen([sys.executable, "-c", program, str(path), name]) for name in ("a", "b")
    ]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0]
    with fecam.open(path, readonly=True) as model:
        assert len(model.classes) == 34 and model.version == 31
    assert check(path) == []
    assert os.listdir(path.parent) == [path.name]


def test_busy_timeout_ends(path, monkeypatch):
    learn(path)
    monkeypatch.setattr("fecam.model_file.connection.BUSY_TIMEOUT_S", 0.2)
    with closing(sqlite3.connect(path, isolation_level=None)) as other, fecam.open(path) as model:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ModelFileError, match="another program has been writing"):
            model.forget("dog")
        assert len(model.classes) == 4 and len(model.predict(X)) == len(X)


def test_foreign_journal_is_not_rolled_back(path, tmp_path):
    """SQLite deletes the file that such a journal names."""
    learn(path)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    name = str(victim).encode()
    tail = name + len(name).to_bytes(4, "big") + sum(name).to_bytes(4, "big")
    magic = bytes.fromhex("d9d505f920a163d7")
    path.with_name(path.name + "-journal").write_bytes(magic + bytes(504) + tail + magic)
    with pytest.raises(ModelFileError, match="journal beside it"):
        load(path)
    with pytest.raises(ModelFileError, match="journal beside it"):
        fecam.open(path)
    assert victim.read_text() == "precious"


def test_kills_leave_a_whole_step_or_none():
    """The command that does the same two hundred times is benchmarks/kills.py."""
    script = Path(__file__).parents[2] / "benchmarks" / "kills.py"
    done = subprocess.run(
        [sys.executable, str(script), "--quick"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "| 4 " in done.stdout


def test_wal_exists_only_while_the_file_is_written(path):
    learn(path)
    with ModelFile(path) as file:
        file.write("forget", lambda working: working.classifier.forget("dog"))
        assert os.path.getsize(f"{path}-wal") > 0
        assert load(path).classes_.tolist() == ["cat", "owl", "tit"]
    assert os.listdir(path.parent) == [path.name]


def test_file_is_readable_in_a_read_only_folder(path, monkeypatch):
    """As a log cannot be begun there either, the file is taken as it is.

    Root may write everywhere, so SQLite's answer is made up here.
    """
    from fecam.model_file import connection

    learn(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
    readable, modes = connection._connect, []

    def refusing(path, mode, size):
        modes.append(mode)
        if "immutable" not in mode:
            raise sqlite3.OperationalError("unable to open database file")
        return readable(path, mode, size)

    monkeypatch.setattr(connection, "_connect", refusing)
    assert load(path).classes_.tolist() == NAMES.tolist()
    assert modes == ["mode=ro", "mode=ro&immutable=1"]
    Path(f"{path}-wal").write_bytes(b"what somebody has not put in its place yet")
    with pytest.raises(ModelFileError, match="unable to open"):
        load(path)


def test_works_without_wal(path, monkeypatch):
    """As on a network drive."""
    connect = sqlite3.connect

    class NoLog(Connection):
        def execute(self, sql, *values):
            if "= WAL" in sql:
                raise sqlite3.OperationalError("no shared memory here")
            return super().execute(sql, *values)

    learn(path)
    before = state(path)
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k | {"factory": NoLog}))
    learn(path, X[:5] + 1, ["emu"] * 5)
    with fecam.open(path) as model:
        model.forget("dog")
        assert os.path.exists(f"{path}-journal")
        model.undo(2)
    assert os.listdir(path.parent) == [path.name]
    assert state(path) == before and check(path) == []
