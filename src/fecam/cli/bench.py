"""`fecam bench`, `report`, `heads` and `learners`: experiments, their reports and their parts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fecam.cli import cluster
from fecam.cli.confirmation import Replace, Yes, confirm, confirm_replacing
from fecam.cli.data import Device, Download, Root
from fecam.cli.output import (
    INTERRUPTED,
    AsJson,
    console,
    parse_options,
    print_note,
    progress_bar,
    show_json,
    show_table,
    strip_control,
)
from fecam.errors import InputError, MissingPackageError, RunError

if TYPE_CHECKING:
    from fecam.bench.preparation import Progress
    from fecam.bench.spec import Spec
    from fecam.report.reading import Run


def bench(
    spec: Annotated[
        list[str] | None, typer.Argument(help="Experiments: names (`--list`), or .toml files.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List all experiments.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Print them in full; run nothing.")] = False,
    output: Annotated[
        Path, typer.Option("--output", "-O", help="Parent folder; each run has its own.")
    ] = Path("runs"),
    root: Root = None,
    download: Download = False,
    head: Annotated[
        list[str] | None, typer.Option(help="Only this head or learner, by its label; repeatable.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Other seeds: 1993,1994.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change the experiment: first_task.epochs=30; repeatable.",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default one per seed of heads.")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Remove earlier records.")] = False,
    yes: Yes = False,
    log: Annotated[
        list[str] | None, typer.Option(help="Also log to tensorboard or mlflow; repeatable.")
    ] = None,
    device: Device = None,
    ray: cluster.Ray = None,
    as_json: AsJson = False,
) -> None:
    """Run experiments: tables, curves and a report. Run it again to resume after an interrupt.

    Example: `fecam bench digits`, then open `runs/digits/report.html`;
    `fecam bench cifar100-t10-lite0 --ray` runs seeds and heads on a cluster
    """
    from fecam.bench import loggers, runner
    from fecam.bench import spec as specs
    from fecam.bench.results import RECORDS
    from fecam.distributed.experiments import run_on_ray

    if listing:
        bundled = [specs.load(name) for name in specs.available()]
        rows = [[x.name, x.title, x.dataset.name, _features_by(x)] for x in bundled]
        if as_json:
            show_json([x.as_dict() for x in bundled])
        else:
            show_table(["experiment", "title", "data", "features by"], rows)
        return
    if not spec:
        raise InputError("name an experiment, such as digits; `fecam bench --list` lists them")
    changes = {**_changes(change or []), **({} if seeds is None else {"seeds": _seeds(seeds)})}
    sys.path.insert(0, str(Path.cwd()))  # an experiment may name a head in a file of the user
    experiments = [specs.load(name, changes) for name in spec]
    if head:
        experiments = [experiment.select_heads(head) for experiment in experiments]
    if show:
        if as_json:
            show_json([x.as_dict() for x in experiments])
        else:
            print("\n".join(x.as_toml() for x in experiments), end="")
        return
    if ray is not None and workers is not None:
        raise InputError("--workers is for this machine. Remedy: leave it out, for --ray")
    for folder in [output / experiment.name for experiment in experiments] if restart else []:
        if (folder / RECORDS).exists():
            confirm(f"Remove the records of the earlier run in {folder}?", yes)
    if ray is not None:
        cluster.join(ray)
    log_records = [loggers.make(name) for name in log or []]
    for experiment in experiments:
        folder = output / experiment.name
        try:
            with progress_bar(experiment.name, "steps") as bar:
                for record in runner.run(
                    experiment,
                    folder,
                    root=root,
                    download=download,
                    restart=restart,
                    workers=workers,
                    executor=None if ray is None else run_on_ray,
                    device=device,
                    progress=_stage_bars(bar, experiment.name),
                ):
                    for log_record in log_records:
                        log_record(record, folder)
                    if as_json:
                        print(json.dumps(record), flush=True)
        except KeyboardInterrupt:
            print_note(f"stopped; the records are in {folder}. Run the same command to resume")
            raise typer.Exit(INTERRUPTED) from None
        _show_report(folder, as_json)


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs of `fecam bench`, or of several runs.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-O", help="The page; by default in the folder.")
    ] = None,
    yes: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Write the report of a run, or one that compares several.

    Of a folder of runs, all are compared; those that cannot be read are skipped with a note.

    Example: `fecam report runs/digits`, `fecam report runs`
    """
    from fecam.report import write_report

    confirm_replacing(output, yes)
    results = [run for folder in runs for run in _read_runs(folder)]
    if as_json:
        show_json({run.name: run.summary for run in results})
        return
    for run in results:
        _show_summary(run)
    print_note(f"the report: {write_report([run.folder for run in results], output)}")


def _read_runs(folder: Path) -> list[Run]:
    """Return the run in a folder, or all runs in its subfolders that can be read."""
    from fecam.bench.results import METADATA
    from fecam.report import read_run

    candidates = sorted(path for path in folder.glob("*/") if path.name != "plots")
    if (folder / METADATA).exists() or not candidates:
        return [read_run(folder)]
    results = []
    for path in candidates:
        try:
            results.append(read_run(path))
        except RunError as error:
            print_note(f"skipped: {error}")
    if not results:
        raise RunError(f"{folder} holds no run. Remedy: give a folder written by `fecam bench`")
    return results


def list_heads(as_json: AsJson = False) -> None:
    """List the heads: classifiers on features that an experiment can name.

    Example: `fecam heads`
    """
    from fecam import heads

    entries = heads.available()
    if as_json:
        show_json([{**asdict(entry), "options": _json_options(entry.options)} for entry in entries])
        return
    show_table(
        ["head", "what it is", "options"],
        [[entry.name, entry.description, ", ".join(entry.options)] for entry in entries],
    )


def list_learners(as_json: AsJson = False) -> None:
    """List the learners: methods that train the network, which an experiment can name.

    Example: `fecam learners`
    """
    from fecam import learners

    entries = learners.available()
    if as_json:
        show_json([asdict(entry) for entry in entries])
        return
    show_table(
        ["learner", "what it is", "keeps"],
        [[entry.name, entry.description, entry.keeps] for entry in entries],
    )
    print_note("Sources, and how each was verified: `fecam learners --json`")


def _features_by(spec: Spec) -> str:
    if spec.encoder is not None:
        return spec.encoder.name
    if spec.first_task is None:
        return ""
    return f"{spec.first_task.network}, width {spec.first_task.width}, trained first"


def _show_report(folder: Path, as_json: bool) -> None:
    """Write the report, and print the table; without a plotting library only the table."""
    from fecam.report import read_run, write_report

    if not as_json:
        _show_summary(read_run(folder))
    try:
        print_note(f"the report: {write_report([folder])}")
    except MissingPackageError as error:
        print_note(f"no report: {error}")


def _show_summary(run: Any) -> None:
    from fecam.report import summary_table

    table = summary_table(run)
    console.print(strip_control(run.title))
    show_table(table.header, table.text_rows())
    if any(cell.best for row in table.rows for cell in row):
        console.print("* best of its column")


def _stage_bars(bar: Any, name: str) -> Callable[[Progress], None]:
    """Return a callback that shows each stage as its own bar, with its own remaining time."""
    bars: dict[str, Any] = {}

    def update(now: Progress) -> None:
        if now.stage not in bars:
            (first,) = bar.task_ids[:1]
            bars[now.stage] = bar.add_task(name, total=None, note="") if bars else first
            bar.update(bars[now.stage], description=f"{name}: {now.stage}")
        bar.update(bars[now.stage], completed=now.done, total=now.total, note=now.note)

    return update


def _changes(pairs: list[str]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(f"--set {pair}: write key=value, as in first_task.epochs=30")
        changes[name] = parse_options([f"value={value}"])["value"]
    return changes


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise InputError(f"--seeds {text}: write integers, as 1993,1994") from None


def _json_options(options: Any) -> dict[str, Any]:
    """Return the options whose values JSON can hold."""
    values = {}
    for name, value in options.items():
        with suppress(TypeError):
            json.dumps(value)
            values[name] = value
    return values
