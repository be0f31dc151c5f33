"""The runner: its records are those of a plain loop, and a kill costs nothing but time."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fecam import FeCAMClassifier, encoders, heads
from fecam.bench import loggers, preparation, runner, spec
from fecam.bench.results import COLUMNS, RunFolder, read_records
from fecam.data import load
from fecam.errors import MissingPackageError, RunError, SpecError
from fecam.report import read_run
from fecam.scenarios import build

TIMES = ("seconds_to_learn", "seconds_to_predict")
DIGITS = """
seeds = [1993]

[dataset]
name = "digits"
as_features = true

[scenario]
kind = "class-incremental"
base = 4
increment = 3

[[heads]]
name = "ncm"

[[heads]]
name = "fecam"
label = "paper"
preset = "paper"
"""
GLYPHS = """
[dataset]
name = "glyphs"
per_class = 3
test_share = 0.34
size = 16

[scenario]
kind = "class-incremental"
sizes = [3, 2]
order = [5, 9, 2, 30, 40]

[first_task]
width = 4
epochs = 1
size = 16
plan = {batch_size = 4}

[[heads]]
name = "ncm"

[[heads]]
name = "ncm"
label = "authors"
first_task = "network"
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FECAM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def experiment(tmp_path):
    """Writes an experiment to a file, and loads it."""

    def make(text=DIGITS, name="tiny", **changes):
        file = tmp_path / f"{name}.toml"
        file.write_text(text, "utf-8")
        return spec.load(file, {key.replace("__", "."): value for key, value in changes.items()})

    return make


def untimed(records):
    """Records by what they are of, without what no two runs share."""
    return {
        (one["kind"], one.get("head"), one["seed"], one.get("task")): {
            key: value for key, value in one.items() if key not in TIMES
        }
        for one in records
    }


# -- records ---------------------------------------------------------------------------------------


def test_the_records_are_those_of_a_plain_loop(experiment, tmp_path):
    records = list(runner.run(experiment(), tmp_path / "run"))
    data = load("digits", as_features=True)
    X, y = np.asarray(data.items), data.labels
    tasks = build(data, "class-incremental", seed=1993, base=4, increment=3)
    expected = []
    for label, head in (
        ("ncm", heads.make("ncm")),
        ("paper", FeCAMClassifier.from_preset("paper")),
    ):
        known = []
        for at, task in enumerate(tasks):
            head.partial_fit(X[task.train], y[task.train])
            known += task.classes
            rows = [row for row in data.test if y[row] in known]
            novel = [row for row in data.test if y[row] not in known]
            answers = dict(zip(rows, head.predict(X[rows]), strict=True))
            right = {row: answers[row] == y[row] for row in rows}
            parts = []
            for earlier in tasks[: at + 1]:
                of = [right[row] for row in rows if y[row] in earlier.classes]
                parts.append([earlier.name, len(of), pytest.approx(sum(of) / len(of))])
            one = {
                "kind": "task",
                "head": label,
                "seed": 1993,
                "task": at,
                "tasks": 3,
                "name": f"task {at + 1}",
                "classes": len(known),
                "train_rows": sum(y[row] in task.classes for row in data.train),
                "test_rows": len(rows),
                "accuracy": pytest.approx(sum(right.values()) / len(rows)),
                "parts": parts,
                "bytes": heads.state_nbytes(head),
                "calibration_error": None,
                "novelty_auroc": None,
                "options": {} if label == "ncm" else {"preset": "paper"},
            }
            if hasattr(head, "predict_proba"):
                p = head.predict_proba(X[rows])
                sure, hit = p.max(1), head.classes_[p.argmax(1)] == y[rows]
                gap = 0.0
                for low in np.arange(15) / 15:
                    inside = (sure > low) & (sure <= low + 1 / 15 + 1e-12)
                    if inside.any():
                        gap += inside.mean() * abs(hit[inside].mean() - sure[inside].mean())
                one["calibration_error"] = pytest.approx(gap, abs=1e-5)
            if hasattr(head, "novelty") and novel:
                truth = [0] * len(rows) + [1] * len(novel)
                one["novelty_auroc"] = pytest.approx(
                    roc_auc_score(truth, head.novelty(X[rows + novel])), abs=1e-4
                )
            expected.append(one)
    assert [{k: v for k, v in r.items() if k not in TIMES} for r in records] == expected
    assert all(record[name] > 0 for record in records for name in TIMES)
    assert expected[-1]["calibration_error"] is not None
    assert records[-2]["novelty_auroc"] is not None and records[-1]["novelty_auroc"] is None


def test_the_folder_holds_spec_metadata_and_records(experiment, tmp_path):
    tiny = experiment()
    records = list(runner.run(tiny, tmp_path / "run"))
    assert list(read_records(tmp_path / "run")) == records
    assert spec.load(tmp_path / "run" / "spec.toml", {"name": "tiny"}) == tiny
    about = json.loads((tmp_path / "run" / "about.json").read_text())
    data = load("digits", as_features=True)
    assert about["dataset"]["fingerprint"] == data.fingerprint
    assert about["features"]["fingerprints"] == {"1993": data.fingerprint}
    assert about["encoder"] is None and about["scenario"]["tasks"][0]["classes"] == 4
    assert len(about["class_orders"]["1993"]) == 10
    assert about["started"] <= about["finished"] and {"git", "machine", "packages"} <= set(about)
    with (tmp_path / "run" / "records.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(COLUMNS) and len(rows) == len(records)
    assert float(rows[-1]["accuracy"]) == records[-1]["accuracy"]
    assert not list(tmp_path.glob("run/*.part"))


def test_a_random_head_has_the_seed_of_the_run(experiment, tmp_path):
    few = experiment(heads=[{"name": "ranpac", "projections": 20}], seeds=[7], scenario__base=10)
    (record,) = runner.run(few, tmp_path / "run")
    data = load("digits", as_features=True)
    X, y = np.asarray(data.items), data.labels
    (task,) = build(data, "class-incremental", seed=7, base=10, increment=3)

    def accuracy(seed):
        head = heads.make("ranpac", projections=20, seed=seed).fit(X[task.train], y[task.train])
        return float(np.mean(head.predict(X[task.test]) == y[task.test]))

    assert record["accuracy"] == accuracy(7) != accuracy(8)


def test_parallel_seeds_give_the_same_records(experiment, tmp_path):
    two = experiment(seeds=[1, 2])
    alone = list(runner.run(two, tmp_path / "alone", workers=1))
    together = list(runner.run(two, tmp_path / "together", workers=2))
    assert len(together) == len(alone) == 12
    assert untimed(together) == untimed(alone)
    assert alone[0]["accuracy"] != alone[6]["accuracy"]  # another order of classes


def test_analyses_are_of_the_first_seed_and_report_progress(experiment, tmp_path):
    seen = []
    two = experiment(seeds=[3, 4], analyses=["singular-values"])
    records = list(runner.run(two, tmp_path / "run", workers=1, progress=seen.append))
    (found,) = [record for record in records if record["kind"] == "analysis"]
    assert found["seed"] == 3 and len(found["data"]["old"]) == 4 and len(found["data"]["new"]) == 6
    for values in found["data"]["old"] + found["data"]["new"]:
        assert values[0] == 1 and values == sorted(values, reverse=True)
    stages = [(one.stage, one.done, one.total) for one in seen]
    assert stages[:12] == [("tasks", done, 12) for done in range(1, 13)]
    assert stages[12:] == [("analyses", 0, 1), ("analyses", 1, 1)]


@pytest.fixture
def signed(tmp_path):
    """An experiment on features some of which are negative: 4 classes of 5 and 5."""
    rng = np.random.default_rng(0)
    rows = np.arange(40)
    np.savez(
        tmp_path / "signed.npz",
        X=rng.normal(size=(40, 3)).astype("f4"),
        y=rows % 4,
        is_test=rows % 8 < 4,
    )
    file = tmp_path / "signed.toml"
    file.write_text(f"""
        dataset = {{name = "{tmp_path}/signed.npz"}}
        scenario = {{kind = "class-incremental", base = 2, increment = 2}}
        heads = [{{name = "ncm"}}]""")
    return lambda **changes: spec.load(file, changes)


def test_signed_features_have_a_map_before_tukey_alone(signed, tmp_path):
    *_, found = runner.run(signed(analyses=["tsne"]), tmp_path / "run")
    assert set(found["data"]) == {"before", "labels", "is_new"}
    assert len(found["data"]["before"]) == 20 and sum(found["data"]["is_new"]) == 10
    assert read_run(tmp_path / "run").analysis("tsne") == [found["data"]]


def test_a_head_that_fails_is_named(signed, tmp_path):
    square = {"name": "fecam", "label": "square", "tukey": 0.5}
    running = runner.run(signed(heads=[{"name": "ncm"}, square]), tmp_path / "run")
    with pytest.raises(SpecError, match=r"'square' \(seed 1993\) cannot go on.*negative.*--head"):
        list(running)
    assert len(list(read_records(tmp_path / "run"))) == 2  # what was done before is kept


# -- going on --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [1, 3, 4, 5])
def test_an_interrupted_run_resumes(experiment, tmp_path, stop):
    tiny = experiment()
    whole = list(runner.run(tiny, tmp_path / "whole"))
    running = runner.run(tiny, tmp_path / "run")
    for _ in range(stop):
        next(running)
    running.close()
    with (tmp_path / "run" / "records.jsonl").open("a") as file:
        file.write('{"kind": "task", "head": "pap')  # torn by a kill
    assert len(list(read_records(tmp_path / "run"))) == stop
    (tmp_path / "run" / "about.json").write_text(
        (tmp_path / "run" / "about.json").read_text().replace('"started": "2', '"started": "1')
    )
    again = list(runner.run(tiny, tmp_path / "run"))
    assert untimed(again) == untimed(whole) and len(again) == len(whole)
    assert list(read_records(tmp_path / "run")) == again
    about = json.loads((tmp_path / "run" / "about.json").read_text())
    assert about["finished"]
    if stop >= 3:  # the first head had gone through: that is when the run began
        assert about["started"] < about["resumed"][0]["started"] and len(about["resumed"]) == 1


def test_a_finished_run_is_read_not_run(experiment, tmp_path, monkeypatch):
    tiny, folder = experiment(), tmp_path / "run"
    first = list(runner.run(tiny, folder))
    monkeypatch.setattr(runner, "evaluate_scenario", None)
    files = {path: path.read_bytes() for path in folder.iterdir()}
    assert list(runner.run(tiny, folder)) == first
    assert {path: path.read_bytes() for path in folder.iterdir()} == files


def test_a_kill_before_the_end_is_repaired(experiment, tmp_path):
    tiny, folder = experiment(), tmp_path / "run"
    first = list(runner.run(tiny, folder))
    (folder / "records.csv").unlink()
    about = json.loads((folder / "about.json").read_text())
    (folder / "about.json").write_text(json.dumps({**about, "finished": None}))
    assert list(runner.run(tiny, folder)) == first
    assert (folder / "records.csv").exists()
    assert json.loads((folder / "about.json").read_text())["finished"]


def test_restart_starts_over(experiment, tmp_path):
    tiny, folder = experiment(), tmp_path / "run"
    first = list(runner.run(tiny, folder))
    (folder / "notes.txt").write_text("mine")
    second = list(runner.run(tiny, folder, restart=True))
    assert untimed(second) == untimed(first) and second != first  # times are new
    assert (folder / "notes.txt").read_text() == "mine"
    assert "resumed" not in json.loads((folder / "about.json").read_text())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seeds": [5, 6]}, r"seeds is \[1993\] there and \[5, 6\] now"),
        ({"scenario.base": 1}, "scenario.base is 4 there and 1 now"),
        ({"heads": [{"name": "ncm"}]}, "heads.paper.name is 'fecam' there and not set now"),
    ],
)
def test_a_folder_of_another_experiment_is_unchanged(experiment, tmp_path, changes, says):
    folder = tmp_path / "run"
    list(runner.run(experiment(), folder))
    before = {path: path.read_bytes() for path in folder.iterdir()}
    other = spec.load(tmp_path / "tiny.toml", changes)
    with pytest.raises(SpecError, match=f"holds another experiment: .*{says}.*--output.*--restart"):
        list(runner.run(other, folder))
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_without_records_may_become_another_experiment(experiment, tmp_path):
    list(runner.run(experiment(), tmp_path / "run"))
    (tmp_path / "run" / "records.jsonl").unlink()
    assert len(list(runner.run(experiment(seeds=[5]), tmp_path / "run"))) == 6


def test_other_data_are_rejected(experiment, tmp_path):
    folder = tmp_path / "run"
    list(runner.run(experiment(), folder))
    about = json.loads((folder / "about.json").read_text())
    about["dataset"]["fingerprint"] = "0123456789abcdef"
    (folder / "about.json").write_text(json.dumps(about))
    with pytest.raises(SpecError, match=r"other data \(fingerprint 01234567 then.*--restart"):
        list(runner.run(experiment(), folder))


def test_other_features_are_rejected(experiment, tmp_path):
    folder = tmp_path / "run"
    running = runner.run(experiment(), folder)
    for _ in range(4):
        next(running)
    running.close()
    about = json.loads((folder / "about.json").read_text())
    about["features"]["fingerprints"]["1993"] = "0123456789abcdef"
    (folder / "about.json").write_text(json.dumps(about))
    with pytest.raises(SpecError, match=r"other features \(fingerprint 01234567 then"):
        list(runner.run(experiment(), folder))


def test_an_invalid_experiment_leaves_the_old_run_unchanged(experiment, tmp_path):
    folder = tmp_path / "run"
    first = list(runner.run(experiment(), folder))
    bad = experiment(scenario__base=11)
    with pytest.raises(ValueError, match="11"):
        list(runner.run(bad, folder, restart=True))
    assert list(read_records(folder)) == first


def test_a_damaged_line_is_named(experiment, tmp_path):
    folder = tmp_path / "run"
    list(runner.run(experiment(), folder))
    text = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    (folder / "records.jsonl").write_text("".join([text[0], "oops\n", *text[1:]]))
    with pytest.raises(RunError, match=r"records\.jsonl, line 2: not JSON"):
        list(runner.run(experiment(), folder))


def test_a_folder_belongs_to_one_process(experiment, tmp_path):
    tiny = experiment()
    running = runner.run(tiny, tmp_path / "run")
    next(running)
    with pytest.raises(SpecError, match=r"another process writes to .*run.*--output"):
        list(runner.run(tiny, tmp_path / "run"))
    assert len(list(running)) == 5
    with RunFolder(tmp_path / "run", tiny).locked():
        pass


# -- features and first tasks ----------------------------------------------------------------------


def test_features_are_extracted_once(experiment, tmp_path, monkeypatch):
    calls = []

    def lengths(images):
        calls.append(len(images))
        return np.stack([np.asarray(image, "f4").reshape(-1)[:64] for image in images])

    encoder = encoders.wrap(lengths, name="pixels", kind="images", fingerprint="pixels-1")
    probes = sum(calls)  # by which an encoder's width is found out
    monkeypatch.setattr(preparation.encoders, "load", lambda name, **options: encoder)
    text = DIGITS.replace("as_features = true", "as_features = false") + '[encoder]\nname = "any"\n'
    pixels = experiment(text, seeds=[1, 2])
    seen = []
    records = list(runner.run(pixels, tmp_path / "run", workers=1, progress=seen.append))
    assert len(records) == 12 and sum(calls) - probes == 1797
    assert ("features", 1797, 1797) in [(one.stage, one.done, one.total) for one in seen]
    about = json.loads((tmp_path / "run" / "about.json").read_text())
    assert about["encoder"] == {"name": "pixels", "fingerprint": "pixels-1"}
    assert about["features"]["width"] == 64 and set(about["class_orders"]) == {"1", "2"}
    list(runner.run(pixels, tmp_path / "other", workers=1))
    assert sum(calls) - probes == 1797


def test_a_first_task_is_trained_once(experiment, tmp_path):
    glyphs = experiment(GLYPHS)
    seen = []
    first = list(runner.run(glyphs, tmp_path / "one", progress=seen.append))
    assert {"training", "features", "tasks"} == {one.stage for one in seen}
    trained, *tasks = first
    assert (trained["kind"], trained["epoch"], trained["images"]) == ("training", 1, 6)
    assert trained["restored"] is False and len(tasks) == 4
    ours, authors = (untimed(tasks)["task", head, 1993, 0] for head in ("ncm", "authors"))
    assert authors["accuracy"] == trained["test_accuracy"]
    assert authors["parts"] == [["task 1", 3, trained["test_accuracy"]]]
    later = [untimed(tasks)["task", head, 1993, 1] for head in ("ncm", "authors")]
    assert later[0]["accuracy"] == later[1]["accuracy"] and ours["classes"] == 3
    assert "cache" not in (tmp_path / "one" / "about.json").read_text()

    def trainings(records):
        return [one["restored"] for one in records if one["kind"] == "training"]

    # The same again elsewhere, and another experiment that begins in the same way.
    same = list(runner.run(glyphs, tmp_path / "two"))
    other = experiment(GLYPHS, "other", heads=[{"name": "slda"}], scenario__sizes=[3, 1, 1])
    another = list(runner.run(other, tmp_path / "three"))
    assert trainings(same) == trainings(another) == [True]
    assert untimed(same[1:]) == untimed(tasks)
    assert len(list((tmp_path / "cache" / "first-tasks").glob("*/encoder.safetensors"))) == 1
    longer = experiment(GLYPHS, "longer", first_task__plan={"batch_size": 6})
    assert next(runner.run(longer, tmp_path / "four"))["restored"] is False


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"first_task.classes": "all"}, "'authors' leaves the first task.* all classes"),
        ({"first_task.plan": {"epoch": 3}}, "first_task.plan: .*'epoch'.*Did you mean 'epochs'"),
        ({"first_task.plan": {"momentum": 2}}, "first_task.plan: .*momentum=2"),
        ({"first_task": False, "heads": [{"name": "ncm"}]}, r"holds images. Say in \[encoder\]"),
    ],
)
def test_an_invalid_first_task_is_an_error(experiment, tmp_path, changes, says):
    text = GLYPHS
    if changes.get("first_task") is False:
        changes = {"heads": changes["heads"]}
        text = text[: text.index("[first_task]")] + text[text.index("[[heads]]") :]
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(SpecError, match=says):
        list(runner.run(spec.load(tmp_path / "bad.toml", changes), tmp_path / "run"))


# -- loggers ---------------------------------------------------------------------------------------


def test_tensorboard_holds_each_metric_once(experiment, tmp_path):
    pytest.importorskip("tensorboard", reason="a logger is an extra")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tiny, folder = experiment(), tmp_path / "run"
    for stop in (4, 99):  # a run that is stopped, and goes on in another process
        log = loggers.make("tensorboard")
        running = runner.run(tiny, folder)
        for _, record in zip(range(stop), running, strict=False):
            log(record, folder)
        running.close()
    places = sorted((folder / "tensorboard").iterdir())
    assert [place.name for place in places] == ["ncm-1993", "paper-1993"]
    expected = [one for one in read_records(folder) if one["head"] == "paper"]
    found = EventAccumulator(str(places[1])).Reload()
    assert set(loggers.LOGGED_METRICS) == set(found.Tags()["scalars"])
    for name in loggers.LOGGED_METRICS:
        logged = [(one.step, one.value) for one in found.Scalars(name)]
        wanted = [(one["task"], one[name]) for one in expected if one[name] is not None]
        assert logged == [(step, pytest.approx(value)) for step, value in wanted]


def test_unknown_and_missing_loggers_are_errors(monkeypatch):
    with pytest.raises(SpecError, match=r"no logger 'wandb'.*tensorboard, mlflow"):
        loggers.make("wandb")
    for name, module in (("mlflow", "mlflow.tracking"), ("tensorboard", "torch.utils.tensorboard")):
        monkeypatch.setitem(__import__("sys").modules, module, None)
        with pytest.raises(MissingPackageError, match=rf"(?i){name}.*pip install .*\[loggers\]"):
            loggers.make(name)
