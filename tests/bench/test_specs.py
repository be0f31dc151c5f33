"""Experiments as files: those that are shipped, what a file may say, what the pages say of it."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields, replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fecam import heads
from fecam.bench import spec
from fecam.cli.app import app
from fecam.data.dataset import Dataset
from fecam.data.glyphs import CHARACTERS, TYPEFACES
from fecam.errors import SpecError
from fecam.scenarios import KINDS, build
from helpers.features import relu_features

ROOT = Path(__file__).parents[2]
SPECS = ROOT / "src/fecam/bench/specs"
VARIANTS = ("-half-width", "-lite0", "-authors", "-611")
BUNDLED = spec.available()

T5, T10, T20 = [50] + [10] * 5, [50] + [5] * 10, [40] + [3] * 20
PROTOCOLS = {
    "cifar100-t5": T5,
    "cifar100-t10": T10,
    "cifar100-t20": T20,
    "tiny-imagenet-t5": [100] + [20] * 5,
    "tiny-imagenet-t10": [100] + [10] * 10,
    "tiny-imagenet-t20": [100] + [5] * 20,
    "imagenet-subset-t5": T5,
    "imagenet-subset-t10": T10,
    "imagenet-subset-t20": T20,
    "cifar100-small-first-task": [20] * 5,
    "imagenet-subset-small-first-task": [20] * 5,
    "cifar100-two-tasks": [50, 50],
    "cifar100-joint": [100],
    "tiny-imagenet-joint": [200],
    "imagenet-subset-joint": [100],
    "cifar100-few-shot": [60] + [5] * 8,
    "mini-imagenet-few-shot": [60] + [5] * 8,
    "cub200-few-shot": [100] + [10] * 10,
    "cub200-few-shot-learners": [100] + [10] * 10,
    "split-cifar100-vit": [10] * 10,
    "split-imagenet-r-vit": [20] * 10,
    "split-cifar100-deit": [10] * 10,
    "core50-vit": [50] + [0] * 7,
    "cifar100-ablation": T5,
    "imagenet-subset-ablation": T5,
    "cifar100-shrinkage": T5,
    "cifar100-linear": T5,
    "imagenet-subset-storage": T5,
    "imagenet-subset-time": T5,
    "glyphs": [60] + [10] * 9,
    "glyphs-few-shot": [60] + [10] * 9,
    "glyphs-few-shot-networks": [60] + [10] * 9,
    "glyphs-domains": [150] + [0] * 7,
    "quickdraw": [45] + [30] * 10,
    "digits": [4, 2, 2, 2],
    "digits-learners": [4, 2, 2, 2],
    "digits-few-shot": [4, 2, 2, 2],
    "cifar100-few-shot-small": [60] + [5] * 8,
    "cifar100-few-shot-networks": [60] + [5] * 8,
    "cifar100-learners": T5,
    "cifar100-learners-cold": [10] * 10,
    "cifar100-learners-small": T5,
    "cifar100-memory": T5,
    "cifar100-memory-sizes": T5,
    "cifar100-table3": T5,
    "imagenet-subset-table3": T5,
    "glyphs-learners": [75] + [15] * 5,
    "demo": [60] + [1] * 90,
    "glyphs-moving-cold": [15] * 10,
    **{
        f"{data}-{name}": sizes
        for data in ("cifar100", "imagenet-subset")
        for name, sizes in {
            "small-first-task-learners": [20] * 5,
            "moving-cold": [10] * 10,
            "moving-t5": T5,
            "moving-t10": T10,
        }.items()
    },
    "tiny-imagenet-small-first-task-learners": [40] * 5,
    "tiny-imagenet-moving-cold": [20] * 10,
    "tiny-imagenet-moving-t5": [100] + [20] * 5,
    "tiny-imagenet-moving-t10": [100] + [10] * 10,
}
"""How many classes each task brings, as the paper has it where it has any."""

CLASSES = {
    "cifar100": 100,
    "tiny-imagenet": 200,
    "imagenet-subset": 100,
    "mini-imagenet": 100,
    "cub200": 200,
    "imagenet-r": 200,
    "core50": 50,
    "glyphs": len(CHARACTERS),
    "digits": 10,
    "quickdraw": 345,
}
SESSIONS = tuple(f"s{number}" for number in range(1, 12))


def plain(name):
    """The experiment that this is a variant of."""
    for suffix in VARIANTS:
        name = name.removesuffix(suffix)
    return name


def labelled(name):
    """A data set with the classes, domains and marks of the real one, and nothing in it."""
    names = {"core50": SESSIONS, "glyphs": tuple(TYPEFACES)}.get(name, ("",))
    count, rows = CLASSES[name], 8
    labels, domains, turns = np.indices((count, len(names), rows)).reshape(3, -1)
    is_test = turns >= 6
    if name == "core50":
        is_test = np.isin(domains, [SESSIONS.index(one) for one in ("s3", "s7", "s10")])
    return Dataset(
        name=name,
        kind="images",
        items=range(len(labels)),
        labels=labels,
        label_names=tuple(map(str, range(count))),
        fingerprint="f",
        is_test=is_test,
        domains=domains if len(names) > 1 else None,
        domain_names=names if len(names) > 1 else (),
    )


# ------------------------------------------------------------------------------- what is shipped


def test_every_experiment_has_a_protocol_and_every_protocol_an_experiment():
    assert {plain(name) for name in BUNDLED} == PROTOCOLS.keys()


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_experiment_builds_its_tasks(name):
    one = spec.load(name)
    data = labelled(one.dataset.name)
    stream = build(data, one.scenario.name, seed=one.seeds[0], **one.scenario.options)
    assert [len(task.classes) for task in stream] == PROTOCOLS[plain(name)]
    for head in one.heads:
        heads.make(head.name, **head.options)
    if one.scenario.name == "few-shot":
        new = stream[1].train
        assert set(np.bincount(data.labels[new])[list(stream[1].classes)]) == {5}
    if name == "core50-vit":
        assert [task.name for task in stream] == one.scenario.options["train_domains"]
        assert [part for part, _ in stream[0].parts] == ["s3", "s7", "s10"]


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_experiment_has_a_title(name):
    one = spec.load(name)
    assert one.name == name and one.title != name
    if one.first_task is None and one.encoder is None:
        assert one.dataset.options.get("as_features")
    if one.paper.get("figures"):
        assert one.paper["source"].startswith(("Table", "Figure"))


@pytest.mark.parametrize("name", BUNDLED)
def test_the_papers_figures_are_of_methods_that_exist(name):
    one = spec.load(name)
    figures = one.paper.get("figures", {})
    absent = figures.keys() - {method.label for method in one.methods}
    if absent:
        assert name == "core50-vit" or one.scenario.name == "few-shot"
        assert all(label in one.paper["note"] for label in absent)
    for row in figures.values():
        row = dict(row)
        tasks = row.pop("tasks", [])
        assert row and all(1 < value < 95 for value in [*row.values(), *tasks])
        if tasks:
            assert len(tasks) == len(PROTOCOLS[plain(name)]) and tasks[-1] == row["last"]
            assert sum(tasks) / len(tasks) == pytest.approx(row["average"], abs=0.06)
        assert row.get("last", 0) <= row.get("average", 100), "accuracy falls as classes come"


def test_every_row_of_the_papers_few_shot_tables_is_in_its_experiment():
    common = {"Finetune", "CEC", "LIMIT", "MetaFSCIL", "Data-free Replay", "FACT"}
    ours = {"D-Cosine", "ALICE", "ALICE, FeCAM"}
    cub = {"NCM, cosine", "NCM", "FeCAM", "FACT, FeCAM"}
    for data, rows in (("cifar100", ours), ("mini-imagenet", ours), ("cub200", cub)):
        assert spec.load(f"{data}-few-shot").paper["figures"].keys() == common | rows
    learners = spec.load("cub200-few-shot-learners").paper["figures"]
    assert learners.keys() == common | ours | {"FACT, FeCAM"}
    heads_alone = spec.load("cub200-few-shot").paper["figures"]
    same = {"D-Cosine": "NCM, cosine", "ALICE": "NCM", "ALICE, FeCAM": "FeCAM"}
    assert all(learners[key] == heads_alone[same.get(key, key)] for key in learners)


def test_published_few_shot_experiments_have_the_published_draw_and_order():
    for name in ("cifar100", "mini-imagenet", "cub200"):
        options = spec.load(f"{name}-few-shot").scenario.options
        assert options.get("draw", "published") == "published" and options["order"] == "natural"


def test_the_same_result_of_the_paper_is_the_same_number_everywhere():
    for data in ("cifar100", "imagenet-subset"):
        ours, ablation = (
            spec.load(f"{data}-{name}").paper["figures"] for name in ("t5", "ablation")
        )
        assert ablation["full, Tukey, shrinkage, normalization"] == ours["FeCAM"]
        assert ablation["Euclidean"] == ours["NCM"]
    table = spec.load("cifar100-t5").paper["figures"]
    for name in ("cifar100-t5-authors", "cifar100-linear"):
        for label, row in spec.load(name).paper["figures"].items():
            assert row.items() <= table[label].items()


def test_every_row_of_the_papers_tables_is_a_row_of_its_experiments():
    """Table 1 has rows without a figure for a data set; they are rows of its experiments too."""
    table1 = {"EWC", "LwF-MC", "DeeSIL", "MUC", "SDC", "PASS", "IL2A", "SSRE", "FeTrIL", "NCM"}
    table1 |= {"FeCAM, common matrix", "FeCAM", "Joint"}
    missing = {"cifar100": set(), "tiny-imagenet": {"SDC"}, "imagenet-subset": {"IL2A"}}
    for data, unknown in missing.items():
        for name in ("t5", "t10", "t20"):
            one = spec.load(f"{data}-{name}")
            assert table1 <= {method.label for method in one.methods}
            t10_only = {"EWC", "LwF-MC", "MUC", "SDC", "SSRE"}
            omitted = t10_only if data == "imagenet-subset" and name != "t10" else set()
            assert one.paper["figures"].keys() == table1 - unknown - omitted
    table2 = {"FT-frozen", "FT", "EWC", "LwF", "L2P", "NCM", "FeCAM", "Joint"}
    for name in ("split-cifar100-vit", "split-imagenet-r-vit"):
        one = spec.load(name)
        assert table2 <= {method.label for method in one.methods}
        assert one.paper["figures"].keys() == table2
    core50 = spec.load("core50-vit").paper["figures"].keys()
    assert core50 == {"EWC", "LwF", "L2P", "NCM", "FeCAM"}


def in_single_precision(part):
    """The training of an experiment in bfloat16, without it."""
    plan = dict(part.plan)
    assert plan.pop("mixed_precision") == "everywhere"
    return replace(part, plan=plan)


def test_the_small_experiments_of_learners_have_one_recipe():
    one, cold, glyphs = map(
        spec.load, ("cifar100-learners", "cifar100-learners-cold", "glyphs-learners")
    )
    small, memory = spec.load("cifar100-learners-small"), spec.load("cifar100-memory")
    assert in_single_precision(glyphs.first_task) == one.first_task
    assert small.first_task == memory.first_task == in_single_precision(cold.first_task)
    assert small.first_task.epochs == one.first_task.epochs
    assert one.later_tasks == small.later_tasks == memory.later_tasks
    assert in_single_precision(glyphs.later_tasks) == one.later_tasks
    assert one.learners == cold.learners == small.learners[: len(one.learners)]
    assert in_single_precision(cold.later_tasks).plan == {"learning_rate": 0.01}
    assert [x.label for x in one.learners] == [x.label for x in glyphs.learners]
    differ = [a.label for a, b in zip(one.learners, glyphs.learners, strict=True) if a != b]
    assert differ == ["PASS"] and not glyphs.learners[-3].options["rotations"]
    for label, row in one.paper["figures"].items():
        assert row == spec.load("cifar100-t5").paper["figures"][label.removesuffix(", E-LwF")]


def test_experiments_of_moving_statistics_have_the_same_rows():
    rows = [learner.label for learner in spec.load("cifar100-moving-cold").learners]
    moving = [name for name in BUNDLED if "moving" in name or name.endswith("first-task-learners")]
    assert len(moving) == 13
    for name in moving:
        one = spec.load(name)
        assert [learner.label for learner in one.learners] == rows
        small = one.first_task.width == 16
        assert {learner.options.get("rotations", True) for learner in one.learners
                if learner.name in ("efc", "adagauss")} == {not small}  # fmt: skip


def test_the_memory_experiments_are_the_papers_table_3():
    full = spec.load("cifar100-table3")
    photos, small = spec.load("imagenet-subset-table3"), spec.load("cifar100-memory")
    assert full.learners[:-1] == photos.learners
    assert all(learner.options["exemplars"] == 2000 for learner in full.learners)
    used = small.scenario.options["samples_per_class"] / 500
    assert all(learner.options["exemplars"] == 2000 * used for learner in small.learners
               if learner.name != "ft")  # fmt: skip
    for label, row in small.paper["figures"].items():
        assert full.paper["figures"][label] == row
    assert {head.label for head in full.heads} == {"FeCAM", "FeCAM, default"}
    assert {x.label for x in small.learners} > {x.label for x in full.learners}
    sizes = spec.load("cifar100-memory-sizes")
    assert (sizes.first_task, sizes.scenario) == (small.first_task, small.scenario)
    assert sizes.later_tasks == small.later_tasks


def test_accuracy_of_pretrained_transformers_is_that_after_the_last_task():
    for name in ("split-cifar100-vit", "split-imagenet-r-vit", "core50-vit"):
        one = spec.load(name)
        assert all(row.keys() == {"last"} for row in one.paper["figures"].values())
        assert "last" in one.paper["note"]


def test_all_heads_are_compared_where_it_is_cheap():
    known = {entry.name for entry in heads.available()} - {"teen"}  # for few-shot experiments
    for name in BUNDLED:
        if name in ("glyphs", "glyphs-few-shot", "glyphs-domains", "quickdraw") or re.match(
            r"cifar100-t\d+(?!.*authors)", name
        ):
            assert {head.name for head in spec.load(name).heads} == known, name


def test_the_ablation_changes_one_component_at_a_time():
    full = heads.make("fecam", preset="paper").get_params()
    off = {
        "Tukey": {"tukey": None},
        "shrinkage": {"shrinkage": [0, 0]},
        "normalization": {"normalization": None},
    }
    for head in spec.load("cifar100-ablation").heads:
        kind, *parts = head.label.split(", ")
        expected = dict(full)
        if kind == "full":
            for part in off.keys() - set(parts):
                expected |= off[part]
        elif kind == "diagonal":
            expected |= {"covariance": "diagonal", "normalization": "variance"}
        else:
            expected |= {"covariance": "identity"} | ({} if parts else off["Tukey"])
        assert heads.make(head.name, **head.options).get_params() == expected, head.label


def test_every_head_learns_from_fewer_samples_than_features():
    """Without shrinkage, say: matrices are singular, and one feature is always silent."""
    X, y = relu_features(6, 12, 16, seed=0, dead=1)
    first, tried = y < 4, []
    for name in BUNDLED:
        for head in spec.load(name).heads:
            if (head.name, head.options) not in tried:
                tried.append((head.name, head.options))
                made = heads.make(head.name, **head.options)
                made.partial_fit(X[first], y[first]).partial_fit(X[~first], y[~first])
                assert np.mean(made.predict(X) == y) > 0.5, (name, head.label)
    assert len(tried) > 40


def test_a_variant_differs_from_its_experiment_in_the_network_alone():
    for name in BUNDLED:
        if name.endswith(("-half-width", "-lite0", "-611")):
            one, other = spec.load(name), spec.load(plain(name))
            for part in ("dataset", "scenario", "seeds", "analyses"):
                assert getattr(one, part) == getattr(other, part)
            assert one.heads == other.heads
            assert (one.encoder, one.first_task) != (other.encoder, other.first_task)


def test_the_network_is_trained_once_for_all_that_begin_with_the_same_classes():
    trained = set()
    for name in BUNDLED:
        if name.endswith("-half-width"):
            one = spec.load(name)
            data = labelled(one.dataset.name)
            stream = build(data, one.scenario.name, seed=1993, **one.scenario.options)
            trained.add((str(one.first_task), stream.base_classes, tuple(stream[-1].test)))
    assert len(trained) == 1


@pytest.mark.parametrize("name", BUNDLED)
def test_toml_round_trips(name, tmp_path):
    one = spec.load(name)
    file = tmp_path / "again.toml"
    file.write_text(one.as_toml(), "utf-8")
    again = spec.load(file)
    assert again == one and again.as_toml() == one.as_toml()


# ------------------------------------------------------------------------------- what a file says

GOOD = """
[dataset]
name = "digits"
as_features = true

[scenario]
kind = "class-incremental"
increment = 2

[[heads]]
name = "ncm"
"""


def written(folder, text, name="mine.toml"):
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def test_missing_keys_have_defaults(tmp_path):
    one = spec.load(written(tmp_path, GOOD))
    assert one == spec.Spec(
        "mine",
        "mine",
        spec.Component("digits", {"as_features": True}),
        spec.Component("class-incremental", {"increment": 2}),
        (spec.HeadSpec("ncm", "ncm"),),
    )


def test_none_round_trips(tmp_path):
    text = GOOD + 'label = "nearest"\n\n[[heads]]\nname = "fecam"\ntukey = "none"\n'
    one = spec.load(written(tmp_path, text + 'vary = { normalization = ["none", "variance"] }\n'))
    assert [head.options for head in one.heads[1:]] == [
        {"tukey": None, "normalization": None},
        {"tukey": None, "normalization": "variance"},
    ]
    assert [head.label for head in one.heads[1:]] == [
        "fecam, normalization none",
        "fecam, normalization variance",
    ]
    assert spec.load(written(tmp_path, one.as_toml(), "again.toml")) == one


def test_a_file_extends_a_file_that_extends_a_bundled_one(tmp_path):
    written(tmp_path, 'extends = "digits"\nseeds = [1]\n[scenario]\nbase = 6\n', "below.toml")
    top = written(tmp_path, 'extends = "below.toml"\ntitle = "mine"\n[scenario]\nincrement = 1\n')
    one, digits = spec.load(top), spec.load("digits")
    assert (one.name, one.title, one.seeds) == ("mine", "mine", (1,))
    assert one.scenario.options == {"base": 6, "increment": 1}
    assert (one.dataset, one.heads) == (digits.dataset, digits.heads)


def test_later_bases_win_and_false_removes_a_table(tmp_path):
    one = spec.load(written(tmp_path, 'extends = ["_cifar100-t5", "_half-width", "_lite0"]\n'))
    assert one.first_task is None and one.encoder.name == "efficientnet-lite0"
    one = spec.load(written(tmp_path, 'extends = ["cifar100-t5", "_half-width"]\npaper = false\n'))
    assert (one.first_task.width, one.first_task.epochs, one.paper) == (32, 12, {})


def test_heads_are_replaced_and_extra_heads_are_added(tmp_path):
    below = len(spec.load("digits").heads)
    head = '\n[[{}]]\nname = "slda"\n'
    replaced = spec.load(written(tmp_path, 'extends = "digits"\n' + head.format("heads")))
    added = spec.load(written(tmp_path, 'extends = "digits"\n' + head.format("extra_heads")))
    assert [one.name for one in replaced.heads] == ["slda"]
    assert len(added.heads) == below + 1 and added.heads[-1].name == "slda"
    alone = GOOD.replace("heads", "extra_heads")
    assert [one.name for one in spec.load(written(tmp_path, alone)).heads] == ["ncm"]


def test_changes_override_the_file():
    one = spec.load("cifar100-t5", {"first_task.epochs": 3, "seeds": [1, 2], "paper.note": "x"})
    assert (one.first_task.epochs, one.seeds, one.paper["note"]) == (3, (1, 2), "x")


BAD = {
    "unknown key": ("sceds = [1]\n" + GOOD, r"no key 'sceds'\. Did you mean 'seeds'\?"),
    "no data set": (GOOD.replace("[dataset]", "[datasett]"), r"'datasett'.*'dataset'"),
    "nothing of heads": (GOOD.partition("[[heads]]")[0], "'heads' is missing"),
    "no name": (GOOD.replace('name = "digits"', ""), r"\[dataset\] needs a name"),
    "no TOML": ("seeds = [1", "is not TOML"),
    "scenario": (GOOD.replace("class-inc", "clas-inc"), "Did you mean 'class-incremental'"),
    "option of it": (GOOD.replace("increment = ", "increments = "), "Did you mean 'increment'"),
    "lack of one": (GOOD.replace("class-incremental", "few-shot").replace("increment", "ways"),
                    "needs the option 'base'"),
    "head": (GOOD.replace('"ncm"', '"nmc"'), "Did you mean 'ncm'"),
    "option of a head": (GOOD + 'metrics = "cosine"\n', "Did you mean 'metric'"),
    "value of an option": (GOOD + 'metric = "euclid"\n', "Did you mean 'euclidean'"),
    "value for fecam": (GOOD.replace("ncm", "fecam") + "shrinkage = 5\n", "must be two numbers"),
    "one value of several": (GOOD + 'vary = {metric = ["cosine", "angle"]}\n', "metric='angle'"),
    "two alike": (GOOD + '[[heads]]\nname = "ncm"\n', "two heads have the label 'ncm'"),
    "one head": (GOOD.replace("[[heads]]", "[heads]"), r"write \[\[heads\]\]"),
    "more heads": ('extra_heads = "ncm"\n' + GOOD, r"write \[\[extra_heads\]\]"),
    "former name": ('more_heads = "ncm"\n' + GOOD, "write extra_heads"),
    "heads and more": ("heads = 5\n" + GOOD.replace("heads", "extra_heads"), r"\[\[heads\]\]"),
    "no heads": ("heads = []\n" + GOOD.partition("[[heads]]")[0], "there are no heads"),
    "first task of a head": (GOOD + 'first_task = "network"\n', "but none is trained"),
    "seeds": ("seeds = []\n" + GOOD, "a list of integers"),
    "negative seed": ("seeds = [-1]\n" + GOOD, "a list of integers"),
    "seed twice": ("seeds = [1, 1]\n" + GOOD, "twice"),
    "seed alone": ("seeds = 1\n" + GOOD, "must be a list"),
    "analysis": ('analyses = ["tsn"]\n' + GOOD, "Did you mean 'tsne'"),
    "vary": (GOOD + "vary = { metric = 5 }\n", "list its values"),
    "both": (GOOD + '[encoder]\nname = "efficientnet-lite0"\n[first_task]\n', "exclude each other"),
    "width": (GOOD + "[first_task]\nwidth = 0\n", "first_task.width=0 must be an integer"),
    "key of a table": (GOOD + "[first_task]\nepoch = 3\n", "Did you mean 'epochs'"),
    "classes": (GOOD + '[first_task]\nclasses = "some"\n', "must be one of 'base', 'all'"),
    "no table": ("first_task = 3\n" + GOOD, r"write \[first_task\]"),
    "figures": (GOOD + "[paper.figures]\nncm = 64.8\n", "average = 70.9"),
    "figure": (GOOD + '[paper.figures]\nncm = { last = "51.6" }\n', "must be a finite number"),
    "kind of figure": (GOOD + "[paper.figures]\nncm = { avg = 1 }\n", "Available: average"),
    "note": (GOOD + "[paper]\nnote = 3\n", "paper.note=3 must be text"),
    "extends what": ('extends = "digit"\n' + GOOD, r"Did you mean 'digits'\?"),
    "extends a number": ("extends = 5\n" + GOOD, "must name an experiment"),
    "extends itself": ('extends = "mine.toml"\n' + GOOD, "in a circle"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_an_error_names_the_key_and_a_remedy(case, tmp_path):
    text, message = BAD[case]
    with pytest.raises(SpecError, match=message) as caught:
        spec.load(written(tmp_path, text))
    assert len(str(caught.value)) < 600


def test_an_unknown_experiment_suggests_the_nearest(tmp_path):
    with pytest.raises(SpecError, match="Did you mean 'cifar100-t5'"):
        spec.load("cifar100-t-5")
    with pytest.raises(SpecError, match="cannot be read"):
        spec.load(tmp_path / "none.toml")
    with pytest.raises(SpecError, match="base is a value"):
        spec.load("digits", {"scenario.base.x": 1})


# -------------------------------------------------------------------------- what the pages say

REFERENCE = (ROOT / "docs/reference/experiments.md").read_text("utf-8")
HOW_TO = (ROOT / "docs/how-to/run-experiments.md").read_text("utf-8")


def rows(text):
    lines = [line.strip("|") for line in text.splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): cells[1:] for line in lines
            for cells in [[cell.strip() for cell in line.split("|")]]}  # fmt: skip


def test_every_experiment_is_in_the_table_with_its_title():
    table = rows(REFERENCE.partition("## Keys")[0])
    assert {name: cells[0] for name, cells in table.items()} == {
        name: spec.load(name).title for name in BUNDLED
    }


def test_every_key_is_in_the_table_with_its_default():
    table = rows(REFERENCE.partition("## Keys")[2])
    named = set(spec._KEYS)
    for table_name, kind in (
        ("first_task", spec.FirstTask),
        ("later_tasks", spec.LaterTasks),
        ("heads", spec.HeadSpec),
        ("learners", spec.LearnerSpec),
    ):
        for field in fields(kind):
            key = f"{table_name}.{field.name}"
            named.add(key)
            if field.default is not MISSING and field.default is not None:
                shown = str(field.default).replace("'", '"')
                assert shown in table[key][0], key
    named -= {"heads.options", "learners.options"}
    assert named <= table.keys()
    for name in (*spec.ANALYSES, *spec.PAPER_METRICS, *KINDS):
        assert f'"{name}"' in REFERENCE or f"`{name}`" in REFERENCE


def test_the_commands_of_the_how_to_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    toml = re.findall(r"^```toml\n(.*?)^```$", HOW_TO, re.DOTALL | re.MULTILINE)
    for number, text in enumerate(toml):
        one = spec.load(written(tmp_path, text, f"mine{number or ''}.toml"))
        assert len(text.splitlines()) <= 16 and one.heads
    commands = re.findall(r"^fecam (bench .*?)(?:  +#.*)?$", HOW_TO, re.MULTILINE)
    assert len(commands) > 5
    for command in commands:
        parts = [one.strip("'\"") for one in re.findall(r"'[^']*'|\"[^\"]*\"|\S+", command)]
        shown = CliRunner().invoke(app, [*parts, *([] if "--list" in parts else ["--show"])])
        assert shown.exit_code == 0, (command, shown.output)
