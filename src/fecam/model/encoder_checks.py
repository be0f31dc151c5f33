"""Checks that a model is used with the encoder it was learned with."""

from __future__ import annotations

from pathlib import Path

from fecam.encoders.encoder import Encoder
from fecam.errors import EncoderError
from fecam.model_file import EncoderRecord


def record_of(encoder: Encoder | None) -> EncoderRecord | None:
    """Return the record of an encoder in a model file."""
    if encoder is None:
        return None
    if not encoder.fingerprint:
        raise EncoderError(
            f"the encoder {encoder.name!r} has no fingerprint, so a later use of another encoder "
            "would go unnoticed. Give it one: wrap(..., fingerprint='my-net-1')."
        )
    return EncoderRecord(encoder.name, encoder.fingerprint, encoder.kind, encoder.n_features)


def check_fingerprint(path: Path, encoder: Encoder, record: EncoderRecord) -> Encoder:
    """Return the encoder; raise if it is not the one of the record."""
    if encoder.fingerprint != record.fingerprint:
        raise EncoderError(
            f"{path} was learned with the encoder {record.name} (fingerprint "
            f"{record.fingerprint[:12]}); {encoder.name} has another "
            f"({encoder.fingerprint[:12] or '-'}), so its features differ. Use the encoder of the "
            "file."
        )
    return encoder


def check_same_encoder(
    a: EncoderRecord | None, b: EncoderRecord | None, paths: tuple[Path, Path]
) -> None:
    """Raise if two models were learned with different encoders."""
    if a is not None and b is not None and a.fingerprint != b.fingerprint:
        raise EncoderError(
            f"{paths[0]} was learned with the encoder {a.name}, {paths[1]} with {b.name}: their "
            "features differ. Merge models of one encoder."
        )
