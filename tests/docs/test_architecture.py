"""The picture and the list of modules on the page of the architecture are those of the code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
pytest.importorskip("grimp")


@pytest.fixture(scope="module")
def architecture():
    path = ROOT / "docs" / "scripts" / "architecture.py"
    spec = importlib.util.spec_from_file_location("architecture", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def graph(architecture):
    return architecture.grimp.build_graph("fecam", cache_dir=None)


def test_the_picture_shows_the_imports(architecture, graph):
    text = architecture.PICTURE.read_text(encoding="utf-8")
    assert text == architecture.picture(graph), "run `python docs/scripts/architecture.py`"
    assert "pictures/architecture.svg" in PAGE.read_text(encoding="utf-8")


def test_the_inventory_lists_every_module(architecture):
    text = architecture.INVENTORY.read_text(encoding="utf-8")
    assert text == architecture.inventory(), "run `python docs/scripts/architecture.py`"
    assert '--8<-- "generated/inventory.md"' in PAGE.read_text(encoding="utf-8")
    assert "(no docstring)" not in text


def test_a_box_lies_above_what_it_imports(architecture, graph):
    edges = architecture.imports(graph)
    rank = architecture.ranks(edges)
    assert edges["classifier"] >= {"core", "presets"} and not edges["errors"]
    assert all(rank[a] > rank[b] for a in edges for b in edges[a])


def test_lines_that_follow_from_others_are_left_out(architecture):
    edges = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert architecture.without_implied(edges) == {"a": {"b"}, "b": {"c"}, "c": set()}


def test_files_named_on_the_page_exist():
    text = PAGE.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:\w+/)*\w+\.py)`", text):
        places = (ROOT / "src" / "fecam" / name, ROOT / name)
        assert any(path.exists() for path in places), name
