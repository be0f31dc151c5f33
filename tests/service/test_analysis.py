"""Explanations and groups over HTTP, and through the client."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

import httpx

import fecam as package
from fecam.client import Client
from fecam.errors import ServiceError
from helpers.features import signed_features
from helpers.servers import service

X, Y = signed_features(8, 40, 12, 5)
X = X + 2 * np.random.default_rng(1).normal(size=(8, 12))[Y].astype(np.float32)
KNOWN = (np.arange(len(Y)) % 40 < 25) & (Y < 6)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    path = tmp_path_factory.mktemp("analysis") / "m.fecam"
    with package.open(path) as model:
        model.learn(X[KNOWN], Y[KNOWN])
    with service(path, "--max-items", "200") as one:
        yield one, path


def test_explanations_equal_those_of_the_model(running):
    server, path = running
    body = {"features": X[:2].tolist(), "top": 2, "explain": "3"}
    found = httpx.post(f"{server.url}/v1/explain", json=body, timeout=60).json()
    assert found["version"] == 1 and len(found["answers"]) == 2
    with Client(server.url) as client, package.open(path, readonly=True) as model:
        for row, answer in zip(X[:2], client.explain(X[:2], top=2, label=3), strict=True):
            expected = model.classifier.explain(row, k=2, label=3)
            assert answer.label == expected.label and answer.explained == 3
            assert answer.margin == pytest.approx(expected.margin, rel=1e-4)
            for one, two in zip(answer.nearest, expected.nearest, strict=True):
                assert (one.label, one.count) == (two.label, two.count)
                assert one.distance == pytest.approx(two.distance, rel=1e-4)
            total = sum(part.contribution for part in answer.directions) + answer.other_directions
            by_label = {near.label: near.distance for near in answer.nearest}
            assert total == pytest.approx(by_label[3], rel=1e-4)
        assert {"label", "nearest", "directions"} <= found["answers"][0].keys()
        assert "error" not in found["answers"][0]


def test_groups_become_a_class_in_one_step(running):
    server, _ = running
    rows = X[~KNOWN]
    with Client(server.url) as client:
        found = client.discover(rows, min_size=5)
        largest = found.groups[0]
        assert np.unique(Y[~KNOWN][largest.items]).tolist() in ([6], [7])
        assert len(largest.items) + len(found.single) <= len(rows) and found.n_known > 50
        learned = client.learn(rows[largest.items], 99)
        assert learned.new_classes == [99]
        assert client.predict(rows[largest.items[:1]]).labels == [99]
        client.undo()
        assert 99 not in [record.label for record in client.classes()]


def test_bad_requests_are_explained(running):
    server, _ = running

    def error(path, **body):
        response = httpx.post(f"{server.url}{path}", json=body, timeout=60)
        return response.status_code, response.json()["error"]["message"]

    status, message = error("/v1/explain", features=X[:17].tolist())
    assert status == 413 and "17 items exceed the limit of 16" in message
    status, message = error("/v1/explain", features=X[:1].tolist(), explain="77")
    assert status == 404 and "77" in message
    status, message = error("/v1/explain", features=[[1.0]])
    assert status == 422 and "1 columns; the model has 12" in message
    status, message = error("/v1/discover", features=X[:2].tolist(), min_size=1)
    assert status == 422 and "min_size=1" in message
    status, message = error("/v1/discover", features=[])
    assert status == 422


def test_unreadable_items_are_listed(running):
    from fecam.features.extraction import Encoded
    from fecam.service.analysis import explanations, groups
    from fecam.service.served_model import ServedModel

    encoded = Encoded(X[Y == 6][:6], [0, 2, 3, 4, 5, 6], {1: "not an image"})
    with package.open(running[1], readonly=True) as model:
        served = ServedModel.from_snapshot(model.snapshot)
        answers = explanations(served, encoded, 7, 1, None)
        assert answers[1] == {"error": "not an image"} and "error" not in answers[6]
        found = groups(served, encoded, 0.2, 2)
    assert sorted(found.groups[0].items) == [0, 2, 3, 4, 5, 6]
    assert found.unreadable == [{"item": 1, "error": "not an image"}]


def test_an_empty_model_says_so(tmp_path):
    with service(tmp_path / "none.fecam", "--encoder", "efficientnet-lite0") as server:
        for path in ("/v1/explain", "/v1/discover"):
            response = httpx.post(f"{server.url}{path}", json={"features": [[1.0, 2.0]]})
            assert response.status_code == 409
            assert "no classes" in response.json()["error"]["message"]
        with Client(server.url, retry_timeout=0) as client, pytest.raises(ServiceError):
            client.explain([[1.0, 2.0]])


def test_the_client_reads_an_explanation_of_an_unreadable_item():
    from fecam.client.requests import _read_explanation

    answer = _read_explanation({"error": "not an image"})
    assert answer.error == "not an image" and answer.label is None and answer.nearest == []
    assert math.isnan(answer.novelty)
