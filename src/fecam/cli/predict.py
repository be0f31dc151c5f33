"""`fecam predict`: classify new items as they arrive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from typer import Argument, Option

from fecam.cli import cluster
from fecam.cli.confirmation import Replace, confirm_replacing
from fecam.cli.data import Device, TableOptions
from fecam.cli.items import NamedItem, iter_items
from fecam.cli.model import ModelPath, exit_if_unreadable, open_existing, require_classes
from fecam.cli.output import AsJson, parse_options, print_note
from fecam.cli.prediction_formats import Format, format_of, open_writer
from fecam.core.novelty import novelty_threshold
from fecam.errors import InputError, ItemError
from fecam.features.extraction import encode_readable
from fecam.validation import counted

if TYPE_CHECKING:
    from fecam.model import Model, Prediction

BATCH_SIZE = 128
"""Items per prediction: large enough for throughput, small enough for a quick first answer."""


def predict(
    paths: Annotated[
        list[str],
        Argument(
            metavar="PATH",
            help="Images, folders of images, tables of texts or features; `-`: standard input, "
            "one path per line, or one row of numbers per line for a model without an encoder.",
        ),
    ],
    model: ModelPath,
    top: Annotated[int, Option("--top", "-k", min=1, help="Number of classes per item.")] = 1,
    reject: Annotated[
        float | None,
        Option(
            help="Answer 'none of these' for novel items. The value is the fraction of items of "
            "known classes that may be rejected, such as 0.05."
        ),
    ] = None,
    text: Annotated[
        bool, Option("--text", help="The arguments, or the lines of `-`, are texts themselves.")
    ] = False,
    form: Annotated[
        Format | None, Option("--format", help="Default: by the suffix of --output, else table.")
    ] = None,
    output: Annotated[
        Path | None,
        Option("--output", "-O", help="File for the predictions; with --ray, a folder."),
    ] = None,
    yes: Replace = False,
    option: TableOptions = None,
    device: Device = None,
    ray: cluster.Ray = None,
    as_json: AsJson = False,
) -> None:
    """Predict the class, probability, squared distance and novelty of each item.

    Predictions are printed as items arrive, also from a pipe. `--json` is `--format jsonl`: one
    document per line. Exit code 3: done, but some items were unreadable.

    Example: `fecam predict new/*.jpg -m birds.fecam --top 3`,
    `find new -name '*.jpg' | fecam predict - -m birds.fecam --format csv`
    """
    if reject is not None:
        novelty_threshold(reject)  # raises now, before the work
    if ray is not None:
        predicted = cluster.predict_on(
            ray, paths, model, output=output, top=top, reject=reject, texts=text, option=option
        )
        return cluster.show_predicted(predicted, output or model, as_json)
    chosen = Format.jsonl if as_json else form or format_of(output)
    options = parse_options(option or [])
    with open_existing(model, device=device) as opened:
        if output is not None and output.exists() and output.samefile(model):
            raise InputError(f"--output {output} is the model file. Remedy: another file")
        confirm_replacing(output, yes)
        require_classes(opened)
        labels = [str(record.label) for record in opened.classes]
        top = min(top, len(labels))
        width, kind = opened.classifier.n_features_in_, opened.kind or "features"
        batches = _batches(iter_items(paths, kind, width, texts=text, options=options))
        count = unreadable = 0
        first = list(islice(batches, 1))  # input errors are raised before the output is opened
        with open_writer(output, chosen, labels, top) as (write, flush):
            for batch in chain(first, batches):
                for name, result in _predict_batch(opened, batch, top, reject):
                    write(name, result)
                    unreadable += isinstance(result, ItemError)
                count += len(batch)
                flush(count)
    if unreadable:
        print_note(f"{unreadable:,} of {counted(count, 'item')} could not be read")
    exit_if_unreadable(unreadable)


def _batches(groups: Iterable[Iterable[NamedItem]]) -> Iterator[list[NamedItem]]:
    """Yield batches of at most `BATCH_SIZE` items; no batch waits for a later group."""
    for group in groups:
        iterator = iter(group)
        while batch := list(islice(iterator, BATCH_SIZE)):
            yield batch


def _predict_batch(
    model: Model, batch: list[NamedItem], top: int, reject: float | None
) -> list[tuple[str, Prediction | ItemError]]:
    """Return a prediction per item, or the error of an unreadable item."""
    from fecam.model import predictions_of

    results: list[Any] = [item for _, item in batch]
    indices = [i for i, item in enumerate(results) if not isinstance(item, ItemError)]
    items = [results[i] for i in indices]
    if model.encoder is not None:
        encoded = encode_readable(items, model.encoder)
        for i, reason in encoded.failed.items():
            name = batch[indices[i]][0]
            results[indices[i]] = ItemError(name, reason.removeprefix(f"{name}: "))
        indices, rows = [indices[i] for i in encoded.rows], encoded.features
    else:
        rows = np.asarray(items, np.float32)
    if indices:
        predictions = predictions_of(model.classifier, rows, top, reject)
        for i, prediction in zip(indices, predictions, strict=True):
            results[i] = prediction
    return [(name, result) for (name, _), result in zip(batch, results, strict=True)]
