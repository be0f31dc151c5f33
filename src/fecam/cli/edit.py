"""`fecam forget`, `merge`, `undo` and `history`: what happens to whole classes and whole models."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import fecam
from fecam.cli import completion
from fecam.cli.model import ModelPath, open_existing, quoted, undo_command
from fecam.cli.output import AsJson, counted, print_note, show_json, show_table, single_line
from fecam.errors import FecamError, InputError

if TYPE_CHECKING:
    from fecam.model_file.records import Step

Note = Annotated[str, typer.Option(help="Kept with the step: where it came from, say.")]


def forget(
    label: Annotated[
        list[str],
        typer.Argument(
            metavar="LABEL...", help="Classes to forget.", autocompletion=completion.labels
        ),
    ],
    model: ModelPath,
    purge: Annotated[
        bool, typer.Option("--purge", help="Erase them from the file: no undo brings them back.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    note: Note = "",
    as_json: AsJson = False,
) -> None:
    """Forget classes; the others are as if these had never been taught.

    Example: `fecam forget robin -m birds.fecam`
    """
    with open_existing(model, readonly=False) as opened:
        labels = list(dict.fromkeys(opened.label_of(text) for text in label))
        counts = {one.label: one.count for one in opened.classes if one.label in labels}
        if sys.stdin.isatty() and not yes:
            what = ", ".join(f"{single_line(str(one))} ({counts[one]:,} samples)" for one in labels)
            after = "This cannot be undone" if purge else "`fecam undo` would bring them back"
            typer.confirm(f"Forget {what}? {after}.", abort=True, err=True)
        steps = [opened.forget(one, purge=purge, note=note) for one in labels]
        left = len(opened.classes)
    if as_json:
        show_json(
            {
                "model": str(model),
                "forgotten": {str(one): counts[one] for one in labels},
                "purge": purge,
                "steps": [step.number for step in steps],
                "classes": left,
            }
        )
        return
    names = ", ".join(map(str, labels))
    print_note(f"forgotten: {names}; {model} now has {counted(left, 'class')}")
    if not purge:
        print_note(f"{undo_command(model, len(steps))} undoes that")


def merge(
    other: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Other models.")],
    model: ModelPath,
    min_count: Annotated[
        int, typer.Option(min=0, help="Leave out classes of the others with fewer samples.")
    ] = 0,
    allow_duplicates: Annotated[
        bool,
        typer.Option(
            "--allow-duplicates", help="Also samples that were taught to both: they count twice."
        ),
    ] = False,
    note: Note = "",
    as_json: AsJson = False,
) -> None:
    """Add what other models were taught, exactly; the file is made if it is not there.

    Example: `fecam merge alice.fecam bob.fecam -m birds.fecam`
    """
    if model.exists() and any(one.exists() and one.samefile(model) for one in other):
        raise InputError(f"{model} cannot be merged with itself. Remedy: give other files")
    left_out: dict[str, dict[str, int]] = {}
    added: Counter[Any] = Counter()
    steps: list[int] = []
    with fecam.open(model) as opened, ExitStack() as stack:
        sources = [(path, stack.enter_context(open_existing(path))) for path in other]
        before = {one.label for one in opened.classes} if opened.exists else set()
        for path, source in sources:
            small = {one.label: one.count for one in source.classes if one.count < min_count}
            if small:
                left_out[str(path)] = {str(label): count for label, count in small.items()}
            if len(small) == len(source.classes) > 0:
                continue
            try:
                step = opened.merge(
                    source, min_count=min_count, allow_duplicates=allow_duplicates, note=note
                )
            except FecamError:
                if steps:  # each file is one step
                    back = undo_command(model, len(steps))
                    print_note(f"{counted(len(steps), 'file')} merged before; {back} undoes that")
                raise
            steps.append(step.number)
            added.update(step.counts)
        after = [one.label for one in opened.classes]
    new = [label for label in after if label not in before]
    if as_json:
        show_json(
            {
                "model": str(model),
                "added": {str(label): count for label, count in added.items()},
                "new_classes": new,
                "left_out": left_out,
                "steps": steps,
                "classes": len(after),
            }
        )
        return
    for path_of, small_ones in left_out.items():
        names = ", ".join(f"{name} ({count})" for name, count in small_ones.items())
        print_note(f"left out of {path_of}, below {min_count} samples: {names}")
    print_note(
        f"{counted(sum(added.values()), 'sample')} of {counted(len(added), 'class')} added, "
        f"{len(new)} of them new; {model} now has {counted(len(after), 'class')}"
    )


def undo(
    model: ModelPath,
    steps: Annotated[int, typer.Option(min=1, help="How many, the newest first.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Take back the last step, or several, exactly.

    Example: `fecam undo -m birds.fecam`
    """
    with open_existing(model, readonly=False) as opened:
        possible = sum(step.can_undo and not step.undone for step in opened.steps)
        if steps > possible:
            raise InputError(
                f"{model}: {steps} steps are to be taken back, but {possible} can be. `fecam "
                f"history -m {quoted(model)}` lists them"
            )
        undone = opened.undo(steps)
        left = len(opened.classes)
    if as_json:
        show_json(
            {"model": str(model), "undone": [_plain(step) for step in undone], "classes": left}
        )
        return
    for step in undone:
        print_note(f"undone: step {step.number}, {step.what}{_touched(step)}")
    print_note(f"{model} now has {counted(left, 'class')}")


def history(model: ModelPath, as_json: AsJson = False) -> None:
    """List what happened to a model, the newest first.

    Example: `fecam history -m birds.fecam`
    """
    with open_existing(model) as opened:
        steps = opened.steps
    if as_json:
        show_json([_plain(step) for step in steps])
        return
    show_table(
        ["step", "time (UTC)", "what", "samples", "classes", "note", ""],
        [
            [
                step.number,
                step.time[:16].replace("T", " "),
                step.what,
                f"{sum(step.counts.values()):+,}",
                _names(list(step.counts)),
                step.note,
                "undone" if step.undone else "can be undone" if step.can_undo else "",
            ]
            for step in steps
        ],
    )


def _touched(step: Step) -> str:
    total = sum(step.counts.values())
    return f" of {counted(abs(total), 'sample')}: {_names(list(step.counts))}"


def _names(labels: list[Any], most: int = 5) -> str:
    shown = ", ".join(map(str, labels[:most]))
    return shown if len(labels) <= most else f"{shown} and {len(labels) - most} more"


def _plain(step: Step) -> dict[str, Any]:
    return {**asdict(step), "counts": {str(label): n for label, n in step.counts.items()}}
