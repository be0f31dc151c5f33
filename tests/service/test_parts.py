"""Unit tests of the parts of a service."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
import weakref
from contextlib import closing

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

import httpx

import fecam as package
from fecam.errors import InputError, SettingsError
from fecam.service import Limits, ServiceSettings
from helpers.served_animals import X, Y, error, png, saved_model, served, teach_body


def test_integer_labels(tmp_path):
    path = saved_model(tmp_path, labels=Y)
    with served(path) as http:
        done = http.post("/v1/teach", json=teach_body(X[:2] + 3, "7")).json()
        assert done["new_classes"] == [7]
        answers = http.post("/v1/predict", json={"features": (X[:2] + 3).tolist()}).json()
        assert answers["answers"][0]["label"] == 7
        error(http.post("/v1/teach", json=teach_body(X[:2] + 4, "cat")), 422, "input")
        result = http.post("/v1/evaluate", json=teach_body(X[:2] + 3, "7")).json()
        assert result["accuracy"] == 1.0
        assert http.delete("/v1/classes/7").json()["counts"] == {"7": -2}


def submit(batcher, job):
    return asyncio.ensure_future(batcher.run(job))


def test_queued_jobs_form_one_batch():
    from fecam.service.batches import Batcher
    from fecam.service.problems import Problem

    batches, go = [], None

    async def work(jobs):
        await go.wait()
        batches.append(list(jobs))
        return [ValueError("odd") if job % 2 else job * 10 for job in jobs]

    async def main():
        nonlocal go
        go = asyncio.Event()
        batcher = Batcher("work", work, max_queue=5, max_batch=4, seconds=30)
        first = submit(batcher, 0)
        await asyncio.sleep(0.05)
        waiting = [submit(batcher, n) for n in range(1, 6)]
        await asyncio.sleep(0)
        with pytest.raises(Problem, match="too many"):
            await batcher.run(6)
        waiting[1].cancel()  # cancelled jobs are not computed
        go.set()
        await batcher.close()
        found = await asyncio.gather(first, *waiting, return_exceptions=True)
        with pytest.raises(Problem):
            await batcher.run(7)
        return found

    found = asyncio.run(main())
    assert batches == [[0], [1, 3, 4, 5]]
    assert found[0] == 0 and found[4] == 40 and isinstance(found[1], ValueError)


def test_batches_run_ahead():
    from fecam.service.batches import Batcher

    started, gates = [], {}

    async def work(jobs):
        started.append(list(jobs))
        gates[len(started)] = asyncio.Event()
        await gates[len(started)].wait()
        return jobs

    async def main():
        batcher = Batcher("work", work, max_queue=9, max_batch=2, seconds=30, max_inflight=2)
        waiting = [submit(batcher, n) for n in range(6)]
        await asyncio.sleep(0.05)
        assert started == [[0, 1], [2, 3]], "two batches at a time"
        gates[2].set()  # out of order
        assert await asyncio.gather(*waiting[2:4]) == [2, 3] and not waiting[0].done()
        await asyncio.sleep(0.05)
        assert started[2:] == [[4, 5]]
        gates[1].set()
        gates[3].set()
        await batcher.close()
        return await asyncio.gather(*waiting)

    assert asyncio.run(main()) == list(range(6))


def test_jobs_past_their_deadline_fail_and_are_not_computed():
    from fecam.service.batches import Batcher
    from fecam.service.problems import Problem

    done, go = [], None

    async def work(jobs):
        await go.wait()
        done.extend(jobs)
        return jobs

    async def main():
        nonlocal go
        go = asyncio.Event()
        batcher = Batcher("work", work, max_queue=5, max_batch=1, seconds=0.2)
        both = [submit(batcher, "started"), submit(batcher, "waits")]
        for one in both:
            with pytest.raises(Problem, match=r"within 0\.2 seconds"):
                await one
        go.set()
        assert await batcher.run("later") == "later"
        await batcher.close()

    asyncio.run(main())
    assert done == ["started", "later"]


def test_unexpected_errors_give_a_response(monkeypatch, tmp_path):
    path = saved_model(tmp_path)
    from fecam.service.app import App

    app = App(ServiceSettings(path))
    engine = app.engine

    async def fail():
        raise RuntimeError(f"of {path}")

    async def ask():
        door = httpx.ASGITransport(app=app)  # raises errors that the application does not handle
        async with httpx.AsyncClient(transport=door, base_url="http://127.0.0.1") as http:
            return await http.get("/v1/history")

    monkeypatch.setattr(engine, "steps", fail)
    with closing(engine.model):
        error(asyncio.run(ask()), 500, "internal")


def test_a_text_is_never_read_as_a_path(tmp_path):
    """The first request to an empty model must not read files of the server."""
    (tmp_path / "secret.png").write_bytes(png(8, 8))
    name = str(tmp_path / "secret.png")
    with package.open(tmp_path / "new.fecam") as model:
        assert model._labeled_items([name], ["a"]).kind == "images"  # in Python a path is an image
        assert model._labeled_items([name], ["a"], "texts").kind == "texts"
    with (
        package.open(saved_model(tmp_path)) as model,
        pytest.raises(InputError, match="takes features"),
    ):
        model.learn([name], ["a"], kind="texts")


def test_limits_are_validated():
    for change in ({"max_bytes": 0}, {"seconds": -1}, {"queue": 0}, {"max_pixels": 10**9}):
        with pytest.raises(SettingsError):
            Limits(**change)


@pytest.mark.parametrize("settings", [{}, {"covariance": "diagonal"}, {"covariance": "identity"}])
def test_the_map_matches_the_statistics(settings):
    from fecam.service.maps import class_map

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 3)) * [3, 1, 0.1] + np.repeat(
        [[0, 0, 0], [40, 0, 0], [0, 30, 0]], 20, axis=0
    )
    clf = package.FeCAMClassifier(tukey=None, l2=None, **settings).fit(
        rows, np.repeat([0, 1, 2], 20)
    )
    found = class_map(clf)
    places = np.asarray([[one["x"], one["y"]] for one in found["points"]])
    means = rows.reshape(3, 20, 3).mean(axis=1)
    apart = np.linalg.norm(means[:, None] - means, axis=-1)
    assert np.linalg.norm(places[:, None] - places, axis=-1) == pytest.approx(apart, abs=1e-6)
    ellipse = found["points"][0]["ellipse"]
    if settings.get("covariance") == "identity":
        assert ellipse["a"] == 0
    elif not settings:
        scatters = [np.cov(rows[start : start + 20].T) * 19 for start in (0, 20, 40)]
        pooled = sum(scatters) / 57
        centered = means - means.mean(axis=0)
        axes = np.linalg.svd(centered)[2][:2]
        values, vectors = np.linalg.eigh(axes @ (scatters[0] + 2 * pooled) @ axes.T / 21)
        assert [ellipse["b"] ** 2, ellipse["a"] ** 2] == pytest.approx(values, rel=1e-4)
        # The signs of the axes are arbitrary, so the angle is known up to a reflection.
        assert abs(np.cos(ellipse["angle"])) == pytest.approx(abs(vectors[0, 1]), abs=1e-3)


@pytest.mark.parametrize("counts", [(2, 2), (1, 3), (2, 1)])
def test_few_examples_have_no_ellipse_that_is_a_line(counts):
    """Two means lie on a line; the second axis is the widest direction inside the classes."""
    from fecam.service.maps import class_map

    rng = np.random.default_rng(0)
    labels = np.repeat(["low", "high"], counts)
    rows = rng.normal(size=(len(labels), 50)) + 20 * (labels == "high")[:, None]
    found = class_map(package.FeCAMClassifier(tukey=None, l2=None).fit(rows, labels))
    assert found["explained"] == pytest.approx(1)
    assert found["points"][0]["y"] == pytest.approx(found["points"][1]["y"], abs=1e-6)
    for point in found["points"]:
        assert point["ellipse"]["a"] > 0
        if sum(counts) > 3:
            assert point["ellipse"]["b"] > 0.05 * point["ellipse"]["a"]


def test_an_incomplete_body_times_out(tmp_path):
    path = saved_model(tmp_path)
    with served(path, "--seconds", "1") as http:
        with socket.create_connection(("127.0.0.1", http.running.port), timeout=20) as line:
            head = b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n"
            line.sendall(head + b'Content-Type: application/json\r\n\r\n{"features": ')
            answered = http.post("/v1/predict", json={"features": X[:1].tolist()})
            assert answered.status_code == 200, "other requests are answered"
            said = line.recv(10_000)
        assert b"408" in said.splitlines()[0] and b"no data came for 1 seconds" in said


def test_a_copy_is_removed_after_any_request(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    with served(saved_model(tmp_path)) as http:
        for asked, status in (("bytes=zzz", 400), ("bytes=99999999999-", 416), ("bytes=0-1", 206)):
            answer = http.get("/v1/model/file", headers={"Range": asked})
            assert answer.status_code == status
        deadline = time.monotonic() + 30  # the client may receive the last byte earlier
        while copies := list((tmp_path / "temporary").glob("fecam-copy-*")):
            assert time.monotonic() < deadline, copies
            time.sleep(0.01)


@pytest.mark.parametrize("count", [4, 60, 300])
def test_old_models_have_no_reference_cycles(tmp_path, count):
    """Frozen objects are not collected, so a model in a reference cycle would leak."""
    from fecam.service.served_model import Query, ServedModel, predict_batch

    rng = np.random.default_rng(0)
    rows, labels = rng.random((3 * count, 96), np.float32), np.repeat(["a", "b", "c"], count)
    with package.open(tmp_path / "m.fecam") as model:
        model.learn(rows, labels)
        gc.collect()
        gc.disable()
        try:
            snapshot = model.snapshot
            snapshot.classifier.warm_up()
            view = ServedModel.from_snapshot(snapshot)
            predict_batch(view, [Query(rows[:3])])
            held = [weakref.ref(one) for one in (snapshot.classifier, view.classifier)]
            model.learn(rows[:5] + 0.01, labels[:5])
            snapshot = view = model.snapshot
            assert [one() for one in held] == [None, None]
        finally:
            gc.enable()


@pytest.mark.parametrize("bad", [0, 31, 63])
def test_invalid_rows_cost_other_queries_little(tmp_path, monkeypatch, bad):
    from fecam.service.served_model import EncodedAnswers, Query, ServedModel, predict_batch

    with package.open(saved_model(tmp_path)) as model:
        view = ServedModel.from_snapshot(model.snapshot)
    queries = [Query(X[:1] - 100 * (place == bad)) for place in range(64)]
    n_rows = []
    predict_detailed = package.FeCAMClassifier.predict_detailed
    monkeypatch.setattr(
        package.FeCAMClassifier,
        "predict_detailed",
        lambda self, rows, *args, **options: (
            n_rows.append(len(rows)) or predict_detailed(self, rows, *args, **options)
        ),
    )
    found = predict_batch(view, queries)
    assert [i for i, answer in enumerate(found) if not isinstance(answer, EncodedAnswers)] == [bad]
    assert isinstance(found[bad], InputError) and sum(n_rows) < 3 * 64


def test_a_novelty_that_is_not_known_is_null_and_rejects_nothing(tmp_path, monkeypatch):
    from fecam import api
    from fecam.client.requests import Request
    from fecam.service.served_model import Query, ServedModel, predict_batch

    with package.open(saved_model(tmp_path)) as model:
        view = ServedModel.from_snapshot(model.snapshot)
    predict_detailed = package.FeCAMClassifier.predict_detailed
    monkeypatch.setattr(
        package.FeCAMClassifier,
        "predict_detailed",
        lambda *args, **options: predict_detailed(*args, **options)._replace(
            novelty=np.full(len(args[1]), np.nan)
        ),
    )
    (encoded,) = predict_batch(view, [Query(X[:3], reject=0.999)])
    assert b"NaN" not in encoded.json and b'"novelty":null' in encoded.json
    content = {"answers": encoded.answers, "version": 1, "milliseconds": 0.5}
    predictions = Request(api.PREDICT).read(content)
    assert np.isnan([prediction.novelty for prediction in predictions]).all()
    assert None not in predictions.labels


def test_only_an_owned_process_freezes_the_gc(tmp_path):
    from fecam.service.engine import Engine

    async def begin(alone):
        engine = Engine(ServiceSettings(path))
        engine.owns_process = alone
        await engine.start()
        while not engine.ready:
            await asyncio.sleep(0.01)
        await engine.close()

    path = saved_model(tmp_path)
    try:
        asyncio.run(begin(alone=False))
        assert not gc.get_freeze_count()
        asyncio.run(begin(alone=True))
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()


def test_an_acknowledged_class_is_served(tmp_path):
    with served(tmp_path / "new.fecam") as http:
        assert http.post("/v1/predict", json={"features": X[:1].tolist()}).status_code == 409
        rng = np.random.default_rng(0)
        for label in range(8):
            rows = 5 * np.eye(8)[[label] * 3] + rng.random((3, 8))
            done = http.post("/v1/teach", json=teach_body(rows, f"c{label}")).json()
            found = http.post("/v1/predict", json={"features": rows.tolist()}).json()
            assert found["version"] >= done["version"]
            assert [one["label"] for one in found["answers"]] == [f"c{label}"] * 3
        http.post("/v1/undo", json={"steps": 1})
        found = http.post("/v1/predict", json={"features": rows.tolist()}).json()
        assert found["answers"][0]["label"] != "c7"


def test_an_older_snapshot_never_follows_a_newer_one(tmp_path, monkeypatch):
    """While one thread computes the factors of a version, another publishes the next."""
    from fecam.service.engine import Engine

    engine = Engine(ServiceSettings(saved_model(tmp_path)))
    warm_up, slow = package.FeCAMClassifier.warm_up, threading.Event()

    def wait_and_warm_up(classifier):
        if not slow.is_set():
            slow.set()
            time.sleep(0.3)
        warm_up(classifier)

    monkeypatch.setattr(package.FeCAMClassifier, "warm_up", wait_and_warm_up)
    with closing(engine.model):
        first = threading.Thread(target=engine.publish)
        first.start()
        slow.wait()
        engine.model.learn(X[:2] + 1, ["new", "new"])
        engine.publish()
        first.join()
        assert engine.served.version == engine.model.version


def test_different_queries_in_one_batch(tmp_path):
    from fecam.service.engine import Engine

    path = saved_model(tmp_path)
    with package.open(path, readonly=True) as model:
        labels = model.predict(X)

    async def run():
        engine = Engine(ServiceSettings(path))
        await engine.start()
        try:
            rows = X.astype(np.float32)
            asked = [engine.predict("features", rows[i : i + 2], 1 + i % 2) for i in range(6)]
            wrong = engine.predict("features", rows[:1, :3])
            outcomes = await asyncio.gather(*asked, wrong, return_exceptions=True)
            for i, found in enumerate(outcomes[:-1]):
                assert [one["label"] for one in found.answers] == labels[i : i + 2]
                assert {len(one["nearest"]) for one in found.answers} == {1 + i % 2}
            assert isinstance(outcomes[-1], InputError) and "3 columns" in str(outcomes[-1])
        finally:
            await engine.close()

    asyncio.run(run())


def test_search_overrides_the_model(tmp_path):
    """Approximate search gives some other answers here, also after a change.

    Each class varies along four directions of its own, which estimates from a prefix miss.
    """
    rng, width = np.random.default_rng(0), 64
    centers, axes = rng.random((40, 1, width)), rng.normal(size=(40, 4, width))
    rows = centers + rng.normal(size=(40, 200, 4)) @ axes
    rows += 0.05 * rng.normal(size=rows.shape)
    rows, labels = rows.reshape(-1, width).astype(np.float32), np.repeat(np.arange(40), 200)
    pairs = rng.integers(len(rows), size=(2, 1000))
    queries = rows[pairs].mean(axis=0)
    plain = {"normalization": None, "pooling": 0.0, "shrinkage": (1.0, 1.0)}

    with package.open(tmp_path / "m.fecam", settings=plain) as model:
        model.learn(rows[1:], labels[1:])
        with served(model.path, "--search", "approximate") as http:
            for _ in range(2):
                asked = {"features": queries.tolist(), "top": 0}
                answers = http.post("/v1/predict", json=asked).json()["answers"]
                wrong = [one["label"] for one in answers] != model.classifier.predict(queries)
                assert 0 < sum(wrong) < 100, "exact search has none"
                http.post("/v1/teach", json=teach_body(rows[:1], "0"))
                model.reload()


def test_an_unknown_search_is_rejected(tmp_path):
    with pytest.raises(SettingsError, match=r"search='fast' must be one of 'auto'.*'approximate'"):
        ServiceSettings(tmp_path / "m.fecam", search="fast")
