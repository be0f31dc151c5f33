"""Replicas and their writer, without a cluster between them."""

from __future__ import annotations

import asyncio
import pickle
import sqlite3
from contextlib import asynccontextmanager, closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette")
pytest.importorskip("httpx")

import httpx

import fecam as package
from fecam.errors import MissingPackageError, SettingsError
from fecam.service import ServiceSettings
from fecam.service.app import App
from fecam.service.blocks import (
    BLOCK_BYTES,
    apply_blocks,
    block_digests,
    changed_blocks,
    read_blocks,
)
from fecam.service.engine import Engine
from fecam.service.problems import Problem
from fecam.service.replica import Replica
from fecam.service.settings import Limits
from fecam.service.tokens import TokenFile
from fecam.service.writer import Writer
from helpers.features import relu_features

X, Y = relu_features(4, 12, 6, 0)
LABELS = np.asarray(["cat", "dog", "owl", "tit"])[Y]


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "animals.fecam"
    with package.open(found) as model:
        model.learn(X, LABELS)
    return found


class Connection:
    """The connection between a replica and its writer; tests replace the writer."""

    def __init__(self, writer):
        self.writer, self.calls = writer, []

    async def __call__(self, method, *given, **named):
        if self.writer is None:
            raise ConnectionError("no writer")
        self.calls.append(method)
        sent = pickle.loads(pickle.dumps((given, named)))
        answer = await self.writer.call(method, *sent[0], **sent[1])
        return pickle.loads(pickle.dumps(answer))


@asynccontextmanager
async def serving(settings, count=2):
    """A writer, and replicas with one client each."""
    line = Connection(Writer(settings))
    apps = [App(settings, Replica(settings, line)) for _ in range(count)]
    engines = [app.engine for app in apps]
    for one in engines:
        await one.start()
    clients = [
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")
        for app in apps
    ]
    try:
        yield line, engines, clients
    finally:
        await asyncio.to_thread(
            lambda: [one._warmed_up.wait() for one in (*engines, line.writer._engine)]
        )
        for one in (*clients, *engines):
            await (one.aclose() if isinstance(one, httpx.AsyncClient) else one.close())
        await line.writer.close()


def dump(path):
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


def test_replicas_follow_every_change(path):
    async def run():
        settings = ServiceSettings(path)
        async with serving(settings) as (_, engines, (one, two)):
            rng = np.random.default_rng(0)
            for at in range(6):
                rows = (X[:5] + 9 * (at + 1) * rng.random(6)).tolist()
                for change in (
                    one.post("/v1/teach", json={"features": rows, "label": f"new{at}"}),
                    two.delete(f"/v1/classes/new{at}?purge={'true' if at % 2 else 'false'}"),
                    one.post("/v1/teach", json={"features": rows, "label": f"other{at}"}),
                    two.post("/v1/undo", json={"steps": 1}),
                    two.post("/v1/teach", json={"features": rows, "label": "cat"}),
                ):
                    answer = (await change).raise_for_status().json()
                    asked = {"features": rows, "min_version": answer["version"]}
                    for client in (one, two):
                        found = (await client.post("/v1/predict", json=asked)).json()
                        assert found["version"] == answer["version"]
                    with package.open(path, readonly=True) as model:
                        expected = model.predict(rows)
                    assert [o["label"] for o in found["answers"]] == expected
                for engine in engines:
                    assert dump(engine.model.path) == dump(path)
            history = (await two.get("/v1/history")).json()["steps"]
            assert len(history) == len((await one.get("/v1/history")).json()["steps"]) > 5

    asyncio.run(run())


def test_only_changed_blocks_are_sent_and_other_classes_stay_cached(tmp_path):
    path = tmp_path / "wide.fecam"
    many, of = relu_features(20, 130, 128, 1)
    with package.open(path) as model:
        model.learn(many, of.astype(str))
    sent = []

    class Counting(Connection):
        async def __call__(self, method, *given, **named):
            answer = await super().__call__(method, *given, **named)
            if method == "delta":
                sent.append(sum(map(len, answer.blocks.values())))
            return answer

    async def run():
        settings = ServiceSettings(path)
        replica = Replica(settings, Counting(Writer(settings)))
        await replica.start()
        before = replica.served.snapshot
        _, version = await replica.learn("features", many[:3] + 1, ["3"] * 3)
        await replica.wait_for_version(version)
        after = replica.served.snapshot
        assert after.rows["4"] is before.rows["4"]
        assert after.rows["3"] is not before.rows["3"]
        await replica.close()
        await replica._call_writer.writer.close()

    asyncio.run(run())
    whole, delta = sent
    assert whole > path.stat().st_size / 2 and delta < whole / 2


def test_a_dead_writer_loses_no_change(path):
    async def run():
        settings = ServiceSettings(path)
        async with serving(settings, 1) as (line, (replica,), (http,)):
            body = {"features": (X[:4] + 5).tolist(), "label": "new"}
            key = {"Idempotency-Key": "a"}
            taught = (await http.post("/v1/teach", json=body, headers=key)).json()
            await replica.wait_for_version(taught["version"])
            dead, line.writer = line.writer, None
            refused = await http.post("/v1/teach", json=body, headers=key)
            assert refused.status_code == 502
            assert "Retry-After" not in refused.headers  # it would mean that nothing was changed
            assert "Idempotency-Key" in refused.json()["error"]["message"]
            asked = {"features": body["features"], "min_version": taught["version"]}
            answers = (await http.post("/v1/predict", json=asked)).json()["answers"]
            assert {one["label"] for one in answers} == {"new"}
            line.writer, line.calls = Writer(settings), []
            again = (await http.post("/v1/teach", json=body, headers=key)).json()
            assert (again["step"], again["version"]) == (taught["step"], taught["version"])
            more = (await http.post("/v1/teach", json={**body, "label": "cat"})).json()
            await replica.wait_for_version(more["version"])
            await dead.close()

    asyncio.run(run())


def test_a_missing_file_is_not_polled_without_pause(path):
    async def run():
        settings = ServiceSettings(path)
        async with serving(settings, 1) as (line, (replica,), (http,)):
            dead, line.writer = line.writer, None
            await dead.close()
            path.rename(path.with_name("elsewhere.fecam"))
            line.writer, line.calls = Writer(settings), []
            await asyncio.sleep(0.6)
            assert 1 <= len(line.calls) <= 3
            found = await http.post("/v1/predict", json={"features": X[:2].tolist()})
            assert found.status_code == 200
            assert replica.served.version > 0

    asyncio.run(run())


def test_a_change_times_out_without_a_writer(path):
    async def run():
        settings = ServiceSettings(path, limits=Limits(seconds=0.3))
        async with serving(settings, 1) as (line, (replica,), (http,)):

            async def silence(*given, **named):
                await asyncio.sleep(60)

            replica._call_writer = silence
            replica._following.cancel()
            body = {"features": X[:2].tolist(), "label": "new"}
            found = await http.post("/v1/teach", json=body)
            assert found.status_code == 502 and found.json()["error"]["code"] == "writer"
            assert replica.queue_lengths["write"] == 0
            assert line.writer is not None

    asyncio.run(run())


def test_errors_of_the_writer_equal_those_of_a_service(path):
    async def run():
        settings = ServiceSettings(path)
        alone = Engine(settings)
        app = App(settings, alone)
        await alone.start()
        async with (
            serving(settings, 1) as (_, _, (http,)),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://127.0.0.1"
            ) as plain,
        ):
            for ask in (
                lambda to: to.delete("/v1/classes/nobody"),
                lambda to: to.post("/v1/undo", json={"steps": 9}),
                lambda to: to.post("/v1/teach", json={"features": [[1.0]], "label": "cat"}),
                lambda to: to.post("/v1/teach", json={"texts": ["a"], "label": "cat"}),
                lambda to: to.post("/v1/predict", json={"features": [[1.0]]}),
            ):
                found, expected = await ask(http), await ask(plain)
                assert found.status_code == expected.status_code >= 400
                assert found.json() == expected.json()
                assert str(path.parent) not in found.text
        await alone.close()

    asyncio.run(run())


def test_empty_replicas_receive_the_first_change(tmp_path, monkeypatch):
    def nothing(*given, **named):
        raise MissingPackageError("encoding images", "torch", "images")

    monkeypatch.setattr("fecam.service.engine.load_encoder", nothing)  # it is slow

    async def run():
        settings = ServiceSettings(tmp_path / "new.fecam")
        async with serving(settings) as (_, _, (one, two)):
            assert (await two.get("/v1/model")).json()["kind"] is None
            asked = {"features": X[:2].tolist()}
            assert (await two.post("/v1/predict", json=asked)).status_code == 409
            body = {"features": X.tolist(), "labels": LABELS.tolist()}
            version = (await one.post("/v1/teach", json=body)).json()["version"]
            found = await two.post("/v1/predict", json={**asked, "min_version": version})
            assert [o["label"] for o in found.json()["answers"]] == LABELS[:2].tolist()
            assert (await two.get("/v1/model")).json()["name"] == "new.fecam"

    asyncio.run(run())


def test_tokens_reach_the_replicas(path, tmp_path):
    async def run():
        tokens = TokenFile(tmp_path / "tokens.json")
        reads = {"Authorization": "Bearer " + tokens.add("reader", "read")}
        teaches = {"Authorization": "Bearer " + tokens.add("teacher", "teach")}
        async with serving(ServiceSettings(path, tokens=tokens.path), 1) as (_, _, (http,)):
            assert (await http.get("/v1/model")).status_code == 401
            assert (await http.get("/v1/model", headers=reads)).status_code == 200
            body = {"features": X[:2].tolist(), "label": "cat"}
            assert (await http.post("/v1/teach", json=body, headers=reads)).status_code == 403
            assert (await http.post("/v1/teach", json=body, headers=teaches)).status_code == 200
            tokens.revoke("reader")
            async with asyncio.timeout(5):
                while (await http.get("/v1/model", headers=reads)).status_code != 401:
                    await asyncio.sleep(0.01)
            tokens.path.unlink()
            async with asyncio.timeout(5):
                while (await http.get("/v1/model", headers=teaches)).status_code != 401:
                    await asyncio.sleep(0.01)

    asyncio.run(run())


def test_a_problem_can_be_pickled():
    found = pickle.loads(pickle.dumps(Problem(429, "busy", "wait", Retry_After="1")))
    assert (found.status, found.code, found.message) == (429, "busy", "wait")
    assert found.headers == {"Retry-After": "1"} and str(found) == "wait"


@given(
    st.lists(st.integers(0, 2), max_size=5),
    st.lists(st.integers(0, 2), max_size=5),
    st.integers(0, BLOCK_BYTES - 1),
)
def test_an_old_file_and_changed_blocks_give_the_new_file(tmp_path_factory, old, new, tail):
    folder = tmp_path_factory.mktemp("blocks")
    one, two = folder / "one", folder / "two"
    one.write_bytes(b"".join(bytes([x]) * BLOCK_BYTES for x in old) + b"a" * tail)
    two.write_bytes(b"".join(bytes([x]) * BLOCK_BYTES for x in new) + b"b" * (tail // 2))
    places = changed_blocks(block_digests(two), block_digests(one))
    apply_blocks(one, read_blocks(two, places), two.stat().st_size)
    assert one.read_bytes() == two.read_bytes()
    assert len(places) <= len(new) + 1


def test_invalid_settings_of_a_cluster_are_rejected_before_it_starts(path, tmp_path):
    from fecam.service.cluster import run_on_ray

    settings = ServiceSettings(path, port=0)
    with pytest.raises(SettingsError, match="replicas=0"):
        run_on_ray(settings, "local", 0)
    with pytest.raises(SettingsError, match="--ray auto"):
        run_on_ray(settings, "ray://head:10001", 1)
    with pytest.raises(SettingsError, match="fecam token add"):
        run_on_ray(ServiceSettings(path, port=0, tokens=tmp_path / "no.json"), "local", 1)
