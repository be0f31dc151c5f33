"""A service on a Ray cluster: replicas on two nodes, one writer, and their failures."""

from __future__ import annotations

import time
from contextlib import contextmanager

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")
pytest.importorskip("ray")
pytest.importorskip("ray.serve")

import httpx

import fecam as package
from fecam.service.tokens import TokenFile
from helpers.features import relu_features
from helpers.ray_cluster import threads_outlive_it, two_nodes
from helpers.servers import service

pytestmark = threads_outlive_it

X, Y = relu_features(4, 12, 6, 0)
LABELS = np.asarray(["cat", "dog", "owl", "tit"])[Y]
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def cluster():
    with two_nodes() as found:
        yield found


@pytest.fixture(scope="module")
def http(cluster, tmp_path_factory):
    """`fecam serve --ray`, with a token to teach."""
    folder = tmp_path_factory.mktemp("served")
    path, tokens = folder / "animals.fecam", TokenFile(folder / "tokens.json")
    with package.open(path) as model:
        model.learn(X, LABELS)
    headers = {"Authorization": "Bearer " + tokens.add("teacher", "teach")}
    options = ("--ray", cluster.address, "--replicas", "2", "--tokens", str(tokens.path))
    running = service(path, *options)
    with running, httpx.Client(base_url=running.url, timeout=60, headers=headers) as client:
        client.path, client.tokens = path, tokens
        yield client
        assert running.stop() == 0, running.log.read_text()
        assert not [one for one in path.parent.iterdir() if one.name.startswith(path.name + "-")]


def actors(name):
    """The processes of an application, by the names of their actors."""
    from ray.util import list_named_actors

    found = [one["name"] for one in list_named_actors(all_namespaces=True)]
    return {one for one in found if f"#{name}#" in one.replace("SERVE_REPLICA::", "#")}


def kill(name):
    import ray

    ray.kill(ray.get_actor(name, namespace="serve"))


def new_lesson(label):
    rows = X[:5] + 5 * RNG.random(6).astype(np.float32)
    return {"features": rows.tolist(), "label": label}


def teach(http, label, key=""):
    """Teach as a client does: what was not acknowledged is sent again, with its key."""
    body, headers, until = new_lesson(label), {"Idempotency-Key": key or label}, time.time() + 40
    while True:
        found = http.post("/v1/teach", json=body, headers=headers)
        if found.status_code == 200 or time.time() > until:
            return body, found.raise_for_status().json()
        assert found.status_code in (500, 502), found.text
        time.sleep(0.2)


@contextmanager
def fresh(http):
    """A connection of its own: the next request may go to another replica."""
    with httpx.Client(base_url=http.base_url, headers=http.headers, timeout=60) as one:
        yield one


def known_everywhere(http, body, version):
    asked = {"features": body["features"], "min_version": version}
    for _ in range(12):
        with fresh(http) as one:
            found = one.post("/v1/predict", json=asked).raise_for_status().json()
        assert found["version"] >= version
        assert {answer["label"] for answer in found["answers"]} == {body["label"]}


def test_all_replicas_predict_what_one_has_learned(http):
    assert http.get("/v1/model").json()["name"] == "animals.fecam"
    body, taught = teach(http, "robin")
    with package.open(http.path, readonly=True) as model:  # acknowledged is on the disk
        assert "robin" in [one.label for one in model.classes]
        assert model.version == taught["version"]
    known_everywhere(http, body, taught["version"])
    gone = http.delete("/v1/classes/robin").json()
    asked = {"features": body["features"], "min_version": gone["version"]}
    found = http.post("/v1/predict", json=asked).json()
    assert "robin" not in {answer["label"] for answer in found["answers"]}
    undone = http.post("/v1/undo", json={"steps": 1}).json()
    known_everywhere(http, body, undone["version"])


def test_requests_without_permission_are_rejected(http):
    with httpx.Client(base_url=http.base_url) as stranger:
        assert stranger.get("/v1/model").status_code == 401
        assert stranger.post("/v1/teach", json=new_lesson("spy")).status_code == 401
        assert stranger.get("/healthz").status_code == 200
    reads = {"Authorization": "Bearer " + http.tokens.add("reader", "read")}
    time.sleep(1)
    with httpx.Client(base_url=http.base_url, headers=reads) as reader:
        assert reader.get("/v1/model").status_code == 200
        assert reader.post("/v1/teach", json=new_lesson("spy")).status_code == 403
        assert reader.delete("/v1/classes/cat").status_code == 403


def test_errors_are_the_same_as_without_ray(http):
    found = http.delete("/v1/classes/nobody")
    assert found.status_code == 404 and found.json()["error"]["code"] == "unknown_label"
    assert str(http.path.parent) not in found.text
    large, headers = b"{" * 33_000_000, {"Content-Type": "application/json"}
    found = http.post("/v1/predict", content=large, headers=headers)
    assert found.status_code == 413, found.text
    found = http.post("/v1/predict", json={"features": X[:1].tolist(), "min_version": 10**6})
    assert found.status_code == 409 and found.json()["error"]["code"] == "version"


def test_a_killed_writer_is_replaced_without_loss(http):
    body, taught = teach(http, "wren", key="once")
    (writer,) = actors("fecam-writer")
    kill(writer)
    found = http.post("/v1/predict", json={"features": body["features"]})  # no client waits for it
    assert found.status_code == 200
    again = http.post("/v1/teach", json=body, headers={"Idempotency-Key": "once"})
    while again.status_code != 200:
        assert again.status_code == 502, again.text
        time.sleep(0.2)
        again = http.post("/v1/teach", json=body, headers={"Idempotency-Key": "once"})
    assert again.json()["step"] == taught["step"]
    more, after = teach(http, "finch")
    assert after["step"] == taught["step"] + 1
    known_everywhere(http, body, taught["version"])
    known_everywhere(http, more, after["version"])


def test_a_killed_replica_is_replaced(http):
    before = actors("fecam")
    assert len(before) == 2
    kill(min(before))
    asked = {"features": X[:3].tolist()}
    for _ in range(30):
        with fresh(http) as one:
            found = one.post("/v1/predict", json=asked)
            if found.status_code != 200:  # what the dead one had taken is asked again
                found = one.post("/v1/predict", json=asked)
            assert found.status_code == 200, found.text
    body, taught = teach(http, "swift")
    until = time.time() + 40
    while len(actors("fecam")) < 2 or actors("fecam") == before:
        assert time.time() < until
        time.sleep(0.2)
    known_everywhere(http, body, taught["version"])
