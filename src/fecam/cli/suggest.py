"""`fecam suggest`: what to label next, and which labels look wrong."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from fecam.cli.data import Device, TableOptions
from fecam.cli.learn import AsLabel
from fecam.cli.model import (
    ModelPath,
    exit_if_unreadable,
    open_existing,
    print_unreadable,
    require_classes,
)
from fecam.cli.output import AsJson, console, show_json, show_table, single_line
from fecam.cli.unlabeled import UNLABELED, ItemPool, Paths, read_pool, require_items
from fecam.errors import InputError
from fecam.validation import counted

if TYPE_CHECKING:
    from fecam.model import Model


def suggest(
    paths: Paths,
    model: ModelPath,
    number: Annotated[int, Option("--number", "-n", min=1, help="Number of items.")] = 20,
    mislabeled: Annotated[
        bool,
        Option(
            "--mislabeled",
            help="The items have labels, as for `fecam learn`: list those that look wrong.",
        ),
    ] = False,
    as_label: AsLabel = None,
    option: TableOptions = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Suggest which items to label next; or, with --mislabeled, which labels look wrong.

    Suggested items are uncertain, differ from each other, and are typical of many others. Items
    that the model has learned are checked as if they had been left out. The model does not change.
    Exit code 3: done, but some items were unreadable.

    Example: `fecam suggest new/ -m birds.fecam -n 20`,
    `fecam suggest photos/ -m birds.fecam --mislabeled`
    """
    if as_label is not None and not mislabeled:
        raise InputError(f"--as {as_label} needs --mislabeled")
    with open_existing(model, device=device) as opened:
        require_classes(opened)
        pool = read_pool(opened, paths, option, as_label if mislabeled else UNLABELED)
        require_items(pool, paths)
        document = _mislabeled(opened, pool) if mislabeled else _suggested(opened, pool, number)
    document |= {"model": str(model), "items": len(pool.names), "unreadable": pool.unreadable}
    print_unreadable(pool.unreadable)
    if as_json:
        show_json(document)
    elif mislabeled:
        _show_mislabeled(document, number)
    else:
        _show_suggested(document)
    exit_if_unreadable(len(pool.unreadable))


def _suggested(model: Model, pool: ItemPool, number: int) -> dict[str, Any]:
    from fecam.suggestion import suggest as suggest_items

    suggestions = []
    for suggestion in suggest_items(model.classifier, pool.features, number):
        content = asdict(suggestion)
        content["similar"] = content.pop("n_similar")
        if math.isnan(suggestion.novelty):
            content["novelty"] = None
        suggestions.append({**content, "item": pool.names[suggestion.item]})
    return {"suggestions": suggestions}


def _mislabeled(model: Model, pool: ItemPool) -> dict[str, Any]:
    labels = [model.label_of(text) for text in pool.labels]
    features = {"features": pool.features}
    suspects = model.find_mislabeled(pool.contents, labels, **features)
    return {"mislabeled": [{**asdict(one), "item": pool.names[one.item]} for one in suspects]}


def _show_suggested(document: dict[str, Any]) -> None:
    rows = [
        [
            single_line(str(one["item"])),
            one["label"],
            f"{one['margin']:.2f}",
            "n/a" if one["novelty"] is None else f"{one['novelty']:.1f}",
            one["reason"],
        ]
        for one in document["suggestions"]
    ]
    show_table(["item", "nearest class", "margin", "novelty", "reason"], rows)
    count = counted(len(rows), "item")
    console.print(f"{count} of {document['items']:,} to label next")


def _show_mislabeled(document: dict[str, Any], number: int) -> None:
    found = document["mislabeled"]
    rows = [
        [
            single_line(str(one["item"])),
            one["label"],
            one["suggested"],
            f"{100 * one['probability']:.1f}",
        ]
        for one in found[:number]
    ]
    if rows:
        show_table(["item", "label", "suggested", "probability of the label %"], rows)
    if len(found) > number:
        console.print(f"... and {len(found) - number:,} more (-n {len(found)} prints all)")
    console.print(
        f"{counted(len(found), 'label')} of {counted(document['items'], 'item')} looks wrong"
        if len(found) == 1
        else f"{counted(len(found), 'label')} of {counted(document['items'], 'item')} look wrong"
    )
