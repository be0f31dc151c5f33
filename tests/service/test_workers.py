"""Prediction workers: their answers, and failures."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

import httpx

import fecam as package
from fecam.errors import InputError, SettingsError
from fecam.service import ServiceSettings
from fecam.service.engine import Engine
from helpers.served_animals import X, saved_model, served, teach_body
from helpers.servers import service

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")

EELS = np.asarray([[9.0, 0, 0, 0, 0, 0.1], [9.0, 0.1, 0, 0, 0, 0]], np.float32)


def children(pid):
    """Return the process IDs of the prediction workers of a service."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in (task / "children").read_text().split():
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found


def lives(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


def until(true, seconds=30.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "timeout"
        time.sleep(0.02)


def predict_workers(http):
    return int(
        float(re.search(r"^fecam_predict_workers (\S+)", http.get("/metrics").text, re.M)[1])
    )


def ask(http, rows=X, **more):
    found = http.post("/v1/predict", json={"features": rows.tolist(), **more})
    assert found.status_code == 200, found.text
    return found.json()


def expected(path, rows=X):
    with package.open(path, readonly=True) as model:
        return model.predict(rows)


def test_answers_do_not_depend_on_the_number_of_workers(tmp_path):
    path = saved_model(tmp_path)
    found = []
    for count in (0, 1, 2):
        with served(path, "--predict-workers", str(count)) as http:
            until(lambda http=http, count=count: predict_workers(http) == count)
            assert len(children(http.running.process.pid)) == count
            asked = [ask(http, top=3), ask(http, X * 5, reject=0.2), ask(http, X[:1], top=0)]
            found.append([one["answers"] for one in asked])
            wrong = http.post("/v1/predict", json={"features": [[1.0, 2.0]]})
            assert wrong.status_code == 422 and "2 columns" in wrong.text
    assert found[0] == found[1] == found[2]
    assert [one["label"] for one in found[0][0]] == expected(path)


def test_an_acknowledged_class_is_served(tmp_path):
    with served(tmp_path / "new.fecam", "--predict-workers", "2") as http:
        until(lambda: predict_workers(http) == 2)
        assert http.post("/v1/predict", json={"features": X[:1].tolist()}).status_code == 409
        rng = np.random.default_rng(0)
        for label in range(8):
            rows = 5 * np.eye(8)[[label] * 3] + rng.random((3, 8))
            done = http.post("/v1/teach", json=teach_body(rows, f"c{label}")).json()
            for _ in range(4):  # each worker must serve it
                found = ask(http, rows)
                assert found["version"] >= done["version"]
                assert [one["label"] for one in found["answers"]] == [f"c{label}"] * 3
        http.post("/v1/undo", json={"steps": 1})
        for _ in range(4):
            assert ask(http, rows)["answers"][0]["label"] != "c7"


@contextmanager
def served_by_worker(path, *options):
    """Yield a service with one worker, the expected labels, and the ID of the worker."""
    labels = expected(path)
    with served(path, "--predict-workers", "1", *options) as http:
        until(lambda: predict_workers(http) == 1)
        (child,) = children(http.running.process.pid)
        yield http, labels, child


def test_a_killed_worker_is_replaced_without_failed_requests(tmp_path):
    path = saved_model(tmp_path)
    with served_by_worker(path) as (http, labels, first):
        ending = time.monotonic() + 3

        def ask_on(_):
            answers = 0
            with httpx.Client(base_url=http.running.url, timeout=60) as own:
                while time.monotonic() < ending:
                    said = [one["label"] for one in ask(own)["answers"]]
                    assert said == labels
                    answers += 1
            return answers

        with ThreadPoolExecutor(4) as pool:
            asking = pool.map(ask_on, range(4))
            time.sleep(0.5)
            os.kill(first, signal.SIGKILL)
            assert http.get("/readyz").status_code == 200, "the service stays ready"
            assert min(asking) > 3
        until(lambda: predict_workers(http) == 1)
        (second,) = children(http.running.process.pid)
        assert second != first
        http.post("/v1/teach", json=teach_body(EELS, "eel"))
        assert ask(http, EELS)["answers"][0]["label"] == "eel"
        assert "another is started" in http.running.log.read_text()


def test_a_hanging_worker_is_killed(tmp_path):
    path = saved_model(tmp_path)
    with served_by_worker(path, "--seconds", "2") as (http, labels, child):
        os.kill(child, signal.SIGSTOP)
        late = http.post("/v1/predict", json={"features": X.tolist()})
        assert late.status_code in (200, 503)
        until(lambda: not lives(child))
        assert [one["label"] for one in ask(http)["answers"]] == labels
        http.post("/v1/teach", json=teach_body(EELS, "eel"))
        assert ask(http, EELS)["answers"][0]["label"] == "eel"
        until(lambda: predict_workers(http) == 1)
        (child,) = children(http.running.process.pid)
        os.kill(child, signal.SIGSTOP)
        http.running.process.send_signal(signal.SIGTERM)
        http.running.process.wait(30)
        until(lambda: not lives(child))


def test_a_change_does_not_wait_for_a_hanging_worker(tmp_path):
    with served_by_worker(saved_model(tmp_path), "--seconds", "1") as (http, _, child):
        os.kill(child, signal.SIGSTOP)
        assert http.post("/v1/teach", json=teach_body(EELS, "eel")).status_code == 200
        assert ask(http, EELS)["answers"][0]["label"] == "eel"
        until(lambda: not lives(child))


def test_a_worker_with_a_long_queue_is_not_restarted():
    from fecam.service.frames import read_frame, write_frame
    from fecam.service.worker_handle import WorkerHandle, _Channel

    class Process:
        pid, killed = 1, False

        def kill(self):
            self.killed = True
            theirs.shutdown(socket.SHUT_RDWR)

    ours, theirs = socket.socketpair()

    def work(answers):
        for _ in range(answers):
            read_frame(lines)
            time.sleep(0.2)
            write_frame(theirs.sendall, [])

    async def main():
        one = WorkerHandle(Path("any"), 1)
        _, one._channel = await asyncio.get_running_loop().create_connection(_Channel, sock=ours)
        one._process = Process()
        working = asyncio.create_task(asyncio.to_thread(work, 8))
        watching = asyncio.create_task(one.watch(0.7))
        await asyncio.gather(*[one.predict([]) for _ in range(8)])  # the last waits for 1.6 seconds
        assert not one._process.killed
        await working
        with pytest.raises(ConnectionError):
            await one.predict([])  # no reply comes
        await watching
        assert one._process.killed

    with theirs, theirs.makefile("rb") as lines:
        asyncio.run(main())


def test_a_damaged_file_does_not_stop_the_service(tmp_path):
    path = saved_model(tmp_path)
    with served_by_worker(path) as (http, labels, child):
        garbage = tmp_path / "garbage"
        garbage.write_bytes(b"no model" * 1000)
        garbage.rename(path)
        os.kill(child, signal.SIGKILL)
        until(lambda: "cannot be started" in http.running.log.read_text())
        assert [one["label"] for one in ask(http)["answers"]] == labels
        assert "Traceback" not in http.running.log.read_text()


def test_a_signal_during_startup_leaves_no_traceback(tmp_path, default_sigint):
    path = saved_model(tmp_path)
    for wait in (0.0, 0.3, 0.8):
        running = service(path, "--predict-workers", "1")
        running.begin()
        try:
            until(lambda running=running: children(running.process.pid))
            (child,) = children(running.process.pid)
            time.sleep(wait)
            for one in (child, running.process.pid):  # a terminal signals the whole group
                os.kill(one, signal.SIGINT)
            running.process.wait(30)
            until(lambda child=child: not lives(child))
            assert "Traceback" not in running.log.read_text()
        finally:
            running.kill()


def test_each_worker_loads_the_published_version(tmp_path):
    from fecam.service.prediction_pool import PredictionPool

    class FakeWorker:
        def __init__(self, fails=False):
            self.fails, self.versions, self.killed = fails, [], False

        def wait_for_version(self, version):
            if self.fails:
                raise ConnectionError("failed")
            self.versions.append(version)

        def disconnect(self):
            pass

        def kill(self):
            self.killed = True

    with package.open(saved_model(tmp_path)) as model:
        pool = PredictionPool(model.path, None, n_workers=3, n_processes=1, seconds=1)
        failing, others = FakeWorker(fails=True), [FakeWorker(), FakeWorker()]
        pool._workers = [failing, *others]
        pool.publish(model.snapshot)
        assert [one.versions for one in others] == [[1], [1]] and failing.killed
        assert pool._workers == others and pool.served.version == 1


def test_no_worker_outlives_its_service(tmp_path, default_sigint):
    path = saved_model(tmp_path)
    for end in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        with served(path, "--predict-workers", "1") as http:
            until(lambda http=http: predict_workers(http) == 1)
            process = http.running.process
            (child,) = children(process.pid)
            for one in (signal.SIGTERM, signal.SIGINT):  # systemd signals the whole group
                os.kill(child, one)
            ask(http)
            assert lives(child)
            process.send_signal(end)
            process.wait(30)
            until(lambda child=child: not lives(child))


def test_a_thread_predicts_without_workers(tmp_path, monkeypatch, caplog):
    from fecam.service import worker_handle

    monkeypatch.setattr(worker_handle, "START_TIMEOUT_S", 0.0)
    path = saved_model(tmp_path)

    async def run():
        engine = Engine(ServiceSettings(path, predict_workers=1))
        await engine.start()
        try:
            found = await engine.predict(X.astype(np.float32))
            assert [one["label"] for one in found.answers] == expected(path)
            while "cannot be started" not in caplog.text:
                await asyncio.sleep(0.02)
            assert engine.predict_workers == 0
            await engine.learn("features", EELS, ["eel"] * len(EELS))
            found = await engine.predict(EELS)
            assert found.answers[0]["label"] == "eel"
        finally:
            await engine.close()

    asyncio.run(run())


def test_different_queries_in_one_batch(tmp_path):
    path = saved_model(tmp_path)

    async def run():
        engine = Engine(ServiceSettings(path, predict_workers=1))
        await engine.start()
        try:
            while not engine.predict_workers:
                await asyncio.sleep(0.02)
            rows, labels = X.astype(np.float32), expected(path)
            asked = [engine.predict(rows[at : at + 2], 1 + at % 2) for at in range(6)]
            wrong = engine.predict(rows[:1, :3])
            outcomes = await asyncio.gather(*asked, wrong, return_exceptions=True)
            for at, found in enumerate(outcomes[:-1]):
                assert [one["label"] for one in found.answers] == labels[at : at + 2]
                assert {len(one["nearest"]) for one in found.answers} == {1 + at % 2}
            assert isinstance(outcomes[-1], InputError) and "3 columns" in str(outcomes[-1])
        finally:
            await engine.close()

    asyncio.run(run())


def test_predict_workers_setting(tmp_path):
    path = tmp_path / "any.fecam"
    settings = ServiceSettings(path, predict_workers=3)
    assert ServiceSettings.from_json(settings.to_json()) == settings
    for wrong in (-1, 65):
        with pytest.raises(SettingsError, match=f"predict_workers={wrong}"):
            ServiceSettings(path, predict_workers=wrong)
    from fecam.service.prediction_pool import predict_worker_count

    settings = ServiceSettings(path)
    cores = len(os.sched_getaffinity(0))
    assert predict_worker_count(replace(settings, predict_workers=0)) == 0
    assert predict_worker_count(settings) == int(cores > 1)
    assert predict_worker_count(replace(settings, workers=cores)) == 0, "no free core"


@pytest.mark.parametrize("workers", ["0", "1"])
def test_search_overrides_the_model(tmp_path, workers):
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
        with served(model.path, "--search", "approximate", "--predict-workers", workers) as http:
            until(lambda: http.get("/readyz").status_code == 200)
            for _ in range(2):
                answers = ask(http, queries, top=0)["answers"]
                wrong = [one["label"] for one in answers] != model.classifier.predict(queries)
                assert 0 < sum(wrong) < 100, "exact search has none"
                http.post("/v1/teach", json=teach_body(rows[:1], "0"))
                model.reload()


def test_an_unknown_search_is_rejected(tmp_path):
    with pytest.raises(SettingsError, match=r"search='fast' must be one of 'auto'.*'approximate'"):
        ServiceSettings(tmp_path / "m.fecam", search="fast")
