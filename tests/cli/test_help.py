"""Help for newcomers: `-h` everywhere, no types of Python, commands by purpose, right plurals."""

from __future__ import annotations

import re

import pytest

from fecam.cli.app import COMMANDS
from fecam.validation import counted

SUBCOMMANDS = {"token": ["add", "list", "revoke"], "cache": ["limit", "remove", "clear"]}
EVERY = [[]] + [
    [name, *rest]
    for commands in COMMANDS.values()
    for name in commands
    for rest in ([], *([sub] for sub in SUBCOMMANDS.get(name, [])))
]


@pytest.mark.parametrize("command", EVERY, ids=lambda command: " ".join(command) or "fecam")
def test_help_is_plain(fecam, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = fecam(*command, "-h").out
    assert text == fecam(*command, "--help").out
    assert not re.search(r"<\w|\{|list\[|\bbool\b|Optional", text), text
    assert "Usage: " in text and "Example" in text


def test_commands_are_grouped_and_learn_is_first(fecam):
    text = fecam("-h").out
    places = [text.index(f"─ {panel} ─") for panel in COMMANDS]
    assert [*COMMANDS] == ["Teach", "Ask", "Inspect", "Serve", "Experiment"]
    assert places == sorted(places)
    first = text[places[0] :].splitlines()[1]
    assert first.strip("│ ").startswith("learn ")
    assert "─ Commands ─" not in text, "a command is in no panel"


def test_usage_names_arguments(fecam):
    assert "learn [OPTIONS] PATH..." in fecam("learn", "-h").out
    assert "bench [OPTIONS] [SPEC]..." in fecam("bench", "-h").out
    assert "export-encoder [OPTIONS] ENCODER PATH" in fecam("export-encoder", "-h").out


def test_plurals():
    assert [counted(n, "class") for n in (0, 1, 2)] == ["0 classes", "1 class", "2 classes"]
    assert counted(1_000, "better class") == "1,000 better classes"
