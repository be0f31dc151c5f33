"""`fecam evaluate`, `classes`, `inspect`, `doctor`, `export` and `import` as people use them."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import fecam as package
from fecam.cli import completion
from fecam.cli import doctor as doctor_command
from fecam.encoders import catalogue
from helpers.features import relu_features

NAMES = np.array(["ant", "bee", "cow", "dog"])
ENCODER = "efficientnet-lite0?resolution=32&runtime=torch"
COMMANDS = ("evaluate", "classes", "inspect", "doctor", "export", "import")


@pytest.fixture
def model(place):
    """Three classes of features, and a data set of four: the last was never taught."""
    X, y = relu_features(4, 30, 12, 0)
    test = np.arange(len(X)) % 3 == 0
    np.savez(place / "data.npz", X=X, y=NAMES[y], is_test=test)
    np.savez(place / "plain.npz", X=X[~test & (y < 3)], y=NAMES[y[~test & (y < 3)]])
    clf = package.FeCAMClassifier().fit(X[~test & (y < 3)], NAMES[y[~test & (y < 3)]])
    clf.save(place / "m.fecam")
    return "m.fecam"


# -- evaluate --------------------------------------------------------------------------------------


def test_evaluate_uses_the_test_part_and_separates_unknown_labels(answer, model):
    found = answer("evaluate", "data.npz", "-m", model)
    assert (found["part"], found["items"], found["count"]) == ("test", 40, 30)
    assert found["unknown"] == [{"label": "dog", "count": 10}]
    clf = package.load(model)
    with np.load("data.npz") as file:
        data = dict(file)
    rows = data["is_test"] & (data["y"] != "dog")
    X, due = data["X"][rows], data["y"][rows]
    assert found["accuracy"] == pytest.approx(clf.score(X, due))
    novelty = clf.novelty(X)
    assert found["rejected"] == pytest.approx(np.mean(novelty > 1.6448536))
    other = clf.novelty(data["X"][data["is_test"] & (data["y"] == "dog")])
    assert found["novelty_auroc"] == pytest.approx(np.mean(other[:, None] > novelty), abs=1e-6)
    assert found["top_k"] == 3 and found["top_k_accuracy"] == 1
    for one in found["classes"]:
        assert one["recall"] == pytest.approx(
            np.mean(clf.predict(X[due == one["label"]]) == one["label"])
        )
    assert found["output"] is None and found["unreadable"] == []


def test_evaluate_prints_a_table_and_writes_a_page(fecam, model, place):
    told = fecam("evaluate", "data.npz", "-m", model, "--output", "page.html", "--reject", "0.1")
    assert "recall %" in told.out and "samples classified correctly" in told.out
    assert "10 items with 1 unknown label" in told.out
    assert "known classes rejected (reject 0.1) %" in told.out
    assert "no test part" not in told.err and "page.html" in told.err
    text = (place / "page.html").read_text()
    assert "Evaluation of m.fecam" in text and "test part" in text


def test_evaluate_measures_items_that_belong_to_no_class(answer, fecam, model, place):
    with np.load("data.npz") as file:
        X, y, test = file["X"], file["y"], file["is_test"]
    np.savez("seen.npz", X=X[y != "dog"], y=y[y != "dog"], is_test=test[y != "dog"])
    np.save("dogs.npy", X[test & (y == "dog")])
    alone = answer("evaluate", "data.npz", "-m", model)
    found = answer("evaluate", "seen.npz", "-m", model, "--unknown", "dogs.npy")
    assert found["n_unknown"] == 10 and found["unknown"] == []
    for name in ("novelty_auroc", "fpr_at_95_tpr", "rejected", "unknown_rejected", "bins"):
        assert found[name] == alone[name] is not None
    told = fecam("evaluate", "seen.npz", "-m", model, "--unknown", "dogs.npy", "-O", "p.html").out
    for words in ("FPR at 95 % TPR %", "unknown items detected (reject 0.05) %", "confidence %"):
        assert words in told
    assert "dogs, 10" in (place / "p.html").read_text()
    np.save("twins.npy", X[test & (y != "dog")])  # cannot be told from known items
    told = fecam("evaluate", "seen.npz", "-m", model, "--unknown", "twins.npy").out
    assert "do not rely on rejection" in " ".join(told.split())
    assert (
        "nowhere" in fecam("evaluate", "seen.npz", "-m", model, "--unknown", "nowhere", code=1).err
    )


def test_columns_are_named_for_both_tables_of_an_evaluation(answer, place):
    X, y = relu_features(3, 20, 4, 0)
    package.FeCAMClassifier().fit(X[y < 2], np.array(["ant", "bee"])[y[y < 2]]).save("c.fecam")
    header = "kind,a,b,c,d"
    for name, rows in (("known.csv", y < 2), ("other.csv", y == 2)):
        lines = [
            f"{NAMES[k]},{','.join(map(str, x))}" for k, x in zip(y[rows], X[rows], strict=True)
        ]
        (place / name).write_text("\n".join([header, *lines]))
    options = ("-m", "c.fecam", "--option", "label=kind", "--unknown", "other.csv")
    found = answer("evaluate", "known.csv", *options)
    assert (found["count"], found["n_unknown"]) == (40, 20)


def test_evaluate_without_a_test_part_uses_all_items(fecam, answer, model):
    assert "no test part" in fecam("evaluate", "plain.npz", "-m", model).err
    assert answer("evaluate", "plain.npz", "-m", model)["part"] == "all"


def test_integer_labels_match_their_text(answer, place):
    X, y = relu_features(3, 10, 12, 0)
    package.FeCAMClassifier().fit(X, y).save("n.fecam")
    np.savez("n.npz", X=X, y=y)
    found = answer("evaluate", "n.npz", "-m", "n.fecam")
    assert found["count"] == 30 and found["unknown"] == []
    assert [one["label"] for one in found["classes"]] == [0, 1, 2]


def test_unreadable_images_give_exit_code_3(answer, fecam, place):
    pytest.importorskip("torch")
    for name, colour in (("blue", (30, 40, 200)), ("red", (200, 40, 30))):
        (place / "photos" / name).mkdir(parents=True)
        for at in range(4):
            noise = np.random.default_rng(at).integers(0, 40, size=(12, 12, 3))
            image = Image.fromarray((np.asarray(colour) + noise).astype(np.uint8))
            image.save(place / "photos" / name / f"{at}.png")
    with package.open("p.fecam", encoder=ENCODER) as model:
        paths = sorted((place / "photos").rglob("*.png"))
        model.learn([str(path) for path in paths], [path.parent.name for path in paths])
    (place / "photos" / "red" / "broken.png").write_bytes(b"no image")
    found = answer("evaluate", "photos", "-m", "p.fecam", code=3)
    assert found["count"] == 8 and found["accuracy"] == 1
    assert len(found["unreadable"]) == 1 and "broken.png" in found["unreadable"][0]
    told = fecam("evaluate", "photos", "-m", "p.fecam", code=3)  # from the cache
    assert "unreadable" in told.err and "broken.png" in told.err
    assert "ok: encoder" in fecam("doctor", "p.fecam").out
    (place / "others").mkdir()
    Image.fromarray(np.zeros((12, 12, 3), np.uint8)).save(place / "others" / "black.png")
    (place / "others" / "broken.png").write_bytes(b"no image")
    found = answer("evaluate", "photos", "-m", "p.fecam", "--unknown", "others", code=3)
    assert found["n_unknown"] == 1 and len(found["unreadable"]) == 2
    fecam("export", "p.safetensors", "-m", "p.fecam")
    fecam("import", "p.safetensors", "-m", "q.fecam")
    assert answer("inspect", "-m", "q.fecam")["encoder"]["name"] == answer(
        "inspect", "-m", "p.fecam")["encoder"]["name"]  # fmt: skip


# -- classes and inspect ---------------------------------------------------------------------------


def test_classes_are_sorted_by_the_given_key(answer, fecam, model):
    with package.open(model) as opened:
        X, _ = relu_features(1, 5, 12, 3)
        opened.learn(X, ["cow"] * 5, note="from the zoo")
    rows = answer("classes", "-m", model)
    assert [one["label"] for one in rows] == ["ant", "bee", "cow"]
    assert [one["count"] for one in rows] == [20, 20, 25]
    assert [one["batches"] for one in rows] == [1, 1, 2]
    assert rows[2]["note"] == "from the zoo" and rows[2]["bytes"] > 0
    for order in ("count", "batches"):
        assert answer("classes", "-m", model, "--sort", order)[0]["label"] == "cow"
    told = fecam("classes", "-m", model)
    assert "from the zoo" in told.out and "3 classes, 65 samples" in told.err
    assert "--sort" in fecam("classes", "-m", model, "--sort", "colour", code=2).err


def test_inspect_lists_close_pairs_and_weak_classes(answer, fecam, model):
    with package.open(model) as opened:
        X, y = relu_features(4, 30, 12, 0)
        opened.learn(X[y == 1][:2], ["bee's twin"] * 2)
    found = answer("inspect", "-m", model, "--top", "2")
    assert len(found["closest"]) == 2
    assert {found["closest"][0]["first"], found["closest"][0]["second"]} == {"bee", "bee's twin"}
    assert found["weakest"][0]["label"] == "bee's twin"
    assert found["weakest"][0]["reasons"][0] == "few samples: 2"
    assert (found["classes"], found["samples"], found["features"]) == (4, 62, 12)
    assert found["settings"]["tukey"] == 0.5 and found["encoder"] is None
    told = fecam("inspect", "-m", model).out
    assert "few samples: 2" in told and "Closest pairs" in told and "format: version" in told
    shares = [pair["overlap"] for pair in found["closest"]]
    assert 0.5 >= shares[0] >= shares[1] > 0
    assert "confused %" in told and f"{100 * shares[0]:.1f}" in told
    assert found["weakest"][0]["left_out"] <= 2 and 0 <= found["weakest"][0]["risk"] <= 1
    few = fecam("inspect", "-m", model, "--top", "0").out
    assert "Closest" not in few and "eak" not in few


def test_inspect_ranks_pairs_of_a_model_with_few_measured_samples(answer, fecam, place):
    X, y = relu_features(3, 4, 12, 0)
    package.FeCAMClassifier().fit(X, y).save("small.fecam")
    found = answer("inspect", "-m", "small.fecam")
    assert [pair["overlap"] for pair in found["closest"]] == [None] * 3
    assert [one["risk"] for one in found["weakest"]] == [None] * 3
    told = fecam("inspect", "-m", "small.fecam").out
    assert "too few measured samples" in told and "confused %" not in told
    for pair in found["closest"]:
        assert f"{pair['apart']:.2f}" in told


def test_control_characters_in_labels_are_escaped(fecam, place):
    X, y = relu_features(2, 3, 12, 0)
    labels = np.array(["\x1b[2J[b]", "line\nbreak"])[y]
    package.FeCAMClassifier().fit(X, labels).save("odd.fecam")
    np.savez("odd.npz", X=X, y=labels)
    for command in (["classes"], ["inspect"], ["evaluate", "odd.npz"]):
        told = fecam(*command, "-m", "odd.fecam")
        assert "\x1b" not in told.out + told.err
        assert "\\x1b[2J[b]" in told.out


def test_model_without_classes(fecam, model):
    with package.open(model) as opened:
        for label in ("ant", "bee", "cow"):
            opened.forget(label)
    assert "classes: 0" in fecam("inspect", "-m", model).out
    assert fecam("classes", "-m", model, "--json").out.strip() == "[]"
    assert "no classes" in fecam("evaluate", "data.npz", "-m", model, code=1).err


# -- doctor ----------------------------------------------------------------------------------------


def test_doctor_finds_no_problem_in_a_valid_file(answer, fecam, model):
    assert answer("doctor", model)["problems"] == []
    told = fecam("doctor", model)
    assert "all checksums match" in told.out and "no problems" in told.err


def test_doctor_names_the_class_of_a_flipped_bit(answer, fecam, model, place):
    content = bytearray((place / model).read_bytes())
    mean = package.load(model).state_.classes["bee"].mean.tobytes()
    content[content.index(mean) + 3] ^= 64
    (place / model).write_bytes(content)
    found = answer("doctor", model, code=1)
    assert any("bee" in problem for problem in found["problems"])
    told = fecam("doctor", model, "--compact", code=1)
    assert "problem: " in told.out and "not compacted" in told.err
    assert (place / model).read_bytes() == content


def test_compact_drops_the_undo_history(fecam, answer, model, place):
    with package.open(model) as opened:
        X, _ = relu_features(1, 40, 12, 3)
        for at in range(3):
            opened.learn(X + at, ["cow"] * 40)
        opened.forget("ant")
    before = answer("inspect", "-m", model)
    assert before["history_bytes"] > 0
    clf = package.load(model)
    due = clf.decision_function(X)
    told = answer("doctor", model, "--compact", "--yes")
    assert any(one["what"] == "compact" for one in told["findings"])
    after = answer("inspect", "-m", model)
    assert after["history_bytes"] == 0 and after["bytes"] < before["bytes"]
    np.testing.assert_array_equal(package.load(model).decision_function(X), due)
    assert answer("doctor", model)["problems"] == []


def test_compact_asks_for_confirmation(fecam, model, monkeypatch, place):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    asked = []

    def confirm(text, **_):
        asked.append(text)
        raise doctor_command.typer.Abort

    monkeypatch.setattr(doctor_command.typer, "confirm", confirm)
    before = (place / model).read_bytes()
    fecam("doctor", model, "--compact", code=1)
    assert "removes the undo history" in asked[0] and (place / model).read_bytes() == before


def test_doctor_checks_the_installation(answer, fecam, monkeypatch):
    needs = ["numpy", "matplotlib>=3; extra == 'report'", 'nosuch; extra == "magic"']
    monkeypatch.setattr(
        doctor_command.metadata, "requires", lambda _: [*needs, "fecam[all]; extra == 'dev'"]
    )
    assert doctor_command.extras() == {"report": ["matplotlib"], "magic": ["nosuch"]}
    monkeypatch.setattr(catalogue, "load", lambda name, **_: type("One", (), {"n_features": 7}))
    found = answer("doctor")
    states = {one["what"]: one["state"] for one in found["findings"]}
    assert states["extra report"] == "installed"
    assert "nosuch not installed" in states["extra magic"]
    assert package.errors.install_command("magic") in states["extra magic"]
    assert any(what.startswith("cache ") for what in states) and found["problems"] == []

    def broken(name, **_):
        raise package.errors.EncoderError(f"{name} is broken. Remedy: mend it")

    monkeypatch.setattr(catalogue, "load", broken)
    if any(one.installed for one in catalogue.available()):
        assert "mend it" in fecam("doctor", code=1).out


def test_doctor_reports_an_unusable_cache(answer, monkeypatch, place):
    (place / "file").write_text("")
    monkeypatch.setattr(catalogue, "available", lambda: [])
    monkeypatch.setenv("FECAM_CACHE", str(place / "file" / "cache"))
    (problem,) = answer("doctor", code=1)["problems"]
    assert "FECAM_CACHE" in problem


# -- export and import -----------------------------------------------------------------------------


def test_export_and_import_round_trip(answer, fecam, model, place):
    done = answer("export", "out.safetensors", "-m", model)
    assert done["classes"] == 3 and done["bytes"] == (place / "out.safetensors").stat().st_size
    back = answer("import", "out.safetensors", "-m", "back.fecam")
    assert (back["classes"], back["samples"], back["encoder"]) == (3, 60, None)
    X = np.load("data.npz")["X"]
    ours, theirs = package.load(model), package.load("back.fecam")
    np.testing.assert_array_equal(ours.predict_proba(X), theirs.predict_proba(X))
    there = fecam("export", "out.safetensors", "-m", model, code=1)
    assert "--yes" in there.err
    assert "3 classes" in fecam("export", "out.safetensors", "-m", model, "--force").err
    again = fecam("import", "out.safetensors", "-m", "back.fecam", code=1)
    assert "fecam merge" in again.err
    assert "3 classes, 60 samples" in fecam("import", "out.safetensors", "-m", "c.fecam").err


# -- all of them -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(fecam, command):
    assert f"Example: fecam {command} " in " ".join(fecam(command, "--help").out.split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["evaluate", "data.npz", "-m", "no.fecam"], "fecam learn"),
        (["evaluate", "no.npz", "-m", "m.fecam"], "no.npz"),
        (["evaluate", "data.npz", "-m", "data.npz"], "not a model file"),
        (["evaluate", "data.npz", "-m", "m.fecam", "--reject", "2"], "--reject"),
        (["evaluate", "data.npz", "-m", "m.fecam", "--output", "x.pdf"], ".html"),
        (["evaluate", "wide.npz", "-m", "m.fecam"], "12"),
        (["classes", "-m", "no.fecam"], "no.fecam"),
        (["inspect", "-m", "no.fecam"], "no.fecam"),
        (["doctor", "no.fecam"], "no.fecam"),
        (["doctor", "--compact"], "--compact needs a file"),
        (["export", "x.npz", "-m", "m.fecam"], ".safetensors"),
        (["export", "x.safetensors", "-m", "no.fecam"], "no.fecam"),
        (["export", "no/x.safetensors", "-m", "m.fecam"], "folder exists"),
        (["import", "no.safetensors", "-m", "new.fecam"], "no.safetensors"),
        (["import", "data.npz", "-m", "new.fecam"], "safetensors file"),
    ],
)
def test_user_errors_are_messages(fecam, model, place, arguments, says):
    np.savez("wide.npz", X=np.ones((3, 13), np.float32), y=["ant", "bee", "cow"])
    told = fecam(*arguments, code=1)
    assert says in " ".join((told.out + told.err).split())
    assert not (place / "new.fecam").exists()


@pytest.mark.parametrize(
    "command", ["evaluate data.npz", "classes", "inspect", "export x", "import x"]
)
def test_model_option_is_required(fecam, command):
    assert "--model" in fecam(*command.split(), code=2).err


def test_model_from_environment_variable(answer, model, monkeypatch):
    monkeypatch.setenv("FECAM_MODEL", model)
    assert len(answer("classes")) == 3


def test_shell_completion(place):
    run = "import sys; sys.argv = sys.argv[1:]; from fecam.__main__ import main; main()"
    # Else typer would look which shell has started it, and that need not be one of a person's.
    said = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    environment = {**os.environ, "HOME": str(place), "COLUMNS": "80", **said}

    def fecam(*arguments, **variables):
        done = subprocess.run(
            [sys.executable, "-c", run, "fecam", *arguments],
            capture_output=True, text=True, check=False, env=environment | variables, cwd=place,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    fecam("--install-completion", "bash")
    assert "fecam" in (place / ".bashrc").read_text()
    asked = {"_FECAM_COMPLETE": "complete_bash", "COMP_WORDS": "fecam e", "COMP_CWORD": "1"}
    assert {"evaluate", "export", "encoders"} <= set(fecam(**asked).split())
    asked |= {"COMP_WORDS": "fecam classes --sort c", "COMP_CWORD": "3"}
    assert set(fecam(**asked).split()) == {"count", "changed"}
    asked |= {"COMP_WORDS": "fecam features gly", "COMP_CWORD": "2"}
    assert fecam(**asked).split() == ["glyphs"]


def test_completion_of_labels_encoders_presets_and_data_sets(model, place, monkeypatch):
    def typed(path):
        return type("Context", (), {"params": {"model": path}})

    assert completion.labels(typed(model), "") == ["ant", "bee", "cow"]
    assert completion.labels(typed(model), "b") == ["bee"]
    monkeypatch.setenv("FECAM_MODEL", model)
    assert completion.labels(typed(None), "c") == ["cow"]
    assert completion.labels(typed("no.fecam"), "") == []
    (place / "bad.fecam").write_bytes(b"SQLite format 3\0" + bytes(200))
    assert completion.labels(typed("bad.fecam"), "") == []
    X, y = relu_features(2, 3, 12, 0)
    package.FeCAMClassifier().fit(X, np.array(["a\nb", "ab"])[y]).save("odd.fecam")
    assert completion.labels(typed("odd.fecam"), "a") == ["ab"]
    assert "onnx:" in completion.encoders("o") and "minilm" in completion.encoders("mi")
    assert completion.presets("few") == ["few-shot"]
    assert "digits" in completion.datasets("dig")


def test_help_is_fast():
    code = (
        "import sys; from fecam.cli import app; "
        "print([m for m in ('torch', 'sklearn', 'matplotlib', 'safetensors') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
