"""`fecam forget`, `rename`, `join`, `merge`, `undo`, `history`: change classes and past steps."""

from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

import fecam
from fecam.cli import completion
from fecam.cli.confirmation import Yes, confirm
from fecam.cli.model import ModelPath, open_existing, quoted, undo_command
from fecam.cli.output import AsJson, print_note, show_json, show_result, show_table, single_line
from fecam.data._files import listed
from fecam.errors import FecamError, InputError
from fecam.labels import first_kind, parse_label
from fecam.results import ClassRecord, Label, to_json
from fecam.validation import counted

Note = Annotated[str, Option(help="Note stored with the step, such as a source.")]


def forget(
    label: Annotated[
        list[str],
        Argument(metavar="LABEL", help="Classes to remove.", autocompletion=completion.labels),
    ],
    model: ModelPath,
    purge: Annotated[
        bool, Option("--purge", help="Also remove them from the history; cannot be undone.")
    ] = False,
    yes: Yes = False,
    note: Note = "",
    as_json: AsJson = False,
) -> None:
    """Remove classes; the others are unchanged, as if these had never been learned.

    On a terminal it asks first. Without one, --purge needs --yes.

    Example: `fecam forget robin -m birds.fecam`
    """
    with open_existing(model, readonly=False) as opened:
        labels = list(dict.fromkeys(opened.label_of(text) for text in label))
        counts = {record.label: record.count for record in opened.classes}
        names = ", ".join(
            f"{single_line(str(label))} ({counted(counts[label], 'sample')})" for label in labels
        )
        undoing = "This cannot be undone" if purge else "`fecam undo` restores them"
        confirm(f"Forget {names}? {undoing}.", yes, reversible=not purge)
        steps = [opened.forget(label, purge=purge, note=note) for label in labels]
        left = len(opened.classes)
    document = {
        "model": str(model),
        "forgotten": {str(label): counts[label] for label in labels},
        "purge": purge,
        "steps": [step.number for step in steps],
        "classes": left,
    }
    names = ", ".join(map(str, labels))
    note = f"forgotten: {names}; {model} now has {counted(left, 'class')}"
    note += "" if purge else f"\n{undo_command(model, len(steps))} undoes that"
    show_result(document, note, as_json)


def rename(
    label: Annotated[
        str, Argument(metavar="LABEL", help="The class.", autocompletion=completion.labels)
    ],
    new: Annotated[str, Argument(metavar="NEW", help="Its new label.")],
    model: ModelPath,
    note: Note = "",
    as_json: AsJson = False,
) -> None:
    """Give a class another label; its samples and statistics stay.

    Example: `fecam rename robbin robin -m birds.fecam`
    """
    with open_existing(model, readonly=False) as opened:
        old, name = opened.label_of(label), _new_label(opened.classes, new)
        step = opened.rename(old, name, note=note)
    document = {"model": str(model), "renamed": {label: new}, "step": step.number}
    text = f"{label} is now {new}, with {counted(step.counts[name], 'sample')}"
    show_result(document, f"{text}\n{undo_command(model)} undoes that", as_json)


def join(
    label: Annotated[
        list[str],
        Argument(metavar="LABEL", help="Classes to combine.", autocompletion=completion.labels),
    ],
    model: ModelPath,
    new: Annotated[
        str, Option("--as", metavar="NEW", help="Label of the joined class; it may exist.")
    ],
    note: Note = "",
    as_json: AsJson = False,
) -> None:
    """Combine classes into one, exactly as if their samples had been learned with one label.

    Example: `fecam join crow raven --as corvid -m birds.fecam`
    """
    with open_existing(model, readonly=False) as opened:
        name = _new_label(opened.classes, new)
        labels = [opened.label_of(text) for text in dict.fromkeys(label)]
        step = opened.join(labels, name, note=note)
        (count,) = (record.count for record in opened.classes if record.label == name)
        left = len(opened.classes)
    document = {
        "model": str(model),
        "joined": label,
        "label": new,
        "count": count,
        "step": step.number,
        "classes": left,
    }
    text = f"{new} now has {counted(count, 'sample')}; {model} has {counted(left, 'class')}"
    show_result(document, f"{text}\n{undo_command(model)} undoes that", as_json)


def _new_label(classes: Iterable[ClassRecord], text: str) -> Label:
    """Return a text as a label of the kind of the model's."""
    return parse_label(text, first_kind(record.label for record in classes))


def merge(
    other: Annotated[list[Path], Argument(metavar="FILE", help="Models to merge.")],
    model: ModelPath,
    min_count: Annotated[
        int, Option(min=0, help="Skip classes of the others with fewer samples.")
    ] = 0,
    allow_duplicates: Annotated[
        bool, Option("--allow-duplicates", help="Count samples that both models learned twice.")
    ] = False,
    note: Note = "",
    as_json: AsJson = False,
) -> None:
    """Merge other models into one, exactly; the model file is created if missing.

    Example: `fecam merge alice.fecam bob.fecam -m birds.fecam`
    """
    if model.exists() and any(path.exists() and path.samefile(model) for path in other):
        raise InputError(f"{model} cannot be merged with itself. Remedy: give other files")
    skipped: dict[str, dict[str, int]] = {}
    added: Counter[Any] = Counter()
    steps: list[int] = []
    with fecam.open(model) as opened, ExitStack() as stack:
        sources = [(path, stack.enter_context(open_existing(path))) for path in other]
        before = {record.label for record in opened.classes} if opened.exists else set()
        for path, source in sources:
            small = {str(c.label): c.count for c in source.classes if c.count < min_count}
            if small:
                skipped[str(path)] = small
            if len(small) == len(source.classes) > 0:
                continue
            try:
                step = opened.merge(
                    source, min_count=min_count, allow_duplicates=allow_duplicates, note=note
                )
            except FecamError:
                if steps:  # each file is one step
                    undo_merges = undo_command(model, len(steps))
                    print_note(f"{counted(len(steps), 'file')} merged; {undo_merges} undoes that")
                raise
            steps.append(step.number)
            added.update(step.counts)
        after = [record.label for record in opened.classes]
    new = [label for label in after if label not in before]
    document = {
        "model": str(model),
        "added": {str(label): count for label, count in added.items()},
        "new_classes": new,
        "skipped": skipped,
        "steps": steps,
        "classes": len(after),
    }
    note = ""
    for file, classes in skipped.items():
        names = ", ".join(f"{name} ({count})" for name, count in classes.items())
        note += f"skipped from {file}, fewer than {counted(min_count, 'sample')}: {names}\n"
    note += (
        f"{counted(sum(added.values()), 'sample')} of {counted(len(added), 'class')} added, "
        f"{len(new):,} of them new; {model} now has {counted(len(after), 'class')}"
    )
    show_result(document, note, as_json)


def undo(
    model: ModelPath,
    steps: Annotated[int, Option(min=1, help="Number of steps, newest first.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Undo the last step or steps, exactly.

    Example: `fecam undo -m birds.fecam`
    """
    with open_existing(model, readonly=False) as opened:
        possible = sum(step.can_undo and not step.undone for step in opened.steps)
        if steps > possible:
            raise InputError(
                f"--steps {steps}: {model} has {counted(possible, 'step')} that can be undone; "
                f"`fecam history -m {quoted(model)}` lists them"
            )
        undone = opened.undo(steps)
        left = len(opened.classes)
    note = ""
    for step in undone:
        samples = counted(abs(sum(step.counts.values())), "sample")
        names = listed(step.counts, 5)
        note += f"undone: step {step.number}, {step.what} of {samples}: {names}\n"
    note += f"{model} now has {counted(left, 'class')}"
    steps_as_json = [to_json(step) for step in undone]
    show_result({"model": str(model), "undone": steps_as_json, "classes": left}, note, as_json)


def history(model: ModelPath, as_json: AsJson = False) -> None:
    """List the steps that changed a model, newest first.

    Example: `fecam history -m birds.fecam`
    """
    with open_existing(model) as opened:
        steps = opened.steps
    if as_json:
        show_json([to_json(step) for step in steps])
        return
    rows = [
        [
            step.number,
            step.time[:16].replace("T", " "),
            step.what,
            f"{sum(step.counts.values()):+,}",
            listed(step.counts, 5),
            step.author,
            step.note,
            "undone" if step.undone else "can be undone" if step.can_undo else "",
        ]
        for step in steps
    ]
    show_table(["step", "time (UTC)", "what", "samples", "classes", "by", "note", ""], rows)
