"""Reports: what is read, what is shown, and that no label can do harm."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from fecam.bench.metrics import summarize
from fecam.cli.output import show_table
from fecam.errors import InputError, MissingPackageError, RunError
from fecam.report import Table, read_run, summary_table, write_report
from fecam.report.facts import facts
from fecam.report.plots import few_shot_curves
from fecam.report.tables import (
    Cell,
    cost_table,
    few_shot_table,
    joint_table,
    more_table,
    task_table,
)
from fecam.report.text import duration, size
from helpers.run_folder import (
    HEADS,
    analysis_records,
    domain_records,
    grid_records,
    task_records,
    write_run,
)

HOSTILE = (
    '<script>alert("1")</script>',
    '"><img src=x onerror=alert(1)>',
    "_$\\frac{1}{0$ 漢 🦆 | a `b` *c* ]]>",
    "\x1b[31mred\x00\u202e\nline",
)


class Page(HTMLParser):
    """A page as a list of elements, with a check that all are closed in order."""

    VOID = ("meta", "br", "img", "link", "hr")

    def __init__(self, text):
        super().__init__()
        self.elements, self.words, self._open = [], [], []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" not in self._open:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def ids(self, pattern=""):
        return [a["id"] for _, a in self.elements if "id" in a and re.match(pattern, a["id"])]

    def headings(self):
        return [int(tag[1]) for tag, _ in self.elements if re.fullmatch(r"h\d", tag)]


def read_page(path):
    return Page(path.read_text(encoding="utf-8"))


def few(heads=HEADS[:2], seeds=(0,), sizes=(4, 2), **more):
    return task_records(heads, seeds, sizes, **more)


# -- reading ---------------------------------------------------------------------------------------


def test_read_run_returns_what_was_written(tmp_path):
    records = [*task_records(), *analysis_records()]
    run = read_run(write_run(tmp_path / "run", records))
    assert list(run.records) == records
    assert run.name == "cifar100-t5" and run.title.startswith("CIFAR-100")
    assert list(run.heads) == list(HEADS) and run.summary == summarize(records)
    assert run.paper["FeCAM"]["last"] == 62.1 and len(run.analysis("tsne")) == 1


@pytest.mark.parametrize("lost", [1, 2, 17, 200])
def test_truncated_last_line_is_ignored(tmp_path, lost):
    folder = write_run(tmp_path / "run", few())
    path = folder / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-lost])
    complete = len(few()) - (lost > 1)  # without its newline alone, a line is still whole
    assert len(read_run(folder).records) == complete


def test_truncated_character_is_ignored(tmp_path):
    folder = write_run(tmp_path / "run", few())
    with (folder / "records.jsonl").open("ab") as file:
        file.write('{"kind": "task", "head": "ä'.encode()[:-1])
    assert len(read_run(folder).records) == len(few())


def test_unknown_kinds_of_records_are_ignored(tmp_path):
    newer = [{"kind": "dream"}, {"kind": "analysis", "name": "dream", "data": {"x": 1}}]
    run = read_run(write_run(tmp_path / "run", [*newer, *few()]))
    assert run.summary == summarize(few())


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", "not JSON"),
        (b"[1]", r"expected an object, not \[1\]"),
        (b'{"kind": "task", "accuracy": NaN}', "NaN"),
        (b'{"kind": "t\xffsk"}', "UTF-8"),
        (b'{"head": "ncm"}', "'kind' is missing"),
        (b'{"kind": ["task"]}', "'kind' is"),
        (b"[" * 100_000, "not JSON"),
        (b'{"kind": "analysis", "name": "tsne", "data": {"before": 1}}', "'before' is"),
        (b'{"kind": "analysis", "name": "singular-values", "data": []}', "'data' is"),
    ],
)
def test_invalid_line_is_named(tmp_path, line, says):
    folder = write_run(tmp_path / "run", few())
    path = folder / "records.jsonl"
    first, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(first + b"\n" + line + b"\n" + rest)
    with pytest.raises(RunError, match=r"records\.jsonl, line 2.*" + says):
        read_run(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("head", 3),
        ("seed", "1993"),
        ("task", None),
        ("accuracy", "0.5"),
        ("parts", {}),
        ("seconds_to_learn", []),
        ("bytes", None),
        ("calibration_error", "2"),
        ("options", [1]),
    ],
)
def test_invalid_value_is_named(tmp_path, field, value):
    records = few()
    records[2][field] = value
    folder = write_run(tmp_path / "run", records)
    with pytest.raises(RunError, match=rf"records\.jsonl, line 3: .*{field.rstrip('s')}"):
        read_run(folder)


def test_signed_features_have_no_map_after_tukey(tmp_path):
    from fecam.report.plots import singular_values, tsne_points

    spectra, tsne = analysis_records()
    both = read_run(write_run(tmp_path / "both", [tsne]))
    del tsne["data"]["after"]
    spectra["data"]["old"][0][-1] = 0.0  # has no place on a logarithmic axis
    run = read_run(write_run(tmp_path / "run", [tsne, spectra]))
    assert [axes.get_title(loc="left") for axes in tsne_points(run).axes] == ["before Tukey"]
    assert len(tsne_points(both).axes) == 2
    assert np.isnan(singular_values(run).axes[0].lines[0].get_ydata()[-1])


def test_invalid_run_folders_raise(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RunError, match=r"is not a run.*fecam bench"):
            read_run(path)
    folder = write_run(tmp_path / "run")
    (folder / "about.json").write_text("[]")
    with pytest.raises(RunError, match=r"about\.json: expected an object"):
        read_run(folder)
    write_run(folder, machine="fast")
    with pytest.raises(RunError, match=r"about\.json: 'machine' is 'fast'"):
        read_run(folder)
    with pytest.raises(InputError, match="no run"):
        write_report([])


# -- tables ----------------------------------------------------------------------------------------


def column(table, name):
    at = table.header.index(name)
    return {row[0].text: row[at] for row in table.rows}


def test_summary_table_has_our_values_and_those_of_the_paper(tmp_path):
    run = read_run(write_run(tmp_path / "run"))
    table = summary_table(run)
    assert table.header[:5] == (
        *("head", "average %", "average %, paper", "last %", "last %, paper"),
    )
    for row in run.summary:
        for metric in ("average", "last", "base", "later"):
            mean, spread = 100 * row[metric]["mean"], 100 * row[metric]["std"]
            assert column(table, f"{metric} %")[row["head"]].text == f"{mean:.1f} ± {spread:.1f}"
    papers = {head: cell.text for head, cell in column(table, "last %, paper").items()}
    gap = "\N{EN DASH}"
    assert papers == {**dict.fromkeys(HEADS, gap), "FeCAM": "62.1", "FeTrIL": "57.2"}
    assert column(table, "last %")["FeTrIL"].text == gap, "in the paper, but not run by us"
    assert "3 seeds" in table.caption


def test_the_best_of_a_column_is_marked(tmp_path):
    run = read_run(write_run(tmp_path / "run"))
    best = max(run.summary, key=lambda row: row["last"]["mean"])["head"]
    marked = [head for head, cell in column(summary_table(run), "last %").items() if cell.best]
    assert marked == [best]
    honest = [h for h, cell in column(more_table(run), "calibration error %").items() if cell.best]
    assert honest == ["NCM"], "a small error is a good one"
    assert not any(cell.best for row in cost_table(run).rows for cell in row)
    records = [*few(("a",)), *few(("b",))]
    records[3:] = [{**record, "head": "b"} for record in few(("a",))][1:]
    twins = summary_table(read_run(write_run(tmp_path / "twins", records)))
    alone = summary_table(read_run(write_run(tmp_path / "alone", few(("a",)))))
    assert sum(cell.best for cell in column(twins, "last %").values()) == 2
    assert not column(alone, "last %")["a"].best, "there is nothing to be better than"


def test_summary_table_of_an_unfinished_run(tmp_path):
    table = summary_table(read_run(write_run(tmp_path / "run", few()[:1], paper=None)))
    assert table.header == ("head", "average %", "last %", "seeds")
    assert table.rows[0][3].text == "0 + 1 unfinished"


def test_formats_of_a_table(capsys):
    table = Table(("head", "last %"), ((Cell("a"), Cell("9.0")), (Cell("b"), Cell("10.0", True))))
    assert table.text_rows() == [["a", "9.0"], ["b", "*10.0"]]
    show_table(table.header, table.text_rows())
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["head  last %", "a        9.0", "b      *10.0"]
    assert table.as_markdown().splitlines()[-1] == "| b | **10.0** |"
    assert "<td><strong>10.0</strong></td>" in table.as_html()


@pytest.mark.parametrize("label", HOSTILE)
def test_labels_are_escaped_in_every_format(label, capsys):
    table = Table(("head", "last %"), ((Cell(label), Cell("1.0")),), caption=label)
    show_table(table.header, table.text_rows())
    printed = capsys.readouterr().out
    assert printed.count("\n") == 2 and printed.replace("\n", "").isprintable()
    *_, row = table.as_markdown().splitlines()
    assert len(re.findall(r"(?<!\\)\|", row)) == 3 and "<" not in row
    page = Page(table.as_html())
    assert {tag for tag, _ in page.elements} <= {
        *("div", "table", "caption", "thead", "tbody", "tr", "th", "td")
    }
    assert not any(name.startswith("on") for _, a in page.elements for name in a)


def test_a_few_shot_run_has_harmonic_means_and_the_papers_accuracy_per_task(tmp_path):
    paper = {"figures": {"NCM": {"tasks": [80.03, 70.4]}, "LIMIT": {"tasks": [73.8, 72.1]}}}
    about = {"scenario": {"kind": "few-shot"}, "paper": paper}
    run = read_run(write_run(tmp_path / "run", few(HEADS[1:2], seeds=(0,)), **about))
    gap = "\N{EN DASH}"
    rows = task_table(run).text_rows()
    assert [row[0] for row in rows] == [HEADS[1], "NCM, paper", "LIMIT, paper"]
    assert rows[1][1:3] == ["80.0", "70.4"] and set(rows[1][3:]) <= {gap}
    (record,) = (r for r in run.heads[HEADS[1]][0] if r["task"] == 1)
    (_, _, base), (_, _, later) = record["parts"]
    table = few_shot_table(run)
    assert table.header[1] == "task 2"
    assert table.rows[0][1].text == f"{100 * 2 * base * later / (base + later):.1f}"
    assert "Harmonic means" in write_report([tmp_path / "run"]).read_text("utf-8")
    assert (tmp_path / "run/plots/few-shot.svg").exists()
    harmonic = summary_table(run).text_rows()[0][summary_table(run).header.index("harmonic %")]
    assert harmonic == table.rows[0][-1].text
    assert "harmonic %" not in more_table(run).header
    many = read_run(write_run(tmp_path / "many", few(HEADS[1:2])))
    assert few_shot_table(many) is None and "harmonic %" in more_table(many).header
    assert few_shot_curves(many) is None


def test_task_table_and_joint_table(tmp_path):
    one = read_run(write_run(tmp_path / "one", few(seeds=(0, 1))))
    table = task_table(one)
    assert table.header == ("head", "task 1", "task 2")
    values = [seeds[1]["accuracy"] for seeds in one.heads["NCM"].values()]
    assert (
        table.rows[0][2].text == f"{100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=1):.1f}"
    )
    two = read_run(write_run(tmp_path / "two", few(HEADS[1:3])))
    joint = joint_table({"one": one, "two": two})
    assert joint.header == (
        *("head", "one: average %", "one: last %", "two: average %", "two: last %"),
    )
    assert [row[0].text for row in joint.rows] == list(HEADS[:3])
    assert column(joint, "two: last %")["NCM"].text == "\N{EN DASH}"


def test_sizes_and_durations():
    assert [size(value) for value in (0, 999, 1000, 1_050_000, 999_600_000, 5e15)] == [
        *("0 B", "999 B", "1 KB", "1.05 MB", "1 GB", "5000 TB")
    ]
    assert [duration(value) for value in (0, 0.25, 0.9999, 59.7, 150, 7199)] == [
        *("0 ms", "250 ms", "1.0 s", "60 s", "2 min", "2 h 0 min")
    ]


# -- plots -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    pytest.importorskip("matplotlib")
    path = write_report([write_run(tmp_path_factory.mktemp("report") / "run")])
    return read_run(path.parent), path


def test_curves_are_the_means_of_the_records(complete):
    from fecam.report.plots import accuracy_curves, storage_curves

    run, _ = complete
    (axes,) = accuracy_curves(run).axes
    assert len(axes.lines) == len(HEADS) == len(axes.collections), "a curve and a band each"
    for line, seeds in zip(axes.lines, run.heads.values(), strict=True):
        accuracies = [[record["accuracy"] for record in tasks] for tasks in seeds.values()]
        np.testing.assert_allclose(line.get_ydata(), 100 * np.mean(accuracies, axis=0))
        np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 7))
    (axes,) = storage_curves(run).axes
    assert axes.get_yscale() == "log" and axes.lines[0].get_ydata()[-1] == 100_000


def test_bars_are_the_numbers_of_the_table(complete):
    from fecam.report.plots import old_new_all_bars, time_bars

    run, _ = complete
    bars = [each for each in old_new_all_bars(run).axes[0].containers if hasattr(each, "patches")]
    for bar, metric in zip(bars, ("old", "new", "last"), strict=True):
        widths = [patch.get_width() for patch in bar.patches]
        assert widths == pytest.approx([100 * row[metric]["mean"] for row in run.summary])
    learn, predict = time_bars(run).axes
    for axes, metric in ((learn, "seconds_to_learn"), (predict, "seconds_to_predict")):
        widths = [patch.get_width() for patch in axes.patches]
        assert widths == pytest.approx([row[metric]["mean"] for row in run.summary])


def test_heat_maps_show_the_mean_matrix(complete):
    from fecam.bench.metrics import accuracy_matrix
    from fecam.report.maps import matrix_map, shrinkage_map

    run, _ = complete
    mesh = matrix_map(run, "FeCAM").axes[0].collections[0]
    expected = 100 * np.mean([accuracy_matrix(t) for t in run.heads["FeCAM"].values()], axis=0)
    np.testing.assert_allclose(np.ma.filled(mesh.get_array(), np.nan).reshape(6, 6), expected)
    assert shrinkage_map(run) is None


def test_a_grid_of_shrinkages_is_drawn(tmp_path):
    from fecam.report.maps import shrinkage_grid, shrinkage_map

    run = read_run(write_run(tmp_path / "grid", grid_records()))
    first, second, values = shrinkage_grid(run)
    assert (first, second, values.shape) == ([0, 1, 3], [0, 1, 10], (3, 3))
    means = {row["head"]: row["average"]["mean"] for row in run.summary}
    assert values[1, 2] == means["(1, 10)"]
    assert shrinkage_map(run) is not None
    line = read_run(write_run(tmp_path / "line", grid_records(first=(1,), second=(0, 1, 2, 3))))
    assert shrinkage_grid(line) is None
    # A head of another kind does not overwrite a place of the grid.
    other = few(("other",), (1993,), (10, 5), options={"other": {"shrinkage": [1, 10], "x": 1}})
    mixed = read_run(write_run(tmp_path / "mixed", [*grid_records(), *other]))
    np.testing.assert_array_equal(shrinkage_grid(mixed)[2], values)


def test_plots_show_the_best_heads_and_tables_show_all(tmp_path):
    from fecam.report.plots import MAX_HEADS, accuracy_curves, shown_heads

    labels = tuple(f"head {at}" for at in range(30))
    run = read_run(write_run(tmp_path / "many", few(labels), paper=None))
    assert len(accuracy_curves(run).axes[0].lines) == MAX_HEADS
    means = {row["head"]: row["average"]["mean"] for row in run.summary}
    left_out = [means[head] for head in labels if head not in shown_heads(run)]
    assert min(means[head] for head in shown_heads(run)) >= max(left_out)
    assert len(summary_table(run).rows) == 30


# -- the page --------------------------------------------------------------------------------------

SECTIONS = (
    *("what", "results", "curves", "old-new", "matrices", "singular-values", "tsne", "storage"),
    *("time", "notes"),
)


def test_the_page_has_all_sections_in_order(complete):
    page = read_page(complete[1])
    assert [a["id"] for tag, a in page.elements if tag == "section"] == list(SECTIONS)
    links = [a["href"] for tag, a in page.elements if tag == "a"]
    assert links == [f"#{name}" for name in SECTIONS]
    assert page.headings() == [1] + [2] * len(SECTIONS)
    assert len(page.ids()) == len(set(page.ids()))


def test_the_page_shows_the_metadata_of_the_run(complete):
    text = read_page(complete[1]).text
    for words in (
        *("CIFAR-100, 50 classes", "60,000 rows, 100 classes", "resnet18-half", "256 numbers"),
        *(
            "sizes: [50, 5 \N{MULTIPLICATION SIGN} 10]",
            "task 6 10 5000 1000",
            "1993, 1994, 1995",
            "2 cores",
            "8 GB of memory",
            "torch 2.13.0",
        ),
        *("commit 0123456789ab, with changes", "2025-03-01 10:00, 12 min", "[scenario]"),
        *("Table 1", "half the width", "2 images could not be read."),
    ):
        assert words in text


def test_the_page_shows_the_metrics(complete):
    run, path = complete
    text = read_page(path).text
    for row in run.summary:
        for metric in ("average", "last", "base", "later", "old", "new", "forgetting"):
            assert f"{100 * row[metric]['mean']:.1f} ± {100 * row[metric]['std']:.1f}" in text
        assert size(row["bytes"]["mean"]) in text
    assert "62.1" in text and "70.9" in text
    best = max(run.summary, key=lambda row: row["last"]["mean"])
    assert f"{best['head']} ends highest, at {100 * best['last']['mean']:.1f} %" in text


def test_the_page_is_self_contained(complete):
    text = complete[1].read_text(encoding="utf-8")
    page = Page(text)
    assert not {tag for tag, _ in page.elements} & {"script", "link", "iframe", "object"}
    addresses = [
        value
        for _, attributes in page.elements
        for name, value in attributes.items()
        if name in ("href", "src", "xlink:href")
    ]
    assert all(re.match("#|data:image/png", address) for address in addresses)
    assert "@import" not in text and not re.findall(r"url\((?!#)", text)
    assert "default-src 'none'" in text


def test_the_page_is_accessible(complete):
    text = complete[1].read_text(encoding="utf-8")
    page = Page(text)
    pictures = [a for tag, a in page.elements if tag == "svg"]
    figures = [a for tag, a in page.elements if tag == "figcaption"]
    assert len(pictures) == len(figures) == 6 + len(HEADS)
    assert all(a["role"] == "img" and len(a["aria-label"]) > 20 for a in pictures)
    assert ("html", {"lang": "en"}) in page.elements
    assert any("width=device-width" in a.get("content", "") for _, a in page.elements)
    assert "@media print" in text and "prefers-color-scheme: dark" in text
    assert [a["scope"] for tag, a in page.elements if tag == "th"].count("row") >= len(HEADS)


def test_plots_are_written_beside_the_page(complete):
    plots = complete[1].parent / "plots"
    names = {path.stem for path in plots.iterdir()}
    assert names >= {"accuracy", "old-new-all", "matrix-1", "singular-values", "tsne", "storage"}
    for name in names:
        assert (plots / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert b"</svg>" in (plots / f"{name}.svg").read_bytes()


def test_reports_are_deterministic(tmp_path):
    files = []
    for name in ("one", "two"):
        path = write_report([write_run(tmp_path / name / "run", few(HEADS[:1]))])
        files.append({p.name: p.read_bytes() for p in [path, *(path.parent / "plots").iterdir()]})
    assert files[0] == files[1]


def test_page_escapes_hostile_values(tmp_path):
    records = [*few(HOSTILE, sizes=(4,)), *analysis_records(12, 4)]
    records[-1]["data"]["labels"] = list(HOSTILE) * 3
    for record in records[: len(HOSTILE)]:
        record["options"] = {HOSTILE[0]: HOSTILE[1]}
    bad = HOSTILE[0] + HOSTILE[1]
    folder = write_run(
        tmp_path / "run",
        records,
        spec=f"# {bad}\n",
        **dict.fromkeys(("name", "title", "kind", "fecam", "python", "started", "finished"), bad),
        **{name: {bad: bad, "name": bad} for name in ("machine", "scenario", "dataset", "encoder")},
        git={"commit": bad, "dirty": bad},
        packages={bad: bad},
        features={"width": bad, "fingerprint": bad},
        notes=[bad],
        paper={"source": bad, "note": bad, "figures": {HOSTILE[0]: {"average": 1.0, bad: 2.0}}},
    )
    path = write_report([folder, folder], tmp_path / "pair.html")  # has all that a single one has
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert not {tag for tag, _ in page.elements} & {"script", "img"}
    assert not [name for _, a in page.elements for name in a if name.startswith("on")]
    assert HOSTILE[0] in page.text and "\x1b" not in text and "\u202e" not in text
    assert len(page.ids(r".*accuracy-curve-\d$")) == 2 * len(HOSTILE)


def test_shared_fingerprint_is_shown_once(tmp_path):
    def shown(**fingerprints):
        about = {"features": {"width": 4, "fingerprints": fingerprints}}
        return facts(read_run(write_run(tmp_path / "run", [], **about)))

    assert "4 numbers each, fingerprint abc<" in shown(one="abc", two="abc")
    assert "fingerprints one: abc; two: def<" in shown(one="abc", two="def")


def test_domains_have_matrices_but_no_old_and_new(tmp_path):
    page = read_page(write_report([write_run(tmp_path / "run", domain_records(), paper=None)]))
    sections = [a["id"] for tag, a in page.elements if tag == "section"]
    assert "matrices" in sections and "old-new" not in sections
    assert "1 indoors, 2 outdoors" in page.text and "forgetting" not in page.text


@pytest.mark.parametrize("records", [[], few()[:1]])
def test_page_of_a_run_without_results(tmp_path, records):
    folder = write_run(tmp_path / "run", records, finished=None, paper=None, git=None, encoder=None)
    (folder / "spec.toml").unlink()
    text = read_page(write_report([folder])).text
    assert "not finished" in text and "not from a git checkout" in text
    assert ("No task is recorded yet." in text) == (not records)


def test_several_runs_are_compared(tmp_path):
    one = write_run(tmp_path / "one", few(seeds=(0, 1)), title="First")
    two = write_run(tmp_path / "two", few(HEADS[1:3], sizes=(2, 2, 2)), title="Second")
    path = write_report([one, two])
    assert path == tmp_path / "comparison.html" and not (one / "report.html").exists()
    page = read_page(path)
    sections = [a["id"] for tag, a in page.elements if tag == "section"]
    assert sections[:3] == ["table", "curves", "run-1"] and "run-2-results" in sections
    assert page.headings()[:5] == [1, 2, 2, 2, 3]
    assert all(b - a <= 1 for a, b in zip(page.headings(), page.headings()[1:], strict=False))
    assert len(page.ids(r"joint-curve-\d$")) == 4
    assert len(page.ids()) == len(set(page.ids()))
    assert "cifar100-t5 (one): last %" in page.text, "two runs of one name are told apart"
    for run in map(read_run, (one, two)):
        for row in run.summary:
            assert page.text.count(f"{100 * row['last']['mean']:.1f}") >= 2
    assert (tmp_path / "plots/comparison-joint.png").exists()


def test_nothing_is_written_if_a_run_is_invalid(tmp_path):
    good = write_run(tmp_path / "good", few(sizes=(4,)))
    with pytest.raises(RunError, match="is not a run"):
        write_report([good, tmp_path / "bad"])
    assert {path.name for path in tmp_path.rglob("*.*")} == {
        *("spec.toml", "about.json", "records.jsonl")
    }
    with pytest.raises(RunError, match=r"cannot be written: .* Remedy"):
        write_report([good], good / "spec.toml" / "page.html")


# -- matplotlib ------------------------------------------------------------------------------------


def test_import_does_not_load_matplotlib():
    code = "import fecam.report, sys; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_without_matplotlib_tables_work_and_reports_raise(tmp_path, monkeypatch):
    for name in ("drawing", "gallery", "plots", "maps", "embedding_plots"):
        monkeypatch.delitem(sys.modules, f"fecam.report.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    folder = write_run(tmp_path / "run", few())
    assert "NCM" in summary_table(read_run(folder)).as_markdown()
    with pytest.raises(MissingPackageError, match=r"pip install .*\[report\]"):
        write_report([folder])
    assert not (folder / "report.html").exists()


# -- a browser -------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_the_page(complete, browser, width, scheme):
    run, path = complete
    page = browser.new_page()
    problems, asked = [], []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    page.goto(path.as_uri())
    assert problems == [] and asked == [path.as_uri()], "nothing else is loaded"
    # As many curves as heads, all of them visible and of some length.
    curves = page.locator("#curves svg [id^=accuracy-curve]")
    assert curves.count() == len(run.heads)
    boxes = [curves.nth(at).bounding_box() for at in range(len(run.heads))]
    assert all(box["width"] > 0.5 * min(width, 600) and box["height"] > 20 for box in boxes)
    for _ in range(2):  # closed, and with everything unfolded
        widest = page.evaluate("document.documentElement.scrollWidth")
        assert widest <= width, f"overflows to {widest} px"
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.locator("#matrices svg").first.is_visible()
    # Text is light on dark or dark on light, in the page and in its plots.
    colours = page.evaluate(
        "[document.body, document.querySelector('figure svg text')].map((e, i) => "
        "getComputedStyle(e)[i ? 'fill' : 'backgroundColor'].match(/\\d+/g).slice(0, 3))"
    )
    back, ink = (sum(map(int, colour)) / 3 for colour in colours)
    assert (back < 60 and ink > 120) if scheme == "dark" else (back > 240 and ink < 120)
    page.emulate_media(media="print", color_scheme=scheme)
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == "rgb(255, 255, 255)", "no ink is wasted on a dark page"
    page.close()


def test_a_browser_shows_a_comparison_on_a_phone(tmp_path, browser):
    labels = tuple(f"{head} {'long ' * 12}" for head in HEADS[:2])
    records = few(labels, sizes=(4,))
    folders = [write_run(tmp_path / name, records, name=name) for name in ("first", "second")]
    page = browser.new_page()
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(write_report(folders).as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("#curves svg [id^=joint-curve]").count() == 4
    page.close()


def test_heads_are_in_the_order_of_the_experiment(tmp_path):
    records = task_records()
    names = list(dict.fromkeys(record["head"] for record in records))
    listed = "".join(f"[[heads]]\nlabel = {json.dumps(name)}\n" for name in reversed(names))
    folder = write_run(tmp_path / "run", records, spec=listed)
    assert list(read_run(folder).heads) == names[::-1]
    for odd in ("heads = 3", "[[heads]]\nname = 'x'", "= ?"):
        folder = write_run(tmp_path / "odd", records, spec=odd)
        assert list(read_run(folder).heads) == names
