"""Metrics of answers, and alarms for classes whose items have changed."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

import fecam
from fecam.service.drift import FALSE_ALARM_RATE, MIN_ALARM, TOLERATED_SHARE, WINDOW, DriftMonitor
from helpers.features import relu_features
from helpers.servers import service

X, Y = relu_features(4, 400, 8, 0)
NAMES = np.asarray(["cat", "dog", "owl", "tit"])
BOARD = Path(__file__).parents[2] / "deploy" / "grafana.json"


def alarms(share, n_windows, seed=0):
    """Return the alarms of one class, of whose items this share is above the 5 % point."""
    above = np.random.default_rng(seed).random(n_windows * WINDOW) < share
    windows = DriftMonitor().observe(["cat"] * len(above), np.where(above, 2.0, 1.0))
    return np.asarray([window.alarm for window in windows])


def test_alarms_are_as_rare_as_stated_and_drift_is_found():
    assert MIN_ALARM == 21
    assert alarms(0.05, 4000).mean() <= FALSE_ALARM_RATE / 10
    assert alarms(TOLERATED_SHARE, 4000).mean() <= 2 * FALSE_ALARM_RATE
    assert alarms(0.25, 400).mean() > 0.75
    assert alarms(0.4, 400).all()


def test_classes_have_windows_of_their_own_and_unknown_novelty_is_not_counted():
    monitor = DriftMonitor()
    labels = ["cat", "dog"] * WINDOW
    windows = list(monitor.observe(labels, [9.0, float("nan")] * WINDOW))
    assert [(window.label, window.share) for window in windows] == [("cat", 1.0)]
    assert not list(monitor.observe(["cat"] * (WINDOW - 1), [9.0] * (WINDOW - 1)))


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    path = tmp_path_factory.mktemp("drift") / "animals.fecam"
    with fecam.open(path) as model:
        model.learn(X[::4], NAMES[Y[::4]].tolist())
    with service(path) as one:
        yield one


def series(text, name):
    pattern = re.compile(rf'^{name}\{{label="(\w+)"\}} (\S+)$', re.MULTILINE)
    return {label: float(value) for label, value in pattern.findall(text)}


def test_metrics_of_answers(running):
    import httpx

    known, y = np.delete(X, np.s_[::4], 0), np.delete(Y, np.s_[::4])
    with httpx.Client(base_url=running.url) as http:
        for rows in np.array_split(known, 8):
            body = {"features": rows.tolist(), "reject": 0.05}
            assert http.post("/v1/predict", json=body).status_code == 200
        text = http.get("/metrics").text
        assert sum(series(text, "fecam_answers_total").values()) == len(known)
        rejected = float(re.search(r"^fecam_rejected_items_total (\S+)", text, re.M)[1])
        assert 0 < rejected < 0.15 * len(known)
        assert re.search(rf"^fecam_novelty_count {float(len(known))}", text, re.M)
        assert set(series(text, "fecam_drift_alarm").values()) == {0.0}
        cats = known[y == 0]
        changed = np.where(np.arange(8) < 4, cats, 0)  # half of a sensor is dark
        http.post("/v1/predict", json={"features": changed.tolist()})
        text = http.get("/metrics").text
        assert 1.0 in series(text, "fecam_drift_alarm").values()
        assert max(series(text, "fecam_drift_share").values()) > 0.2
        # Evaluation is not counted: its items need not be those of daily use.
        before = series(text, "fecam_answers_total")
        http.post("/v1/evaluate", json={"features": cats[:5].tolist(), "label": "cat"})
        assert series(http.get("/metrics").text, "fecam_answers_total") == before


def test_the_grafana_board_shows_metrics_that_exist(running):
    import httpx

    for rows in np.array_split(X, 8):  # series appear with the first answers
        body = {"features": rows.tolist(), "reject": 0.05}
        assert httpx.post(f"{running.url}/v1/predict", json=body).status_code == 200
    text = httpx.get(f"{running.url}/metrics").text
    exposed = set(re.findall(r"^(fecam_\w+)", text, re.M))
    board = json.loads(BOARD.read_text())
    expressions = [t["expr"] for panel in board["panels"] for t in panel["targets"]]
    used = {name for expression in expressions for name in re.findall(r"fecam_\w+", expression)}
    missing = {name for name in used if name not in exposed}
    assert not missing
    families = {re.sub(r"_(total|bucket|sum|count|created)$", "", name) for name in exposed}
    assert families == {re.sub(r"_(total|bucket)$", "", name) for name in used}, "all are shown"


def test_many_classes_share_one_series():
    from fecam.service import metrics
    from fecam.service.served_model import EncodedAnswers

    counted = metrics.Metrics()
    labels = [f"class {i}" for i in range(metrics.MAX_LABELS + 5)]
    answers = EncodedAnswers(b"[]", 1, labels, [0.0] * len(labels))

    async def count():
        counted.count_answers(len(labels), answers)
        await asyncio.sleep(2 * metrics.DELAY)  # noted answers are counted without a scrape

    asyncio.run(count())
    samples = counted.registry.get_sample_value
    assert samples("fecam_answers_total", {"label": metrics.OTHER}) == 5
    assert samples("fecam_answers_total", {"label": "class 999"}) == 1
