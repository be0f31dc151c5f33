"""Checks that a model is used with the encoder it was learned with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fecam.encoders.encoder import Encoder
from fecam.errors import EncoderError, UnknownEncoderError
from fecam.model_file import EncoderRecord


def check_encoder(encoder: Any) -> None:
    """Raise for an object that is no encoder, and say how to make it one."""
    if encoder is None or isinstance(encoder, (str, Encoder)):
        return
    name = type(encoder).__name__
    if not callable(encoder) and not callable(getattr(encoder, "encode", None)):
        raise EncoderError(
            f"encoder={encoder!r} is no encoder. Give a name such as 'minilm', or an object that "
            "fecam.encoders.wrap returns."
        )
    raise EncoderError(
        f"the encoder is of type {name}, without a name and a fingerprint by which a file "
        f"recognizes it. Wrap it: encoder=fecam.encoders.wrap(encoder, name={name!r}, "
        f"kind='texts', fingerprint='{name}-1'); kind='images' if it takes images. Use another "
        "fingerprint when its weights change."
    )


def load_recorded(path: Path, record: EncoderRecord, load: Callable[[str], Encoder]) -> Encoder:
    """Return the encoder of a file by its name; raise if it was made by `wrap`."""
    try:
        encoder = load(record.name)
    except UnknownEncoderError as error:
        raise EncoderError(
            f"{path} was learned with an encoder of your own, {record.name!r}, which a file does "
            f"not contain ({error}) Pass encoder= again: fecam.open({str(path)!r}, "
            f"encoder=fecam.encoders.wrap(function, name={record.name!r}, kind={record.kind!r}, "
            f"fingerprint={record.fingerprint!r}))."
        ) from None
    return check_fingerprint(path, encoder, record)


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
