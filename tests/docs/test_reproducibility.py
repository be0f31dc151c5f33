"""The page on reproducibility is what its sources say: registry, tests, records."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import kept_bytes  # noqa: E402
import records  # noqa: E402
from fecam.bench import spec  # noqa: E402
from fecam.bench.metrics import group_by_run, is_complete, summarize  # noqa: E402
from helpers.run_folder import ABOUT, task_records  # noqa: E402


@pytest.fixture(scope="module")
def script():
    path = ROOT / "docs/scripts/reproducibility.py"
    description = importlib.util.spec_from_file_location("reproducibility", path)
    module = importlib.util.module_from_spec(description)
    description.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(script):
    text = script.PAGE.read_text(encoding="utf-8")
    assert text == script.page(), "run `python docs/scripts/reproducibility.py`"
    explanation = (ROOT / "docs/explanation/reproducibility.md").read_text(encoding="utf-8")
    assert '--8<-- "generated/learners.md"' in explanation
    assert "learners.md#departures-from-public-code" in explanation


def test_the_named_tests_exist(script):
    assert script.missing_tests() == []


def test_records_are_of_rows_of_shipped_experiments():
    for folder in records.RECORDS.glob("*"):
        shipped = spec.load(folder.name)
        for content in records.read_records(folder):
            assert content["experiment"] == folder.name
            assert content["head"] in {method.label for method in shipped.methods}
            seeds = group_by_run(records.task_records(content))[content["head"]]
            assert all(map(is_complete, seeds.values())) and set(seeds) <= set(shipped.seeds)


@pytest.fixture
def runs(tmp_path):
    """Two folders of one experiment; a seed of the second is not complete."""
    labels = (("FT", "LwF"), ("EWC",))
    for number, heads in enumerate(labels):
        folder = tmp_path / f"run{number}"
        folder.mkdir()
        about = {**ABOUT, "name": "cifar100-learners"}
        (folder / "about.json").write_text(json.dumps(about))
        lines = task_records(heads=heads, seeds=(1, 2))
        extra = {
            "learner": heads[0].lower(),
            "parameters": 7,
            "settings": {"batch_norm": "running"},
        }
        lines = [{**line, **extra} for line in lines]
        if number:
            lines = lines[:-1]
        (folder / "records.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    return [tmp_path / "run0", tmp_path / "run1"]


def test_records_of_several_runs_have_what_the_metrics_need(runs, script, tmp_path):
    paths = records.write_records(runs, tmp_path / "records")
    assert [path.name for path in paths] == ["FT.json", "EWC.json", "LwF.json"]
    by_head = {row["head"]: row for row in records.merged(runs).summary}
    assert by_head["EWC"]["seeds"] == 1 and by_head["FT"]["seeds"] == 2
    for content in records.read_records(tmp_path / "records/cifar100-learners"):
        (row,) = summarize(records.task_records(content))
        expected = by_head[content["head"]]
        assert row["seeds"] == expected["seeds"]
        assert row["average"]["mean"] == pytest.approx(expected["average"]["mean"], abs=1e-5)
        assert content["git"]["commit"] == ABOUT["git"]["commit"]
        assert content["settings"] == {"batch_norm": "running"}
    page = script.page(tmp_path / "records")
    (line,) = [line for line in page.splitlines() if "| EWC" in line]
    difference = 100 * by_head["EWC"]["average"]["mean"] - 24.5
    assert f"{difference:+.1f}" in line and "24.5" in line and "0123456*" in line


def test_seeds_and_methods_that_a_run_lacks_stay_in_the_records(runs, tmp_path):
    records.write_records(runs, tmp_path / "records")
    lines = task_records(heads=("FT",), seeds=(2, 3))
    changed = [{**line, "accuracy": 0.5} for line in lines]
    (runs[0] / "records.jsonl").write_text("".join(json.dumps(x) + "\n" for x in changed))
    assert [path.name for path in records.write_records(runs[:1], tmp_path / "records")] == [
        "FT.json"
    ]
    (content,) = (
        content
        for content in records.read_records(tmp_path / "records/cifar100-learners")
        if content["head"] == "FT"
    )
    seeds = group_by_run(records.task_records(content))["FT"]
    assert [{row["accuracy"] for row in seeds[seed]} == {0.5} for seed in (1, 2, 3)] == [
        False,
        True,
        True,
    ]
    assert set(records.merged(runs[:1], tmp_path / "records").heads) == {"FT", "LwF", "EWC"}


def test_runs_of_different_experiments_are_not_merged(runs):
    about = runs[1] / "about.json"
    about.write_text(about.read_text().replace("cifar100-learners", "digits-learners"))
    with pytest.raises(SystemExit, match="give those of one experiment"):
        records.merged(runs)


def test_the_bytes_that_are_kept_are_those_of_the_records():
    contents = [
        one
        for name in kept_bytes.EXPERIMENTS
        for one in records.read_records(records.RECORDS / name)
    ]
    rows = list(kept_bytes.points(contents))
    text = (ROOT / "docs/tables/kept_bytes.md").read_text(encoding="utf-8")
    assert text.startswith(kept_bytes.table(rows)), "run `python benchmarks/kept_bytes.py`"
    kept = {row.label: row.kept for row in rows}
    assert kept["BiC"] - kept["Replay"] == 2 * 4 * 100, "two numbers per class, no old network"
    assert kept["Replay"] - kept["FT"] >= 400 * 3 * 16**2
    assert kept["FeCAM"] - kept["NCM"] == pytest.approx(100 * 128 * 129 / 2 * 4, rel=0.1)
