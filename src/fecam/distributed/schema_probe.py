"""Width and sign of features before learning starts: from the schema, or from the first rows."""

from dataclasses import dataclass
from typing import Any

from fecam.distributed.cluster import require_ray
from fecam.distributed.columns import item_columns
from fecam.distributed.reading import ReadStats, Source, read_block
from fecam.errors import FecamError, InputError
from fecam.model.encoder_checks import record_of
from fecam.model_file import EncoderRecord

PROBE_ROWS = 64
"""Rows that are encoded before the work starts."""


@dataclass(frozen=True)
class SchemaProbe:
    """Width and smallest value of the features, and the encoder's record."""

    width: int
    minimum: float
    record: EncoderRecord | None


def probe(dataset: Any, source: Source, gpus: float) -> SchemaProbe:
    """Return what the first `PROBE_ROWS` rows show; a worker encodes them, as all others."""
    ray = require_ray()
    try:
        table = dataset.take_batch(PROBE_ROWS, batch_format="pyarrow")
    except ValueError:  # the data set is empty
        raise no_items_error([]) from None
    result, stats = ray.get(ray.remote(num_gpus=gpus)(_probe).remote(table, source))
    if stats.error:
        raise InputError(stats.error)
    if result is None:
        raise no_items_error(stats.reasons)
    return SchemaProbe(*result)


def _probe(table: Any, source: Source) -> tuple[Any, ReadStats]:
    """Return the fields of the `SchemaProbe`, or None without a usable row, and the counts."""
    stats = ReadStats()
    try:
        encoder = source.load_encoder()
        X = read_block(table, source, encoder, stats).features
        record = record_of(encoder) if encoder is not None and encoder.fingerprint else None
    except FecamError as error:
        stats.error = str(error)
        return None, stats
    return (X.shape[1], float(X.min()), record) if len(X) else None, stats


def from_schema(dataset: Any, source: Source) -> SchemaProbe | None:
    """Return the width of embeddings from the schema, without reading; None if it has none."""
    import pyarrow as pa

    schema = getattr(dataset.schema(fetch_if_missing=False), "base_schema", None)
    if source.encoder is not None or not isinstance(schema, pa.Schema):
        return None
    columns = item_columns(schema.empty_table(), source.label, source.item)
    kind = schema.field(columns[0]).type
    if len(columns) > 1 or not pa.types.is_fixed_size_list(kind):
        return None
    return SchemaProbe(kind.list_size, 0.0, None)


def no_items_error(reasons: list[str]) -> InputError:
    """Return the error of a data set without a usable item."""
    reason = f"; the first: {reasons[0]}" if reasons else ""
    return InputError(f"the data set holds no item that can be learned{reason}. Give it some.")
