"""Tokens and their scopes."""

from __future__ import annotations

import json
import stat
import subprocess
import sys

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")


from fecam.errors import SettingsError
from fecam.service import ServiceSettings
from helpers.served_animals import X, error, saved_model, served, teach_body


def test_tokens_and_scopes(tmp_path):
    path = saved_model(tmp_path)
    from fecam.service.tokens import TokenFile

    kept = TokenFile(tmp_path / "tokens.json")
    read, teach = kept.add("eye", "read"), kept.add("hand", "teach")
    assert stat.S_IMODE(kept.path.stat().st_mode) == 0o600
    assert read not in kept.path.read_text() and teach not in kept.path.read_text()
    options = ("--tokens", str(kept.path), "--cors", "https://birds.example", "--workers", "2")
    with served(path, *options) as http:

        def ask(method, where, token=None, **more):
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            return http.request(method, where, headers=headers, **more)

        assert http.get("/").status_code == 200 and http.get("/healthz").status_code == 200
        missing = ask("GET", "/v1/model")
        error(missing, 401, "token")
        assert missing.headers["www-authenticate"].startswith("Bearer")
        error(ask("GET", "/v1/model", "guess"), 401, "token")
        error(ask("GET", "/metrics"), 401, "token")
        assert ask("GET", "/v1/model", read).status_code == 200
        rows = {"features": X[:1].tolist()}
        assert ask("POST", "/v1/predict", read, json=rows).status_code == 200
        error(ask("POST", "/v1/teach", read, json=teach_body(X[:1])), 403, "scope")
        error(ask("DELETE", "/v1/classes/cat", read), 403, "scope")
        error(ask("POST", "/v1/undo", read), 403, "scope")
        error(ask("PATCH", "/v1/classes/cat", read, json={"label": "dog"}), 403, "scope")
        body = {"labels": ["cat", "dog"], "label": "pet"}
        error(ask("POST", "/v1/join", read, json=body), 403, "scope")
        # Two workers share the file; each serves the change.
        for n in range(6):
            done = ask("POST", "/v1/teach", teach, json=teach_body(X[:2] + 60 + n, "emu")).json()
            asked = {"features": (X[:1] + 60).tolist(), "min_version": done["version"]}
            found = ask("POST", "/v1/predict", read, json=asked).json()
            assert found["version"] >= done["version"]
        assert ask("POST", "/v1/undo", teach, json={"steps": 5}).status_code == 200
        renamed = ask("PATCH", "/v1/classes/emu", teach, json={"label": "rhea"}).json()
        assert (renamed["what"], renamed["author"]) == ("rename", "hand")
        steps = ask("GET", "/v1/history", read).json()["steps"]
        assert {step["author"] for step in steps[:-1]} == {"hand"}, "the token that changed it"
        own_page = {"Origin": "https://birds.example", "Authorization": f"Bearer {read}"}
        allowed = http.get("/v1/model", headers=own_page)
        assert allowed.headers["access-control-allow-origin"] == "https://birds.example"
        other_page = {**own_page, "Origin": "https://evil.example"}
        error(http.get("/v1/model", headers=other_page), 403, "foreign_page")
        assert "fecam_requests_total" in ask("GET", "/metrics", read).text
        kept.revoke("eye")
        error(ask("GET", "/v1/model", read), 401, "token")


def test_a_public_host_needs_tokens(tmp_path):
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.org"):
        with pytest.raises(SettingsError, match="tokens are required"):
            ServiceSettings(tmp_path / "m.fecam", host=host)
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        assert ServiceSettings(tmp_path / "m.fecam", host=host).is_local
    command = [sys.executable, "-m", "fecam", "serve", "-m", "m.fecam", "--host", "0.0.0.0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "fecam token add" in done.stderr
    assert "Traceback" not in done.stderr


def test_token_commands(fecam, place):
    out = json.loads(fecam("token", "add", "camera", "--tokens", "t.json", "--json").out)
    assert out["scope"] == "read" and len(out["token"]) > 40
    fecam("token", "add", "camera", "--tokens", "t.json", code=1)
    fecam("token", "add", "x y", "--tokens", "t.json", code=1)
    fecam("token", "add", "x", "--scope", "all", "--tokens", "t.json", code=1)
    listed = json.loads(fecam("token", "list", "--tokens", "t.json", "--json").out)
    assert [one["name"] for one in listed] == ["camera"] and "sha256" not in listed[0]
    fecam("token", "revoke", "camera", "--tokens", "t.json")
    fecam("token", "revoke", "camera", "--tokens", "t.json", code=1)
    (place / "t.json").write_text("{}")
    fecam("token", "list", "--tokens", "t.json", code=1)


def test_a_missing_token_file_rejects_all_requests(tmp_path):
    from fecam.service.tokens import TokenFile

    kept = TokenFile(tmp_path / "tokens.json")
    text = kept.add("a", "teach")
    assert kept.find(text).scope == "teach"
    kept.path.unlink()
    assert kept.find(text) is None
    with pytest.raises(SettingsError, match="fecam token add"):
        kept.tokens()
