"""With `--json` an error is a document on standard output, and the exit code is the same."""

from __future__ import annotations

import json

import pytest
import typer


@pytest.mark.parametrize(
    ("arguments", "code", "kind", "says"),
    [
        (["classes", "-m", "no.fecam"], 1, "ModelFileError", "no.fecam does not exist"),
        (["learn", "nowhere", "-m", "m.fecam"], 1, "DatasetError", "nowhere"),
        (["predict", "a.png", "-m", "no.fecam"], 1, "ModelFileError", "no.fecam"),
        (["bench", "digit"], 1, "SpecError", "digits"),
        (["cache", "limit", "much"], 1, "InputError", "20GB"),
        (["token", "revoke", "x", "--tokens", "no.json"], 1, "SettingsError", "no.json"),
        (["export", "missing/x.safetensors", "-m", "no.fecam"], 1, "ModelFileError", "no.fecam"),
        (["classes"], 2, "MissingParameter", "--model"),
        (["classes", "--modle", "m.fecam"], 2, "NoSuchOption", "--modle"),
        (["clases"], 2, "UsageError", "clases"),
        (["classes", "-m", "m.fecam", "--sort", "size"], 2, "BadParameter", "size"),
    ],
)
def test_errors_are_documents(fecam, place, arguments, code, kind, says):
    printed = fecam(*arguments, "--json", code=code)
    (line,) = printed.out.splitlines()
    document = json.loads(line)
    assert document.keys() == {"error", "type"}
    assert says in document["error"] and kind == document["type"]
    assert f"error: {document['error']}" in printed.err
    assert fecam(*arguments, code=code).out == ""


def test_a_question_answered_with_no_is_a_document(fecam, place, monkeypatch):
    def no(*_, **__):
        raise typer.Abort

    (place / "out.npz").write_text("precious")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "confirm", no)
    printed = fecam("features", "digits", "-O", "out.npz", "--json", code=1)
    assert json.loads(printed.out) == {"error": "aborted", "type": "Abort"}


def test_an_error_of_the_system_is_a_document(fecam, place):
    (place / "m.fecam").mkdir()
    assert "m.fecam" in json.loads(fecam("classes", "-m", "m.fecam", "--json", code=1).out)["error"]


def test_help_and_success_are_as_before(fecam):
    assert "Usage" in fecam("classes", "--json", "--help").out
    assert isinstance(json.loads(fecam("heads", "--json").out), list)
