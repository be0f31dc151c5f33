"""Few-shot experiments: learners that train once, draws, networks, lists in files."""

from __future__ import annotations

import numpy as np
import pytest

from fecam.bench import runner, spec
from fecam.bench.preparation import load_data
from fecam.data import load
from fecam.errors import SpecError

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
    whole = list(runner.run(one, tmp_path / "run", device="cpu"))
    trained = {(r.get("head"), r.get("task")) for r in whole if r["kind"] == "training"}
    assert trained == {(None, None), ("d-cosine", 0), ("with a head", 0)}
    for label in ("teen", "d-cosine", "with a head"):
        tasks = [r for r in whole if r["kind"] == "task" and r["head"] == label]
        assert [len(r["parts"]) for r in tasks] == [1, 2, 3]
        assert [r["train_rows"] for r in tasks[1:]] == [6, 6]
    records = tmp_path / "run/records.jsonl"
    lines = records.read_text("utf-8").splitlines(keepends=True)
    records.write_text("".join(lines[:-1]), "utf-8")
    list(runner.run(one, tmp_path / "run", device="cpu"))
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
