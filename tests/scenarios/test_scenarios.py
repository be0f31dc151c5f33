"""Streams of tasks: hand-made cases, and what is true of every scenario."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fecam.data.dataset import Dataset
from fecam.errors import DatasetError, SettingsError
from fecam.scenarios import (
    Task,
    build,
    class_incremental,
    class_order,
    domain_incremental,
    few_shot,
)


class Untouched:
    """Items that may be counted but not read."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, at):
        raise AssertionError("a scenario reads no items")


def dataset(labels, is_test=None, domains=None, names=None):
    labels = np.asarray(labels)
    names = names or tuple(f"c{at}" for at in range(labels.max() + 1))
    domain_names = () if domains is None else tuple(f"d{at}" for at in range(max(domains) + 1))
    return Dataset(
        "small", "texts", Untouched(len(labels)), labels, names, "f", is_test,
        None if domains is None else np.asarray(domains), domain_names,
    )  # fmt: skip


def even(classes, train, test=2, domains=1):
    """Classes by turns in every domain: first all rows for training, then those for testing."""
    labels = np.tile(np.arange(classes), (train + test) * domains)
    is_test = np.tile(np.arange((train + test) * classes) >= train * classes, domains)
    which = np.repeat(np.arange(domains), (train + test) * classes)
    return dataset(labels, is_test, which)


def rows(scenario):
    return [(task.train.tolist(), task.test.tolist(), task.classes) for task in scenario]


# Rows          0  1  2  3  4  5  6  7  8  9
LABELS = [2, 0, 1, 0, 2, 1, 0, 1, 2, 0]
MARKED = [0, 0, 0, 0, 0, 1, 1, 0, 1, 1]
SMALL = dataset(LABELS, np.array(MARKED, bool))


# -- by hand ---------------------------------------------------------------------------------------


def test_the_order_is_that_of_pycil():
    assert class_order(100, 1993)[:10] == (68, 56, 78, 8, 23, 84, 90, 65, 74, 76)
    code = "import numpy; numpy.random.seed(7); print(numpy.random.permutation(30).tolist())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert list(class_order(30, 7)) == json.loads(said.stdout)
    assert class_order(4, None) == (0, 1, 2, 3)


def test_a_class_incremental_scenario_by_hand():
    scenario = class_incremental(SMALL, sizes=[1, 2], order=[2, 0, 1])
    assert rows(scenario) == [
        ([0, 4], [8], (2,)),
        ([1, 2, 3, 7], [5, 6, 8, 9], (0, 1)),
    ]
    parts = [[(name, rows.tolist()) for name, rows in task.parts] for task in scenario]
    assert parts == [[("task 1", [8])], [("task 1", [8]), ("task 2", [5, 6, 9])]]
    assert [(task.index, task.name) for task in scenario] == [(0, "task 1"), (1, "task 2")]
    assert scenario.class_order == (2, 0, 1) and scenario.base_classes == (2,)
    assert [scenario.position(label) for label in (2, 0, 1)] == [0, 1, 2]


def test_a_few_shot_scenario_by_hand():
    scenario = few_shot(SMALL, base=1, ways=1, shots=2, given={"1": [7, 2], "2": [0, 4]})
    assert rows(scenario) == [
        ([1, 3], [6, 9], (0,)),
        ([2, 7], [5, 6, 9], (1,)),
        ([0, 4], [5, 6, 8, 9], (2,)),
    ]


def test_a_domain_incremental_scenario_by_hand():
    data = dataset(LABELS, np.array(MARKED, bool), [1, 1, 1, 0, 0, 0, 0, 0, 1, 1])
    scenario = domain_incremental(data)
    assert [task.name for task in scenario] == ["d0", "d1"]
    # Class 1 has a row of training in both, 0 and 2 too.
    assert rows(scenario) == [([3, 4, 7], [5, 6, 8, 9], (0, 1, 2)), ([0, 1, 2], [5, 6, 8, 9], ())]
    parts = [(name, rows.tolist()) for name, rows in scenario[1].parts]
    assert parts == [("d0", [5, 6]), ("d1", [8, 9])]
    backwards = domain_incremental(data, train_domains=["d1", "d0"], test_domains=["d1"])
    assert [task.name for task in backwards] == ["d1", "d0"]
    assert backwards[0].test.tolist() == [8, 9]


def test_domains_as_the_sessions_of_core50():
    labels, sessions = np.tile([0, 1], 8), np.repeat([0, 1, 2, 3], 4)
    official = dataset(labels, sessions == 2, sessions)
    expected = [(list(range(4 * at, 4 * at + 4)), [8, 9, 10, 11]) for at in (0, 1, 3)]
    unmarked = dataset(labels, None, sessions)
    for scenario in (
        domain_incremental(official),
        domain_incremental(unmarked, test_domains=["d2"]),
        domain_incremental(official, test_domains=["d2"]),
    ):
        assert [(task.train.tolist(), task.test.tolist()) for task in scenario] == expected
        assert [task.classes for task in scenario] == [(0, 1), (), ()]
    # Another session to be tested on is tested on whole; marked rows are never learned from.
    other = domain_incremental(official, test_domains=["d3"])
    assert [task.name for task in other] == ["d0", "d1"]
    assert other[0].test.tolist() == [12, 13, 14, 15]


def test_a_class_is_new_in_the_first_domain_that_has_it():
    data = dataset([0, 0, 0, 1, 1], [0, 1, 0, 0, 1], [0, 0, 1, 1, 1])
    assert [task.classes for task in domain_incremental(data)] == [(0,), (1,)]


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"base": 50, "increment": 10}, [50, 10, 10, 10, 10, 10]),
        ({"base": 40, "increment": 3}, [40] + [3] * 20),
        ({"base": 50, "increment": 20}, [50, 20, 20, 10]),
        ({"increment": 30}, [30, 30, 30, 10]),
        ({"increment": 100}, [100]),
        ({"base": 100}, [100]),
        ({"base": 100, "increment": 5}, [100]),
        ({"sizes": (40, *[3] * 20)}, [40] + [3] * 20),
        ({"sizes": np.array([99, 1])}, [99, 1]),
        ({"increment": 2, "order": [5, 9, 7]}, [2, 1]),
    ],
)
def test_sizes_of_tasks(options, sizes):
    scenario = class_incremental(even(100, 1, 1), **options)
    assert [len(task.classes) for task in scenario] == sizes
    assert scenario.class_order == tuple(options.get("order", class_order(100, 1993)))


def test_imbalance_and_long_tail_by_hand():
    data = even(4, 100)
    poor = class_incremental(data, increment=2, imbalance=20)
    counts = [np.sum(data.labels[np.concatenate([t.train for t in poor])] == c) for c in range(4)]
    assert sorted(counts) == [5, 5, 100, 100]
    tail = class_incremental(data, increment=1, order=[2, 3, 0, 1], long_tail=1000,
                             long_tail_ranks="ordered")  # fmt: skip
    assert [len(task.train) for task in tail] == [100, 10, 1, 1]  # never fewer than one
    mixed = [class_incremental(data, increment=1, order=[2, 3, 0, 1], long_tail=8, seed=seed)
             for seed in range(9)]  # fmt: skip
    assert all(sorted(len(t.train) for t in one) == [12, 25, 50, 100] for one in mixed)
    assert len({tuple(len(t.train) for t in one) for one in mixed}) > 1
    assert all(len(one[-1].test) == 8 for one in (poor, tail, *mixed))


def test_samples_per_class_limits_the_training_rows():
    data = even(3, 20)
    few, more, every = (
        class_incremental(data, increment=1, order="natural", samples_per_class=count)
        for count in (4, 9, 100)
    )
    assert [len(task.train) for task in few] == [4, 4, 4]
    assert all(set(a.train) < set(b.train) for a, b in zip(few, more, strict=True))
    assert [len(task.train) for task in every] == [20, 20, 20]
    assert np.array_equal(few[-1].test, every[-1].test)
    half = class_incremental(data, increment=3, samples_per_class=8, imbalance=4)
    counts = np.unique_counts(data.labels[half[0].train]).counts
    assert {*counts.tolist()} == {2, 8}


def test_blurry_boundaries_by_hand():
    data = even(3, 20)
    sharp, blurry = (class_incremental(data, increment=1, order=None, blurry=b) for b in (0, 0.3))
    # Six rows of twenty leave each task, three to each of the two others.
    table = [[np.sum(data.labels[task.train] == c) for c in range(3)] for task in blurry]
    assert table == [[14, 3, 3], [3, 14, 3], [3, 3, 14]]
    assert [task.classes for task in blurry] == [(0, 1, 2), (), ()]
    assert [[name for name, _ in task.parts] for task in blurry] == [["task 1"]] * 3
    assert [task.classes for task in sharp] == [(0,), (1,), (2,)]


def test_a_class_is_new_and_tested_on_in_the_task_of_its_first_row():
    data = even(4, 3, 1)
    scenario = class_incremental(data, increment=1, order="natural", blurry=0.3)  # one row of three
    assert [task.classes for task in scenario] == [(0, 3), (1,), (2,), ()]
    assert [len(task.test) for task in scenario] == [2, 3, 4, 4]
    assert [name for name, _ in scenario[3].parts] == ["task 1", "task 2", "task 3"]
    assert scenario.class_order == (0, 3, 1, 2)


def test_without_test_rows_a_share_of_each_class_is_drawn():
    data = dataset([0] * 10 + [1] * 5 + [2] * 2)
    scenario = class_incremental(data, increment=3)
    assert np.bincount(data.labels[scenario[0].test]).tolist() == [2, 1, 1]
    half = class_incremental(data, increment=3, test_share=0.5)
    assert np.bincount(data.labels[half[0].test]).tolist() == [5, 2, 1]
    everything = np.sort(np.concatenate([half[0].train, half[0].test]))
    assert everything.tolist() == list(range(17))


def test_test_rows_are_drawn_from_domains_that_are_learned_and_tested_on():
    data = dataset(np.tile([0, 1], 20), None, np.repeat([0, 1], 20))
    scenario = domain_incremental(data)
    assert len(scenario[0].test) == 8
    learned = np.concatenate([task.train for task in scenario])
    assert sorted([*learned, *scenario[0].test]) == list(range(40))
    unseen = domain_incremental(data, train_domains=["d0"], test_domains=["d1"])
    assert (len(unseen[0].train), len(unseen[0].test)) == (20, 20)


def test_a_domain_with_test_rows_is_tested_on_these_only():
    data = even(2, 3, 2, domains=3)
    scenario = domain_incremental(data, test_domains=["d1"])
    assert [task.name for task in scenario] == ["d0", "d2"]
    assert scenario[0].test.tolist() == [16, 17, 18, 19]


def test_a_domain_of_single_rows_is_learned_and_has_no_part():
    data = dataset([0] * 40 + [0, 1], None, [0] * 40 + [1, 1])
    scenario = domain_incremental(data)
    assert [len(task.train) for task in scenario] == [32, 2]
    assert [(name, len(rows)) for name, rows in scenario[1].parts] == [("d0", 8)]


def test_test_rows_are_drawn_independently_per_class():
    data = dataset(np.repeat([0, 1, 2], 20))
    drawn = class_incremental(data, increment=3)[0].test.reshape(3, 4) % 20
    assert len({tuple(places) for places in drawn.tolist()}) == 3


# -- what is true of every scenario ----------------------------------------------------------------


@st.composite
def datasets(draw, least=3):
    """Rows in any order, every class with rows for training and for testing, in two domains."""
    classes = draw(st.integers(2, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    counts = rng.integers(least, least + 12, size=classes)
    labels = np.repeat(np.arange(classes), counts + 2)
    is_test = np.concatenate([np.arange(count + 2) < 2 for count in counts])
    domains = np.concatenate([np.arange(count + 2) % 2 for count in counts])
    if draw(st.booleans()):
        is_test[:] = False
    mixed = rng.permutation(len(labels))
    return dataset(labels[mixed], is_test[mixed], domains[mixed])


seeds = st.integers(0, 2**32 - 1)
variants = st.sampled_from(
    [
        {},
        {"imbalance": 5.0},
        {"long_tail": 10},
        {"blurry": 0.4},
        {"long_tail": 3.0, "long_tail_ranks": "ordered", "blurry": 0.2},
    ]
)


@st.composite
def scenarios(draw):
    """A data set and a scenario of any kind."""
    data, seed, options = draw(datasets()), draw(seeds), draw(variants)
    kind = draw(st.sampled_from(["class-incremental", "few-shot", "domain-incremental"]))
    classes = len(data.label_names)
    if kind == "class-incremental":
        increment = draw(st.integers(1, classes))
        assume(increment < classes or "blurry" not in options)
        options = {**options, "increment": increment}
    if kind == "few-shot":
        options = {"base": draw(st.integers(1, classes)), "ways": 1, "shots": 2}
    return data, build(data, kind, seed=seed, **options)


@given(scenarios())
def test_properties_of_every_scenario(both):
    data, scenario = both
    learned = np.concatenate([task.train for task in scenario])
    assert len(learned) == len(set(learned.tolist())), "a row is learned twice"
    seen = set()
    for index, task in enumerate(scenario):
        here = set(data.labels[task.train].tolist())
        assert task.index == index and len(task.train)
        assert set(task.classes) == here - seen and len(set(task.classes)) == len(task.classes)
        seen |= here
        assert not set(task.test.tolist()) & set(learned.tolist())
        assert all(np.all(np.diff(rows) > 0) for rows in (task.train, task.test))
        assert all(len(rows) for _, rows in task.parts)
        pieces = np.concatenate([rows for _, rows in task.parts])
        assert sorted(pieces.tolist()) == task.test.tolist()
        assert len({name for name, _ in task.parts}) == len(task.parts)
        if data.is_test.any():
            assert set(learned.tolist()) <= set(data.train.tolist())
            wanted = [row for row in data.test if data.labels[row] in seen]
            assert task.test.tolist() == (
                wanted if scenario.kind != "domain-incremental" else data.test.tolist()
            )
        if index and scenario.kind != "domain-incremental":
            before = scenario[index - 1]
            assert set(before.test.tolist()) <= set(task.test.tolist())
            for (name, piece), (kept, same) in zip(before.parts, task.parts, strict=False):
                assert name == kept and piece is same
    assert sorted(scenario.class_order) == list(range(len(data.label_names)))


@given(datasets(), seeds, st.data())
def test_without_subsampling_every_training_row_is_in_one_task(data, seed, draw):
    increment = draw.draw(st.integers(1, len(data.label_names) - 1))
    blurry = draw.draw(st.sampled_from([0, 0.1, 0.5, 0.9]))
    for scenario in (
        class_incremental(data, increment=increment, order=seed, seed=seed, blurry=blurry),
        domain_incremental(data, seed=seed, blurry=blurry),
    ):
        learned = np.sort(np.concatenate([task.train for task in scenario]))
        left = np.setdiff1d(np.arange(len(data)), scenario[-1].test)
        assert learned.tolist() == left.tolist()


def test_fewer_samples_of_base_classes_do_not_depend_on_the_draw():
    every = few_shot(SMALL, base=2, ways=1, shots=2, order=[0, 1, 2])
    alike = {"base": 2, "ways": 1, "shots": 2, "order": [0, 1, 2], "draw": "seed"}
    less = [few_shot(SMALL, **alike, seed=seed, base_samples=1) for seed in range(3)]
    for scenario in less:
        assert np.bincount(SMALL.labels[scenario[0].train]).tolist() == [1, 1]
        assert set(scenario[0].train) < set(every[0].train)
        assert np.array_equal(scenario[0].train, less[0][0].train)
        assert np.array_equal(scenario[1].test, every[1].test)


@given(datasets(least=5), seeds)
def test_few_shot_tasks_have_exactly_their_shots(data, seed):
    scenario = few_shot(data, base=1, ways=1, shots=3, seed=seed)
    first = data.labels == scenario.base_classes[0]
    assert set(scenario[0].train) == set(np.flatnonzero(first)) - set(scenario[0].test)
    for task in scenario[1:]:
        assert data.labels[task.train].tolist() == list(task.classes) * 3


@given(scenarios())
def test_a_scenario_can_be_rebuilt_from_its_description(both):
    data, scenario = both
    description = json.loads(json.dumps(scenario.describe()))
    assert description == scenario.describe()
    again = build(data, description["kind"], seed=description["seed"], **description["options"])
    assert rows(again) == rows(scenario) and again.describe() == description
    assert [len(task.train) for task in scenario] == [
        task["train"] for task in description["tasks"]
    ]
    assert tuple(description["class_order"]) == scenario.class_order


CHANCES = [
    ("class-incremental", {"increment": 2}),  # the order
    ("class-incremental", {"increment": 2, "order": None, "imbalance": 4}),
    ("class-incremental", {"increment": 2, "order": None, "long_tail": 4}),
    ("class-incremental", {"increment": 2, "order": None, "blurry": 0.2}),
    ("class-incremental", {"increment": 2, "order": None, "samples_per_class": 2}),
    ("few-shot", {"base": 2, "ways": 2, "shots": 3, "order": None, "draw": "seed"}),
    ("domain-incremental", {"shuffle": True}),
    ("domain-incremental", {"blurry": 0.3}),
]


@pytest.mark.parametrize(("kind", "options"), CHANCES)
def test_the_seed_determines_the_scenario(kind, options):
    data = even(6, 20, domains=5)
    made = [rows(build(data, kind, seed=seed, **options)) for seed in (0, 0, 1, 2)]
    assert made[0] == made[1] and made[0] != made[2] != made[3] != made[0]


def test_the_seed_determines_the_drawn_test_rows():
    data = dataset(np.arange(60) % 3)
    tests = [class_incremental(data, increment=3, seed=seed)[0].test.tolist() for seed in (0, 0, 1)]
    assert tests[0] == tests[1] != tests[2]


def test_a_fixed_order_is_not_shuffled_by_the_seed():
    data = even(6, 5, domains=3)
    for kind, options in [("class-incremental", {"increment": 2, "order": "natural"}),
                          ("domain-incremental", {})]:  # fmt: skip
        assert rows(build(data, kind, seed=1, **options)) == rows(
            build(data, kind, seed=2, **options)
        )


def test_shots_of_a_class_do_not_depend_on_the_order_and_more_shots_include_fewer():
    data = even(6, 20)

    def shots(**options):
        scenario = few_shot(data, base=1, ways=1, draw="seed", **options)
        return {task.classes[0]: set(task.train.tolist()) for task in scenario[1:]}

    one, other, more = shots(shots=3), shots(shots=3, order=5), shots(shots=5)
    both = one.keys() & other.keys()
    assert len(both) >= 4 and all(one[label] == other[label] for label in both)
    assert all(one[label] < more[label] for label in one)


# -- a sequence ------------------------------------------------------------------------------------

SCENARIO = class_incremental(even(7, 2, 1), base=2, increment=1)


@given(st.slices(6), st.integers(-6, 5))
def test_slices_and_indices_are_those_of_a_tuple(part, at):
    tasks = tuple(SCENARIO)
    assert SCENARIO[part] == tasks[part] and SCENARIO[at] is tasks[at] and len(SCENARIO) == 6
    assert SCENARIO.index(tasks[at]) == at % 6 and tuple(reversed(SCENARIO)) == tasks[::-1]
    for wrong in (6, -7):
        with pytest.raises(IndexError):
            SCENARIO[wrong]


def test_loops_inside_loops():
    pairs = [(one.index, other.index) for one in SCENARIO for other in SCENARIO]
    assert pairs == [(i, j) for i in range(6) for j in range(6)]


def test_arrays_are_read_only():
    mine = np.arange(3)
    task = Task(0, "task 1", mine, mine, (0,), (("task 1", mine),))
    mine[0] = 9
    assert task.train.tolist() == task.test.tolist() == task.parts[0][1].tolist() == [0, 1, 2]
    for array in (task.train, task.test, task.parts[0][1], SCENARIO[1].parts[0][1]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AttributeError):
        SCENARIO.kind = "another"
    SCENARIO.describe()["options"]["sizes"].append(1)
    assert sum(SCENARIO.describe()["options"]["sizes"]) == 7


def test_repr_and_position():
    assert repr(SCENARIO) == "Scenario('class-incremental', 6 tasks, 7 classes)"
    assert "2 new classes, 4 rows to learn, 2 to test on" in repr(SCENARIO[0])
    with pytest.raises(SettingsError, match="label 9 never comes"):
        SCENARIO.position(9)


# -- mistakes --------------------------------------------------------------------------------------

TEN = even(10, 6, domains=2)
NO_TESTS = dataset([0, 0, 1, 1])
FEW = {"base": 4, "ways": 2, "shots": 2, "order": None}


def given_rows(**changes):
    lists = {str(c): [c, c + 10] for c in range(4, 10)} | changes
    return {"given": {label: rows for label, rows in lists.items() if rows is not None}, **FEW}


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("class_incremental", {}, "kind of scenario 'class_incremental'. Did you mean 'class-incr"),
        ("class", {}, "Did you mean 'class-incremental'"),
        (3, {}, "kind of scenario 3"),
        ("class-incremental", {"incremnt": 2}, "'incremnt'. Did you mean 'increment'?"),
        (
            "few-shot",
            {**FEW, "increment": 2},
            "no option 'increment'. Available",
        ),  # nothing is like it
        ("few-shot", {**FEW, "long_tail": 2}, "a few-shot scenario has no option 'long_tail'"),
        ("few-shot", {"base": 4, "ways": 2}, "needs the option 'shots'"),
        ("class-incremental", {"increment": 2, "seed": -1}, "seed=-1"),
        ("class-incremental", {"increment": 2, "seed": "x"}, "seed='x'"),
        ("class-incremental", {}, "Give base and increment"),
        ("class-incremental", {"base": 4}, "base=4 leaves 6 of 10 classes"),
        ("class-incremental", {"base": 0, "increment": 2}, "base=0 must be an integer >= 1"),
        ("class-incremental", {"base": "4", "increment": 2}, "base='4'"),
        ("class-incremental", {"base": True, "increment": 2}, "base=True"),
        (
            "class-incremental",
            {"base": 11, "increment": 2},
            "base=11 is more than the number of classes, 10",
        ),
        (
            "class-incremental",
            {"increment": 11},
            "increment=11 is more than the number of classes, 10",
        ),
        ("class-incremental", {"increment": 1.5}, "increment=1.5"),
        ("class-incremental", {"sizes": [5, 4]}, "add up to 9, but there are 10"),
        ("class-incremental", {"sizes": [5, 6]}, "add up to 11, but there are 10"),
        ("class-incremental", {"sizes": [10, 0]}, "sizes[1]=0"),
        ("class-incremental", {"sizes": 10}, "sizes=10 must be a list"),
        ("class-incremental", {"sizes": [10], "base": 5}, "leave out base=5"),
        (
            "class-incremental",
            {"increment": 1, "order": [1, 2, 1]},
            "order names label 1 ('c1') tw",
        ),
        (
            "class-incremental",
            {"increment": 1, "order": [1, 10]},
            "order[1]=10 must be an integer",
        ),
        ("class-incremental", {"increment": 1, "order": [-1]}, "order[0]=-1"),
        ("class-incremental", {"increment": 1, "order": []}, "order=[] must be a list"),
        ("class-incremental", {"increment": 1, "order": "random"}, "order='random'"),
        ("class-incremental", {"increment": 1, "order": 1.5}, "order=1.5"),
        ("class-incremental", {"increment": 1, "order": True}, "order=True"),
        ("class-incremental", {"increment": 1, "order": -3}, "order=-3"),
        ("class-incremental", {"increment": 1, "samples_per_class": 0}, "samples_per_class=0"),
        ("class-incremental", {"increment": 1, "imbalance": 0.5}, "imbalance=0.5"),
        ("class-incremental", {"increment": 1, "long_tail": "10"}, "long_tail='10'"),
        ("class-incremental", {"increment": 1, "long_tail": float("nan")}, "long_tail=nan"),
        ("class-incremental", {"increment": 1, "long_tail": 2, "imbalance": 2}, "give one of them"),
        ("class-incremental", {"increment": 1, "long_tail_ranks": "order"}, "mean 'ordered'?"),
        (
            "class-incremental",
            {"increment": 1, "blurry": 1},
            "blurry=1 must be a finite number >= 0 and < 1",
        ),
        ("class-incremental", {"increment": 10, "blurry": 0.1}, "needs two tasks"),
        ("class-incremental", {"increment": 1, "test_share": -0.1}, "test_share=-0.1"),
        ("few-shot", {**FEW, "ways": 4}, "leave 2 of 10 classes over"),
        ("few-shot", {**FEW, "base": 12}, "base=12 is more than the number of classes, 10"),
        ("few-shot", {**FEW, "shots": 0}, "shots=0"),
        ("few-shot", given_rows(**{"7": None}), "no rows of class 'c7' (label 7)"),
        ("few-shot", given_rows(**{"7": [7]}), "given[7] must name shots=2 different rows"),
        ("few-shot", given_rows(**{"7": [7, 7]}), "given[7] must name shots=2 different rows"),
        ("few-shot", given_rows(**{"7": [7, 7, 17]}), "given[7] must name shots=2 different rows"),
        ("few-shot", given_rows(**{"7": [7, 18]}), "given[7] names row 18"),
        ("few-shot", given_rows(**{"7": [7, 67]}), "given[7] names row 67"),  # for testing
        ("few-shot", given_rows(**{"7": "no"}), "given[7]='no'"),
        ("few-shot", given_rows(**{"7": ["a", "b"]}), "given[7]='a'"),
        ("few-shot", given_rows(**{"3": [3, 13]}), "given has rows of '3'"),
        ("few-shot", {**FEW, "given": [1]}, "given=[1] must map labels to rows"),
        ("domain-incremental", {"train_domains": ["d9"]}, "no domain 'd9'. Did you mean 'd"),
        ("domain-incremental", {"train_domains": "d1"}, "train_domains='d1' must be a list"),
        ("domain-incremental", {"test_domains": []}, "test_domains=[] must be a list"),
        ("domain-incremental", {"test_domains": ["d1", "d1"]}, "names 'd1' twice"),
        ("domain-incremental", {"test_domains": ["d0", "d1"]}, "leaves no domain to learn from"),
        ("domain-incremental", {"train_domains": ["d0"], "blurry": 0.5}, "needs two tasks"),
    ],
)
def test_invalid_options_are_rejected(kind, options, message):
    options = {"seed": 0, **options}
    with pytest.raises(SettingsError, match=re.escape(message)):
        build(TEN, kind, **options)


@pytest.mark.parametrize(
    ("data", "kind", "options", "message"),
    [
        (TEN, "few-shot", {**FEW, "shots": 13}, "shots=13, but class 'c4' (label 4)"),
        (NO_TESTS, "class-incremental", {"increment": 1, "test_share": 0}, "give a test_share"),
        (dataset([0, 1, 1]), "class-incremental", {"increment": 1}, "needs two rows of a class"),
        (dataset([0, 0, 1, 1], [0, 1, 1, 1]), "class-incremental", {"increment": 1},
         "no rows for training of class 'c1' (label 1). Remedy: give an order without"),
        (dataset([0, 0, 1, 1], [0, 1, 0, 0]), "few-shot", {"base": 1, "ways": 1, "shots": 1},
         "no rows for testing of class 'c1' (label 1)"),
        (dataset([0, 0], names=("a", "b")), "class-incremental", {"increment": 1},
         "no rows for training of class 'b' (label 1)"),
        (NO_TESTS, "domain-incremental", {}, "has no domains"),
        (dataset([0, 0], [0, 1], [0, 1]), "domain-incremental", {"train_domains": ["d1"]},
         "domain 'd1' of 'small' has no rows for training"),
        (dataset([0, 0], [0, 1], [0, 1]), "domain-incremental",
         {"train_domains": ["d0"], "test_domains": ["d0"]}, "has no rows for testing"),
        (dataset([0, 0], None, [0, 1]), "domain-incremental", {"test_share": 0}, "no rows for"),
        (dataset([0, 1], [0, 1], [0, 1]), "domain-incremental", {},
         "class 'c1' (label 1) of 'small' is tested on but has no rows for training"),
    ],
)  # fmt: skip
def test_unsuitable_data_sets_are_rejected(data, kind, options, message):
    with pytest.raises(DatasetError, match=re.escape(message)):
        build(data, kind, seed=0, **{"order": None, **options} if "class" in kind else options)


def test_subsampling_that_empties_a_domain_is_rejected():
    # Of eleven rows of class 1 one is kept, and the domain d1 has only one.
    data = dataset([0, 0] + [1] * 12, [0, 1, 1] + [0] * 11, [0] * 13 + [1])
    options = {"long_tail": 100, "long_tail_ranks": "ordered"}
    assert len(domain_incremental(data)) == 2
    with pytest.raises(DatasetError, match="'d1' of 'small' has no rows for training"):
        domain_incremental(data, **options)
