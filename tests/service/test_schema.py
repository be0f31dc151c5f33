"""The OpenAPI document, and random requests that follow it."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette")
pytest.importorskip("schemathesis")

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

import fecam as package
from helpers.features import relu_features
from helpers.servers import service

CALM = settings(
    max_examples=12,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    path = tmp_path_factory.mktemp("schema") / "any.fecam"
    X, y = relu_features(3, 8, 2, 0)
    with package.open(path) as model:
        model.learn(X, [f"class {label}" for label in y])
    with service(path, "--seconds", "1") as one:
        yield one


def test_no_request_causes_a_server_error(running):
    schema = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
    asked, statuses = [], set()
    for result in schema.get_all_operations():
        operation = result.ok()
        asked.append(f"{operation.method.upper()} {operation.path}")

        @CALM
        @given(case=operation.as_strategy())
        def send(case):
            response = case.call()
            statuses.add(response.status_code)
            if response.headers["content-type"][0].startswith("application/json"):
                case.operation.validate_response(response)
            assert response.status_code < 500, f"{case.as_curl_command()}: {response.text}"
            if response.status_code >= 400:
                assert set(response.json()) == {"error"}

        send()
    assert {"POST /v1/predict", "POST /v1/teach", "DELETE /v1/classes/{label}"} <= set(asked)
    assert 200 in statuses and 422 in statuses
    assert "Traceback" not in running.log.read_text()


def test_every_response_has_a_schema(running):
    import httpx

    document = httpx.get(f"{running.url}/openapi.json").json()
    known = set(document["components"]["schemas"])
    assert {"PredictFeatures", "TeachImages", "LabeledTexts", "Prediction", "Error"} <= known

    def references(value):
        if isinstance(value, dict):
            yield from ([value["$ref"]] if "$ref" in value else [])
            value = list(value.values())
        if isinstance(value, list):
            for one in value:
                yield from references(one)

    for reference in references(document):
        assert reference.rsplit("/", 1)[1] in known
    content = document["paths"]["/v1/predict"]["post"]["requestBody"]["content"]
    assert set(content) == {
        "application/json",
        "multipart/form-data",
        "application/octet-stream",
    }
