"""Models for other programs: to and from one safetensors file.

The file holds what a ``.fecam`` file holds of a model now, without its history: labels, counts,
means and scatters as plain arrays, settings as JSON in the metadata; docs/reference/exchange.md has
the layout. Like a ``.fecam`` file, one that comes from elsewhere is taken for hostile: the format
itself knows no code, its sizes are those of the file, and no array is read before its name, type
and shape are known to be right.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fecam.classifier import FeCAMClassifier
from fecam.core.arrays import to_numpy
from fecam.core.state import ClassifierState
from fecam.core.statistics import ClassStatistics
from fecam.errors import MissingPackageError, ModelFileError, SettingsError
from fecam.model_file.creation import create_file
from fecam.model_file.file import ModelFile, translate_errors
from fecam.model_file.records import EncoderRecord
from fecam.model_file.settings import FOUND, PARAMETERS, pack_settings, unpack_settings
from fecam.model_file.snapshot import check_kind, unpack_encoder
from fecam.model_file.writing import WorkingCopy
from fecam.model_rows import (
    LABEL_RULE,
    MAX_TEXT,
    Layout,
    Row,
    check_matrices,
    check_row,
    checksum,
    file_error,
    parse_json,
)

FORMAT, VERSION = "fecam", 1
MAX_MATRIX_WIDTH = 2**14
"""Features of a model with matrices: of more, a single matrix fills the memory of most machines."""

_AGAIN = "Export the model again with `fecam export`."
_NOT_OURS = "Give a file that `fecam export` has written."
_DTYPES = {"F32": "float32", "F64": "float64", "I64": "int64"}
_COUNTS = ("count", "visits", "task", "sampled_count")


class ImportedModel(NamedTuple):
    """What a file holds."""

    classifier: FeCAMClassifier
    encoder: EncoderRecord | None
    """The encoder that its features come from, if it says so."""


def export_model(
    classifier: FeCAMClassifier,
    path: str | os.PathLike[str],
    *,
    encoder: EncoderRecord | None = None,
) -> None:
    """Write all that a classifier was taught to a safetensors file, or nothing at all."""
    safetensors = _package()
    tensors = _tensors(classifier.state_, classifier.dtype)
    metadata = _metadata(classifier, encoder)
    target = Path(os.path.realpath(path))
    unfinished = target.with_name(f".{uuid.uuid4().hex}.safetensors")
    try:
        safetensors.numpy.save_file(tensors, unfinished, metadata)
        os.replace(unfinished, target)
    except (OSError, safetensors.SafetensorError) as error:
        raise ModelFileError(
            f"{path} was not written: {error}. Check that the folder exists, may be written to and "
            "has room, then try again."
        ) from None
    finally:
        unfinished.unlink(missing_ok=True)


def import_model(path: str | os.PathLike[str]) -> ImportedModel:
    """The classifier of a safetensors file that `export_model` has written.

    Its statistics are the same to the bit, and its answers those of the exported model after
    ``refresh()``.
    """
    safetensors = _package()
    try:
        if not Path(path).is_file():
            raise file_error("there is no such file.", "Check the path.")
        with safetensors.safe_open(path, framework="numpy") as file:
            return _read(file)
    except (ModelFileError, SettingsError) as error:
        remedy = f" {_AGAIN}" if isinstance(error, SettingsError) else ""
        raise ModelFileError(f"{path} cannot be imported: {error}{remedy}") from None
    except (OSError, ValueError, OverflowError, safetensors.SafetensorError) as error:
        raise ModelFileError(
            f"{path} cannot be imported: it is no safetensors file, or a damaged one ({error}). "
            f"{_NOT_OURS}"
        ) from None


def export_file(source: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Write what a ``.fecam`` file holds to a safetensors file."""
    with ModelFile(source) as file:
        export_model(file.snapshot.classifier, path, encoder=file.snapshot.encoder)


def import_file(source: str | os.PathLike[str], path: str | os.PathLike[str]) -> ImportedModel:
    """Make a ``.fecam`` file of a safetensors file; what is there already stays as it is."""
    with translate_errors(path):
        if os.path.lexists(path):
            raise file_error(
                "it is there already.",
                "Import to another file; `fecam merge` then adds it to this one.",
            )
        found = import_model(source)
        working = WorkingCopy(found.classifier, encoder=found.encoder)
        name = Path(source).name.encode(errors="replace").decode()
        note = f"imported from {name}"[:MAX_TEXT]
        create_file(Path(os.path.realpath(path)), working, "save", note, replace=False)
    return found


def _package() -> Any:
    try:
        import safetensors
        import safetensors.numpy
    except ModuleNotFoundError as error:
        what = "exchanging models with other programs"
        raise MissingPackageError(what, error.name or "safetensors", "export") from None
    return safetensors


# -- writing ---------------------------------------------------------------------------------------


def _metadata(classifier: FeCAMClassifier, encoder: EncoderRecord | None) -> dict[str, str]:
    known = classifier.state_
    packed = pack_settings(classifier, known)
    labels = [int(label) if isinstance(label, bool) else label for label in known.classes]
    return {
        "format": FORMAT,
        "version": str(VERSION),
        "labels": json.dumps(labels),
        "settings": _joined({name: packed[name] for name in PARAMETERS}),
        "found": _joined({name.removesuffix("_"): packed[name] for name in FOUND}),
        "encoder": json.dumps(None if encoder is None else vars(encoder)),
        "written_by": f"fecam {json.loads(packed['fecam_'])}",
    }


def _joined(values: Mapping[str, str]) -> str:
    """One JSON object of values that are JSON already."""
    return json.dumps({name: json.loads(text) for name, text in values.items()})


def _tensors(known: ClassifierState, dtype: str) -> dict[str, NDArray[Any]]:
    classes = list(known.classes.values())
    shape = (len(classes), known.n_features)

    def stacked(arrays: list[Any], dtype: str) -> NDArray[Any]:
        return np.asarray([to_numpy(one) for one in arrays], dtype).reshape(shape)

    found = {
        "count": np.asarray([one.count for one in classes], np.int64),
        "visits": np.asarray([one.n_batches for one in classes], np.int64),
        "task": np.asarray([known.tasks[label] for label in known.classes], np.int64),
        "sampled_count": np.asarray([one.distance_moments[0] for one in classes], np.int64),
        "sampled": np.asarray([one.distance_moments[1:] for one in classes], np.float64).reshape(
            -1, 2
        ),
        "mean": stacked([one.mean for one in classes], "float64"),
        "raw_mean": stacked([one.raw_mean for one in classes], dtype),
    }
    for name in ("scatter", "averaged"):
        for at, one in enumerate(classes):
            scatter = one.scatter if name == "scatter" else one.domain_mean_covariance
            if scatter is not None:
                numbers = to_numpy(scatter.data)
                found[f"{name}.{at}"] = np.ascontiguousarray(numbers, dtype)
    return found


# -- reading ---------------------------------------------------------------------------------------


def _read(file: Any) -> ImportedModel:
    metadata = file.metadata() or {}
    _check_version(metadata)
    classifier, empty = _settings(metadata)
    labels = _labels(metadata)
    layout = Layout(empty.scatter_kind, empty.n_features, classifier.dtype)
    names = set(file.keys())
    fixed = _fixed(layout, len(labels))
    each = {f"{name}.{at}" for name in ("scatter", "averaged") for at in range(len(labels))}
    for name in sorted(names - fixed.keys() - each):
        raise file_error(f"it holds {name[:80]!r}, which is not part of a model.", _NOT_OURS)
    for name, (dtype, shape) in fixed.items():
        if name not in names:
            raise file_error(f"{name!r} is missing.", _AGAIN)
        _check_tensor(file, name, dtype, [shape])
    for name in names & each:
        _check_tensor(file, name, layout.dtype, _scatter_shapes(file, name, layout))
    table = {name: file.get_tensor(name) for name in fixed}
    classes: dict[Any, ClassStatistics] = {}
    tasks: dict[Any, int] = {}
    for at, text in enumerate(labels):
        blobs = [_bytes(file, f"{name}.{at}", names) for name in ("scatter", "averaged")]
        label, one, task = _class(text, at, table, (blobs[0], blobs[1]), layout)
        if label in classes:
            raise file_error(f"class {text[:80]} comes twice.", _AGAIN)
        classes[label], tasks[label] = one, task
    check_kind(list(classes))
    known = replace(empty, classes=dict(sorted(classes.items())), tasks=dict(sorted(tasks.items())))
    _ = classifier.set_state(known).metric_
    return ImportedModel(classifier, _encoder(metadata, empty.n_features))


def _check_version(metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise file_error("it holds tensors of another program.", _NOT_OURS)
    version = metadata.get("version", "")
    if not version.isascii() or not version.isdigit() or not 0 < len(version) < 9:
        raise file_error(f"its version {version[:80]!r} is no number.", _AGAIN)
    if int(version) > VERSION:
        known = f"this fecam knows versions up to {VERSION}."
        raise file_error(f"it has version {version} of the layout; {known}", "Upgrade fecam.")
    if int(version) < 1:
        raise file_error(f"its version cannot be {version}.", _AGAIN)


def _settings(metadata: Mapping[str, str]) -> tuple[FeCAMClassifier, ClassifierState]:
    settings = _object(metadata, "settings", PARAMETERS)
    found = _object(metadata, "found", tuple(name.removesuffix("_") for name in FOUND))
    values = settings | {f"{name}_": value for name, value in found.items()}
    values |= {"fecam_": metadata.get("written_by", ""), "version_": 0, "prior_": None}
    classifier, empty = unpack_settings({name: json.dumps(one) for name, one in values.items()})
    if empty.scatter_kind == "full" and empty.n_features > MAX_MATRIX_WIDTH:
        raise file_error(
            f"matrices of {empty.n_features} features are more than fecam computes with.",
            f"Keep less (covariance='diagonal'), or at most {MAX_MATRIX_WIDTH} features.",
        )
    return classifier, empty


def _object(metadata: Mapping[str, str], name: str, keys: tuple[str, ...]) -> dict[str, Any]:
    values = _parsed(metadata, name)
    if not isinstance(values, dict):
        raise file_error(f"its {name} are no JSON object.", _AGAIN)
    for key in sorted(values.keys() ^ set(keys)):
        raise file_error(f"{key[:80]!r} is missing in its {name}, or not known here.", _AGAIN)
    return values


def _parsed(metadata: Mapping[str, str], name: str) -> Any:
    # As long as it may be: it has been read by now, and is no longer than the file.
    return parse_json(f"metadata {name!r}", metadata.get(name), _AGAIN, longest=float("inf"))


def _labels(metadata: Mapping[str, str]) -> list[str]:
    """The labels, each as JSON."""
    labels = _parsed(metadata, "labels")
    if not isinstance(labels, list):
        raise file_error("its labels are no JSON list.", LABEL_RULE)
    return [json.dumps(label) for label in labels]


def _encoder(metadata: Mapping[str, str], width: int) -> EncoderRecord | None:
    encoder = unpack_encoder(json.dumps(_parsed(metadata, "encoder")))
    if encoder is not None and encoder.width != width:
        raise file_error(
            f"its encoder gives {encoder.width} features, its classes have {width}.", _AGAIN
        )
    return encoder


def _fixed(layout: Layout, count: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of what every file holds."""
    return {
        **{name: ("int64", (count,)) for name in _COUNTS},
        "sampled": ("float64", (count, 2)),
        "mean": ("float64", (count, layout.width)),
        "raw_mean": (layout.dtype, (count, layout.width)),
    }


def _scatter_shapes(file: Any, name: str, layout: Layout) -> list[tuple[int, ...]]:
    """The shapes that a scatter may have."""
    width = layout.width
    if layout.form == "none":
        return []
    if layout.form == "diagonal":
        return [(width,)]
    rows = tuple(file.get_slice(name).get_shape())
    is_thin = len(rows) == 2 and rows[1] == width and rows[0] <= width // 2
    return [(width * (width + 1) // 2,), *([rows] if is_thin else [])]


def _check_tensor(file: Any, name: str, dtype: str, shapes: list[tuple[int, ...]]) -> None:
    """Refuse an array of another type or shape before it is read."""
    found = file.get_slice(name)
    kind, shape = _DTYPES.get(found.get_dtype(), found.get_dtype()), tuple(found.get_shape())
    if kind != dtype or shape not in shapes:
        due = " or ".join(map(str, shapes)) or "nothing"
        raise file_error(f"{name!r} is {kind} {shape}; due is {dtype} {due}.", _AGAIN)


def _bytes(file: Any, name: str, names: set[str]) -> bytes | None:
    return _packed(file.get_tensor(name)) if name in names else None


def _packed(array: NDArray[Any]) -> bytes:
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _class(
    text: str,
    at: int,
    table: Mapping[str, NDArray[Any]],
    matrices: tuple[bytes | None, bytes | None],
    layout: Layout,
) -> tuple[int | str, ClassStatistics, int]:
    """One class, checked as those of a ``.fecam`` file are."""
    count, visits, task, sampled_count = (int(table[name][at]) for name in _COUNTS)
    first, second = map(float, table["sampled"][at])
    row = Row(
        label=text,
        numbers=(count, visits, task, sampled_count, first, second),
        lengths=tuple(None if some is None else len(some) for some in matrices),
        texts=("", "", ""),
        arrays=(_packed(table["raw_mean"][at]), _packed(table["mean"][at]), b""),
        matrices=checksum(*matrices),
        checksum=b"",
    )
    label = check_row(row, layout)
    scatter, averaged = check_matrices(row, matrices, layout)
    statistics = ClassStatistics(
        count=count,
        raw_mean=table["raw_mean"][at].copy(),
        mean=table["mean"][at].copy(),
        scatter=scatter,
        n_batches=visits,
        distance_moments=(sampled_count, first, second),
        domain_mean_covariance=averaged,
    )
    return label, statistics, task
