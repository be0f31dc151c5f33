"""Labels keep the type that was learned, on every path in and out of a model."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fecam as package
from fecam import FeCAMClassifier, load
from fecam.data import Dataset
from fecam.data.table import load_table
from fecam.errors import InputError, ModelFileError, UnknownLabelError
from fecam.features.saving import save_features
from fecam.heads.ncm import NearestMean
from fecam.transfer import export_model, import_model
from helpers.features import relu_features

X, Y = relu_features(2, 12, 6, 0)
KINDS = {"bool": Y == 1, "int": Y * 7 - 3, "str": np.asarray(["no", "yes"])[Y]}


@pytest.fixture(params=KINDS)
def labels(request):
    return KINDS[request.param]


def assert_typed(found, expected):
    """Both are equal, and of the same types: ``True == 1`` is not enough."""
    found, expected = list(found), expected.tolist()
    assert found == expected
    assert {*map(type, found)} == {*map(type, expected)}


def test_classifier_and_its_files(tmp_path, labels):
    clf = FeCAMClassifier().fit(X, labels)
    clf.save(tmp_path / "m.fecam")
    export_model(clf, tmp_path / "m.safetensors")
    for other in (clf, load(tmp_path / "m.fecam"), import_model(tmp_path / "m.safetensors")[0]):
        assert other.classes_.dtype == np.unique(labels).dtype
        assert_typed(other.classes_.tolist(), np.unique(labels))
        assert_typed(other.predict(X).tolist(), labels)
        assert_typed(other.predict_detailed(X).labels[:, 0].tolist(), labels)
        assert other.score(X, labels) == 1
        assert other.copy().forget(labels[0]).classes_.tolist() == np.unique(labels)[1:].tolist()


def test_heads(labels):
    assert_typed(NearestMean().fit(X, labels).predict(X).tolist(), labels)


def test_tensors_of_booleans():
    torch = pytest.importorskip("torch")
    clf = FeCAMClassifier().fit(torch.asarray(X), torch.asarray(Y == 1))
    assert clf.classes_.tolist() == [False, True] and clf.classes_.dtype == bool
    assert torch.equal(clf.predict(torch.asarray(X)), torch.asarray(Y == 1))


def test_model_with_history(tmp_path, labels):
    with package.open(tmp_path / "m.fecam") as model:
        assert_typed(model.learn(X, labels).n_learned, np.unique(labels)[[0, 1]])
    with package.open(tmp_path / "m.fecam") as model:
        assert_typed(model.predict(X), labels)
        assert_typed([p.nearest[0].label for p in model.predict_detailed(X)], labels)
        assert_typed([record.label for record in model.classes], np.unique(labels))
        assert_typed(model.steps[0].counts, np.unique(labels))
        model.forget(labels[0])
        model.undo()
        assert_typed(model.predict(X), labels)


def test_booleans_and_integers_do_not_mix(tmp_path):
    ones, truths = KINDS["int"] * 0 + Y, KINDS["bool"]
    for wrong in ([True, 1], [1, True], [0, False], np.asarray([True, 2], object), ["1", True]):
        with pytest.raises(InputError, match=r"types (bool, int|bool, str)\. Use only booleans"):
            FeCAMClassifier().fit(X[:2], wrong)
    for learned, other in ((truths, ones), (ones, truths)):
        clf = FeCAMClassifier().fit(X, learned)
        with pytest.raises(InputError, match=r"y has (integers|booleans).*the model has"):
            clf.partial_fit(X, other)
        with pytest.raises(InputError, match="one kind of label"):
            clf.unlearn(X, other)
        with pytest.raises(InputError, match="one kind of label"):
            clf.merge(FeCAMClassifier().fit(X, other))
        with pytest.raises(InputError, match="one kind of label"):
            clf.learn_statistics(FeCAMClassifier().statistics_of(X, other))
        with pytest.raises(InputError, match="one kind of label"):
            NearestMean().fit(X, learned).partial_fit(X, other)
        with pytest.raises(UnknownLabelError, match="never learned"):
            clf.forget(other[0])
        path = tmp_path / f"{learned.dtype}.fecam"
        with package.open(path) as model:
            model.learn(X, learned)
            with pytest.raises(InputError, match="one kind of label"):
                model.learn(X, other)  # the same items: they must not count as duplicates
            with pytest.raises(InputError, match="different types"):
                model.learn(X[:2] + 1, [True, 1])
            with pytest.raises(UnknownLabelError):
                model.forget(other[0])


def test_saving_over_a_file_with_other_labels(tmp_path):
    path = tmp_path / "m.fecam"
    before, after = FeCAMClassifier().fit(X, Y == 1), FeCAMClassifier().fit(X[1:], Y[1:])
    before.save(path)
    after.save(path)
    assert_typed(load(path).predict(X).tolist(), Y)
    with package.open(path) as model:
        model.undo()
    assert_typed(load(path).predict(X).tolist(), Y == 1)


def test_a_file_with_mixed_labels_is_rejected(tmp_path):
    clf = FeCAMClassifier().fit(X, Y)
    state = clf.state_
    state.classes[True] = state.classes.pop(1)
    state.tasks[True] = state.tasks.pop(1)
    with pytest.raises(ModelFileError, match="mixed kinds"):
        clf.save(tmp_path / "m.fecam")


# ---------------------------------------------------------------------- tables


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_typed_tables(tmp_path, labels, suffix):
    path = tmp_path / f"t{suffix}"
    if suffix == ".npz":
        np.savez(path, X=X, y=labels)
    else:
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
        frame.assign(label=labels).to_parquet(path)
    data = load_table(path)
    assert_typed(data.classes, np.unique(labels))
    assert data.label_names == tuple(map(str, np.unique(labels).tolist()))
    with package.open(tmp_path / "m.fecam") as model:
        model.learn(data)
        assert_typed(model.predict(X), labels)
    for copy in ("copy.npz", "copy.parquet"):
        save_features(data, tmp_path / copy)
        assert_typed(load_table(tmp_path / copy).classes, np.unique(labels))


@pytest.mark.parametrize(
    ("cells", "classes"),
    [
        (["10", "9", "-1"], (-1, 9, 10)),
        (["007", "8"], ("007", "8")),
        (["+1", "2"], ("2", "+1")),
        (["1", "two"], ("1", "two")),
        (["1.0", "2.0"], ("1.0", "2.0")),
        (["True", "False"], ("False", "True")),
        (["-0", "1"], ("-0", "1")),
    ],
)
def test_labels_of_csv_are_integers_if_all_are(tmp_path, cells, classes):
    rows = [f"{label},{i}.5" for i, label in enumerate(cells)]
    (tmp_path / "t.csv").write_text("\n".join(["label,a", *rows]))
    found = load_table(tmp_path / "t.csv").classes
    assert found == classes and {*map(type, found)} == {*map(type, classes)}


def test_labels_of_tables_are_converted_to_those_of_the_model(tmp_path):
    numbers = Dataset("n", "features", X + 1, Y, ("0", "1"), "n", label_kind="integers")
    words = Dataset("w", "features", X + 2, Y, ("True", "false"), "w")
    with package.open(tmp_path / "words.fecam") as model:
        model.learn(X, np.asarray(["0", "1"])[Y])
        assert model.learn(numbers).n_learned == {"0": 12, "1": 12}
    with package.open(tmp_path / "truths.fecam") as model:
        model.learn(X, Y == 1)
        with pytest.raises(InputError, match=r"booleans, so '0' cannot be one\. Give true or"):
            model.learn(numbers)
        assert_typed(model.learn(words).n_learned, np.asarray([True, False]))
        assert model.label_of("true") is True and model.label_of("False") is False
        with pytest.raises(UnknownLabelError):
            model.label_of("1")


# ---------------------------------------------------------------------- commands and service


def test_commands(fecam, answer, labels):
    np.savez("t.npz", X=X, y=labels)
    fecam("learn", "t.npz", "-m", "m.fecam")
    lines = fecam("predict", "t.npz", "-m", "m.fecam", "--json").out.splitlines()
    assert_typed([json.loads(line)["label"] for line in lines], labels)
    assert answer("evaluate", "t.npz", "-m", "m.fecam")["accuracy"] == 1
    fecam("forget", "-m", "m.fecam", "--yes", "--", str(labels.tolist()[0]))
    listed = answer("classes", "-m", "m.fecam")
    assert_typed([record["label"] for record in listed], np.unique(labels)[1:])


@pytest.fixture(scope="module", params=KINDS)
def served(request, tmp_path_factory):
    pytest.importorskip("starlette")
    pytest.importorskip("httpx")
    from fecam.client import Client
    from helpers.servers import service

    path = tmp_path_factory.mktemp("served") / "m.fecam"
    with service(path) as running, Client(running.url) as client:
        yield client, KINDS[request.param]


def test_service_and_client(served):
    client, labels = served
    classes = np.unique(labels)
    result = client.learn(X, labels)
    assert_typed(sorted(result.n_learned), classes)
    assert_typed(sorted(result.new_classes), classes)
    assert_typed(client.predict(X).labels, labels)
    assert_typed([record.label for record in client.classes()], classes)
    assert_typed(sorted(client.history()[0].counts), classes)
    evaluation = client.evaluate(X, labels)
    assert evaluation.accuracy == 1
    assert_typed(sorted(evaluation.per_class), classes)
    assert_typed(client.forget(classes[0]).counts, classes[:1])
    assert_typed(client.undo()[0].counts, classes[:1])
