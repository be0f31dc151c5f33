"""`fecam bench`, `fecam report` and `fecam heads`: experiments and what came of them."""

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
from fecam.errors import InputError, MissingPackageError

if TYPE_CHECKING:
    from fecam.bench.preparation import Progress
    from fecam.bench.spec import Spec


def bench(
    spec: Annotated[
        list[str] | None, typer.Argument(help="Experiments: names (`--list`), or .toml files.")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List all experiments.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Print them in full; run nothing.")] = False,
    output: Annotated[
        Path, typer.Option("--output", "-O", help="Each gets a folder of its name in here.")
    ] = Path("runs"),
    root: Root = None,
    download: Download = False,
    head: Annotated[
        list[str] | None, typer.Option(help="Only this head, by its label; may be repeated.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Other seeds, as 1993,1994.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change the experiment: first_task.epochs=30."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Heads side by side; by default one a seed.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Begin anew, not where it ended.")] = False,
    log: Annotated[
        list[str] | None, typer.Option(help="Log to tensorboard or mlflow, too.")
    ] = None,
    device: Device = None,
    ray: cluster.Ray = None,
    as_json: AsJson = False,
) -> None:
    """Run experiments: tables, curves and a report. Run it again to go on after a stop.

    Example: `fecam bench digits`, then open `runs/digits/report.html`;
    `fecam bench cifar100-t10-lite0 --ray` spreads seeds and heads over a cluster
    """
    if listing:
        _list(as_json)
        return
    if not spec:
        raise InputError("name an experiment, such as digits; `fecam bench --list` lists them")
    from fecam.bench import loggers, runner
    from fecam.bench import spec as specs

    changes = {**_changes(change or []), **({} if seeds is None else {"seeds": _seeds(seeds)})}
    sys.path.insert(0, str(Path.cwd()))  # an experiment may name a head in a file of the user's
    chosen = [specs.load(one, changes) for one in spec]
    if head:
        chosen = [one.select_heads(head) for one in chosen]
    if show:
        _print_specs(chosen, as_json)
        return
    if ray is not None and workers is not None:
        raise InputError("--workers is for this machine. Remedy: leave it out, for --ray")
    executor = None if ray is None else cluster.executor_on(ray)
    listeners = [loggers.make(name) for name in log or []]
    for one in chosen:
        folder = output / one.name
        try:
            with progress_bar(one.name, "steps") as bar:
                records = runner.run(
                    one,
                    folder,
                    root=root,
                    download=download,
                    again=again,
                    workers=workers,
                    executor=executor,
                    device=device,
                    watch=_watching(bar, one.name),
                )
                for record in records:
                    for listener in listeners:
                        listener(record, folder)
                    if as_json:
                        print(json.dumps(record), flush=True)
        except KeyboardInterrupt:
            print_note(f"stopped; what is done is kept in {folder}. Run the same command to go on")
            raise typer.Exit(INTERRUPTED) from None
        _tell(folder, as_json)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders that `fecam bench` has left.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-O", help="The page; by default in the folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the page of a run, or one that compares several.

    Example: `fecam report runs/digits`
    """
    from fecam.report import read_run, write_report

    found = [read_run(folder) for folder in runs]
    if as_json:
        show_json({run.name: run.summary for run in found})
        return
    for run in found:
        _show(run)
    print_note(f"the report: {write_report(runs, output)}")


def list_heads(as_json: AsJson = False) -> None:
    """List the heads: classifiers on features that an experiment can name.

    Example: `fecam heads`
    """
    from fecam import heads

    entries = heads.available()
    if as_json:
        show_json([{**asdict(one), "options": _plain(one.options)} for one in entries])
        return
    show_table(
        ["head", "what it is", "options"],
        [[one.name, one.description, ", ".join(one.options)] for one in entries],
    )


def _list(as_json: bool) -> None:
    from fecam.bench import spec as specs

    found = [specs.load(name) for name in specs.available()]
    if as_json:
        show_json([one.as_dict() for one in found])
        return
    show_table(
        ["experiment", "what it is", "data", "features by"],
        [[one.name, one.title, one.dataset.name, _features_by(one)] for one in found],
    )


def _print_specs(chosen: list[Spec], as_json: bool) -> None:
    if as_json:
        show_json([one.as_dict() for one in chosen])
        return
    print("\n".join(one.as_toml() for one in chosen), end="")


def _features_by(spec: Spec) -> str:
    if spec.encoder is not None:
        return spec.encoder.name
    if spec.first_task is not None:
        return f"resnet18, width {spec.first_task.width}, trained first"
    return ""


def _tell(folder: Path, as_json: bool) -> None:
    """The table and the page; a run without a plotting library still has its table."""
    from fecam.report import read_run, write_report

    try:
        page = write_report([folder])
    except MissingPackageError as error:
        print_note(f"no report: {error}")
        page = None
    if not as_json:
        _show(read_run(folder))
    if page is not None:
        print_note(f"the report: {page}")


def _show(run: Any) -> None:
    from fecam.report import summary_table

    table = summary_table(run)
    console.print(strip_control(run.title))
    show_table(table.header, table.text_rows())
    if any(cell.best for row in table.rows for cell in row):
        console.print("* best of its column")


def _watching(bar: Any, name: str) -> Callable[[Progress], None]:
    """Each stage has a bar of its own, so that its rate and its remaining time are its own."""
    (task,) = bar.task_ids
    stage = None

    def watch(now: Progress) -> None:
        nonlocal stage, task
        if now.stage != stage:
            if stage is not None:
                task = bar.add_task(name, total=None, note="")
            stage = now.stage
            bar.update(task, description=f"{name}: {stage}")
        bar.update(task, completed=now.done, total=now.total)

    return watch


def _changes(pairs: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InputError(f"--set {pair}: write key=value, as in first_task.epochs=30")
        found[name] = parse_options([f"value={value}"])["value"]
    return found


def _seeds(text: str) -> list[int]:
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        raise InputError(f"--seeds {text}: write whole numbers, as 1993,1994") from None


def _plain(options: Any) -> dict[str, Any]:
    found = {}
    for name, value in options.items():
        with suppress(TypeError):
            json.dumps(value)
            found[name] = value
    return found
