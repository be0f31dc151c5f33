"""Few-shot experiments: learners that train once, draws, networks, lists in files."""

from __future__ import annotations

import numpy as np
import pytest

from fecam.bench import runner, spec
from fecam.bench.preparation import load_data
from fecam.data import load
from fecam.errors import SpecError
from fecam.report import read_run
from fecam.report.tables import crossed_tables

SIGNS = """
seeds = [3]

[dataset]
name = "glyphs"
per_class = 12
test_share = 0.34
size = 16

[scenario]
kind = "few-shot"
base = 2
ways = 2
shots = 3
order = [5, 9, 2, 30, 40, 7]

[first_task]
network = "resnet20"
width = 2
epochs = 1
size = 16
plan = { batch_size = 8 }

[[heads]]
name = "teen"

[[learners]]
name = "d-cosine"

[[learners]]
name = "d-cosine"
label = "with a head"
head = "teen"
"""


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    monkeypatch.setenv("FECAM_CACHE", str(tmp_path / "cache"))

    def make(text=SIGNS, **changes):
        file = tmp_path / "few.toml"
        file.write_text(text, "utf-8")
        return spec.load(file, {key.replace("__", "."): value for key, value in changes.items()})

    return make


def test_a_learner_trains_in_the_first_task_and_resumes_after_any(experiment, tmp_path):
    one = experiment()
    whole = list(runner.run(one, tmp_path / "run", device="cpu", workers=1))
    trained = {(r.get("head"), r.get("task")) for r in whole if r["kind"] == "training"}
    assert trained == {(None, None), ("d-cosine", 0), ("with a head", 0)}
    for label in ("teen", "d-cosine", "with a head"):
        tasks = [r for r in whole if r["kind"] == "task" and r["head"] == label]
        assert [len(r["parts"]) for r in tasks] == [1, 2, 3]
        assert [r["train_rows"] for r in tasks[1:]] == [6, 6]
    records = tmp_path / "run/records.jsonl"
    lines = records.read_text("utf-8").splitlines(keepends=True)
    records.write_text("".join(lines[:-1]), "utf-8")
    list(runner.run(one, tmp_path / "run", device="cpu", workers=1))
    assert len(records.read_text("utf-8").splitlines()) == len(lines)


def test_the_network_is_not_written_if_it_is_the_former_one(experiment):
    assert experiment().as_dict()["first_task"]["network"] == "resnet20"
    assert "network" not in experiment(first_task__network="resnet18").as_dict()["first_task"]
    with pytest.raises(SpecError, match=r"first_task\.network='vgg' must be one of"):
        experiment(first_task__network="vgg")


def test_published_lists_become_rows_of_the_data(experiment, tmp_path):
    from fecam.bench.preparation import _with_rows

    data = load("glyphs", per_class=12, test_share=0.34, size=16)
    rows = {c: np.flatnonzero(data.labels[data.train] == c)[:3] for c in (2, 30, 40, 7)}
    for session, classes in ((2, (2, 30)), (3, (40, 7))):
        text = "\n".join(str(row) for c in classes for row in rows[c])
        (tmp_path / f"session_{session}.txt").write_text(text, "utf-8")
    one = experiment(scenario__given=str(tmp_path))
    load_data(one, None, False, lambda now: None)
    given = _with_rows(one, data).scenario.options["given"]
    assert given == {str(c): data.train[own].tolist() for c, own in rows.items()}


NETWORKS = (
    SIGNS.replace("seeds = [3]", "seeds = [3, 4]")
    .replace("plan = {", "plan = { seed = 3,")
    .replace('network = "resnet20"', 'network = "resnet18"')
    .replace("shots = 3", 'shots = 3\ndraw = "seed"\nbase_samples = 6')
    .split("[[learners]]", maxsplit=1)[0]
    + """
[[heads]]
name = "ncm"
metric = "cosine"

[[heads]]
name = "ncm"
label = "own"
metric = "cosine"
network = "plain"

[[networks]]
name = "ft"
label = "plain"

[[networks]]
name = "closer"
views = 2

[[learners]]
name = "closer"
views = 2
"""
)


def test_every_head_is_run_on_every_network(experiment, tmp_path):
    one = experiment(NETWORKS)
    labels = ["own", "plain, teen", "plain, ncm", "closer, teen", "closer, ncm"]
    assert [head.label for head in one.heads] == labels
    assert spec.load(_written(one, tmp_path)).as_dict() == one.as_dict()
    records = list(runner.run(one, tmp_path / "run", device="cpu", workers=1))
    tasks = {(r["head"], r["seed"], r["task"]): r for r in records if r["kind"] == "task"}
    assert len(tasks) == 6 * 2 * 3
    trained = [r["network"] for r in records if r["kind"] == "training" and "network" in r]
    assert trained == ["plain", "closer"]  # once: draws share a network
    assert all(r["train_rows"] == 12 for r in records if r["kind"] == "task" and not r["task"])
    for seed, task in ((seed, task) for seed in (3, 4) for task in range(3)):
        assert tasks["own", seed, task]["accuracy"] == tasks["plain, ncm", seed, task]["accuracy"]
        # The rule of CLOSER is a cosine to means, as that of this head.
        assert tasks["closer", seed, task]["parts"] == tasks["closer, ncm", seed, task]["parts"]
    tables = crossed_tables(read_run(tmp_path / "run"))
    assert [table.header for table in tables] == [("network", "own", "teen", "ncm")] * 5
    assert [row[0].text for row in tables[0].rows] == ["plain", "closer"]
    assert tables[0].rows[1][1].text == "\N{EN DASH}"
    last = np.mean([tasks["closer, teen", seed, 2]["accuracy"] for seed in (3, 4)])
    assert tables[1].caption == "last, in percent"
    assert tables[1].rows[1][2].text.startswith(f"{100 * last:.1f}")


def test_a_resumed_run_trains_no_network_again(experiment, tmp_path):
    one = experiment(NETWORKS).select_heads(["closer, ncm"])
    assert [network.label for network in one.networks] == ["closer"]
    whole = list(runner.run(one, tmp_path / "run", device="cpu", workers=1))
    records = tmp_path / "run/records.jsonl"
    lines = records.read_text("utf-8").splitlines(keepends=True)
    records.write_text("".join(lines[:-1]), "utf-8")
    again = list(runner.run(one, tmp_path / "run", device="cpu", workers=1))
    assert [r["accuracy"] for r in again if r["kind"] == "task"][:3] == [
        r["accuracy"] for r in whole if r["kind"] == "task"
    ][:3]
    assert len(again) == len(whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[first_task]", "[unused]"), "there is no key 'unused'|unused"),
        (('label = "plain"\n', 'label = "plain"\nhead = "ncm"\n'), "has a head or later_tasks"),
        (('label = "plain"\n', 'label = "closer"\n'), "two networks have the label 'closer'"),
        (('network = "plain"', 'network = "plane"'), "'plain'"),
        (('name = "teen"', 'name = "teen"\nfirst_task = "network"'), "have no classifier here"),
    ],
)
def test_networks_that_cannot_be_run(experiment, change, message):
    with pytest.raises(SpecError, match=message):
        experiment(NETWORKS.replace(*change))


def _written(one, tmp_path):
    file = tmp_path / "few.toml"
    file.write_text(one.as_toml(), "utf-8")
    return file
