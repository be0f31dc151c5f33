"""Old names and turns of phrase do not come back.

The words of the field are in ``docs/reference/glossary.md``, the style in ``CONTRIBUTING.md``.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "docs", "tests", "benchmarks", "deploy")
FILES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", "mkdocs.yml", "pyproject.toml")
KINDS = {".py", ".md", ".toml", ".yml", ".html", ".js", ".css", ".service"}

NAMES = (
    "AlikeGroup",
    "Glance",
    "HeldMarks",
    "Hunt",
    "Judged",
    "Judgement",
    "Juror",
    "Leaning",
    "LeaningGroup",
    "Patience",
    "Shelf",
    "ThinFactor",
    "ThinGroup",
    "Yardstick",
    "at_a_glance",
    "bytes_kept",
    "fecam_judges",
    "for_good",
    "is_thin",
    "juror",
    "knowledge_",
    "more_heads",
    "warmth",
)
"""Identifiers of earlier versions; upper and lower case differ."""

PHRASES = (
    "added up",
    "adds up models",
    "at a glance",
    "can be had",
    "cannot be had",
    "goes its own way",
    "is told",
    "so many",
    "taken back",
    "takes back",
    "turned away",
    "turns away",
    "unless told",
    "what is known",
    "whoever",
    "yardstick",
)
"""Turns of phrase; say "per", "sum", "remove", "undo", "reject", "the number of" instead."""

ALLOWED = {
    "src/fecam/bench/spec.py": ("more_heads",),  # the message that names the new key
    "tests/bench/test_specs.py": ("more_heads",),
    "tests/docs/test_words.py": (*NAMES, *PHRASES),
}
"""Files that may use some words. The changelog is not searched: it lists the renamed names."""


@cache
def texts():
    paths = [ROOT / name for name in FILES]
    for folder in FOLDERS:
        paths += sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in KINDS)
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def uses(word, text, *, ignore_case):
    pattern = r"(?<!\w)" + re.escape(word).replace(r"\ ", r"\s+") + r"(?!\w)"
    flags = re.IGNORECASE if ignore_case else 0
    return [text.count("\n", 0, m.start()) + 1 for m in re.finditer(pattern, text, flags)]


@pytest.mark.parametrize("word", [*NAMES, *PHRASES])
def test_a_word_is_not_used(word):
    uses_of_it = [
        f"{name}:{line}"
        for name, text in texts().items()
        if word not in ALLOWED.get(name, ())
        for line in uses(word, text, ignore_case=word in PHRASES)
    ]
    assert not uses_of_it, f"{word!r} is used in {', '.join(uses_of_it)}"


def test_words_are_found_across_lines_and_only_as_words():
    assert uses("so many", "a\nSo\n  many. so manyfold", ignore_case=True) == [2]
    assert uses("Hunt", "Hunt hunt Hunting _Hunt", ignore_case=False) == [1]
