"""Metrics: by hand, against literal versions, and by what must be true of them."""

from __future__ import annotations

import json
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fecam.bench import metrics
from fecam.errors import InputError

NAN = float("nan")
shares = st.floats(0, 1)
seeds = st.integers(0, 2**32 - 1)


def task(task, tasks, parts, *, head="ncm", seed=0, **more):
    """A record with all a runner writes; parts are (rows, accuracy)."""
    rows, accuracies = zip(*parts, strict=True)
    return {
        "kind": "task",
        "head": head,
        "seed": seed,
        "task": task,
        "tasks": tasks,
        "name": f"task {task + 1}",
        "classes": 10 * len(parts),
        "train_rows": 100,
        "test_rows": sum(rows),
        "accuracy": float(np.dot(rows, accuracies) / sum(rows)),
        "parts": [[f"task {at + 1}", *part] for at, part in enumerate(parts)],
        "seconds_to_learn": 1.0 + task,
        "seconds_to_predict": 0.5,
        "bytes": 100 * (task + 1),
        "calibration_error": 0.1 * task,
        "novelty_auroc": None,
        "options": {},
        **more,
    }


# -- from predictions ------------------------------------------------------------------------------


def literal_calibration_error(confidence, right, bins):
    total = 0.0
    for at in range(bins):
        low, high = at / bins, (at + 1) / bins
        inside = [
            (c, r)
            for c, r in zip(confidence, right, strict=True)
            if low < c <= high or (at == 0 and c == 0)
        ]
        if inside:
            gap = abs(statistics.mean(r for _, r in inside) - statistics.mean(c for c, _ in inside))
            total += len(inside) / len(confidence) * gap
    return total


@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 1)), min_size=1), st.integers(1, 20))
def test_calibration_error_is_the_literal_one(rows, bins):
    # 1999 is a prime: no fraction of it lies on a border of bins, where rounding would decide.
    confidence, right = [(2 * c + 1) / 1999 for c, _ in rows], [r for _, r in rows]
    measured = metrics.calibration_error(confidence, right, bins=bins)
    assert measured == pytest.approx(literal_calibration_error(confidence, right, bins), abs=1e-12)


def test_calibration_error_by_hand():
    # Nine in ten right at 0.9 is honest; always wrong at 0.8 is off by 0.8.
    assert metrics.calibration_error([0.9] * 10, [1] * 9 + [0]) == pytest.approx(0, abs=1e-12)
    assert metrics.calibration_error([0.8] * 3, [False] * 3) == pytest.approx(0.8)
    # Opposite errors cancel within a bin, not between bins.
    assert metrics.calibration_error([0.8, 0.4], [0, 1], bins=1) == pytest.approx(0.1)
    assert metrics.calibration_error([0.8, 0.4], [0, 1], bins=2) == pytest.approx(0.7)
    # The border belongs to the bin below; 0 and 1 have a bin too.
    assert metrics.calibration_error([0.5, 0.3], [0, 1], bins=2) == pytest.approx(0.1)
    assert metrics.calibration_error([0.0, 1.0], [0, 1]) == 0


@given(seeds)
def test_calibration_error_of_rows_is_that_of_their_largest_entry(seed):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(4), size=30)
    labels = rng.integers(4, size=30)
    assert metrics.calibration_error(p, labels) == metrics.calibration_error(
        p.max(axis=1), p.argmax(axis=1) == labels
    )


@pytest.mark.parametrize(
    ("probabilities", "outcome", "bins", "says"),
    [
        ([-3.0], [True], 15, "predict_proba"),
        ([1.5], [True], 15, "predict_proba"),
        ([NAN], [True], 15, "predict_proba"),
        ([0.5], [True, False], 15, r"\(1,\) and \(2,\)"),
        ([], [], 15, "at least one"),
        ([0.5], [True], 0, "bins=0"),
    ],
)
def test_calibration_of_invalid_input_is_an_error(probabilities, outcome, bins, says):
    with pytest.raises(InputError, match=says):
        metrics.calibration_error(probabilities, outcome, bins=bins)


scores = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=20)


@given(scores, scores)
def test_auroc_counts_pairs_and_a_tie_is_a_half(known, novel):
    pairs = [1.0 if n > k else 0.5 if n == k else 0.0 for k in known for n in novel]
    assert metrics.auroc(known, novel) == pytest.approx(sum(pairs) / len(pairs))
    assert metrics.auroc(novel, known) == pytest.approx(1 - sum(pairs) / len(pairs))


def test_auroc_of_infinite_and_missing_scores():
    assert metrics.auroc([1.0, 2.0], [np.inf]) == 1
    with pytest.raises(InputError, match="2 and 0 scores"):
        metrics.auroc([1, 2], [])
    with pytest.raises(InputError, match="NaN"):
        metrics.auroc([1, NAN], [2])


# -- from accuracies -------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=6))
def test_old_and_new_count_rows_not_tasks(parts):
    parts = [(rows, min(correct, rows)) for rows, correct in parts]
    shown = [(rows, correct / rows) for rows, correct in parts]
    tasks = [task(i, len(parts), shown[: i + 1]) for i in range(len(parts))]
    values = metrics.run_metrics(tasks)

    def share(chosen):
        return sum(c for _, c in chosen) / sum(r for r, _ in chosen) if chosen else None

    for name, chosen in {
        "last": parts,
        "new": parts[-1:],
        "old": parts[:-1],
        "base": parts[:1],
        "later": parts[1:],
    }.items():
        assert values[name] == (pytest.approx(share(chosen)) if chosen else None)
    assert values["average"] == pytest.approx(
        sum(share(parts[: i + 1]) for i in range(len(parts))) / len(parts)
    )


@given(st.floats(0, 1), st.floats(0, 1))
def test_the_harmonic_mean_is_at_most_both_and_0_if_one_is(base, later):
    value = metrics.harmonic_mean(base, later)
    assert min(base, later) - 1e-12 <= value <= 2 * min(base, later)
    assert value <= max(base, later) + 1e-12
    assert metrics.harmonic_mean(base, 0.0) == 0 == metrics.harmonic_mean(0.0, 0.0)


def test_a_part_without_test_rows_has_no_accuracy():
    values = metrics.run_metrics([task(0, 2, [(10, 0.5)]), task(1, 2, [(10, 0.5), (0, 0.0)])])
    assert (values["old"], values["new"], values["last"]) == (0.5, None, 0.5)


def test_mean_of_no_values_is_an_error():
    with pytest.raises(InputError, match="no values"):
        metrics.mean_std([])


# Task 1 falls 0.9 -> 0.5 -> 0.7, task 2 rises 0.6 -> 0.8, task 3 is new.
MATRIX = [[0.9, NAN, NAN], [0.5, 0.6, NAN], [0.7, 0.8, 0.4]]


def test_forgetting_and_backward_transfer_by_hand():
    assert metrics.forgetting(MATRIX) == pytest.approx(((0.9 - 0.7) + (0.6 - 0.8)) / 2)
    assert metrics.backward_transfer(MATRIX) == pytest.approx(((0.7 - 0.9) + (0.8 - 0.6)) / 2)
    # The best so far need not be the first: task 1 rises before it falls.
    risen = [[0.5, NAN, NAN], [0.9, 0.6, NAN], [0.7, 0.6, 0.4]]
    assert metrics.forgetting(risen) == pytest.approx(0.2 / 2)
    assert metrics.backward_transfer(risen) == pytest.approx(0.2 / 2)
    assert metrics.forgetting([[0.9]]) is None
    assert metrics.backward_transfer([[0.9]]) is None
    with pytest.raises(InputError, match="two dimensions"):
        metrics.forgetting([0.5])


@st.composite
def matrices(draw):
    size = draw(st.integers(2, 6))
    return [[draw(shares) if j <= i else NAN for j in range(size)] for i in range(size)]


@given(matrices())
def test_forgetting_and_backward_transfer_are_the_literal_ones(matrix):
    end = len(matrix) - 1
    forgotten = [max(matrix[i][j] for i in range(j, end)) - matrix[end][j] for j in range(end)]
    gained = [matrix[end][j] - matrix[j][j] for j in range(end)]
    assert metrics.forgetting(matrix) == pytest.approx(sum(forgotten) / end)
    assert metrics.backward_transfer(matrix) == pytest.approx(sum(gained) / end)
    # What was lost since the best is at least what was lost since the first.
    assert metrics.forgetting(matrix) >= -metrics.backward_transfer(matrix) - 1e-12


def test_a_task_without_new_classes_leaves_no_gap():
    repeated = [[0.8, NAN], [0.7, NAN], [0.6, 0.9]]
    assert metrics.forgetting(repeated) == pytest.approx(0.2)
    assert metrics.backward_transfer(repeated) == pytest.approx(-0.2)


def test_the_matrix_does_not_depend_on_the_order_of_records():
    records = [
        task(at, 3, [(10, value) for value in row if value == value])
        for at, row in enumerate(MATRIX)
    ]
    np.testing.assert_array_equal(metrics.accuracy_matrix(records[::-1]), MATRIX)
    assert metrics.accuracy_matrix([]).shape == (0, 0)


# -- over seeds ------------------------------------------------------------------------------------


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8))
def test_mean_std_agrees_with_the_statistics_module(values):
    found = metrics.mean_std(values)
    assert found.mean == pytest.approx(statistics.mean(values), abs=1e-9)
    assert found.std == pytest.approx(statistics.stdev(values), abs=1e-9)


def records_of(head="ncm", seed=0, shift=0.0, **more):
    return [
        task(0, 3, [(20, 0.9 + shift)], head=head, seed=seed, novelty_auroc=0.7, **more),
        task(1, 3, [(20, 0.5), (10, 0.6)], head=head, seed=seed, novelty_auroc=0.8, **more),
        task(2, 3, [(20, 0.7), (10, 0.8), (10, 0.4 + shift)], head=head, seed=seed, **more),
    ]


def test_a_summary_by_hand():
    (row,) = metrics.summarize(records_of())
    means = {name: row[name] and row[name]["mean"] for name in metrics.METRICS}
    after = [0.9, (20 * 0.5 + 10 * 0.6) / 30, (20 * 0.7 + 10 * 0.8 + 10 * 0.4) / 40]
    assert means == {
        "average": pytest.approx(sum(after) / 3),
        "last": pytest.approx(after[-1]),
        "average_later": pytest.approx((after[1] + after[2]) / 2),
        "harmonic": pytest.approx(2 * 0.7 * 0.6 / (0.7 + 0.6)),
        "performance_drop": pytest.approx(after[0] - after[-1]),
        "base": pytest.approx(0.7),
        "later": pytest.approx(0.6),
        "old": pytest.approx((20 * 0.7 + 10 * 0.8) / 30),
        "new": pytest.approx(0.4),
        "forgetting": pytest.approx(0),
        "backward_transfer": pytest.approx(0),
        "calibration_error": pytest.approx(0.2),
        "novelty_auroc": pytest.approx(0.8),
        "seconds_to_learn": pytest.approx(6),
        "seconds_to_predict": pytest.approx(1.5),
        "bytes": 300,
        "parameters": None,
    }
    assert row["head"] == "ncm" and row["seeds"] == 1 and row["unfinished"] == 0
    assert row["last"]["std"] is None


def test_heads_keep_their_order_and_seeds_give_a_std():
    records = [*records_of("zeta", 1), *records_of("alpha", 1), *records_of("zeta", 2, shift=0.1)]
    zeta, alpha = metrics.summarize(records)
    assert (zeta["head"], zeta["seeds"], alpha["head"], alpha["seeds"]) == ("zeta", 2, "alpha", 1)
    new = [0.4, 0.5]
    assert zeta["new"]["mean"] == pytest.approx(0.45)
    assert zeta["new"]["std"] == pytest.approx(statistics.stdev(new))
    assert zeta["base"]["std"] == 0
    json.dumps([zeta, alpha], allow_nan=False)


def test_the_order_of_records_does_not_matter_and_the_later_of_two_counts():
    records = records_of()
    wrong = {**records[1], "accuracy": 0.0, "seconds_to_learn": 1e6}
    assert metrics.summarize([wrong, *records[::-1]]) == metrics.summarize(records)


def test_an_incomplete_run_has_no_last_accuracy():
    records = [*records_of(seed=1), *records_of(seed=2)[:2], *records_of("fecam", 1)[:1]]
    ncm, fecam = metrics.summarize(records)
    assert ncm["seeds"] == 1 and ncm["unfinished"] == 1
    assert ncm["last"] == metrics.summarize(records_of())[0]["last"]
    assert fecam["seeds"] == 0 and fecam["unfinished"] == 1
    assert all(fecam[name] is None for name in metrics.METRICS)


def test_domains_have_no_old_and_no_new():
    parts = [[(10, 0.5), (30, 0.9)], [(10, 0.6), (30, 0.8)]]
    (row,) = metrics.summarize(task(at, 2, part) for at, part in enumerate(parts))
    gaps = {name for name in metrics.METRICS if row[name] is None}
    assert gaps == {
        *("base", "later", "harmonic", "old", "new", "forgetting", "backward_transfer"),
        *("average_later", "performance_drop", "novelty_auroc"),
        "parameters",
    }
    assert row["average"]["mean"] == pytest.approx((0.8 + 0.75) / 2)
    (one_domain,) = metrics.summarize(task(at, 2, [(10, 0.5)]) for at in range(2))
    assert one_domain["forgetting"] is None and one_domain["old"] is None


def test_a_single_task_has_average_and_last_and_nothing_to_forget():
    (row,) = metrics.summarize([task(0, 1, [(10, 0.5)])])
    assert row["average"] == row["last"] == row["base"] == {"mean": 0.5, "std": None}
    assert row["average_later"] is row["harmonic"] is row["performance_drop"] is None
    assert row["old"] is row["later"] is row["forgetting"] is row["backward_transfer"] is None


def test_other_kinds_of_records_are_ignored():
    others = [{"kind": "analysis", "name": "tsne", "data": {}}, {"kind": "not yet invented"}]
    assert metrics.summarize([*others, *records_of()]) == metrics.summarize(records_of())
    assert metrics.summarize(others) == []


@given(st.lists(st.lists(shares, min_size=3, max_size=3), min_size=1, max_size=4))
def test_the_mean_of_seeds_is_the_mean_of_their_metrics(seeds):
    records = [
        [task(at, 3, [(10, value)] * (at + 1), seed=seed) for at, value in enumerate(values)]
        for seed, values in enumerate(seeds)
    ]
    (row,) = metrics.summarize(record for each in records for record in each)
    for name in ("average", "last", "forgetting"):
        each = [metrics.run_metrics(tasks)[name] for tasks in records]
        assert row[name]["mean"] == pytest.approx(math.fsum(each) / len(each))
