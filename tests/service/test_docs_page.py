"""The API documentation at /docs, with a real server and a real browser."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

pytest.importorskip("fastapi", reason="fecam[serve] is not installed")

from helpers.servers import service


def test_docs_need_no_other_host(tmp_path, browser):
    from playwright.sync_api import expect

    with service(tmp_path / "empty.fecam", "--docs") as running:
        page, problems, requests = browser.new_page(), [], []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        response = page.goto(f"{running.url}/docs")
        expect(page.locator(".opblock")).to_have_count(13)
        for operation in ("/v1/predict", "/v1/teach", "/v1/model"):
            expect(page.locator(f'[data-path="{operation}"]')).to_be_visible()
        # An operation opens and shows its schemas; a call from the page works.
        page.locator('[data-path="/v1/model"]').click()
        page.get_by_role("button", name="Try it out").click()
        page.get_by_role("button", name="Execute").click()
        expect(page.locator(".live-responses-table")).to_contain_text("empty.fecam")
        page.close()
    assert problems == []
    own = urlsplit(running.url).netloc
    assert {urlsplit(url).netloc for url in requests if not url.startswith("data:")} == {own}
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
