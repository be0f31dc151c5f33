"""`fecam predict`: what a model says of new items, as they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from fecam.cli import cluster
from fecam.cli.data import Device
from fecam.cli.items import NamedItem, iter_items
from fecam.cli.model import ModelPath, exit_if_unreadable, open_existing, require_classes
from fecam.cli.output import AsJson, parse_options, print_note
from fecam.cli.prediction_formats import Format, format_of, writing
from fecam.errors import InputError, ItemError
from fecam.features.extraction import encode_readable

if TYPE_CHECKING:
    from fecam.model import Model, Prediction

BATCH = 128
"""So many items are judged at a time: enough to be fast, few enough to be answered soon."""


def predict(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="Images, folders of images, tables of texts or features; `-`: the standard input, "
            "a path a line, or a row of numbers a line for a model without an encoder.",
        ),
    ],
    model: ModelPath,
    top: Annotated[int, typer.Option("--top", "-k", min=1, help="Name so many classes.")] = 1,
    reject: Annotated[
        float | None,
        typer.Option(
            help="Answer 'none of these' where nothing fits: the share of items of known classes "
            "that may be lost by it, such as 0.05.",
        ),
    ] = None,
    text: Annotated[
        bool, typer.Option("--text", help="The arguments, or the lines of `-`, are texts.")
    ] = False,
    form: Annotated[
        Format | None, typer.Option("--format", help="Otherwise by --output, or a table.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-O", help="Write the answers to this file; with --ray, folder."),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="Of a table, as name=value: text=review.")
    ] = None,
    device: Device = None,
    ray: cluster.Ray = None,
    as_json: AsJson = False,
) -> None:
    """Say what items are: class, probability, squared distance, and how novel they are.

    Items are answered as they come, those of a pipe too. `--json` is `--format jsonl`: a document a
    line. Exit code 3: done, but some items could not be read.

    Example: `fecam predict new/*.jpg -m birds.fecam --top 3`,
    `find new -name '*.jpg' | fecam predict - -m birds.fecam --format csv`
    """
    if reject is not None and not 0 < reject < 1:
        raise InputError(f"--reject {reject}: give a share between 0 and 1, such as 0.05")
    if ray is not None:
        asked = {"top": top, "reject": reject, "texts": text, "option": option}
        found = cluster.predict_on(ray, paths, model, output=output, **asked)  # type: ignore[arg-type]
        return cluster.show_predicted(found, output or model, as_json)
    chosen = Format.jsonl if as_json else form or format_of(output)
    options = parse_options(option or [])
    with open_existing(model, device=device) as opened:
        if output is not None and output.exists() and output.samefile(model):
            raise InputError(f"--output {output} is the model itself. Remedy: another file")
        require_classes(opened)
        labels = [str(record.label) for record in opened.classes]
        top = min(top, len(labels))
        width, kind = opened.classifier.n_features_in_, opened.kind or "features"
        bursts = iter_items(paths, kind, width, texts=text, options=options)
        count = unreadable = 0
        batches = _batches(bursts)
        first = list(islice(batches, 1))  # a mistake is told before anything is written
        with writing(output, chosen, labels, top) as (write, flush):
            for batch in chain(first, batches):
                for name, one in _judged(opened, batch, top, reject):
                    write(name, one)
                    unreadable += isinstance(one, ItemError)
                count += len(batch)
                flush(count)
    if unreadable:
        print_note(f"{unreadable:,} of {count:,} items could not be read")
    exit_if_unreadable(unreadable)


def _batches(bursts: Iterable[Iterable[NamedItem]]) -> Iterator[list[NamedItem]]:
    """At most `BATCH` items at a time, none of which has to wait for a later burst."""
    for burst in bursts:
        rest = iter(burst)
        while batch := list(islice(rest, BATCH)):
            yield batch


def _judged(
    model: Model, batch: list[NamedItem], top: int, reject: float | None
) -> list[tuple[str, Prediction | ItemError]]:
    """The answers in the order of the items; an item that cannot be read has its error."""
    from fecam.model import predictions_of

    outcome: list[Any] = [item for _, item in batch]
    places = [at for at, item in enumerate(outcome) if not isinstance(item, ItemError)]
    items = [outcome[at] for at in places]
    encoder = model.encoder
    if encoder is not None:
        found = encode_readable(items, encoder)
        for at, why in found.failed.items():
            name = batch[places[at]][0]
            outcome[places[at]] = ItemError(name, why.removeprefix(f"{name}: "))
        places, rows = [places[at] for at in found.rows], found.features
    else:
        rows = np.asarray(items, np.float32)
    if places:
        judged = predictions_of(model.classifier, rows, top, reject)
        for at, one in zip(places, judged, strict=True):
            outcome[at] = one
    return [(name, one) for (name, _), one in zip(batch, outcome, strict=True)]
