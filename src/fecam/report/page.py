"""The report of one run, or of several: a single HTML file without network or scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from fecam.errors import InputError, RunError
from fecam.files import write_atomically
from fecam.report.facts import facts, summary_sentence
from fecam.report.layout import details, figures, page, section
from fecam.report.reading import Run, read_run
from fecam.report.tables import (
    cost_table,
    crossed_tables,
    few_shot_table,
    joint_table,
    more_table,
    other_predictors_table,
    summary_table,
    task_table,
)
from fecam.report.text import markup

if TYPE_CHECKING:
    from fecam.report.gallery import Picture

PLOT_SECTIONS = {
    "old-new": "Old, new and all classes",
    "matrices": "Accuracy matrices",
    "singular-values": "Singular values of old and new classes",
    "tsne": "Features before and after Tukey",
    "shrinkage": "Shrinkage",
    "storage": "Storage",
    "time": "Time",
}


def write_report(folders: Sequence[Path | str], path: Path | str | None = None) -> Path:
    """Write the page of a run, or a page that compares several runs.

    The plots are also written as PNG and SVG, to the folder ``plots`` beside the page. Nothing is
    written unless every run can be read.

    Parameters
    ----------
    folders : sequence of path-like
        Folders written by `fecam bench`.
    path : path-like, optional
        The page. Default: ``report.html`` in the folder of a single run, ``comparison.html``
        beside the folder of the first of several.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    RunError
        If a run cannot be read, or the page cannot be written.
    """
    if not folders:
        raise InputError("no run to report on: give at least one folder written by `fecam bench`")
    runs = [read_run(folder) for folder in folders]
    from fecam.report.gallery import joint_picture, pictures  # imports matplotlib

    folder = runs[0].folder
    if len(runs) == 1:
        path = Path(path or folder / "report.html")
        plots_by_prefix = {"": pictures(runs[0])}
        sections = run_sections(runs[0], plots_by_prefix[""], level=2, prefix="")
        text = page(runs[0].title, summary_sentence(runs[0]), sections, PLOTS_BESIDE)
    else:
        path = Path(path or folder.resolve().parent / "comparison.html")
        named = _unique_names(runs)
        joint = joint_picture(named)
        per_run = {f"run-{i}-": pictures(run) for i, run in enumerate(runs, 1)}
        text = comparison_page(named, joint, list(per_run.values()))
        plots_by_prefix = {"comparison-": joint, **per_run}
    folder = path.parent / "plots"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for prefix, plots in plots_by_prefix.items():
            for plot in plots:
                (folder / f"{prefix}{plot.name}.svg").write_bytes(plot.svg)
                (folder / f"{prefix}{plot.name}.png").write_bytes(plot.png)
        write_atomically(path, text)
    except OSError as error:
        raise RunError(
            f"the report {path} cannot be written: {error.strerror or error}. Remedy: give a path "
            "in a writable folder"
        ) from None
    return path


def comparison_page(
    runs: Mapping[str, Run], joint: Sequence[Picture], plots: Sequence[Sequence[Picture]]
) -> str:
    """Return a page that compares several runs, with a section per run."""
    sections = [section("table", "All runs", joint_table(runs).as_html(), 2)]
    if joint:
        sections.append(section("curves", "Accuracy curves", figures(joint), 2))
    for i, ((name, run), run_plots) in enumerate(zip(runs.items(), plots, strict=True), 1):
        inner = "\n".join(html for _, _, html in run_sections(run, run_plots, 3, f"run-{i}-"))
        title = run.title if run.title == name else f"{run.title} ({name})"
        lead = f'<p class="lead">{markup(summary_sentence(run))}</p>'
        sections.append(section(f"run-{i}", title, lead + inner, 2))
    return page(f"{len(runs)} runs compared", ", ".join(runs), sections, PLOTS_BESIDE)


def run_sections(
    run: Run, plots: Sequence[Picture], level: int, prefix: str
) -> list[tuple[str, str, str]]:
    """Return the sections of a run as id, title and HTML; empty sections are omitted."""
    by_section: dict[str, list[Picture]] = {}
    for plot in plots:
        by_section.setdefault(plot.section, []).append(plot)
    more = more_table(run)
    results = [summary_table(run).as_html(), f"<p>{RESULTS}{_paper_source(run)}</p>"]
    if len(more.header) > 1 and more.rows:
        results.append(more.as_html())
    if (others := other_predictors_table(run)) is not None:
        results.append(details("Other predictors of the same learners", others.as_html()))
    parts = [
        ("what", "Experiment", facts(run)),
        ("results", "Results", "\n".join(results) if run.heads or run.paper else NO_RECORDS),
    ]
    if crossed := crossed_tables(run):
        tables = "\n".join(table.as_html() for table in crossed)
        parts.append(("networks", "Networks and heads", tables))
    if "curves" in by_section:
        numbers = details("The values of the curves", task_table(run).as_html())
        if (harmonic := few_shot_table(run)) is not None:
            numbers += details("Harmonic means after each task", harmonic.as_html())
        curves = figures(by_section["curves"], prefix)
        parts.append(("curves", "Accuracy curves", curves + numbers))
    for name, title in PLOT_SECTIONS.items():
        if name == "matrices" and name in by_section:
            shown = figures(by_section[name], prefix, "small")
            parts.append((name, title, details(f"{len(by_section[name])} heat maps", shown)))
        elif name in by_section:
            table = cost_table(run).as_html() if name == "time" else ""
            parts.append((name, title, figures(by_section[name], prefix) + table))
    notes = _notes(run)
    if notes:
        parts.append(("notes", "Differences from the paper" if run.paper else "Notes", notes))
    return [section(prefix + name, title, content, level) for name, title, content in parts]


RESULTS = (
    "<em>Average</em> is the mean of the accuracies after each task, <em>last</em> the accuracy "
    "after the last task. <em>Base</em> and <em>later</em> are the last accuracies on the classes "
    "of the first task and of all later tasks. ± is one standard deviation over seeds. The best "
    "value of a column is bold."
)
PLOTS_BESIDE = (
    "The plots are also in the folder\n<code>plots</code> beside this page, as PNG and SVG."
)
NO_RECORDS = "<p>No task is recorded yet.</p>"


def _paper_source(run: Run) -> str:
    source = (run.about.get("paper") or {}).get("source")
    return markup(f" The paper's values are from its {source}.") if run.paper and source else ""


def _notes(run: Run) -> str:
    paper = run.about.get("paper") or {}
    notes = [note for note in (paper.get("note"), *(run.about.get("notes") or [])) if note]
    return "".join(f'<div class="note"><p>{markup(note)}</p></div>' for note in notes)


def _unique_names(runs: Sequence[Run]) -> dict[str, Run]:
    """Return runs by the name of the experiment, with a suffix where two have the same."""
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [f"{run.name} ({run.folder.resolve().name})" for run in runs]
    named: dict[str, Run] = {}
    for name, run in zip(names, runs, strict=True):
        candidates = chain([name], (f"{name} {number}" for number in count(2)))
        named[next(each for each in candidates if each not in named)] = run
    return named
