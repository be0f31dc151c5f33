"""Width and sign of features before learning starts: from the schema, or from the first rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fecam.distributed.cluster import iter_reports, map_blocks, report_table
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


class _ProbeWorker:
    """Encodes the first rows in a worker: the driver may have no encoder."""

    def __init__(self, source: Source) -> None:
        self._source, self._encoder = source, source.load_encoder()

    def __call__(self, table: Any) -> Any:
        stats, values = ReadStats(), {}
        try:
            X = read_block(table, self._source, self._encoder, stats).features
            values = {"width": X.shape[1], "minimum": float(X.min()) if len(X) else None}
            if self._encoder is not None and self._encoder.fingerprint:
                record = record_of(self._encoder)
                values["record"] = None if record is None else asdict(record)
        except FecamError as error:
            stats.error = str(error)
        return report_table(**vars(stats), **values)


def probe(dataset: Any, source: Source, gpus: float) -> SchemaProbe:
    """Return what the first `PROBE_ROWS` rows show."""
    encodes = source.encoder is not None
    stage = map_blocks(
        dataset.limit(PROBE_ROWS),
        _ProbeWorker,
        source,
        actors=encodes,
        concurrency=1 if encodes else None,
        gpus=gpus,
    )
    reports = list(iter_reports(stage))
    minima = [report["minimum"] for report in reports if report["minimum"] is not None]
    if not minima:
        raise no_items_error([reason for report in reports for reason in report["reasons"]])
    records = [EncoderRecord(**report["record"]) for report in reports if report.get("record")]
    return SchemaProbe(reports[-1]["width"], min(minima), records[-1] if records else None)


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
