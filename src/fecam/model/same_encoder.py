"""A model means something only with the encoder that it was taught with."""

from __future__ import annotations

from pathlib import Path

from fecam.encoders.encoder import Encoder
from fecam.errors import EncoderError
from fecam.model_file import EncoderRecord


def record_of(encoder: Encoder | None) -> EncoderRecord | None:
    """What a file keeps of an encoder."""
    if encoder is None:
        return None
    if not encoder.fingerprint:
        raise EncoderError(
            f"the encoder {encoder.name!r} has no fingerprint, so nobody could tell later whether "
            "the model is used with the same one. Give it one: wrap(..., fingerprint='my-net-1')."
        )
    return EncoderRecord(encoder.name, encoder.fingerprint, encoder.kind, encoder.n_features)


def check_fingerprint(path: Path, found: Encoder, record: EncoderRecord) -> None:
    """Refuse an encoder whose features are not those that a file was taught with."""
    if found.fingerprint != record.fingerprint:
        raise EncoderError(
            f"{path} was taught with the encoder {record.name} (fingerprint "
            f"{record.fingerprint[:12]}); {found.name} has another "
            f"({found.fingerprint[:12] or '-'}), so its features would mean something else. Use "
            "the encoder that it was taught with."
        )


def check_same_encoder(
    a: EncoderRecord | None, b: EncoderRecord | None, paths: tuple[Path, Path]
) -> None:
    """Refuse to add up features of two encoders."""
    if a is not None and b is not None and a.fingerprint != b.fingerprint:
        raise EncoderError(
            f"{paths[0]} was taught with the encoder {a.name}, {paths[1]} with {b.name}: their "
            "features mean different things. Merge models of one encoder."
        )
