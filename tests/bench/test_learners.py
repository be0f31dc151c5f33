"""Learners in experiments: records, one first task for all, resumption, what a file may say."""

from __future__ import annotations

import pickle
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from fecam.bench import preparation, runner, spec
from fecam.bench.results import read_records
from fecam.cli.app import app
from fecam.errors import FecamError, SpecError
from fecam.report import read_run, write_report
from fecam.report.tables import other_predictors_table
from helpers.small_models import write_vision

SIGNS = """
seeds = [3]

[dataset]
name = "glyphs"
per_class = 12
test_share = 0.34
size = 16

[scenario]
kind = "class-incremental"
sizes = [2, 2, 2]
order = [5, 9, 2, 30, 40, 7]

[first_task]
width = 2
epochs = 2
size = 16
plan = {batch_size = 8, classifier = "linear"}

[later_tasks]
epochs = 3
plan = {learning_rate = 0.02}
"""
HEADS = '\n[[heads]]\nname = "ncm"\n'
LEARNERS = """
[[learners]]
name = "ft"

[[learners]]
name = "lwf"
label = "LwF, FeCAM"
head = { name = "fecam", preset = "paper" }
weight = 5.0
batch_norm = "frozen"

[[learners]]
name = "joint"
later_tasks = { epochs = 1 }
weights = "warm"
"""
TIMES = ("seconds", "remaining", "seconds_to_learn", "seconds_to_predict", "restored")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FECAM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def experiment(tmp_path):
    def make(text=SIGNS + HEADS + LEARNERS, **changes):
        file = tmp_path / "tiny.toml"
        file.write_text(text, "utf-8")
        return spec.load(file, {key.replace("__", "."): value for key, value in changes.items()})

    return make


def run(experiment, folder, **options):
    return list(runner.run(experiment, folder, device="cpu", **options))


def untimed(records):
    return [{key: value for key, value in record.items() if key not in TIMES} for record in records]


def tasks_of(records, label):
    return [r for r in records if r["kind"] == "task" and r["head"] == label]


def test_learners_write_the_records_of_heads_and_more(experiment, tmp_path):
    stages = {}
    records = run(
        experiment(),
        tmp_path / "run",
        progress=lambda now: stages.setdefault(now.stage, []).append(now),
    )
    assert records == list(read_records(tmp_path / "run"))
    labels = ["ncm", "ft", "LwF, FeCAM", "joint"]
    assert [r["head"] for r in records if r["kind"] == "task"] == np.repeat(labels, 3).tolist()
    for label in labels[1:]:
        tasks = tasks_of(records, label)
        assert [record["classes"] for record in tasks] == [2, 4, 6]
        assert tasks[0].keys() >= tasks_of(records, "ncm")[0].keys()
        for record in tasks:
            kinds = record["bytes_by_kind"]
            assert record["bytes"] == sum(kinds.values()) - kinds["network"]
            assert record["parameters"] > 1000
            assert set(record["settings"]) >= {"outputs", "old_rows", "batch_norm", "recipe"}
        epochs = [r["epoch"] for r in records if r["kind"] == "training" and r.get("head") == label]
        later = 1 if label == "joint" else 3
        assert epochs == [1, 2, *[*range(1, later + 1)] * 2]
    lwf = tasks_of(records, "LwF, FeCAM")[-1]
    assert lwf["options"] == {"weight": 5.0, "batch_norm": "frozen"}
    assert lwf["settings"]["batch_norm"] == "frozen" and lwf["settings"]["old_rows"] == "included"
    assert lwf["settings"]["recipe"]["learning_rate"] == 0.02
    assert lwf["head_options"] == {"name": "fecam", "preset": "paper"}
    assert lwf["bytes_by_kind"].keys() >= {"old network", "statistics", "classifier"}
    assert lwf["novelty_auroc"] is None and tasks_of(records, "LwF, FeCAM")[0]["novelty_auroc"]
    assert 0 <= lwf["calibration_error"] <= 1
    assert tasks_of(records, "ft")[0]["calibration_error"] is None
    now = stages["ft, seed 3"][-1]
    assert now.done == now.total and now.note.startswith("task 3 of 3, epoch 3 of 3, loss ")
    result = read_run(tmp_path / "run")
    assert [row["head"] for row in result.summary] == labels
    page = write_report([tmp_path / "run"]).read_text("utf-8")
    assert "LwF, FeCAM" in page and "weights" in page


def test_records_have_the_accuracy_of_other_predictors(experiment, tmp_path):
    text = SIGNS + '[[learners]]\nname = "icarl"\nlabel = "iCaRL"\nexemplars = 6\n'
    records = run(experiment(text), tmp_path / "run")
    tasks = tasks_of(records, "iCaRL")
    assert [set(record["other_accuracy"]) for record in tasks] == [{"outputs"}] * 3
    table = other_predictors_table(read_run(tmp_path / "run"))
    expected = [f"{100 * record['other_accuracy']['outputs']:.1f}" for record in tasks]
    assert table.text_rows() == [["iCaRL: outputs", *expected]]
    assert "iCaRL: outputs" in write_report([tmp_path / "run"]).read_text("utf-8")


def test_learners_that_train_alike_share_later_tasks(experiment, tmp_path):
    rows = "".join(
        f'\n[[learners]]\nname = "{name}"\nlabel = "{label}"\nweight = {weight}\n'
        for name, label, weight in (
            ("lwf", "LwF", 10.0), ("ldc", "LDC", 10.0), ("ldc", "weaker", 2.0),
        )
    )  # fmt: skip
    records = run(experiment(SIGNS + rows), tmp_path / "run")
    restored = {
        label: [r["restored"] for r in records
                if r["kind"] == "training" and r.get("head") == label and r["task"]]
        for label in ("LwF", "LDC", "weaker")
    }  # fmt: skip
    assert not any(restored["LwF"]) and all(restored["LDC"]) and not any(restored["weaker"])
    assert [r["classes"] for r in tasks_of(records, "LDC")] == [2, 4, 6]


def test_the_first_task_is_trained_once_for_heads_and_learners(experiment, tmp_path, monkeypatch):
    from fecam.training import loop

    trained = []
    epoch = loop._Run.epoch

    def counted(self, number, progress):
        trained.append((self.hooks.loss is not None, len(self.classes), number))
        return epoch(self, number, progress)

    monkeypatch.setattr(loop._Run, "epoch", counted)
    more = '\n[[learners]]\nname = "lwf-mc"\n\n[[learners]]\nname = "lwf-mc"\nlabel = "again"\n'
    records = run(
        experiment(SIGNS + HEADS + LEARNERS + more, scenario__sizes=[2, 4]), tmp_path / "run"
    )
    first = [(own_loss, number) for own_loss, classes, number in trained if classes == 2]
    assert first == [(False, 0), (False, 1), (True, 0), (True, 1)]
    # So the classifier of the network is that of fine-tuning, and the features are those of it.
    network = next(r for r in records if r["kind"] == "training" and r["epoch"] == 2)
    assert tasks_of(records, "ft")[0]["accuracy"] == pytest.approx(network["test_accuracy"])


def test_a_run_without_heads(experiment, tmp_path):
    only = experiment(SIGNS + LEARNERS).select_heads(["ft"])
    assert only.heads == () and spec.load(written(tmp_path, only.as_toml())) == only
    assert [r["task"] for r in run(only, tmp_path / "run") if r["kind"] == "task"] == [0, 1, 2]


def test_jobs_that_run_elsewhere_give_the_same_records(experiment, tmp_path):
    two = experiment(SIGNS + LEARNERS, seeds=[3, 4]).select_heads(["LwF, FeCAM"])

    def elsewhere(jobs):
        for prepared, method in pickle.loads(pickle.dumps(jobs)):
            yield from runner.run_job(prepared, method)

    here = run(two, tmp_path / "here")
    there = run(two, tmp_path / "there", executor=elsewhere)
    assert untimed(here) == untimed(there)


KILLED = """
import sys, time
from fecam.bench import runner, spec
def slowly(now):
    print(now.note, flush=True)
    time.sleep(0.02 if now.note.startswith("task 3") else 0)
chosen = spec.load({file!r}).select_heads(["ft", "LwF, FeCAM"])
for record in runner.run(chosen, {folder!r}, device="cpu", progress=slowly):
    pass
"""


def test_a_run_that_is_killed_in_a_later_task_resumes_to_the_same_records(experiment, tmp_path):
    two = experiment().select_heads(["ft", "LwF, FeCAM"])
    whole = run(two, tmp_path / "whole")
    script = KILLED.format(file=str(tmp_path / "tiny.toml"), folder=str(tmp_path / "run"))
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    with process:
        for line in process.stdout:
            if line.startswith("task 3 of 3, epoch 3 of 3"):
                process.send_signal(signal.SIGKILL)
                break
        assert process.wait() == -signal.SIGKILL
    notes = []
    resumed = run(two, tmp_path / "run", progress=lambda now: notes.append(now.note))
    trained = [note for note in notes if note]
    assert trained[0].startswith("task 3 of 3, epoch 3 of 3"), "finished epochs are not repeated"

    def by_key(records):
        return {
            (r["kind"], r.get("head"), r.get("task"), r.get("epoch")): untimed([r]) for r in records
        }

    assert by_key(resumed) == by_key(whole) and len(resumed) == len(whole)
    states = [
        path
        for path in (tmp_path / "run/learners").rglob("*.safetensors")
        if path.parent.parent.name != "shared"  # checkpoints for learners that train alike
    ]
    assert {path.name for path in states} == {"state.safetensors"} and len(states) == 2


def test_a_restart_trains_again(experiment, tmp_path):
    only = experiment().select_heads(["ft"])
    run(only, tmp_path / "run")
    assert (tmp_path / "run/learners").is_dir()
    states = []
    for _ in runner.run(only, tmp_path / "run", restart=True, device="cpu"):
        states.append((tmp_path / "run/learners/ft-3/state.safetensors").exists())
    assert not states[0] and states[-1]


def test_a_loss_that_is_not_finite_leaves_the_other_records(experiment, tmp_path):
    bad = experiment(SIGNS + HEADS + LEARNERS, later_tasks__plan={"learning_rate": 1e18})
    with pytest.raises(SpecError, match=r"the learner 'ft' \(seed 3\) .*Lower the learning rate"):
        run(bad, tmp_path / "run")
    kept = [r for r in read_records(tmp_path / "run") if r["kind"] == "task"]
    assert [r["head"] for r in kept] == ["ncm"] * 3 + ["ft"]
    good = bad.select_heads(["ncm"])
    with pytest.raises(SpecError, match="holds another experiment"):
        run(good, tmp_path / "run")


STOPS = {
    "pass, one image per class": (
        'name = "pass"\nrotations = false',
        "sizes = [2, 2, 2]\nsamples_per_class = 1",
        "its variance needs at least two. Add images, or choose a learner that keeps means only",
    ),
    "il2a, pairs of one class": (
        'name = "il2a"',
        "sizes = [2, 1, 3]",
        "no pairs of classes.*mixtu",
    ),
    "muc, one class": ('name = "muc"', "sizes = [2, 1, 3]", "Use tasks of at least two classes"),
    "sdc, one class": ('name = "sdc"', "sizes = [2, 1, 3]", "Use tasks of at least two classes"),
    "muc on its own images": (
        'name = "muc"\nunlabelled = "glyphs"',
        "sizes = [2, 2, 2]",
        "is the data set of the tasks. Name another one, such as 'digits'",
    ),
    "a loss that is not finite": (
        'name = "lwf"\nlater_tasks = { plan = { learning_rate = 1e18 } }',
        "sizes = [2, 2, 2]",
        "Lower the learning rate",
    ),
}


@pytest.mark.parametrize("case", STOPS)
def test_a_learner_that_cannot_go_on_leaves_a_folder_that_resumes(case, experiment, tmp_path):
    learner, sizes, message = STOPS[case]
    text = SIGNS.replace("sizes = [2, 2, 2]", sizes) + f"\n[[learners]]\n{learner}\n"
    bad = experiment(text + HEADS)
    for _ in range(2):  # the same command says the same, and trains nothing twice
        with pytest.raises(SpecError, match=message) as error:
            run(bad, tmp_path / "run")
        assert "The records are kept" in str(error.value)
        records = list(read_records(tmp_path / "run"))
        assert len({runner._epoch(r) for r in records if r["kind"] == "training"}) == len(
            [r for r in records if r["kind"] == "training"]
        )
        assert [r["task"] for r in tasks_of(records, "ncm")] == [0, 1, 2]


def test_a_state_of_other_settings_is_an_error_that_names_the_file(experiment, tmp_path):
    cut = iter(runner.run(experiment(), tmp_path / "run", device="cpu"))
    next(record for record in cut if record.get("head") == "ft" and record.get("task") == 1)
    cut.close()
    state, other = tmp_path / "run/learners/ft-3/state.safetensors", tmp_path / "other"
    (other / "learners/ft-3").mkdir(parents=True)
    shutil.copy(state, other / "learners/ft-3")
    changed = experiment(SIGNS + LEARNERS.replace('name = "ft"', 'name = "ft"\noutputs = "all"'))
    with pytest.raises(SpecError, match=r"another learner.*outputs .new in.*delete the file"):
        run(changed.select_heads(["ft"]), other)
    (other / "learners/ft-3/state.safetensors").unlink()
    assert len(tasks_of(run(changed.select_heads(["ft"]), other), "ft")) == 3


def test_learners_are_handed_the_images_of_one_task(experiment, tmp_path, monkeypatch):
    from fecam.learners.learner import Learner

    data = preparation.load_data(experiment(), None, False, lambda now: None)
    handed = []
    learn = Learner.learn

    def watched(self, task, **options):
        handed.append(sorted(set(task.labels.tolist())))
        assert not task.is_test.any()
        yield from learn(self, task, **options)

    monkeypatch.setattr(Learner, "learn", watched)
    run(experiment().select_heads(["ft"]), tmp_path / "run")
    assert handed == [[5, 9], [2, 30], [7, 40]] and len(data.label_names) > 40


# -- a pretrained transformer ----------------------------------------------------------------------

TRANSFORMER = """
[encoder]
name = "hf:{folder}"

[first_task]
epochs = 2
plan = {{batch_size = 8, learning_rate = 0.01, classifier = "linear"}}

[[learners]]
name = "ft"

[[learners]]
name = "l2p"
pool = 4
length = 2
top = 2

[[learners]]
name = "l2p"
label = "l2p, recipe"
optimizer = "recipe"
head = "ncm"
"""


@pytest.fixture
def transformer(tmp_path):
    write_vision(tmp_path / "vit", "vit")
    data = SIGNS.partition("[first_task]")[0]
    return data + HEADS + TRANSFORMER.format(folder=tmp_path / "vit")


def test_learners_start_from_the_network_of_an_encoder(transformer, tmp_path):
    file, folder = written(tmp_path, transformer), tmp_path / "runs/mine"
    command = ["bench", str(file), "--output", str(folder.parent), "--device", "cpu"]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    records = list(read_records(folder))
    labels = ["ncm", "ft", "l2p", "l2p, recipe"]
    assert [r["head"] for r in records if r["kind"] == "task"] == np.repeat(labels, 3).tolist()
    l2p = tasks_of(records, "l2p")[-1]["settings"]["recipe"]
    assert (l2p["optimizer"], l2p["clip"], l2p["weight_decay"]) == ("adam", 1.0, 0.0)
    assert l2p["learning_rate"] == pytest.approx(0.03 * 8 / 128)
    assert "optimizer" not in tasks_of(records, "l2p, recipe")[-1]["settings"]["recipe"]
    # Of the same weights: the head and the learners start from one network.
    frozen, tuned = (tasks_of(records, label)[0]["bytes_by_kind"] for label in ("l2p", "ft"))
    assert frozen["network"] > tuned["network"], "the prompts come on top"


def test_a_run_on_a_transformer_resumes(transformer, tmp_path):
    file = written(tmp_path, transformer)
    whole = run(spec.load(file), tmp_path / "whole")
    cut = iter(runner.run(spec.load(file), tmp_path / "run", device="cpu"))
    for record in cut:
        if record["kind"] == "training" and record["head"] == "l2p" and record["task"] == 1:
            break
    cut.close()
    trained = []
    resumed = run(
        spec.load(file),
        tmp_path / "run",
        progress=lambda now: trained.append(now.note) if now.stage.startswith("l2p, s") else None,
    )
    assert trained[0].startswith("task 2 of 3, epoch 2 of 2"), "finished epochs are not repeated"

    def by_key(records):
        return {
            (r["kind"], r.get("head"), r.get("task"), r.get("epoch")): untimed([r]) for r in records
        }

    assert by_key(resumed) == by_key(whole) and len(resumed) == len(whole)


def test_an_experiment_on_a_transformer_round_trips(transformer, tmp_path):
    one = spec.load(written(tmp_path, transformer))
    assert spec.load(written(tmp_path, one.as_toml())) == one
    heads_only = one.select_heads(["ncm"])
    assert spec.load(written(tmp_path, heads_only.as_toml())) == heads_only


def test_learners_that_do_not_fit_are_found_before_anything_is_trained(
    transformer, experiment, tmp_path
):
    cases = {
        "l2p on a ResNet": (
            SIGNS + HEADS + '\n[[learners]]\nname = "l2p"\n',
            "not a vision transf",
        ),
        "ssre on a ViT": (transformer + '\n[[learners]]\nname = "ssre"\n', "3 x 3 convolution"),
        "another encoder": (
            transformer.replace(f"hf:{tmp_path / 'vit'}", "efficientnet-lite0"),
            "learners start from a vision transformer or a ResNet-18",
        ),
        "a memory that the last task will not fit": (
            SIGNS + HEADS + '\n[[learners]]\nname = "replay"\nexemplars = 5\n',
            "the learner 'replay': exemplars=5 in total is less than one for each of the 6",
        ),
    }
    for text, message in cases.values():
        with pytest.raises(FecamError, match=message):
            run(experiment(text), tmp_path / "run")
        assert not (tmp_path / "cache/first-tasks").exists()


# -- what a file may say ---------------------------------------------------------------------------


def written(folder, text, name="mine.toml"):
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def test_tables_of_learners_round_trip(experiment, tmp_path):
    one = experiment()
    assert [learner.label for learner in one.learners] == ["ft", "LwF, FeCAM", "joint"]
    assert one.later_tasks.epochs == 3 and one.learners[2].later_tasks.epochs == 1
    again = spec.load(written(tmp_path, one.as_toml()))
    assert again == one and again.as_toml() == one.as_toml()
    crossed = experiment(SIGNS + '\n[[learners]]\nname = "ft"\nhead = "ncm"\n')
    assert crossed.learners[0].label == "ft, ncm"
    added = SIGNS + LEARNERS + '\n[[extra_learners]]\nname = "ewc"\n'
    assert [learner.name for learner in experiment(added).learners][-1] == "ewc"


ONE = '\n[[learners]]\nname = "ft"\n'
BAD = {
    "unknown learner": (SIGNS + ONE.replace("ft", "ftt"), "Did you mean 'ft'"),
    "unknown option": (SIGNS + ONE + "batchnorm = 1\n", "Did you mean 'batch_norm'"),
    "unknown value": (SIGNS + ONE + 'outputs = "old"\n', "outputs='old' must be one of"),
    "no name": (SIGNS + "\n[[learners]]\nweight = 1\n", "a learner needs a name"),
    "head": (SIGNS + ONE + 'head = "nmc"\n', "Did you mean 'ncm'"),
    "no head": (SIGNS + ONE + "head = 3\n", 'as head = "fecam"'),
    "option of a head": (SIGNS + ONE + 'head = {name = "ncm", metrics = 1}\n', "'metric'"),
    "two alike": (SIGNS + HEADS + ONE + 'label = "ncm"\n', "the label 'ncm'"),
    "no list": (SIGNS + ONE.replace("[[learners]]", "[learners]"), r"write \[\[learners\]\]"),
    "no network": (SIGNS.replace("[first_task]", "[dataset.x]") + ONE, r"as \[first_task\] says"),
    "joint network": (SIGNS.replace("width", 'classes = "all"\nwidth') + ONE, "learner 'joint'"),
    "blurry": (SIGNS.replace("sizes =", "blurry = 0.1\nsizes =") + ONE, "told each class once"),
    "later": (SIGNS.replace("epochs = 3", "epoch = 3") + ONE, "Did you mean 'epochs'"),
    "later epochs": (SIGNS.replace("epochs = 3", "epochs = 0") + ONE, "later_tasks.epochs=0"),
    "later of one": (SIGNS + ONE + "later_tasks = 3\n", r"write \[later_tasks of a learner\]"),
    "encoder and width": (
        SIGNS + ONE + '[encoder]\nname = "hf:vit"\n', "first_task beside an encoder has no key"
    ),
    "neither": (SIGNS, "'heads' is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_an_error_names_the_key_and_a_remedy(case, tmp_path):
    text, message = BAD[case]
    with pytest.raises(SpecError, match=message):
        spec.load(written(tmp_path, text))


def test_plans_are_checked_before_anything_is_trained(experiment, tmp_path):
    for change, message in (
        ({"later_tasks__plan": {"momentun": 1}}, "later_tasks.plan: .*Did you mean 'momentum'"),
        ({"first_task__plan": {"learning_rate": -1}}, "first_task.plan: learning_rate=-1"),
    ):
        with pytest.raises(SpecError, match=message):
            run(experiment(**change), tmp_path / "run")
        assert not (tmp_path / "cache/first-tasks").exists()


def test_the_figures_of_the_paper_may_change_when_a_run_resumes(experiment, tmp_path):
    few = SIGNS + HEADS
    run(experiment(few), tmp_path / "run")
    figures = experiment('title = "other"\n' + few + "[paper.figures]\nncm = { last = 20.0 }\n")
    assert [r["kind"] for r in run(figures, tmp_path / "run")].count("task") == 3
    result = read_run(tmp_path / "run")
    assert result.paper == {"ncm": {"last": 20.0}} and result.title == "other"
    with pytest.raises(SpecError, match="holds another experiment"):
        run(experiment(few.replace("epochs = 2", "epochs = 1")), tmp_path / "run")
