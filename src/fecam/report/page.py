"""The report: one file with everything in it, that needs no network and no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fecam.bench.results import replace_text
from fecam.errors import InputError, RunError
from fecam.report.facts import facts, summary_sentence
from fecam.report.layout import details, figures, page, section
from fecam.report.reading import Run, read_run
from fecam.report.tables import cost_table, joint_table, more_table, summary_table, task_table
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
    """Write the page of a run, or one that compares several; the path of the page comes back.

    A run's page is ``report.html`` in its folder unless ``path`` says otherwise; that of several
    runs is ``comparison.html`` beside the first of them. The plots lie as PNG and SVG in the folder
    ``plots`` beside the page. Nothing is written unless every run could be read.
    """
    if not folders:
        raise InputError("no run to report on: give at least one folder that `fecam bench` wrote")
    runs = [read_run(folder) for folder in folders]
    from fecam.report.gallery import joint_picture, pictures  # loads matplotlib

    if path is None:
        first = runs[0].folder
        path = (
            first / "report.html" if len(runs) == 1 else first.resolve().parent / "comparison.html"
        )
    path = Path(path)
    if len(runs) == 1:
        drawn = {"": pictures(runs[0])}
        text = run_page(runs[0], drawn[""])
    else:
        named = _named(runs)
        joint = joint_picture(named)
        each = {f"run-{at}-": pictures(run) for at, run in enumerate(runs, 1)}
        text = comparison_page(named, joint, list(each.values()))
        drawn = {"comparison-": [joint] if joint else [], **each}
    try:
        (path.parent / "plots").mkdir(parents=True, exist_ok=True)
        for prefix, plots in drawn.items():
            for plot in plots:
                place = path.parent / "plots" / f"{prefix}{plot.name}"
                place.with_name(place.name + ".svg").write_bytes(plot.svg)
                place.with_name(place.name + ".png").write_bytes(plot.png)
        replace_text(path, text)
    except OSError as error:
        raise RunError(
            f"the report {path} cannot be written: {error.strerror or error}. Remedy: give a path "
            "in a folder that may be written to"
        ) from None
    return path


def run_page(run: Run, plots: Sequence[Picture]) -> str:
    """The page of one run."""
    sections = run_sections(run, plots, level=2, prefix="")
    return page(run.title, summary_sentence(run), sections, PLOTS_BESIDE)


def comparison_page(
    runs: Mapping[str, Run], joint: Picture | None, plots: Sequence[Sequence[Picture]]
) -> str:
    """A page that compares several runs, and has a section for each."""
    sections = [section("table", "All runs", joint_table(runs).as_html(), 2)]
    if joint is not None:
        sections.append(section("curves", "Accuracy curves", figures([joint], ""), 2))
    for at, ((name, run), each) in enumerate(zip(runs.items(), plots, strict=True), 1):
        inner = "\n".join(html for _, _, html in run_sections(run, each, 3, f"run-{at}-"))
        title = run.title if run.title == name else f"{run.title} ({name})"
        lead = f'<p class="lead">{markup(summary_sentence(run))}</p>'
        sections.append(section(f"run-{at}", title, lead + inner, 2))
    return page(f"{len(runs)} runs compared", ", ".join(runs), sections, PLOTS_BESIDE)


def run_sections(
    run: Run, plots: Sequence[Picture], level: int, prefix: str
) -> list[tuple[str, str, str]]:
    """The sections of a run as id, title and markup; those without content are left out."""
    by_section: dict[str, list[Picture]] = {}
    for plot in plots:
        by_section.setdefault(plot.section, []).append(plot)
    more = more_table(run)
    results = [
        summary_table(run).as_html(),
        f"<p>{RESULTS}{' ' + markup(_paper_words(run)) if run.paper else ''}</p>",
    ]
    if len(more.header) > 1 and more.rows:
        results.append(more.as_html())
    parts = [
        ("what", "What was run", facts(run)),
        ("results", "Results", "\n".join(results) if run.heads or run.paper else NOTHING),
    ]
    if "curves" in by_section:
        numbers = details("The numbers behind the curves", task_table(run).as_html())
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
        parts.append(("notes", "What differs from the paper" if run.paper else "Notes", notes))
    return [section(prefix + name, title, content, level) for name, title, content in parts]


RESULTS = (
    "<em>Average</em> is the mean of the accuracies after each task, <em>last</em> the accuracy "
    "after the last one; <em>base</em> and <em>later</em> are the classes of the first and of all "
    "later tasks at the end. ± is one standard deviation over seeds. The best of a column is bold."
)
PLOTS_BESIDE = "The plots lie beside this page, in the folder\n<code>plots</code>, as PNG and SVG."
NOTHING = "<p>No task is recorded yet.</p>"


def _paper_words(run: Run) -> str:
    source = (run.about.get("paper") or {}).get("source")
    return f"The paper's figures are those of its {source}." if source else ""


def _notes(run: Run) -> str:
    paper = run.about.get("paper") or {}
    words = [word for word in (paper.get("note"), *(run.about.get("notes") or [])) if word]
    return "".join(f'<div class="note"><p>{markup(word)}</p></div>' for word in words)


def _named(runs: Sequence[Run]) -> dict[str, Run]:
    """Runs by a name each: that of the experiment, made different where two share it."""
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [f"{run.name} ({run.folder.resolve().name})" for run in runs]
    named: dict[str, Run] = {}
    for name, run in zip(names, runs, strict=True):
        at = 2
        unique = name
        while unique in named:
            unique, at = f"{name} {at}", at + 1
        named[unique] = run
    return named
