"""The code of the README and the pages runs, and their links lead to files.

Every ```` ```python ```` block of a page runs, top to bottom, in one namespace per page. A line
that ends in ``# -> text`` is an expression; the ``repr`` or ``str`` of its value must be that text.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

from fecam import FeCAMClassifier, errors
from fecam.presets import PRESETS
from helpers.pages import run_block

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(ROOT)): path for path in [*ROOT.glob("*.md"), *sorted(DOCS.rglob("*.md"))]
}
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def read(name):
    return PAGES[name].read_text(encoding="utf-8")


def blocks(text):
    """The code of each block, on the lines where it stands: a traceback then points at the page."""
    return ["\n" * text[: m.start(1)].count("\n") + m[1] for m in BLOCK.finditer(text)]


@pytest.mark.parametrize(
    "name", [name for name in PAGES if blocks(read(name)) and "tutorials" not in name]
)
def test_the_code_of_a_page_runs(name, tmp_path, monkeypatch):
    code = blocks(read(name))
    if any("import torch" in block for block in code):
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}
    for block in code:
        run_block(block, namespace, name)


@pytest.mark.parametrize(
    "code", ["1 + 1  # -> 3", "x = 1  # -> 1", "1 / 0", "(\n  1,  # -> 1\n  2,\n)", "1 +"]
)
def test_code_that_is_wrong_is_found(code):
    with pytest.raises((AssertionError, ZeroDivisionError, SyntaxError)):
        run_block(code, {}, "page")


def test_code_that_is_right_is_not():
    page = "# Title\n\n```python\nx = 1\n```\n\n```sh\nrm x\n```\n\n```python\nx + 1  # -> 2\n```\n"
    namespace = {}
    for block in blocks(page):
        run_block(block, namespace, "page")
    assert namespace["x"] == 1 and len(blocks(page)) == 2
    assert blocks(page)[1].count("\n", 0, blocks(page)[1].index("x + 1")) == 11


def broken_links(text, folder):
    """Relative links that lead to no file."""
    targets = LINK.findall(re.sub(r"`[^`\n]*`", "", FENCE.sub("", text)))
    files = [t.split("#")[0] for t in targets if not re.match(r"[a-z]+:|#", t)]
    return [file for file in files if not (folder / file).exists()]


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files(name):
    assert broken_links(read(name), PAGES[name].parent) == []


def test_a_link_that_leads_nowhere_is_found():
    text = "[a](README.md#top) [b](no.md) ![c\nd](no.svg) [e](https://no.org) [f](#g) `[h](i)`"
    assert broken_links(text, ROOT) == ["no.md", "no.svg"]


def test_the_readme_is_short():
    text = read("README.md")
    assert len(text.splitlines()) <= 80
    lines = [line for block in blocks(text) for line in block.splitlines() if line.strip()]
    assert 5 <= len(lines) <= 12


@pytest.mark.parametrize("picture", sorted(DOCS.glob("pictures/*.svg")), ids=lambda p: p.name)
def test_pictures_are_small_and_shown_with_a_text(picture):
    assert picture.stat().st_size < 60_000
    pattern = r"!\[([^\]]+)\]\([^)]*" + re.escape(picture.name)
    texts = [text for page in PAGES for text in re.findall(pattern, read(page))]
    assert texts and all(len(text) > 50 for text in texts)


def rows(text):
    """The rows of all tables, as lists of cells without backticks."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def test_every_parameter_is_in_the_table_with_its_default():
    table = {row[0]: row[1] for row in rows(read("docs/reference/parameters.md")) if len(row) == 4}
    defaults = {name: repr(value) for name, value in FeCAMClassifier().get_params().items()}
    assert {name: table.get(name) for name in defaults} == defaults


def test_every_value_of_a_parameter_is_in_the_table():
    from fecam.settings import CHOICES

    table = {row[0]: row[2] for row in rows(read("docs/reference/parameters.md")) if len(row) == 4}
    for name, choices in CHOICES.items():
        listed = [value.strip("` ") for value in table[name].split(",")]
        assert sorted(listed) == sorted(map(repr, choices)), name


def test_every_preset_is_in_the_table_with_its_settings():
    text = read("docs/reference/presets.md")
    head, *body = [row for row in rows(text) if len(row) > 2]
    table = {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in body}
    for name, settings in PRESETS.items():
        for parameter, value in settings.items():
            if parameter in head:
                assert table[name][parameter] == repr(value), (name, parameter)
            else:  # the same for all, stated in a sentence
                assert f"`{parameter}={value!r}`" in text, (name, parameter)
    assert table.keys() - {"---"} == PRESETS.keys()


def test_every_public_method_and_attribute_is_in_the_table_and_documented():
    page = read("docs/reference/classifier.md")
    named = {word for row in rows(page) for word in re.findall(r"(?:^|, `)(\w+)", row[0])}
    inherited = {"score", "get_params"}
    annotated = FeCAMClassifier.__annotations__.keys()
    ours = {*vars(FeCAMClassifier), *annotated}
    public = {name for name in ours if not re.match(r"_|set_\w+_request", name)}  # scikit-learn's
    assert named >= public | inherited
    for name in public - annotated:
        assert inspect.getdoc(getattr(FeCAMClassifier, name)), f"{name} has no docstring"
    assert "::: fecam.FeCAMClassifier" in page and "::: fecam.load" in page


def test_every_error_is_explained():
    page = read("docs/reference/errors.md")
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, Exception):
            assert f"`{name}`" in page


def test_every_module_of_the_core_is_in_the_reference():
    page = read("docs/reference/core.md")
    for path in sorted((ROOT / "src/fecam/core").glob("[!_]*.py")):
        assert f"::: fecam.core.{path.stem}\n" in page


def test_what_the_reference_is_made_from_exists():
    for text in map(read, PAGES):
        for target in re.findall(r"^::: (\S+)", text, re.MULTILINE):
            try:
                importlib.import_module(target)
            except ModuleNotFoundError:
                module, _, name = target.rpartition(".")
                assert hasattr(importlib.import_module(module), name), target


def test_numbers_in_the_explanations_are_those_of_the_code():
    from fecam.core import (
        calibration_rows,
        expected_distance,
        left_out_scores,
        lognormal,
        prior,
        scatter,
        softmax,
        temperature,
    )
    from fecam.core.statistics import MAX_CALIBRATION_ROWS
    from fecam.core.tuning import TUNING

    novelty, lag = read("docs/explanation/novelty.md"), read("docs/explanation/incremental.md")
    assert f"up to {lognormal.SAMPLED_ROWS} rows per" in novelty
    assert f"up to {MAX_CALIBRATION_ROWS} rows per class" in novelty
    assert f"the {left_out_scores.MAX_RIVALS} nearest classes" in novelty
    assert f"the {left_out_scores.FEW_RIVALS} nearest where few" in novelty
    assert f"and {left_out_scores.MEASURED_ROWS} per batch (more of few features)" in novelty
    assert left_out_scores.MEASUREMENT_GROWTH == 1.1 and "grown by a tenth" in novelty
    assert left_out_scores.COSTLY_GROWTH == 1.25 and "by a quarter where few" in novelty
    width = (prior.CHEAP / (left_out_scores.MAX_RIVALS + 1)) ** (1 / 3)
    assert f"from {round(width, -1):.0f} features on" in novelty
    assert f"stores {calibration_rows.N_COLUMNS} numbers" in novelty
    assert f"({temperature.PRIOR_ROWS:.0f} / m)²" in novelty
    assert f"{expected_distance.N_PROBES} random directions" in novelty
    assert f"as if {expected_distance.PSEUDO_COUNT} more" in novelty
    assert f"2 / √({temperature.REFERENCE_REL_VARIANCE} v)" in novelty
    assert f"{prior.MAX_GROWTH} times" in lag and prior.MAX_GROWTH == 2 and "at least half" in lag
    assert f"below {prior.STABLE_DOF} degrees of freedom per feature" in lag
    text = " ".join(read("docs/explanation/search.md").split())
    size = TUNING.first_block
    for number in (
        f"The first {size} terms (or d/4",
        f"{1 + size + size * (size + 1) // 2:,} monomials",
        f"at {TUNING.block_growth:g} times the coordinates of the last",
        f"a relative margin of {TUNING.bound_rtol:.0e}".replace("e-0", "e-"),
        f"with a prior below {TUNING.min_prior_pairs} pairs",
        f"in {TUNING.low_rank_prefix} coordinates",
        f"in {2 * TUNING.low_rank_prefix} coordinates",
        f"up to {TUNING.max_direct_rank} rows",
        f"by a fraction of {TUNING.epsilon:g}",
        f"up to {softmax.SOFTMAX_CUTOFF:.0f} temperatures".replace("5", "five"),
        f"from {TUNING.min_basis_classes} classes and {TUNING.min_basis_features} features on",
        f"below {100 * TUNING.min_low_rank_floor:.1f} % of the mean variance",
        f"exceeds {TUNING.max_single_gain:,.0f} floors",
        f"(g1 below {TUNING.cg_min_floor:g})",
        f"{TUNING.block_bytes // 2**20} MB for each",
        f"Fewer than {2 * TUNING.min_parallel_rows} queries",
    ):
        assert number in text, number
    assert TUNING.min_low_rank_pairs == 10**6 and "without a prior below a million" in text
    assert scatter.RANK_SHARE == 4 and "a quarter of the width" in text


@pytest.fixture(scope="module")
def hook():
    pytest.importorskip("griffe")
    spec = importlib.util.spec_from_file_location("docstrings", DOCS / "hooks/docstrings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_docstrings_become_pages_that_need_no_script(hook):
    text = hook.markdown("A sum :math:`\\sum_i x_i^2`.\n\n>>> 1 + 1\n2")
    assert text == (
        'A sum <i class="formula">&sum;<sub>i</sub> x<sub>i</sub><sup>2</sup></i>.'
        "\n\n```pycon\n>>> 1 + 1\n2\n```"
    )
    with pytest.raises(ValueError, match="unheard"):
        hook.formula(r"\unheard{x}")


def test_numbers_of_the_readme_are_measured():
    text = read("README.md")
    compared = rows(read("docs/tables/alternatives.md"))
    assert [row for row in rows(text) if len(row) == len(compared[0])][2:] == compared[2:]
    text = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
    numbers = re.findall(r"(?<![\d.,])[\d,.]+ (?:x|KB)(?! \d)", text)
    measured = "".join(read(f"docs/tables/{name}.md") for name in ("prediction", "bytes_a_class"))
    assert len(numbers) >= 3
    for number in numbers:
        value, unit = number.split()
        pattern = re.escape(number) if unit == "x" else rf"\| {value},\d{{3}} \(0\.01"
        assert re.search(pattern, measured), (
            f"{number} is in no table: run benchmarks/prediction.py"
        )
    assert "not measured" not in measured
