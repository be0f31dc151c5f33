"""Models in safetensors files: round trips are exact, and invalid files raise errors."""

from __future__ import annotations

import builtins
import json
import random
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from fecam import FeCAMClassifier, load
from fecam.core.calibration_rows import N_COLUMNS
from fecam.errors import FecamError, MissingPackageError, ModelFileError
from fecam.model_file.integrity import check, file_info
from fecam.model_file.records import EncoderRecord
from fecam.presets import PRESETS
from fecam.transfer import MAX_MATRIX_WIDTH, export_model, import_file, import_model
from helpers.features import relu_features, signed_features
from helpers.same_models import arrays_of

pytest.importorskip("safetensors")

X, Y = relu_features(3, 12, 6, 0)
NEW_X, NEW_Y = relu_features(4, 8, 6, 1)
LITE = EncoderRecord("efficientnet-lite0?resolution=64", "0f3a", "images", 6)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "birds.safetensors"


def assert_same(ours, theirs, queries):
    assert theirs.get_params() == ours.get_params()
    assert theirs.state_.transform == ours.state_.transform
    assert theirs.classes_.dtype == ours.classes_.dtype
    assert arrays_of(theirs) == arrays_of(ours)
    ours.refresh()
    for ask in ("decision_function", "predict_proba", "novelty", "predict"):
        np.testing.assert_array_equal(getattr(ours, ask)(queries), getattr(theirs, ask)(queries))


# ---------------------------------------------------------------------- round trips


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("covariance", ["class", "common", "pooled", "diagonal", "identity"])
def test_round_trips_are_bit_identical(path, covariance, dtype):
    clf = FeCAMClassifier(covariance=covariance, dtype=dtype)
    clf.partial_fit(X[Y != 2], Y[Y != 2]).partial_fit(X[Y == 2], Y[Y == 2])
    clf.partial_fit(X[:1], [9])  # one sample: a scatter of rank 0
    export_model(clf, path, encoder=LITE)
    back = import_model(path)
    assert back.encoder == LITE
    assert_same(clf, back.classifier, X)
    clf.partial_fit(NEW_X, NEW_Y), back.classifier.partial_fit(NEW_X, NEW_Y)
    assert arrays_of(clf) == arrays_of(back.classifier), "it goes on learning"


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_round_trips(path, name):
    features, labels = (X, Y) if PRESETS[name]["tukey"] else signed_features(3, 12, 6, 0)
    clf = FeCAMClassifier.from_preset(name).fit(features, labels)
    export_model(clf, str(path))
    assert import_model(str(path)).encoder is None
    assert_same(clf, import_model(str(path)).classifier, features)


def test_averaged_domains_and_low_rank_scatters_round_trip(path):
    wide, y = relu_features(3, 4, 40, 0)
    clf = FeCAMClassifier(domains="average").partial_fit(wide, y).partial_fit(wide[:4] + 1, y[:4])
    assert clf.state_.classes[0].domain_mean_covariance is not None
    assert clf.state_.classes[1].scatter.storage == "low_rank"
    export_model(clf, path)
    assert_same(clf, import_model(path).classifier, wide)


@pytest.mark.parametrize(
    "labels",
    [
        ["", "a ", "'; DROP TABLE classes; --", "\n", "漢", "🙂", "\ud800", "null", "a\0b"],
        [-(2**63), -5, 0, 2**63 - 1],
        [2**63, 2**64 - 1],
        [False, True],
    ],
)
def test_labels_of_all_kinds(path, labels):
    features, codes = relu_features(len(labels), 4, 6, 0)
    clf = FeCAMClassifier().fit(features, np.asarray(labels)[codes])
    export_model(clf, path)
    back = import_model(path).classifier
    assert back.classes_.tolist() == clf.classes_.tolist()
    np.testing.assert_array_equal(back.predict_proba(features), clf.predict_proba(features))


def test_an_empty_model_and_feature_names_round_trip(path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcdef"))
    export_model(FeCAMClassifier().fit(frame, Y), path)
    assert import_model(path).classifier.feature_names_in_.tolist() == list("abcdef")
    empty = FeCAMClassifier().fit(X, Y).forget(0).forget(1).forget(2)
    export_model(empty, path)
    assert import_model(path).classifier.classes_.tolist() == []


def test_torch_tensors_are_exported_with_the_same_numbers(path):
    torch = pytest.importorskip("torch")
    clf = FeCAMClassifier().fit(torch.asarray(X), Y)
    export_model(clf, path)
    back = import_model(path).classifier
    np.testing.assert_allclose(back.decision_function(X), clf.decision_function(X), rtol=1e-4)


def test_a_failed_export_leaves_no_partial_file(path, monkeypatch, tmp_path):
    export_model(FeCAMClassifier().fit(X, Y), path)
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(ModelFileError, match="full"):
        export_model(FeCAMClassifier().fit(NEW_X, NEW_Y), path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    with pytest.raises(ModelFileError, match="folder exists"):
        export_model(FeCAMClassifier().fit(X, Y), tmp_path / "no" / "where.safetensors")


def test_a_missing_package_is_named(path, monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.startswith("safetensors"):
            raise ModuleNotFoundError(name, name=name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    for name in [name for name in sys.modules if name.startswith("safetensors")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingPackageError, match=r"pip install .*\[export\]"):
        export_model(FeCAMClassifier().fit(X, Y), path)


def test_from_one_model_file_to_another(path, tmp_path):
    clf = FeCAMClassifier().fit(X, Y)
    first, second = tmp_path / "first.fecam", tmp_path / "second.fecam"
    export_model(clf, path, encoder=LITE)
    import_file(path, first)
    export_model(load(first), tmp_path / "again.safetensors", encoder=file_info(first).encoder)
    import_file(tmp_path / "again.safetensors", second)
    assert file_info(second).encoder == LITE
    assert {record.note for record in file_info(first).classes} == {f"imported from {path.name}"}
    assert_same(clf, load(second), X)
    assert check(second) == []
    before = second.read_bytes()
    with pytest.raises(ModelFileError, match="there already"):
        import_file(path, second)
    assert second.read_bytes() == before
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelFileError, match="safetensors"):
        import_file(path, tmp_path / "third.fecam")
    assert not (tmp_path / "third.fecam").exists()


# ---------------------------------------------------------------------- invalid files


def parts(path):
    """Header and data of a safetensors file."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def write(path, header, data):
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.fixture
def good(path):
    wide, y = relu_features(2, 4, 40, 0)
    clf = FeCAMClassifier().fit(np.concatenate([wide, *[wide[:4] + 1] * 10]), [*y, *[7] * 40])
    classes = {k: replace(s, calibration=None) for k, s in clf.state_.classes.items()}
    clf.set_state(replace(clf.state_, classes=classes))  # the tests add measured rows
    export_model(clf, path, encoder=EncoderRecord("lite", "f", "images", 40))
    return path


def change(key, value):
    def changed(header):
        header["__metadata__"][key] = value

    return changed


def change_within(name, key, value):
    def changed(header):
        values = json.loads(header["__metadata__"][name])
        values[key] = value
        header["__metadata__"][name] = json.dumps(values)

    return changed


def rename(name, other):
    def changed(header):
        header[other] = header.pop(name)

    return changed


def reshape(name, shape):
    def changed(header):
        header[name]["shape"] = shape

    return changed


def retype(name, dtype):
    def changed(header):
        header[name]["dtype"] = dtype

    return changed


def add(name, numbers, dtype="F64"):
    """Add a tensor with these bytes at the end of the data."""

    def changed(header):
        end = max(e["data_offsets"][1] for n, e in header.items() if n != "__metadata__")
        offsets = [end, end + len(numbers)]
        header[name] = {"dtype": dtype, "shape": [len(numbers) // 8], "data_offsets": offsets}
        return numbers

    return changed


def measured(name, n_rows, dtype="F32", fill=0):
    """Add measured rows of a class."""
    numbers = bytes([fill]) * (4 * N_COLUMNS * n_rows)

    def changed(header):
        add(name, numbers, dtype)(header)
        header[name]["shape"] = [n_rows, N_COLUMNS]
        return numbers

    return changed


def drop(key):
    def changed(header):
        del header["__metadata__"][key]

    return changed


INVALID_FILES = {
    "another program": (drop("format"), "another program"),
    "no metadata": (lambda header: header.pop("__metadata__"), "another program"),
    "newer": (change("version", "3"), "Upgrade"),
    "no version": (drop("version"), "version cannot be"),
    "version of letters": (change("version", "one"), "version cannot be"),
    "version of other digits": (change("version", "٣"), "version cannot be"),
    "version zero": (change("version", "0"), "version cannot be"),
    "a giant version": (change("version", "9" * 5000), "version cannot be"),
    "no labels": (drop("labels"), "not text"),
    "labels no list": (change("labels", '"abc"'), "no JSON list"),
    "labels no JSON": (change("labels", "[0, 1"), "not JSON"),
    "nested labels": (change("labels", "[" * 100_000), "not JSON"),
    "fewer labels": (change("labels", "[0, 1]"), "not part of a model"),
    "more labels": (change("labels", "[0, 1, 7, 8]"), "expected is"),
    "labels twice": (change("labels", "[0, 1, 1]"), "twice"),
    "mixed labels": (change("labels", '[0, 1, "a"]'), "mixed kinds"),
    "a label of another kind": (change("labels", "[0, 1, 2.5]"), "cannot be a label"),
    "a label with a zero": (change("labels", '["a", "b", "c\\u0000"]'), "cannot be a label"),
    "a huge number": (change("labels", f"[0, 1, {10**30}]"), "too large"),
    "an endless label": (change("labels", f'["a", "b", "{"x" * 5000}"]'), "too long"),
    "no settings": (drop("settings"), "not text"),
    "settings no object": (change("settings", "[]"), "no JSON object"),
    "an unknown setting": (change_within("settings", "magic", 1), "magic"),
    "a wrong setting": (change_within("settings", "covariance", "full"), "covariance"),
    "a wrong kind of setting": (change_within("settings", "pooling", [1]), "pooling"),
    "another dtype": (change_within("settings", "dtype", "float64"), "expected is"),
    "a wrong form": (change_within("found", "form", "all"), "form_"),
    "a form without matrices": (change_within("found", "form", "none"), "nothing"),
    "a huge width": (change_within("found", "n_features_in", 10**6), "16384 features"),
    "a width that is too large": (change_within("found", "n_features_in", 10**12), "cannot be"),
    "another width": (change_within("found", "n_features_in", 39), "expected is"),
    "no power": (change_within("found", "tukey", "half"), "tukey_"),
    "another power": (change_within("settings", "tukey", 0.25), "tukey"),
    "an encoder of no width": (change_within("encoder", "width", 7), "7 features"),
    "an encoder of numbers": (change_within("encoder", "name", 7), "encoder"),
    "an encoder with more": (change_within("encoder", "code", "x"), "encoder"),
    "a missing array": (rename("mean", "means"), "means"),
    "an array too many": (rename("scatter.2", "scatter.3"), "scatter.3"),
    "a missing scatter": (rename("scatter.2", "averaged.2"), "wrong length"),
    "scatter upside down": (reshape("scatter.0", [40, 3]), "expected is"),
    "a triangle as rows": (reshape("scatter.2", [20, 41]), "expected is"),
    "counts in a column": (reshape("count", [3, 1]), "expected is"),
    "counts of another type": (retype("count", "F64"), "expected is"),
    "a type that NumPy has not": (retype("count", "F8_E4M3"), "safetensors"),
    "an unheard type": (retype("count", "I65"), "safetensors"),
    "a huge shape": (reshape("scatter.2", [2**62, 2**10]), "safetensors"),
    "too many measured rows": (measured("calibration.0", 33), "expected is float32 nothing"),
    "measured rows of another type": (measured("calibration.0", 1, "I32"), "expected is float32"),
    "measured rows not finite": (
        measured("calibration.0", 1, fill=255),
        "class 0 has a number that",
    ),
    "measured rows of no class": (measured("calibration.3", 1), "calibration.3"),
    "a negative shape": (reshape("mean", [-3, -40]), "safetensors"),
}


def test_version_1_and_measured_rows_are_read(good):
    header, data = parts(good)
    header["__metadata__"]["version"] = "1"
    write(good, header, data)
    old = import_model(good).classifier
    rows = measured("calibration.1", 3)(header)
    write(good, header, data + rows)
    assert import_model(good).classifier.classes_.tolist() == old.classes_.tolist() == [0, 1, 7]


@pytest.mark.parametrize("name", INVALID_FILES)
def test_an_invalid_file_is_rejected_with_a_reason(good, name):
    edit, says = INVALID_FILES[name]
    header, data = parts(good)
    more = edit(header)
    write(good, header, data + more if isinstance(more, bytes) else data)
    with pytest.raises(ModelFileError) as caught:
        import_model(good)
    assert str(caught.value).startswith(f"{good} cannot be imported: ")
    assert says in str(caught.value)
    assert len(str(caught.value)) < 600 + len(str(good))


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("count", 0, "count cannot be 0"),
        ("count", -5, "count cannot be -5"),
        ("visits", 2**60, "visits cannot be"),
        ("task", -1, "task cannot be"),
        ("sampled", np.nan, "sampled distances"),
        ("mean", np.inf, "not finite"),
        ("raw_mean", np.nan, "not finite"),
        ("scatter.0", np.nan, "not finite"),
        ("scatter.0", 3e38, "too large"),
    ],
)
def test_an_invalid_number_is_rejected_with_its_class(good, name, value, says):
    header, data = parts(good)
    start, end = header[name]["data_offsets"]
    dtype = {"I64": "<i8", "F64": "<f8", "F32": "<f4"}[header[name]["dtype"]]
    numbers = np.frombuffer(data[start:end], dtype).copy()
    numbers[0] = value
    write(good, header, data[:start] + numbers.tobytes() + data[end:])
    with pytest.raises(ModelFileError, match=says) as caught:
        import_model(good)
    assert "class 0" in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0", b"PK\3\4" + bytes(100), (2**63).to_bytes(8, "little") + b"{}", b"\xff" * 64],
)
def test_other_files_are_rejected(path, content):
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="no safetensors file"):
        import_model(path)


def test_a_missing_file_and_a_folder_are_rejected(tmp_path):
    for path in (tmp_path, tmp_path / "nothing.safetensors"):
        with pytest.raises(ModelFileError, match="no such file"):
            import_model(path)


def test_a_small_file_takes_little_memory(path):
    """A file cannot claim more memory than its size."""
    clf = FeCAMClassifier().fit(X, Y)
    export_model(clf, path)
    header, data = parts(path)
    tracemalloc.start()
    try:
        for width in (MAX_MATRIX_WIDTH, 10**6, 10**7):
            change_within("found", "n_features_in", width)(header)
            write(path, header, data)
            with pytest.raises(ModelFileError):
                import_model(path)
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


def test_damage_raises_only_our_errors(good):
    """Flipped bytes and cut ends raise a FecamError, or give a model of finite numbers."""
    rng = random.Random(0)
    whole = good.read_bytes()
    rejected = 0
    for _ in range(150):
        content = bytearray(whole)
        if rng.random() < 0.3:
            del content[rng.randrange(len(content)) :]
        for _ in range(rng.randint(0, 3)):
            if content:
                content[rng.randrange(min(len(content), 3000))] = rng.randrange(256)
        good.write_bytes(content)
        try:
            import_model(good)
        except FecamError:
            rejected += 1
    assert rejected > 75
