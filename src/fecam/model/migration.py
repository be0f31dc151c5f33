"""Writing a copy of a model for another encoder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fecam.data.dataset import Dataset
from fecam.data.items import as_sequence
from fecam.encoders.encoder import Encoder
from fecam.errors import EncoderError, InputError
from fecam.features.extraction import Encoded, Progress, Report, encode_dataset, encode_readable
from fecam.migration import MigrationEstimate, check_migratable, migrate
from fecam.model.changes import mark_carried_over
from fecam.model.copies import check_free, write_copy
from fecam.model.encoder_checks import record_of
from fecam.model.labeled_items import LabeledItems, require_readable
from fecam.validation import counted

if TYPE_CHECKING:
    from fecam.model.model import Model


@dataclass(frozen=True)
class MigrationResult:
    """What `Model.migrate` has done.

    Parameters
    ----------
    path : str or None
        The new file; None if nothing was written.
    encoder : str
        The name of the new encoder.
    estimate : MigrationEstimate
        What to expect of the migrated model.
    unreadable : list of str
        Why items were left out.
    """

    path: str | None
    encoder: str
    estimate: MigrationEstimate
    unreadable: list[str]


def migrate_file(
    model: Model,
    encoder: Encoder,
    items: Any,
    path: str | os.PathLike[str] | None,
    labeled: LabeledItems | None,
    *,
    replace: bool,
    strict: bool,
    report: Report | None,
) -> MigrationResult:
    """Write a copy of a model for another encoder, without its history; None writes nothing."""
    before = _check(model, encoder, path, replace)
    groups = [items] + ([] if labeled is None else [labeled.dataset or labeled.items])
    sizes = [len(as_sequence(group)) for group in groups]
    encoded = [
        _encode_twice(group, (before, encoder), strict, _part_of(report, 2 * sum(sizes), start))
        for group, start in zip(groups, (0, 2 * sizes[0]), strict=False)
    ]
    unreadable = [reason for group in encoded for reason in group.reasons]
    labels: list[Any] = [None] * len(encoded[0].rows)
    if labeled is not None:
        labels += [labeled.labels[row] for row in encoded[1].rows]
    migration = migrate(
        model.classifier,
        np.concatenate([group.before for group in encoded]),
        np.concatenate([group.after for group in encoded]),
        labels=labels,
    )
    if path is not None:
        note = f"migrated from {model.path.name} ({before.name}) to {encoder.name}"
        write_copy(
            model,
            migration.classifier,
            record_of(encoder),
            path,
            note,
            replace=replace,
            change=mark_carried_over,
        )
    shown = None if path is None else str(path)
    return MigrationResult(shown, encoder.name, migration.estimate, unreadable)


def _check(
    model: Model, encoder: Encoder, path: str | os.PathLike[str] | None, replace: bool
) -> Encoder:
    """Return the encoder of the model; raise before the work if it cannot be migrated."""
    record = model.encoder_record
    if record is None:
        raise EncoderError(
            f"{model.path} was learned from features, so its encoder is not known. Encode the same "
            "items with both encoders and call fecam.migration.migrate(classifier, before, after)."
        )
    if not encoder.fingerprint or encoder.fingerprint == record.fingerprint:
        record_of(encoder)  # raises without a fingerprint
        raise EncoderError(
            f"{model.path} was learned with {record.name}, and {encoder.name} gives the same "
            "features: there is nothing to migrate."
        )
    if encoder.kind != record.kind:
        raise EncoderError(
            f"{model.path} was learned from {record.kind}, but the encoder {encoder.name} is for "
            f"{encoder.kind}. `fecam encoders` lists the encoders of each kind."
        )
    if path is not None:
        check_free(path, replace)
    check_migratable(model.classifier)
    before = model.encoder
    assert before is not None, "the file names one"
    return before


@dataclass(frozen=True)
class _Pair:
    """Features of the items that both encoders can read."""

    before: NDArray[Any]
    after: NDArray[Any]
    rows: list[int]
    reasons: list[str]


def _encode_twice(
    items: Any,
    encoders: Sequence[Encoder],
    strict: bool,
    report: Callable[[int], Report | None],
) -> _Pair:
    first, second = (
        _encode(items, encoder, strict, report(i)) for i, encoder in enumerate(encoders)
    )
    rows = sorted({*first.rows} & {*second.rows})
    reasons = {**second.failed, **first.failed}
    if not rows:
        raise InputError(
            f"none of {counted(len(items), 'item')} can be read; the first: "
            f"{next(iter(reasons.values()), 'there are none')}"
        )
    features = [
        np.asarray(each.features)[np.searchsorted(each.rows, rows)] for each in (first, second)
    ]
    return _Pair(features[0], features[1], rows, [reasons[row] for row in sorted(reasons)])


def _encode(items: Any, encoder: Encoder, strict: bool, report: Report | None) -> Encoded:
    if isinstance(items, Dataset):
        cache = bool(encoder.fingerprint)
        return encode_dataset(items, encoder, strict=strict, report=report, cache=cache)
    encoded = encode_readable(items, encoder)
    return require_readable(encoded) if strict else encoded


def _part_of(report: Report | None, total: int, start: int) -> Callable[[int], Report | None]:
    """Return the report of each of two passes, as parts of the whole."""

    def of_pass(number: int) -> Report | None:
        if report is None:
            return None
        return lambda now: report(
            Progress(start + number * now.total + now.done, total, now.skipped)
        )

    return of_pass
