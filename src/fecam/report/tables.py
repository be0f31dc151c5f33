"""Tables of runs as rows, Markdown and HTML. Every format escapes the labels of an experiment."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fecam.bench.metrics import METRICS, base_later_curves, mean_over_seeds, mean_std
from fecam.report.reading import Run
from fecam.report.text import duration, markdown, markup, percent, size

GAP = "\N{EN DASH}"
TITLES = {
    **{name: f"{name.replace('_', ' ')} %" for name in METRICS},
    "novelty_auroc": "novelty AUROC %",
    "seconds_to_learn": "to learn",
    "seconds_to_predict": "to predict",
    "bytes": "memory",
    "parameters": "weights",
}
MAIN = ("average", "last", "base", "later")
FEW_SHOT = (*MAIN, "harmonic", "average_later", "performance_drop")
"""The metrics of few-shot papers: the first table of such a run has them."""
CROSSED = ("average", "last", "base", "later", "harmonic")
"""The metrics of tables with a row per network."""
COSTS = ("seconds_to_learn", "seconds_to_predict", "bytes", "parameters")
MORE = tuple(name for name in TITLES if name not in (*MAIN, *COSTS))
ALWAYS = MAIN[:2]
LOWER_IS_BETTER = frozenset({"performance_drop", "forgetting", "calibration_error"})


@dataclass(frozen=True)
class Cell:
    """Text of a table cell; the best cell of a column is printed in bold."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Table:
    """A header and rows; the first column names the row.

    Parameters
    ----------
    header : tuple of str
        Column names.
    rows : tuple of tuple of Cell
        Cells, one per column.
    caption : str, default=""
        Caption of the HTML table.

    Examples
    --------
    >>> table = Table(("head", "last %"), ((Cell("ncm"), Cell("50.7")), (Cell("a|b"), Cell("9.1"))))
    >>> table.text_rows()
    [['ncm', '50.7'], ['a|b', '9.1']]
    >>> print(table.as_markdown())
    | head | last % |
    |---|---:|
    | ncm | 50.7 |
    | a\\|b | 9.1 |
    """

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""

    def text_rows(self) -> list[list[str]]:
        """Return the rows as text; the best cell of a column starts with ``*``."""
        return [["*" * cell.best + cell.text for cell in row] for row in self.rows]

    def as_markdown(self) -> str:
        """Return the table in Markdown."""
        rows = [
            [f"**{markdown(cell.text)}**" if cell.best else markdown(cell.text) for cell in row]
            for row in self.rows
        ]
        first, *others = [
            "| " + " | ".join(row) + " |" for row in [map(markdown, self.header), *rows]
        ]
        return "\n".join([first, "|---|" + "---:|" * (len(self.header) - 1), *others])

    def as_html(self) -> str:
        """Return the table in HTML, inside an element that scrolls if it is too narrow."""
        head = "".join(f'<th scope="col">{markup(name)}</th>' for name in self.header)
        body = []
        for first, *others in self.rows:
            texts = [
                f"<strong>{markup(cell.text)}</strong>" if cell.best else markup(cell.text)
                for cell in others
            ]
            cells = "".join(f"<td>{text}</td>" for text in texts)
            body.append(f'<tr><th scope="row">{markup(first.text)}</th>{cells}</tr>')
        label = markup(self.caption or "table")
        caption = f"<caption>{label}</caption>" if self.caption else ""
        return (
            f'<div class="scroll" role="region" tabindex="0" aria-label="{label}">'
            f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>\n"
            + "\n".join(body)
            + "\n</tbody></table></div>"
        )


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> Table:
    """Return a table of plain texts."""
    return Table(tuple(header), tuple(tuple(map(Cell, row)) for row in rows), caption)


# -- tables of a run -------------------------------------------------------------------------------


def summary_table(run: Run) -> Table:
    """Return the average and last accuracy of each head, with the paper's values if any.

    Parameters
    ----------
    run : Run
        A run, from `read_run`.

    Returns
    -------
    Table
        One row per head.
    """
    return _metrics_table(run, FEW_SHOT if is_few_shot(run) else MAIN, "Accuracy in percent")


def is_few_shot(run: Run) -> bool:
    """Return whether the scenario of a run is few-shot.

    Parameters
    ----------
    run : Run
        A run, from `read_run`.

    Returns
    -------
    bool
        False also for a run without a scenario.
    """
    return (run.about.get("scenario") or {}).get("kind") == "few-shot"


def more_table(run: Run) -> Table:
    """Return accuracy on old and new classes, forgetting, calibration and novelty per head."""
    metrics = [name for name in MORE if not (is_few_shot(run) and name in FEW_SHOT)]
    return _metrics_table(run, metrics, "More metrics in percent")


def other_predictors_table(run: Run) -> Table | None:
    """Return the accuracy of predictors beside a learner's own, per task; None without any."""
    rows: list[tuple[str, ...]] = []
    for head, seeds in run.heads.items():
        values: dict[str, dict[int, list[float]]] = {}
        for record in itertools.chain(*seeds.values()):
            for name, accuracy in (record.get("other_accuracy") or {}).items():
                values.setdefault(name, {}).setdefault(record["task"], []).append(accuracy)
        for name, tasks in values.items():
            cells = [
                percent(*mean_std(tasks[i])) if i in tasks else GAP for i in range(_count(run))
            ]
            rows.append((f"{head}: {name}", *cells))
    if not rows:
        return None
    header = ("head", *[f"task {i + 1}" for i in range(_count(run))])
    return text_table(header, rows, "Accuracy of other predictors in percent, after each task")


def _count(run: Run) -> int:
    """Return the number of tasks that any head has finished."""
    tasks = itertools.chain.from_iterable(seeds.values() for seeds in run.heads.values())
    return max(map(len, tasks), default=0)


def cost_table(run: Run) -> Table:
    """Return time and memory of each head."""
    return _metrics_table(run, COSTS, "Time over all tasks, memory after the last task")


def task_table(run: Run) -> Table:
    """Return the accuracy of each head after each task, with the paper's values if any."""
    curves = {head: mean_over_seeds(seeds, "accuracy") for head, seeds in run.heads.items()}
    count = max((task + 1 for curve in curves.values() for task in curve), default=0)
    paper: dict[str, Any] = {head: figures.get("tasks", []) for head, figures in run.paper.items()}
    rows: list[tuple[str, ...]] = []
    for head in dict.fromkeys([*curves, *paper]):
        if curve := curves.get(head):
            rows.append((head, *[percent(*curve[i]) if i in curve else GAP for i in range(count)]))
        if theirs := paper.get(head):
            shown = [f"{x:.1f}" for x in theirs[:count]]
            rows.append((f"{head}, paper", *shown, *[GAP] * (count - len(shown))))
    header = ("head", *[f"task {i + 1}" for i in range(count)])
    return text_table(header, rows, "Accuracy in percent after each task")


def few_shot_table(run: Run) -> Table | None:
    """Return harmonic means of base and later accuracy per task; None unless it is few-shot."""
    if not is_few_shot(run):
        return None
    curves = {head: base_later_curves(seeds)[2] for head, seeds in run.heads.items()}
    last = max((task for curve in curves.values() for task in curve), default=0)
    rows = [
        (head, *[percent(*curve[i]) if i in curve else GAP for i in range(1, last + 1)])
        for head, curve in curves.items()
        if curve
    ]
    header = ("head", *[f"task {i + 1}" for i in range(1, last + 1)])
    return text_table(header, rows, "Harmonic mean of base and later accuracy, in percent")


def crossed_tables(run: Run) -> list[Table]:
    """Return a table per metric with a row per network and a column per head.

    Parameters
    ----------
    run : Run
        A run, from `read_run`.

    Returns
    -------
    list of Table
        Empty unless the experiment runs its heads on several networks. The best head of each
        network is marked.
    """
    summary = {row["head"]: row for row in run.summary}
    cells: dict[str, dict[str, str]] = {}
    for label, network in run.networks.items():
        if label in summary:
            cells.setdefault(network, {})[label.removeprefix(f"{network}, ")] = label
    heads = list(dict.fromkeys(head for own in cells.values() for head in own))
    tables = []
    for metric in CROSSED if len(cells) > 1 else ():
        rows = []
        for network, own in cells.items():
            values = [summary[own[head]].get(metric) if head in own else None for head in heads]
            rows.append((Cell(network), *_column(values, metric)))
        caption = f"{TITLES[metric].removesuffix(' %')}, in percent"
        tables.append(Table(("network", *heads), tuple(rows), caption))
    return tables


def joint_table(runs: Mapping[str, Run]) -> Table:
    """Return average and last accuracy of the heads of several runs, by name of the run."""
    rows = {name: {row["head"]: row for row in run.summary} for name, run in runs.items()}
    heads = list(dict.fromkeys(head for by_head in rows.values() for head in by_head))
    columns = [(run, metric) for run in runs for metric in ("average", "last")]
    return _table(
        heads,
        [
            (f"{run}: {TITLES[metric]}", [rows[run].get(h, {}).get(metric) for h in heads], metric)
            for run, metric in columns
        ],
        "Accuracy in percent per run",
    )


def _metrics_table(run: Run, metrics: Sequence[str], caption: str) -> Table:
    ours = {row["head"]: row for row in run.summary}
    theirs = [head for head, figures in run.paper.items() if not figures.keys().isdisjoint(metrics)]
    heads = list(dict.fromkeys([*ours, *theirs]))
    columns: list[tuple[str, list[Any], str]] = []
    for name in metrics:
        values = [ours.get(head, {}).get(name) for head in heads]
        paper = [run.paper.get(head, {}).get(name) for head in heads]
        if name in ALWAYS or any(value is not None for value in [*values, *paper]):
            columns.append((TITLES[name], values, name))
        if any(value is not None for value in paper):
            columns.append((f"{TITLES[name]}, paper", paper, "paper"))
    seeds = {_seeds(row) for row in ours.values()}
    if len(seeds) > 1 or any(row["unfinished"] for row in ours.values()):
        columns.append(("seeds", [_seeds(ours.get(head)) for head in heads], "text"))
    elif seeds and seeds != {"1"}:
        caption += f", mean of {seeds.pop()} seeds"
    return _table(heads, columns, caption)


def _table(heads: list[str], columns: list[tuple[str, list[Any], str]], caption: str) -> Table:
    cells = [list(map(Cell, heads)), *[_column(values, kind) for _, values, kind in columns]]
    header = ("head", *[title for title, _, _ in columns])
    return Table(header, tuple(zip(*cells, strict=True)), caption)


def _column(values: Sequence[Any], kind: str) -> list[Cell]:
    if kind == "text":
        return [Cell(value) for value in values]
    if kind == "paper":
        return [Cell(GAP if value is None else f"{value:.1f}") for value in values]
    if kind == "bytes":
        return [Cell(GAP if value is None else size(value["mean"])) for value in values]
    if kind == "parameters":
        return [Cell(GAP if value is None else f"{value['mean']:,.0f}") for value in values]
    if kind in COSTS:
        return [Cell(GAP if value is None else duration(value["mean"])) for value in values]
    # Compares rounded values, so that two equal cells are both the best.
    rounded = [None if value is None else round(100 * value["mean"], 1) for value in values]
    present = [value for value in rounded if value is not None]
    best = (min if kind in LOWER_IS_BETTER else max)(present, default=None)
    return [
        Cell(GAP)
        if value is None
        else Cell(percent(value["mean"], value["std"]), len(present) > 1 and shown == best)
        for value, shown in zip(values, rounded, strict=True)
    ]


def _seeds(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return GAP
    unfinished = f" + {row['unfinished']} unfinished" if row["unfinished"] else ""
    return f"{row['seeds']}{unfinished}"
