"""What has to be known of a data set before it is learnt: of its schema, or of its first rows."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fecam.distributed.cluster import over_blocks, told_by
from fecam.distributed.columns import item_columns
from fecam.distributed.reading import Account, Source, read_block
from fecam.errors import FecamError, InputError
from fecam.model.same_encoder import record_of
from fecam.model_file import EncoderRecord

PEEKED = 64
"""Rows that are looked at before the work begins: how wide are features, is any negative?"""


@dataclass(frozen=True)
class Glance:
    """What the first rows tell."""

    width: int
    lowest: float
    record: EncoderRecord | None


class _Peek:
    """In a worker: look at the first rows."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._encoder = source.loaded()

    def __call__(self, table: Any) -> Any:
        import pyarrow as pa

        about: dict[str, Any] = {}
        try:
            account = Account()
            found = read_block(table, self._source, self._encoder, account)
            about = {"width": found.features.shape[1], "reasons": account.reasons}
            if len(found.features):
                about["lowest"] = float(found.features.min())
            if self._encoder is not None and self._encoder.fingerprint:
                record = record_of(self._encoder)
                about["record"] = None if record is None else asdict(record)
        except FecamError as error:
            about["error"] = str(error)
        return pa.table({"about": [json.dumps(about)]})


def peek(dataset: Any, source: Source, gpus: float) -> Glance:
    """Look at the first rows, in a worker: here there may be no encoder."""
    stage = over_blocks(
        dataset.limit(PEEKED),
        _Peek,
        source,
        actors=source.encoder is not None,
        concurrency=None if source.encoder is None else 1,
        gpus=gpus,
    )
    width, lowest, record = 0, np.inf, None
    reasons: list[str] = []
    for about in told_by(stage):
        if "error" in about:
            raise InputError(about["error"])
        width, lowest = about["width"], min(lowest, about.get("lowest", np.inf))
        record = EncoderRecord(**about["record"]) if about.get("record") else record
        reasons += about["reasons"]
    if not width or lowest == np.inf:
        raise nothing(Account(reasons=reasons))
    return Glance(width, lowest, record)


def from_schema(dataset: Any, source: Source) -> Glance | None:
    """What the schema tells of embeddings, which takes no time; None if that is not enough.

    It does not tell whether there are negative numbers.
    """
    import pyarrow as pa

    if source.encoder is not None:
        return None
    schema = getattr(dataset.schema(fetch_if_missing=False), "base_schema", None)
    if not isinstance(schema, pa.Schema):
        return None
    columns = item_columns(schema.empty_table(), source.label, source.item)
    kind = schema.field(columns[0]).type
    if len(columns) > 1 or not pa.types.is_fixed_size_list(kind):
        return None
    return Glance(kind.list_size, 0.0, None)


def nothing(account: Account) -> InputError:
    """Of all items none was left."""
    why = f"; the first: {account.reasons[0]}" if account.reasons else ""
    return InputError(f"the data set holds no item that can be learnt{why}. Give it some.")
