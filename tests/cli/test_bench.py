"""`fecam bench`, `fecam report` and `fecam heads` as people and programs use them."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest

from fecam.bench import runner, spec
from fecam.bench.results import read_records
from fecam.errors import install_command

DIGITS = """
title = "Digits"
seeds = [1, 2]

[dataset]
name = "digits"
as_features = true

[scenario]
kind = "class-incremental"
base = 2
increment = 2

[[heads]]
name = "ncm"

[[heads]]
name = "fecam"

[[heads]]
name = "fecam"
label = "paper"
preset = "paper"
"""
RECORDS = 2 * 3 * 5


@pytest.fixture
def place(place):
    """A folder to work in, with the experiment many.toml."""
    (place / "many.toml").write_text(DIGITS)
    return place


@pytest.fixture
def process(place, default_sigint):
    """The program as a process of its own, in a session of its own."""
    started = []

    def start(*arguments, before=""):
        code = f"{before}\nfrom fecam.cli.app import main; main()"
        command = ["-m", "fecam"] if not before else ["-c", code]
        one = subprocess.Popen(
            [sys.executable, *command, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        started.append(one)
        return one

    yield start
    for one in started:
        one.kill()
        one.communicate()


def accuracies(records):
    return {(r["head"], r["seed"], r["task"]): r["accuracy"] for r in records}


QUICK = ("--head", "ncm", "--seeds", "1")


# -- stopping --------------------------------------------------------------------------------------


def test_kills_cost_nothing_but_time(place, process):
    many = spec.load(place / "many.toml")
    whole = accuracies(runner.run(many, place / "whole", workers=1))
    rng = random.Random(0)
    done = 0
    for workers in ("1", "1", "2"):
        running = process("bench", "many.toml", "--json", "--workers", workers)
        for _ in range(done + rng.randint(1, 9)):
            running.stdout.readline()
        time.sleep(rng.uniform(0, 0.05))
        os.kill(running.pid, signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
        running.stdout.read()  # ends when the last of the workers has gone
        kept = list(read_records(place / "runs" / "many"))
        assert accuracies(kept).items() <= whole.items()
        done = len(kept) // 5 * 5
    records = list(runner.run(many, place / "runs" / "many", workers=1))
    assert len(records) == RECORDS and accuracies(records) == whole
    assert list(read_records(place / "runs" / "many")) == records


def test_control_c_leaves_a_run_that_resumes(place, process):
    running = process("bench", "many.toml", "--json", "--workers", "2")
    for _ in range(5):
        running.stdout.readline()
    os.kill(running.pid, signal.SIGINT)  # workers pay no attention to it once they work
    _, said = running.communicate(timeout=300)
    assert running.returncode == 130 and "Traceback" not in said and "Warning" not in said
    assert "stopped; the records are in runs/many. Run the same command to resume" in said
    many = spec.load(place / "many.toml")
    kept = len(list(read_records(place / "runs" / "many")))
    assert 5 <= kept < RECORDS
    assert len(list(runner.run(many, place / "runs" / "many", workers=1))) == RECORDS


# -- running ---------------------------------------------------------------------------------------


def test_json_is_one_record_per_line(fecam, place):
    printed = fecam("bench", "many.toml", *QUICK, "--json")
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert lines == list(read_records(place / "runs" / "many")) and len(lines) == 5
    assert "tasks" in printed.err and "runs/many/report.html" in printed.err
    assert (place / "runs" / "many" / "report.html").stat().st_size > 1000
    # The second time it only reads; --restart takes as long as the first.
    assert fecam("bench", "many.toml", *QUICK, "--json").out == printed.out
    assert "--yes" in fecam("bench", "many.toml", *QUICK, "--restart", code=1).err
    assert lines == list(read_records(place / "runs" / "many"))
    again = fecam("bench", "many.toml", *QUICK, "--json", "--restart", "--yes").out
    assert again != printed.out and len(again.splitlines()) == 5


def test_a_run_ends_with_its_table_and_reports_compare(fecam, place):
    printed = fecam("bench", "many.toml", *QUICK, "--output", "a")
    assert "Digits" in printed.out and "average %" in printed.out and "ncm" in printed.out
    said = fecam("bench", "many.toml", "--head", "paper", "--seeds", "1", "-O", "b")
    assert "b/many/report.html" in said.err
    (place / "a" / "many" / "report.html").unlink()
    assert "a/many/report.html" in fecam("report", "a/many").err
    both = fecam("report", "a/many", "b/many", "--output", "both.html")
    assert both.out.count("average %") == 2 and "both.html" in both.err
    text = (place / "both.html").read_text()
    assert "ncm" in text and "paper" in text
    (summary,) = json.loads(fecam("report", "a/many", "--json").out).values()
    assert summary[0]["head"] == "ncm" and 0.5 < summary[0]["last"]["mean"] < 1


def test_experiments_and_heads_are_listed_and_shown(fecam, place):
    assert "digits" in fecam("bench", "--list").out
    listed = json.loads(fecam("bench", "--list", "--json").out)
    assert {"digits", "cifar100-t5"} <= {one["name"] for one in listed}
    shown = fecam("bench", "many.toml", "--show", "--set", "scenario.base=4", *QUICK).out
    (place / "shown.toml").write_text(shown)
    changed = spec.load("shown.toml")
    assert changed.scenario.options["base"] == 4 and changed.seeds == (1,)
    assert [head.label for head in changed.heads] == ["ncm"] and not (place / "runs").exists()
    (told,) = json.loads(fecam("bench", "many.toml", "--show", "--json").out)
    assert told["seeds"] == [1, 2]
    assert "nearest class mean" in fecam("heads").out
    assert "the Fisher information" in fecam("learners").out
    listed = json.loads(fecam("learners", "--json").out)
    assert "Kirkpatrick et al. 2017" in [one["source"].split(";")[0] for one in listed]
    assert {one["name"] for one in listed} >= {"ft", "ft-frozen", "joint", "ewc", "lwf", "lwf-mc"}
    assert all(one["keeps"] and one["verified"] for one in listed)
    named = {one["name"]: one for one in json.loads(fecam("heads", "--json").out)}
    assert named["ncm"]["options"] == {"metric": "euclidean"} and named["fecam"]["mergeable"]


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "name an experiment, such as digits"),
        (("digit",), "no experiment 'digit'. Did you mean 'digits'?"),
        (("nowhere.toml",), "nowhere.toml cannot be read: No such file"),
        (("many.toml", "--head", "nmc"), "many has no head 'nmc'. Did you mean 'ncm'?"),
        (("many.toml", "--set", "base"), "--set base: write key=value"),
        (("many.toml", "--set", "scenario.bas=3"), "'bas'"),
        (("many.toml", "--set", "seed=3"), "no key 'seed'. Did you mean 'seeds'?"),
        (("many.toml", "--set", "scenario.base=12", "--restart"), "12"),
        (("many.toml", "--seeds", "1;2"), "--seeds 1;2: write integers, as 1993,1994"),
        (("many.toml", "--seeds", "1,1"), "names a seed twice"),
        (("many.toml", "--seeds", "-1"), "must be a list of integers >= 0"),
        (("many.toml", "--log", "wandb"), "no logger 'wandb'. Available: tensorboard, mlflow"),
        (("many.toml", "--output", "many.toml"), "many.toml/many cannot be written"),
        (("cifar100-t5", "--root", "nowhere"), "nowhere"),
        (("many.toml", "--set", "dataset.name=nothing"), "'nothing'"),
    ],
)
def test_an_invalid_argument_is_an_error(fecam, place, arguments, says):
    said = fecam("bench", *arguments, code=1).err
    assert says in said and said.lstrip().startswith("error: ")
    assert not (place / "runs").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_read_only_folder_is_an_error(fecam, place):
    (place / "locked").mkdir(mode=0o500)
    said = fecam("bench", "many.toml", *QUICK, "-O", "locked", code=1).err
    assert "the run cannot be kept in locked/many (Permission denied)" in said


def test_another_experiment_in_the_folder_is_an_error(fecam, place):
    fecam("bench", "many.toml", *QUICK, "--json")
    said = fecam("bench", "many.toml", "--head", "ncm", "--seeds", "2", code=1).err
    assert "runs/many holds another experiment: seeds is [1] there and [2] now" in said
    assert "--output" in said and "--restart" in said
    assert "not a run" in fecam("report", "nowhere", code=1).err


def test_without_a_plotting_library_there_is_still_a_table(process, place):
    blocked = "import sys; sys.modules['matplotlib'] = None"
    out, said = process("bench", "many.toml", *QUICK, before=blocked).communicate(timeout=300)
    assert "average %" in out and "Traceback" not in said
    assert "no report: " in said and install_command("report") in said
    assert len(list(read_records(place / "runs" / "many"))) == 5


# -- loggers ---------------------------------------------------------------------------------------


def test_mlflow_holds_each_metric_once(process, place):
    pytest.importorskip("alembic", reason="MLflow and its database weigh 120 MB: an extra, loggers")
    # A run that is stopped, then goes on; in a process of its own, because MLflow's imports warn of
    # what its own dependencies leave behind.
    stopped = """
import contextlib, itertools
from fecam.bench import runner
from fecam.cli.app import main
run = runner.run
runner.run = lambda *all, **more: itertools.islice(run(*all, **more), 7)
with contextlib.suppress(SystemExit):
    main()
runner.run = run
"""
    running = process("bench", "many.toml", "--head", "ncm", "--head", "paper", "--seeds", "1",
                      "--log", "mlflow", "--json", before=stopped)  # fmt: skip
    _, said = running.communicate(timeout=300)
    assert running.returncode == 0 and "Traceback" not in said and "INFO" not in said, said
    with closing(sqlite3.connect(place / "runs" / "many" / "mlflow.db")) as store:
        runs = store.execute(
            "select r.name, r.status, r.run_uuid from runs r join experiments e using "
            "(experiment_id) where r.lifecycle_stage = 'active' and e.name = 'many'"
        ).fetchall()
        assert sorted(name for name, *_ in runs) == ["ncm, seed 1", "paper, seed 1"]
        for name, status, identity in runs:
            head = name.split(",")[0]
            assert status == "FINISHED"
            given = dict(
                store.execute("select key, value from params where run_uuid = ?", [identity])
            )
            assert given == {"seed": "1", **({"preset": "paper"} if head == "paper" else {})}
            logged = store.execute(
                "select step, value from metrics where key = 'accuracy' and run_uuid = ? "
                "order by step",
                [identity],
            ).fetchall()
            records = [r for r in read_records(place / "runs" / "many") if r["head"] == head]
            assert logged == [(r["task"], r["accuracy"]) for r in records]


# -- heads of the user's own -----------------------------------------------------------------------

OWN = """
import numpy as np
from sklearn.base import BaseEstimator


class Median(BaseEstimator):
    def __init__(self, power=1.0):
        self.power = power

    def partial_fit(self, X, y):
        new = {label: np.median(X[y == label], axis=0) for label in np.unique(y)}
        self.medians_ = {**getattr(self, "medians_", {}), **new}
        self.classes_ = np.array(sorted(self.medians_))
        return self

    def predict(self, X):
        medians = np.stack([self.medians_[label] for label in self.classes_])
        return self.classes_[(np.abs(X[:, None] - medians) ** self.power).sum(2).argmin(1)]


class Mute:
    pass
"""


def test_a_head_of_the_user(process, place):
    (place / "own_heads.py").write_text(OWN)
    head = '[[heads]]\nname = "own_heads:Median"\nlabel = "median"\nvary = { power = [1.0, 2.0] }\n'
    (place / "mine.toml").write_text(DIGITS.split("[[heads]]")[0] + head)
    done = process("bench", "mine.toml", "--json", "--workers", "2")
    out, said = done.communicate(timeout=200)
    assert done.returncode == 0, said
    records = [json.loads(line) for line in out.splitlines()]
    assert {record["head"] for record in records} == {"median, power 1.0", "median, power 2.0"}
    assert all(record["accuracy"] > 0.7 and record["bytes"] > 0 for record in records)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("own_heads:Mean", "no attribute 'Mean'"),
        ("no_such_module:Mean", "No module named"),
        ("own_heads:Mute", "has no partial_fit"),
        (":", "package.module:Class"),
    ],
)
def test_a_head_that_cannot_be_imported(fecam, place, monkeypatch, name, says):
    (place / "own_heads.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "own_heads", raising=False)
    (place / "mine.toml").write_text(DIGITS + f'\n[[heads]]\nname = "{name}"\n')
    assert says in fecam("bench", "mine.toml", code=1).err
