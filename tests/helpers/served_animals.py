"""A small model of animals behind a service, as a real process."""

from __future__ import annotations

import io
from contextlib import contextmanager

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

import httpx

import fecam as package
from helpers.features import relu_features
from helpers.servers import service

X, Y = relu_features(4, 12, 6, 0)
NAMES = np.asarray(["cat", "dog", "owl", "tit"])
LABELS = NAMES[Y]


def teach_body(rows, label="new", **more):
    return {"features": np.asarray(rows).tolist(), "label": label, **more}


@contextmanager
def served(path, *options, **headers):
    with (
        service(path, *options) as running,
        httpx.Client(base_url=running.url, timeout=60, headers=headers) as http,
    ):
        http.running = running
        yield http


def saved_model(folder, name="animals.fecam", labels=LABELS):
    path = folder / name
    with package.open(path) as model:
        model.learn(X, labels)
    return path


def error(response, status, code):
    assert response.status_code == status, response.text
    found = response.json()["error"]
    assert found["code"] == code, found
    for known in ("/v1/", "/openapi.json", "application/", "multipart/", "http://"):
        found["message"] = found["message"].replace(known, "")
    assert "/" not in found["message"]
    assert "Traceback" not in response.text
    return found["message"]


def png(width, height, colour=(200, 30, 30)):
    from PIL import Image

    content = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(content, "PNG")
    return content.getvalue()
