"""What a service is made of, each part by itself."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
import weakref
from contextlib import closing, contextmanager

import numpy as np
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

import httpx

import fecam as package
from fecam.errors import InputError, SettingsError
from fecam.service import Limits, ServiceSettings
from helpers.served_animals import X, Y, error, lesson, png, served, taught_file


def test_numbers_are_labels_too(tmp_path):
    path = taught_file(tmp_path, labels=Y)
    with served(path) as http:
        done = http.post("/v1/teach", json=lesson(X[:2] + 3, "7")).json()
        assert done["new_classes"] == [7]
        answers = http.post("/v1/predict", json={"features": (X[:2] + 3).tolist()}).json()
        assert answers["answers"][0]["label"] == 7
        error(http.post("/v1/teach", json=lesson(X[:2] + 4, "cat")), 422, "input")
        judged = http.post("/v1/evaluate", json=lesson(X[:2] + 3, "7")).json()
        assert judged["accuracy"] == 1.0
        assert http.delete("/v1/classes/7").json()["counts"] == {"7": -2}


def test_those_that_wait_are_worked_on_together():
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
        batcher.start()
        first = batcher.submit(0)
        await asyncio.sleep(0.05)
        waiting = [batcher.submit(n) for n in range(1, 6)]
        with pytest.raises(Problem, match="too many"):
            batcher.submit(6)
        waiting[1].cancel()  # nobody waits any more: it is not worked on
        go.set()
        await batcher.close()
        found = await asyncio.gather(first, *waiting, return_exceptions=True)
        with pytest.raises(Problem):
            batcher.submit(7)
        return found

    found = asyncio.run(main())
    assert batches == [[0], [1, 3, 4, 5]]
    assert found[0] == 0 and found[4] == 40 and isinstance(found[1], ValueError)


def test_the_next_batch_is_there_when_one_is_done():
    from fecam.service.batches import Batcher

    begun, gates = [], {}

    async def work(jobs):
        begun.append(list(jobs))
        gates[len(begun)] = asyncio.Event()
        await gates[len(begun)].wait()
        return jobs

    async def main():
        batcher = Batcher(
            "work", work, max_queue=9, max_batch=2, seconds=30, max_inflight_batches=2
        )
        batcher.start()
        waiting = [batcher.submit(n) for n in range(6)]
        await asyncio.sleep(0.05)
        assert begun == [[0, 1], [2, 3]], "as many as asked for, and no more"
        gates[2].set()  # out of order
        assert await asyncio.gather(*waiting[2:4]) == [2, 3] and not waiting[0].done()
        await asyncio.sleep(0.05)
        assert begun[2:] == [[4, 5]]
        gates[1].set()
        gates[3].set()
        await batcher.close()
        return await asyncio.gather(*waiting)

    assert asyncio.run(main()) == list(range(6))


def test_who_waits_too_long_is_told_and_no_longer_worked_for():
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
        batcher.start()
        both = [batcher.submit("begun"), batcher.submit("waits")]
        for one in both:
            with pytest.raises(Problem, match=r"within 0\.2 seconds"):
                await one
        go.set()
        assert await batcher.submit("later") == "later"
        await batcher.close()

    asyncio.run(main())
    assert done == ["begun", "later"]


def test_what_nobody_expected_is_an_answer_too(monkeypatch, tmp_path):
    path = taught_file(tmp_path)
    from fecam.service.app import create_app

    app = create_app(ServiceSettings(path))
    engine = app.state.engine

    async def fail():
        raise RuntimeError(f"of {path}")

    async def ask():
        door = httpx.ASGITransport(app=app)  # which raises what the application does not answer
        async with httpx.AsyncClient(transport=door, base_url="http://127.0.0.1") as http:
            return await http.get("/v1/history")

    monkeypatch.setattr(engine, "steps", fail)
    with closing(engine.model):
        error(asyncio.run(ask()), 500, "internal")


def test_a_text_is_never_taken_for_a_path(tmp_path):
    """A stranger's first lesson must not make the service read its own files."""
    (tmp_path / "secret.png").write_bytes(png(8, 8))
    name = str(tmp_path / "secret.png")
    with package.open(tmp_path / "new.fecam") as model:
        assert model._labeled_items([name], ["a"]).kind == "images"  # as people mean it
        assert model._labeled_items([name], ["a"], "texts").kind == "texts"
    with (
        package.open(taught_file(tmp_path)) as model,
        pytest.raises(InputError, match="takes features"),
    ):
        model.learn([name], ["a"], kind="texts")


def test_limits_are_looked_at():
    for change in ({"max_bytes": 0}, {"seconds": -1}, {"queue": 0}, {"max_pixels": 10**9}):
        with pytest.raises(SettingsError):
            Limits(**change)


@pytest.mark.parametrize("settings", [{}, {"covariance": "diagonal"}, {"covariance": "identity"}])
def test_the_map_shows_what_the_statistics_say(settings):
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
    if settings.get("covariance") == "identity":
        assert found["points"][0]["ellipse"]["a"] == 0
    elif not settings:
        spread = np.linalg.eigvalsh(np.cov(rows[:20].T))
        ellipse = found["points"][0]["ellipse"]
        assert ellipse["a"] ** 2 == pytest.approx(spread[2], rel=0.02)
        assert ellipse["b"] ** 2 == pytest.approx(spread[1], rel=0.1)


def test_no_more_is_handed_over_than_there_is_room_for():
    from fecam.service.batches import Batcher

    handed, go = [], None

    async def work(jobs):
        handed.append(list(jobs))
        await go.wait()
        return jobs

    async def main():
        nonlocal go
        go = asyncio.Event()
        batcher = Batcher(
            "work",
            work,
            max_queue=9,
            max_batch=4,
            seconds=30,
            max_inflight_batches=9,
            max_inflight_items=6,
        )
        batcher.start()
        waiting = []
        for job in range(4):
            waiting.append(batcher.submit(job, 3))
            await asyncio.sleep(0.01)
        assert handed == [[0], [1]], "the third has to wait, for six items are at work"
        go.set()
        assert await asyncio.gather(*waiting) == [0, 1, 2, 3]
        await batcher.close()
        assert batcher._n_inflight_items == 0

    asyncio.run(main())


def test_a_body_that_does_not_come_is_not_waited_for(tmp_path):
    path = taught_file(tmp_path)
    with served(path, "--seconds", "1") as http:
        with socket.create_connection(("127.0.0.1", http.running.port), timeout=20) as line:
            head = b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n"
            line.sendall(head + b'Content-Type: application/json\r\n\r\n{"features": ')
            answered = http.post("/v1/predict", json={"features": X[:1].tolist()})
            assert answered.status_code == 200, "others are not kept waiting"
            said = line.recv(10_000)
        assert b"408" in said.splitlines()[0] and b"no data came for 1 seconds" in said


def test_one_clock_for_all_who_wait():
    from fecam.service.timeouts import TimeoutSweeper

    async def main():
        patience, forever = TimeoutSweeper(0.2), asyncio.Event()
        assert await patience.wait(asyncio.sleep(0.01, "in time")) == "in time"
        with pytest.raises(TimeoutError):
            await patience.wait(forever.wait())
        assert await patience.wait(asyncio.sleep(0.1, "as patient as before")), "it is no omen"
        given_up = asyncio.create_task(patience.wait(forever.wait()))
        await asyncio.sleep(0.01)
        given_up.cancel()  # by somebody else: that is no time-out
        with pytest.raises(asyncio.CancelledError):
            await given_up
        late = [asyncio.create_task(patience.wait(forever.wait())) for _ in range(3)]
        outcomes = await asyncio.gather(*late, return_exceptions=True)
        assert [type(one) for one in outcomes] == [TimeoutError] * 3
        await asyncio.sleep(0.05)
        assert not patience._deadlines and not patience._expired and not patience._sweeping

    asyncio.run(main())


@contextmanager
def inbox_of_a_judge():
    """An inbox, and how to ask it; at the end all has come."""
    from fecam.service.frames import encode_batch, write_frame
    from fecam.service.prediction_worker import RequestQueue
    from fecam.service.served_model import Query

    def ask(count):
        write_frame(ours.sendall, encode_batch([Query(np.zeros((1, 4), np.float32))] * count))

    ours, theirs = socket.socketpair()
    with theirs:
        inbox = RequestQueue(theirs)
        reading = threading.Thread(target=inbox.fill)
        reading.start()
        with ours:
            yield inbox, ask
        reading.join()


def test_questions_that_have_come_are_taken_together():
    from fecam.service.served_model import BLOCK_ROWS

    with inbox_of_a_judge() as (inbox, ask):
        for count in (1, 2, BLOCK_ROWS, 3):
            ask(count)
    taken = [[len(some) for some in inbox.next_batches()] for _ in range(4)]
    assert taken == [[1, 2, BLOCK_ROWS], [3], [], []], "the end stays the end"


@pytest.mark.parametrize("few", [1, 9, 16])
def test_those_who_come_back_together_are_taken_in_even_shares(few):
    """A few and very many would else take turns for ever."""
    with inbox_of_a_judge() as (inbox, ask):
        coming, shares = few, []
        for _ in range(8):  # sixty-four ask again as soon as they are answered
            for _ in range(coming):
                ask(1)
            while inbox._frames.qsize() < coming:
                time.sleep(0.001)
            shares.append(len(inbox.next_batches()))
            coming = 64 - few if len(shares) == 1 else shares[-2]
    assert shares[0] == few and set(shares[2:]) == {32}, shares


def test_a_copy_is_removed_whatever_was_asked_of_it(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    with served(taught_file(tmp_path)) as http:
        for asked, status in (("bytes=zzz", 400), ("bytes=99999999999-", 416), ("bytes=0-1", 206)):
            answer = http.get("/v1/model/file", headers={"Range": asked})
            assert answer.status_code == status
        deadline = time.monotonic() + 30  # the client may have the last byte before that
        while copies := list((tmp_path / "temporary").glob("fecam-copy-*")):
            assert time.monotonic() < deadline, copies
            time.sleep(0.01)


@pytest.mark.parametrize("count", [4, 60, 300])
def test_what_is_let_go_of_needs_no_look_for_garbage(tmp_path, count):
    """For a service leaves out of that what it holds: a model in a circle would never be freed."""
    from fecam.service.served_model import Query, ServedModel, precompute, predict_batch

    rng = np.random.default_rng(0)
    rows, labels = rng.random((3 * count, 96), np.float32), np.repeat(["a", "b", "c"], count)
    with package.open(tmp_path / "m.fecam") as model:
        model.learn(rows, labels)
        gc.collect()
        gc.disable()
        try:
            snapshot = model.snapshot
            precompute(snapshot)
            view = ServedModel.from_snapshot(snapshot)
            predict_batch(view, [Query(rows[:3])])
            held = [weakref.ref(one) for one in (snapshot.classifier, view.classifier)]
            model.learn(rows[:5] + 0.01, labels[:5])
            snapshot = view = model.snapshot
            assert [one() for one in held] == [None, None]
        finally:
            gc.enable()


@pytest.mark.parametrize("bad", [0, 31, 63])
def test_rows_that_cannot_be_judged_cost_others_little(tmp_path, monkeypatch, bad):
    from fecam.service.served_model import EncodedAnswers, Query, ServedModel, predict_batch

    with package.open(taught_file(tmp_path)) as model:
        view = ServedModel.from_snapshot(model.snapshot)
    queries = [Query(X[:1] - 100 * (place == bad)) for place in range(64)]
    judged = []
    predict_detailed = package.FeCAMClassifier.predict_detailed
    monkeypatch.setattr(
        package.FeCAMClassifier,
        "predict_detailed",
        lambda self, rows, *args, **options: (
            judged.append(len(rows)) or predict_detailed(self, rows, *args, **options)
        ),
    )
    found = predict_batch(view, queries)
    assert [i for i, answer in enumerate(found) if not isinstance(answer, EncodedAnswers)] == [bad]
    assert isinstance(found[bad], InputError) and sum(judged) < 3 * 64


def test_only_a_process_of_its_own_is_set_up_for_a_service(tmp_path):
    from fecam.service.engine import Engine

    async def begin(alone):
        engine = Engine(ServiceSettings(path, predict_workers=0))
        engine.owns_process = alone
        await engine.start()
        while not engine.ready:
            await asyncio.sleep(0.01)
        await engine.close()

    path = taught_file(tmp_path)
    try:
        asyncio.run(begin(alone=False))
        assert not gc.get_freeze_count()
        asyncio.run(begin(alone=True))
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()
