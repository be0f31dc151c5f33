"""`fecam discover`: group what fits no class, and teach groups as new classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from typer import Option

from fecam.cli.confirmation import Replace, confirm_replacing
from fecam.cli.data import Device, TableOptions
from fecam.cli.edit import Note
from fecam.cli.model import (
    ModelPath,
    exit_if_unreadable,
    open_existing,
    print_unreadable,
    quoted,
    require_classes,
    undo_command,
)
from fecam.cli.output import AsJson, console, print_note, show_json, show_table, single_line
from fecam.cli.unlabeled import ItemPool, Paths, read_pool, require_items
from fecam.core.novelty import novelty_threshold
from fecam.errors import InputError
from fecam.files import write_atomically
from fecam.labels import first_kind, parse_label
from fecam.validation import counted

if TYPE_CHECKING:
    from fecam.model import Model

MAX_GROUPS = 40
"""Number of groups that are printed; the JSON output lists all of them."""
FORMAT = "fecam groups 1"
"""What a saved file starts with."""


def discover(
    paths: Paths,
    model: ModelPath,
    teach: Annotated[
        list[str] | None,
        Option(
            "--teach",
            metavar="NUMBER=LABEL",
            help="Learn a group as a class, in one step; repeatable. PATH may be a file of "
            "--output.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        Option("--output", "-O", help="File for the groups: .json to teach later, or .html."),
    ] = None,
    min_size: Annotated[int, Option(min=2, help="Number of items of the smallest group.")] = 5,
    top: Annotated[int, Option("--top", "-k", min=1, help="Typical items shown per group.")] = 3,
    reject: Annotated[
        float,
        Option(
            help="Fraction of items of known classes that may be taken for unknown ones before "
            "they are grouped."
        ),
    ] = 0.2,
    note: Note = "",
    yes: Replace = False,
    option: TableOptions = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Group the items that fit no class into candidates for new classes; teach them by number.

    The model only changes with --teach; each group is then one step, which `fecam undo` undoes.
    Exit code 3: done, but some items were unreadable.

    Example: `fecam discover new/ -m birds.fecam --output groups.json`,
    `fecam discover groups.json -m birds.fecam --teach 1=crow --teach 3=owl`
    """
    novelty_threshold(reject)  # raises now, before the work
    names = _parsed(teach or [])
    if output is not None and output.suffix.lower() not in (".json", ".html", ".htm"):
        raise InputError(f"--output {output}: the file name must end in .json or .html")
    confirm_replacing(output, yes)
    with open_existing(model, readonly=not names, device=device) as opened:
        require_classes(opened)
        if _is_saved(paths):
            document, unreadable = _read_saved(paths, opened), list[str]()
        else:
            pool = read_pool(opened, paths, option)
            require_items(pool, paths)
            document, unreadable = _grouped(opened, pool, reject, min_size), pool.unreadable
        _check_numbers(names, document["groups"])
        if output is not None:
            _write(output, document, model, top)
        for number, label in names.items():
            _teach(opened, document, number, label, note)
        print_unreadable(unreadable)
        if as_json:
            _show_json(document, output)
        else:
            _show(document, top, model)
    exit_if_unreadable(len(unreadable))


def _parsed(teach: list[str]) -> dict[int, str]:
    """Return the label of each group number."""
    names: dict[int, str] = {}
    for text in teach:
        number, equals, label = text.partition("=")
        if not equals or not number.strip().isdecimal() or not label.strip():
            raise InputError(f"--teach {text!r} must have the form NUMBER=LABEL, such as 3=crow")
        if int(number) in names:
            raise InputError(f"--teach names group {int(number)} twice. Remedy: name it once")
        names[int(number)] = label.strip()
    return names


def _check_numbers(names: dict[int, str], groups: list[dict[str, Any]]) -> None:
    numbers = {group["number"] for group in groups}
    for number in names.keys() - numbers:
        given = f"there are the groups 1 to {len(numbers)}" if numbers else "there are no groups"
        raise InputError(f"--teach {number}={names[number]}: {given}; nothing was changed")


def _grouped(model: Model, pool: ItemPool, reject: float, min_size: int) -> dict[str, Any]:
    """Return the groups of a pool as a document."""
    from fecam.discovery import discover as discover_groups

    found = discover_groups(model.classifier, pool.features, reject=reject, min_size=min_size)
    groups = []
    for group in found.groups:
        content: dict[str, Any] = {**vars(group), "size": len(group.items)}
        content["items"] = [pool.names[i] for i in group.items]
        if pool.kind == "features":
            content["rows"] = [np.asarray(pool.contents[i]).tolist() for i in group.items]
        groups.append(content)
    return {
        "format": FORMAT,
        "model": str(model.path),
        "kind": pool.kind,
        "items": len(pool.names),
        "known": found.n_known,
        "single": [pool.names[i] for i in found.single],
        "groups": groups,
        "unreadable": pool.unreadable,
        "taught": {},
        "steps": [],
    }


def _teach(model: Model, document: dict[str, Any], number: int, label: str, note: str) -> None:
    """Learn a group in one step; its numbers are added to the document."""
    group = next(group for group in document["groups"] if group["number"] == number)
    kind = first_kind(record.label for record in model.classes)
    parsed = parse_label(label, kind, str(model.path))
    items = group.get("rows", group["items"])
    result = model.learn(
        items,
        [parsed] * len(items),
        note=note or f"group {number} of fecam discover",
        kind=document["kind"],
    )
    document["taught"][label] = sum(result.n_learned.values())
    document["steps"] += [] if result.step is None else [result.step]


def _is_saved(paths: list[str]) -> bool:
    return len(paths) == 1 and paths[0].lower().endswith(".json")


def _read_saved(paths: list[str], model: Model) -> dict[str, Any]:
    """Return the groups that ``--output`` wrote."""
    path = Path(paths[0]).expanduser()
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        is_saved = document["format"] == FORMAT and isinstance(document["groups"], list)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist. Remedy: give a file of --output") from None
    except (ValueError, KeyError, TypeError):
        is_saved = False
    if not is_saved:
        raise InputError(f"{path} has no groups. Remedy: give a file that --output wrote")
    if document["kind"] != model.kind:
        raise InputError(f"{path} has {document['kind']}, but {model.path} takes {model.kind}")
    return {**document, "taught": {}, "steps": []}


def _write(output: Path, document: dict[str, Any], model: Path, top: int) -> None:
    if output.suffix.lower() == ".json":
        write_atomically(output, json.dumps(document, indent=1) + "\n")
    else:
        from fecam.report.groups import groups_page

        write_atomically(output, groups_page(document, f"Unknown items of {model.name}"))
    print_note(f"groups: {output}")


def _show_json(document: dict[str, Any], output: Path | None) -> None:
    """Print the document without rows of features, which the file of --output has."""
    groups = [
        {name: value for name, value in group.items() if name != "rows"}
        for group in document["groups"]
    ]
    show_json({**document, "groups": groups, "output": None if output is None else str(output)})


def _show(document: dict[str, Any], top: int, model: Path) -> None:
    groups = document["groups"]
    if groups:
        rows = [
            [
                group["number"],
                f"{group['size']:,}",
                f"{group['novelty']:.1f}",
                f"{group['stability']:.2f}",
                group["nearest"],
                ", ".join(single_line(str(name)) for name in group["items"][:top]),
            ]
            for group in groups[:MAX_GROUPS]
        ]
        header = ["group", "items", "novelty", "stability", "nearest class", "most typical"]
        show_table(header, rows)
    if len(groups) > MAX_GROUPS:
        print_note(f"... and {counted(len(groups) - MAX_GROUPS, 'group')} more (--json lists all)")
    grouped = sum(group["size"] for group in groups)
    console.print(
        f"{counted(document['items'], 'item')}: {document['known']:,} fit a class, {grouped:,} in "
        f"{counted(len(groups), 'group')}, {len(document['single']):,} fit neither"
    )
    for label, count in document["taught"].items():
        console.print(f"learned: {counted(count, 'sample')} as {label}")
    if document["steps"]:
        print_note(f"{undo_command(model, len(document['steps']))} undoes that")
    elif groups:
        print_note(f"--teach 1=NAME -m {quoted(model)} learns the first group as a class")
    else:
        print_note("no group; a smaller --min-size or a larger --reject may find some")
