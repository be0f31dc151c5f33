"""Files that are not models, were tampered with or damaged: rejected, and nothing is allocated."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import struct
import tracemalloc
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fecam import FeCAMClassifier, load, model_rows
from fecam.core.calibration_rows import N_COLUMNS
from fecam.core.statistics import MAX_CALIBRATION_ROWS
from fecam.errors import ModelFileError
from fecam.model_file.file import ModelFile
from fecam.model_file.integrity import check
from helpers.features import relu_features
from helpers.same_models import X, Y, arrays_of, assert_same

NEW_X, NEW_Y = relu_features(4, 8, 6, 1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "birds.fecam"


# ---------------------------------------------------------------------- files that are not models


def rejected(path, message=""):
    with pytest.raises(ModelFileError, match=f"(?s){message}") as caught:
        load(path)
    assert str(path) in str(caught.value) or "\0" in str(path)
    assert caught.value.__cause__ is None
    assert str(caught.value).endswith(".")


def test_files_that_are_not_models(tmp_path):
    rejected(tmp_path / "missing.fecam", "no such file.*Check the path")
    rejected(tmp_path, "a folder.*FeCAMClassifier.save")
    rejected("a\0b", "no such file")
    for name, content in {
        "empty": b"",
        "text": b"hello\n" * 100,
        "noise": random.Random(0).randbytes(5000),
        "pickle": b"\x80\x04\x95cos\nsystem\n(S'false'\ntR.",
        "only a header": b"SQLite format 3\0",
    }.items():
        (tmp_path / name).write_bytes(content)
        rejected(tmp_path / name, "not a model file.*FeCAMClassifier.save")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_a_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    rejected(tmp_path / "pipe", "not a file")
    with pytest.raises(ModelFileError, match="not a file"):
        FeCAMClassifier().fit(X, Y).save(tmp_path / "pipe")


def test_a_database_of_another_program(path):
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE settings(name TEXT PRIMARY KEY, value TEXT)")
        db.commit()
    rejected(path, "another program.*FeCAMClassifier.save")


# ---------------------------------------------------------------------- tampered files


def changed(path, *statements):
    """A saved model after some SQL statements."""
    if not path.exists():
        FeCAMClassifier(domains="average").fit(X, Y).save(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(*statement) if isinstance(statement, tuple) else db.execute(statement)
    return path


def update(column, value, label="1"):
    """SQL that changes one cell of a class, in its table."""
    if column in ("scatter", "averaged"):
        where = "id = (SELECT record FROM classes WHERE label = ?)"
        return f"UPDATE matrices SET {column} = ? WHERE {where}", (value, label)
    return f"UPDATE records SET {column} = ? WHERE label = ?", (value, label)


def sign(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        checksums = []
        for number, *v in db.execute("SELECT * FROM records NOT INDEXED").fetchall():
            matrices = db.execute(
                "SELECT scatter, averaged FROM matrices WHERE id = ?", (number,)
            ).fetchone()
            lengths = tuple(len(x) if isinstance(x, (bytes, str)) else x for x in matrices)
            try:
                signed = model_rows.checksum(*matrices)
                row = model_rows.Row(*v[:7], *lengths, *v[9:12], signed, b"", *v[14:])
                checksum = model_rows.row_checksum(row)
            except (AttributeError, TypeError, struct.error):
                continue  # other checks must reject it
            values = (*lengths, signed, checksum, number)
            db.execute(
                "UPDATE records SET scatter_bytes=?, averaged_bytes=?, matrices=?, checksum=? "
                "WHERE id=?",
                values,
            )
            checksums.append(checksum)
        settings = dict(db.execute("SELECT * FROM settings WHERE name != 'checksum_'").fetchall())
        try:
            checksum = json.dumps(model_rows.file_checksum(settings, checksums))
        except (AttributeError, TypeError):
            return path
        db.execute("UPDATE settings SET value=? WHERE name='checksum_'", (checksum,))
    return path


def test_a_new_signature_makes_a_valid_file(path):
    changed(path, update("count", 13), "VACUUM")
    rejected(path, "class 1 is damaged: its checksum does not match.*Restore")
    assert load(sign(path)).class_count_.tolist() == [12, 13, 12]


SETTINGS = {
    "n_features_in_": ["0", "-3", "7", "10000000", "1000000000000", "6.0", "true", "null", '"6"'],
    "tukey_": ['"auto"', "NaN", "Infinity", "1e999", "1" + "0" * 400, "true", "[]"],
    "unit_": ["1", "null", '"yes"', "false"],
    "form_": ['"half"', "null", "[]", "{}", '"diagonal"', '"none"'],
    "dtype": ['"float16"', '"float64"', "32", "null", '"object"'],
    "feature_names_in_": ['["a"]', "[1, 2, 3, 4, 5, 6]", '"abcdef"', "{}", "7"],
    "fecam_": ["1", "null", "{}"],
    "checksum_": ["1", "null", '""'],
    "shrinkage": ["1", "[1]", "[1, NaN]", "[1, 1e999]", "[[1], [2]]", '"ab"', '{"a":1,"b":2}'],
    "covariance": ["1", "null", '"clas"', '["class"]', f'"{"x" * 5000}"'],
    "pooling": ["-1", "NaN", '"much"', "{}", "1" + "0" * 400],
    "mean_uncertainty": ["true", "null", "[1]"],
    "tukey": ["0.25", "null", '"yes"', "[0.5]"],
    "l2": ["null", '"compare"'],
    "domains": ['"both"'],
    "search": ["not JSON", "", "{", "[" * 4000, "9" * 4096, '"auto" "auto"', "\ufeff1"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in SETTINGS.items() for value in values]
)
def test_invalid_settings(path, name, value):
    changed(path, ("UPDATE settings SET value=? WHERE name=?", (value, name)))
    rejected(path if name == "checksum_" else sign(path))


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("INSERT INTO settings VALUES ('colour', '1')", "'colour' that is not known.*Upgrade"),
        ("INSERT INTO settings VALUES (NULL, '1')", "'None' that is not known"),
        ("INSERT INTO settings VALUES (x'00', '1')", "not known"),
        ("DELETE FROM settings WHERE name='tukey'", "'tukey' is missing"),
        ("DELETE FROM settings", "'covariance' is missing"),
        ("UPDATE settings SET value=NULL WHERE name='l2'", "'l2' is not text"),
        ("UPDATE settings SET value=x'00' WHERE name='l2'", "'l2' is not text"),
        ("UPDATE settings SET value=x'00' WHERE name='feature_names_in_'", "is not text"),
    ],
)
def test_unknown_missing_and_mistyped_settings(path, statement, message):
    rejected(sign(changed(path, statement)), message)


def test_text_that_is_not_utf8(path):
    rejected(
        changed(path, "UPDATE settings SET value=CAST(x'ff' AS TEXT) WHERE name='l2'"), "UTF-8"
    )


def test_a_setting_that_was_changed_without_a_signature(path):
    rejected(
        changed(path, "UPDATE settings SET value='2.0' WHERE name='mean_uncertainty'"), "setting"
    )


TABLES = ["classes", "records"]
NUMBERS = ["count", "visits", "task", "sampled_count"]
ARRAYS = ["raw_mean", "mean", "scatter", "averaged"]


@pytest.mark.parametrize(
    ("column", "value"),
    [(column, value) for column in NUMBERS for value in (-1, 2**60, 1.5, "many", b"1", None)]
    + [("count", 0), ("visits", 0), ("visits", 2)]
    + [
        (column, value)
        for column in ("sampled_sum", "sampled_squares")
        for value in (np.inf, -np.inf, None, "many", b"1")
    ],
)
def test_invalid_numbers(path, column, value):
    changed(path, update(column, value))
    rejected(sign(path), "class '?1")


@pytest.mark.parametrize("column", ARRAYS)
@pytest.mark.parametrize(
    "value",
    [
        b"1",
        bytes(47),
        bytes(49),
        bytes(5_000_000),
        "x" * 48,
        "x" * 84,
        48,
        1.5,
        np.full(6, np.nan).tobytes(),
        np.full(6, np.inf).tobytes(),
        np.full(21, np.nan, "<f4").tobytes(),
        np.full(21, -np.inf, "<f4").tobytes(),
    ],
    ids=lambda value: f"{type(value).__name__}{len(value) if hasattr(value, '__len__') else value}",
)
def test_invalid_arrays(path, column, value):
    changed(path, update(column, value))
    rejected(sign(path), "class 1")


@pytest.mark.parametrize(
    "value",
    [
        b"1",
        bytes(4 * N_COLUMNS + 1),
        bytes(4 * N_COLUMNS * (MAX_CALIBRATION_ROWS + 1)),
        "x" * 4 * N_COLUMNS,
        8,
        1.5,
        np.full(N_COLUMNS, np.nan, np.float32).tobytes(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_invalid_measured_rows(path, value):
    changed(path, update("calibration", value))
    rejected(sign(path), "class 1")


def test_measured_rows_are_optional_and_covered_by_the_checksum(path):
    rows = np.ones((3, N_COLUMNS), np.float32).tobytes()
    changed(path, update("calibration", rows))
    rejected(path, "class 1 is damaged: its checksum does not match")
    load(sign(path))
    assert check(path) == []
    with ModelFile(path) as file:
        assert list(file.snapshot.rows.values())[1].row.calibration == rows
    changed(path, update("calibration", None))
    load(sign(path))


def test_a_mean_must_not_be_empty_but_a_low_rank_scatter_may(path):
    for column in ("raw_mean", "mean"):
        changed(path, update(column, b""))
        rejected(sign(path), "class 1")
    FeCAMClassifier().fit(X[:1], Y[:1]).save(path)
    assert load(path).state_.classes[Y[0]].scatter.data.shape == (0, 6)


def older_model(path):
    """Return the model that a file of an older version holds.

    Its measured rows and moments of distances were measured by the rules of its time.
    """
    stored = load(path).state_.classes
    names = np.asarray(["cat", "dog", "owl"])
    clf = FeCAMClassifier(domains="average").partial_fit(X, names[Y])
    clf.partial_fit(X[:12] + 0.1, names[Y[:12]])
    classes = {
        k: replace(
            stats,
            calibration=stored[k].calibration,
            distance_moments=stored[k].distance_moments,
        )
        for k, stats in clf.state_.classes.items()
    }
    return clf.set_state(replace(clf.state_, classes=classes))


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_older_versions_can_still_be_read_and_written(path, version):
    """1 has raw means in float64; 1 and 2 have one table, 3 and 4 fewer columns."""
    content = (
        Path(__file__).parents[1] / "helpers" / "files" / f"version-{version}.fecam"
    ).read_bytes()
    path.write_bytes(content)
    assert_same(load(path), older_model(path))
    assert path.read_bytes() == content, "reading changes nothing"
    with ModelFile(path) as file:
        step = file.write("forget", lambda working: working.classifier.forget("owl"))
        assert step.counts == {"owl": -12}
        assert load(path).classes_.tolist() == ["cat", "dog"]
        file.undo()
    assert_same(load(path), older_model(path))
    assert check(path) == []
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone() == (5,)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_damaged_files_of_older_versions(path, version):
    content = (
        Path(__file__).parents[1] / "helpers" / "files" / f"version-{version}.fecam"
    ).read_bytes()
    rng = random.Random(0)
    path.write_bytes(content)
    expected = arrays_of(older_model(path))
    for _ in range(150):
        damaged = bytearray(content)
        damaged[rng.randrange(len(content))] ^= rng.randrange(1, 256)
        path.write_bytes(damaged)
        with suppress(ModelFileError):
            assert arrays_of(load(path)) == expected


@pytest.mark.parametrize("column", ["raw_mean", "mean", "scatter"])
def test_missing_arrays(path, column):
    rejected(sign(changed(path, update(column, None))), "class 1")


def test_no_memory_is_allocated_for_missing_data(path):
    changed(
        path,
        "UPDATE settings SET value='10000000' WHERE name='n_features_in_'",
        update("scatter", bytes(20_000_000)),
    )
    sign(path)
    tracemalloc.start()
    try:
        rejected(path, "wrong length")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_invalid_checksums(path):
    for value in (None, b"", bytes(16), "x" * 16, 1):
        changed(path, update("checksum", value))
        rejected(path, "class 1 is damaged")


@pytest.mark.parametrize(
    "label",
    [
        *("true", "null", "[1]", "{}", "1.0", "1e2", "NaN", "abc", "", '"a', '"x"', "007", "2 "),
        *("-0", '"a\\u0000"', "9" * 30, "9" * 4200, f'"{"x" * 5000}"', "[" * 3000, None, b"1"),
    ],
)
def test_invalid_labels(path, label):
    statements = [(f"UPDATE {t} SET label=? WHERE label='1'", (label,)) for t in TABLES]
    rejected(sign(changed(path, *statements)))


def test_the_same_label_twice(path):
    features, codes = relu_features(2, 4, 6, 0)
    FeCAMClassifier().fit(features, np.asarray(["aaaaa", "bbbbb"])[codes]).save(path)
    path.write_bytes(path.read_bytes().replace(b'"bbbbb"', b'"aaaaa"'))
    rejected(path, 'class "aaaaa" is damaged')
    rejected(sign(path), 'class "aaaaa" comes twice')


def test_removed_and_foreign_classes(path, tmp_path):
    rejected(changed(path, "DELETE FROM classes WHERE label='1'"), "class was lost")
    FeCAMClassifier(domains="average").fit(X, Y + 7).save(tmp_path / "other")
    path.unlink()
    changed(
        path,
        ("ATTACH ? AS other", (str(tmp_path / "other"),)),
        "INSERT INTO classes SELECT * FROM other.classes LIMIT 1",
    )
    rejected(path, "class 7 points at the record of another")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE more(a)",
        "CREATE VIEW more AS SELECT * FROM classes",
        "CREATE INDEX more ON records(count)",
        "CREATE TRIGGER more AFTER INSERT ON classes BEGIN DELETE FROM settings; END",
        "CREATE VIRTUAL TABLE more USING fts5(a)",
        "ALTER TABLE classes ADD COLUMN more TEXT",
        "ALTER TABLE settings RENAME COLUMN value TO worth",
        "DROP TABLE classes",
        "DROP TABLE settings",
    ],
)
def test_foreign_schemas(path, statement):
    rejected(changed(path, statement), "FeCAMClassifier.save")


def test_views_in_place_of_tables(path):
    changed(
        path,
        "ALTER TABLE classes RENAME TO hidden",
        "CREATE VIEW classes AS SELECT zeroblob(1000000000) AS mean, * FROM hidden",
    )
    rejected(path, "not part of a model")


@pytest.mark.parametrize("version", [6, 99, 2**31 - 1])
def test_a_newer_version(path, version):
    rejected(
        changed(path, f"PRAGMA user_version={version}"), f"version {version}.*up to 5.*Upgrade"
    )


def test_a_newer_version_is_not_overwritten(path):
    before = changed(path, "PRAGMA user_version=6").read_bytes()
    with pytest.raises(ModelFileError, match=r"was not written.*version 6.*Upgrade"):
        FeCAMClassifier().fit(X, Y).save(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("statement", ["PRAGMA user_version=0", "PRAGMA user_version=-1"])
def test_invalid_versions(path, statement):
    rejected(changed(path, statement))


def test_another_application(path):
    rejected(changed(path, "PRAGMA application_id=1"), "another program")


def test_a_foreign_log_is_ignored(path):
    """SQLite recognizes its frames by their checksums and ignores others."""
    whole = arrays_of(load(changed(path, "PRAGMA journal_mode=WAL")))
    for noise in (random.Random(0).randbytes(5000), bytes.fromhex("377f0682") + bytes(4096)):
        path.with_name(path.name + "-wal").write_bytes(noise)
        assert arrays_of(load(path)) == whole


def test_a_leftover_journal_is_not_rolled_back(path):
    before = changed(path).read_bytes()
    journal = path.with_name(path.name + "-journal")
    journal.write_bytes(bytes.fromhex("d9d505f920a163d7") + bytes(4) + b"\xff" * 2000)
    with suppress(ModelFileError):
        assert_same(load(path), FeCAMClassifier(domains="average").fit(X, Y))
    assert path.read_bytes() == before


def test_a_reader_rolls_back_an_unfinished_transaction(path, tmp_path):
    """The files of a writer that was killed while its transaction was partly written."""
    expected = arrays_of(load(changed(path)))
    killed = tmp_path / "killed.fecam"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA cache_size = 1")
        db.execute("BEGIN")
        db.execute("UPDATE settings SET value = '\"' || hex(randomblob(2000)) || '\"'")
        for name in ("", "-journal"):
            killed.with_name(killed.name + name).write_bytes(Path(f"{path}{name}").read_bytes())
        db.execute("ROLLBACK")
    assert killed.read_bytes() != path.read_bytes(), "pages were written before the end"
    assert arrays_of(load(killed)) == expected
    assert killed.read_bytes() == path.read_bytes()


def test_loading_does_not_change_the_file(path):
    before = changed(path).read_bytes()
    path.chmod(0o444)
    load(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


# ---------------------------------------------------------------------- files that were damaged


def tree_of_classes(path):
    """Return the content of a file with many classes, and page and offset of their tree's root."""
    features, labels = relu_features(300, 2, 4, 0)
    FeCAMClassifier(covariance="identity").fit(features, labels).save(path)
    with closing(sqlite3.connect(path)) as db:
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name='records'").fetchone()
    content = bytearray(path.read_bytes())
    start = (root - 1) * 1024
    assert content[start] == 5, "an inner page of a table"
    return content, root, start


@pytest.mark.parametrize("target", ["one child", "itself"])
def test_pages_that_point_at_each_other(path, target):
    content, root, start = tree_of_classes(path)
    (n_cells,) = struct.unpack_from(">H", content, start + 3)
    cells = [struct.unpack_from(">H", content, start + 12 + 2 * i)[0] for i in range(n_cells)]
    child = content[start + cells[0] : start + cells[0] + 4]
    child = struct.pack(">I", root) if target == "itself" else child
    for cell in cells:
        content[start + cell : start + cell + 4] = child
    content[start + 8 : start + 12] = child
    path.write_bytes(content)
    rejected(path)


def test_classes_that_claim_more_than_the_file_holds(path, monkeypatch):
    changed(path)
    monkeypatch.setattr("fecam.model_file.file.check_header", lambda _: (200, 3))
    rejected(path, "more than its size")


def test_an_endless_query_is_aborted(path, monkeypatch):
    changed(path)
    monkeypatch.setattr("fecam.model_file.file.open_for_reading", slow_opening)
    rejected(path, "interrupted")


def slow_opening(path, size):
    db = sqlite3.connect(path, isolation_level=None)
    db.set_progress_handler(lambda: 1, 10)
    return db


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small file: its path for damaged copies, its content, and what it holds."""
    path = tmp_path_factory.mktemp("damage") / "small.fecam"
    features, labels = relu_features(3, 4, 4, 0)
    clf = FeCAMClassifier(tukey=0.5).fit(features, np.asarray(["a", "b", "c"])[labels])
    clf.save(path)
    return path, path.read_bytes(), arrays_of(clf), clf.get_params()


def rejected_or_intact(small, content):
    path, _, arrays, params = small
    path.write_bytes(content)
    try:
        loaded = load(path)
    except ModelFileError:
        return
    assert arrays_of(loaded) == arrays
    assert loaded.get_params() == params


def test_flipped_bytes(small):
    rng = random.Random(0)
    content = small[1]
    for _ in range(400):
        damaged = bytearray(content)
        damaged[rng.randrange(len(content))] ^= rng.randrange(1, 256)
        rejected_or_intact(small, bytes(damaged))


def test_flipped_bits_of_the_header(small):
    for position in range(100):
        for bit in range(8):
            damaged = bytearray(small[1])
            damaged[position] ^= 1 << bit
            rejected_or_intact(small, bytes(damaged))


def test_blocks_of_noise_or_zeros(small):
    rng = random.Random(1)
    content = small[1]
    for _ in range(100):
        start, length = rng.randrange(len(content)), rng.randrange(1, 2000)
        noise = rng.choice([rng.randbytes, bytes])(length)
        rejected_or_intact(small, (content[:start] + noise + content[start + length :]))


@given(data=st.data())
def test_a_file_cut_off_anywhere(small, data):
    path, content, _, _ = small
    length = data.draw(st.integers(0, len(content) - 1))
    path.write_bytes(content[:length])
    rejected(path, "cut off|not a model file")


@given(noise=st.binary(max_size=3000))
def test_noise_behind_a_good_header(small, noise):
    path, content, _, _ = small
    path.write_bytes(content[:100] + noise)
    rejected(path)
