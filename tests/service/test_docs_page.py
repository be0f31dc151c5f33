"""The API documentation at /docs, with a real server and a real browser."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette", reason="fecam[serve] is not installed")

from fecam.api import OPERATIONS
from helpers.servers import service


def test_docs_need_no_other_host(tmp_path, browser):
    from playwright.sync_api import expect

    with service(tmp_path / "empty.fecam", "--docs") as running:
        page, problems, requests = browser.new_page(), [], []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        response = page.goto(f"{running.url}/docs")
        expect(page.locator(".operation")).to_have_count(len(OPERATIONS))

        def opened(name):
            operation = page.locator(f'[data-operation="{name}"]')
            operation.locator("summary").click()
            return operation

        def send(operation, text):
            operation.get_by_role("button", name="Send").click()
            expect(operation.locator(".response")).to_contain_text(text)

        model = opened("GET /v1/model")
        expect(model).to_contain_text("width: integer | null")
        send(model, "empty.fecam")

        teach = opened("POST /v1/teach")
        expect(teach.locator("pre").first).to_contain_text("label: string | integer | boolean")
        teach.get_by_label("Idempotency-Key").fill("docs-1")
        for _ in range(2):
            send(teach, '"learned":{"robin":1}')
        predict = opened("POST /v1/predict")
        send(predict, '"label":"robin"')
        predict.get_by_label("Content type").select_option("application/octet-stream")
        rows = {"name": "rows", "mimeType": "", "buffer": bytes(12)}
        predict.get_by_label("File").set_input_files(rows)
        predict.get_by_label("top (query)").fill("0")
        send(predict, '"nearest":[]')
        rename = opened("PATCH /v1/classes/{label}")
        expect(rename.locator("pre").first).to_contain_text("label: string | integer | boolean")
        rename.get_by_label("label (path)").fill("robin")
        rename.get_by_label("Body").fill('{"label": "redbreast"}')
        send(rename, '"what":"rename"')
        send(opened("POST /v1/undo"), '"what":"rename"')
        forget = opened("DELETE /v1/classes/{label}")
        forget.get_by_label("label (path)").fill("robin")
        forget.get_by_label("purge (query)").fill("true")
        send(forget, '"what":"forget"')
        send(page.locator('[data-operation="POST /v1/undo"]'), "nothing_to_undo")
        page.close()
    failed = [text for text in problems if "409" not in text]  # the last call
    assert failed == []
    own = urlsplit(running.url).netloc
    assert {urlsplit(url).netloc for url in requests if not url.startswith("data:")} == {own}
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
