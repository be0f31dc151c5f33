"""Models for other programs: to and from a safetensors file.

The file holds the current model of a ``.fecam`` file without its history: counts, means and
scatters as plain arrays, labels and settings as JSON in the metadata; docs/reference/exchange.md
has the layout. A file may be hostile: the format cannot contain code, its sizes are bounded by the
file, and no array is read before its name, dtype and shape were checked.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fecam.classifier import FeCAMClassifier
from fecam.core.arrays import to_numpy
from fecam.core.calibration_rows import N_COLUMNS
from fecam.core.compression import compressed
from fecam.core.state import ClassifierState
from fecam.core.statistics import MAX_CALIBRATION_ROWS, ClassStatistics
from fecam.errors import ModelFileError, SettingsError, needs_extra
from fecam.model_file.creation import atomic_file, create_file
from fecam.model_file.file import translate_errors
from fecam.model_file.records import EncoderRecord
from fecam.model_file.settings import (
    FITTED,
    PARAMETERS,
    pack_settings,
    unpack_encoder,
    unpack_settings,
)
from fecam.model_file.snapshot import build_state
from fecam.model_file.writing import WorkingCopy, layout_of
from fecam.model_rows import (
    LABEL_RULE,
    MAX_TEXT,
    Layout,
    Matrices,
    Provenance,
    check_matrices,
    file_error,
    parse_json,
    signed_row,
    to_bytes,
    unpack_class,
)

__all__ = ["ImportedModel", "export_model", "import_file", "import_model"]

FORMAT, VERSION = "fecam", 2
"""Version 1 has no measured rows, no boolean labels and no projection."""
MAX_MATRIX_WIDTH = 2**14
"""Maximum number of features of a model with matrices: a larger matrix takes over 1 GB."""

_EXPORT_AGAIN = "Export the model again with `fecam export`."
_NOT_OURS = "Give a file that `fecam export` has written."
_DTYPES = {"F32": "float32", "F64": "float64", "I64": "int64"}
_COUNTS = ("count", "visits", "task", "sampled_count")
_SCATTERS = ("scatter", "averaged")
PROJECTION = "projection"
"""The array that a compressed model has."""
_OPTIONAL = (*_SCATTERS, "calibration")
"""Arrays per class that not every class has."""


class ImportedModel(NamedTuple):
    """The content of an exchange file.

    Parameters
    ----------
    classifier : FeCAMClassifier
        The model.
    encoder : EncoderRecord or None
        The encoder of its features, if the file names one.
    """

    classifier: FeCAMClassifier
    encoder: EncoderRecord | None


def export_model(
    classifier: FeCAMClassifier,
    path: str | os.PathLike[str],
    *,
    encoder: EncoderRecord | None = None,
) -> None:
    """Write a classifier to a safetensors file, atomically.

    Parameters
    ----------
    classifier : FeCAMClassifier
        A fitted classifier.
    path : str or os.PathLike
        The file; an existing one is replaced.
    encoder : EncoderRecord, optional
        The encoder of the features.

    Raises
    ------
    ModelFileError
        If the file cannot be written.
    MissingPackageError
        If safetensors is not installed.
    """
    safetensors = _safetensors()
    tensors = _tensors(classifier.state_, layout_of(classifier))
    metadata = _metadata(classifier, encoder)
    try:
        with atomic_file(Path(os.path.realpath(path)), replace=True) as temporary:
            safetensors.numpy.save_file(tensors, temporary, metadata)
    except (OSError, safetensors.SafetensorError) as error:
        raise ModelFileError(
            f"{path} was not written: {error}. Check that the folder exists, may be written to and "
            "has room, then try again."
        ) from None


def import_model(path: str | os.PathLike[str]) -> ImportedModel:
    """Read a classifier from a safetensors file that `export_model` has written.

    Its statistics are bit-identical to the exported ones; its predictions are those of the exported
    model after ``refresh()``.

    Parameters
    ----------
    path : str or os.PathLike
        The file.

    Returns
    -------
    ImportedModel
        The classifier and its encoder.

    Raises
    ------
    ModelFileError
        If the file is missing, damaged or not a model.
    MissingPackageError
        If safetensors is not installed.

    Examples
    --------
    >>> import tempfile
    >>> clf = FeCAMClassifier().fit([[0.0, 1.0], [1.0, 0.0]], ["cat", "dog"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export_model(clf, folder + "/pets.safetensors")
    ...     import_model(folder + "/pets.safetensors").classifier.classes_.tolist()
    ['cat', 'dog']
    """
    safetensors = _safetensors()
    try:
        if not Path(path).is_file():
            raise file_error("there is no such file.", "Check the path.")
        with safetensors.safe_open(path, framework="numpy") as file:
            return _read(file)
    except (ModelFileError, SettingsError) as error:
        remedy = f" {_EXPORT_AGAIN}" if isinstance(error, SettingsError) else ""
        raise ModelFileError(f"{path} cannot be imported: {error}{remedy}") from None
    except (OSError, ValueError, OverflowError, safetensors.SafetensorError) as error:
        raise ModelFileError(
            f"{path} cannot be imported: it is no safetensors file, or a damaged one ({error}). "
            f"{_NOT_OURS}"
        ) from None


def import_file(source: str | os.PathLike[str], path: str | os.PathLike[str]) -> ImportedModel:
    """Create a ``.fecam`` file from a safetensors file.

    Parameters
    ----------
    source : str or os.PathLike
        The safetensors file.
    path : str or os.PathLike
        The ``.fecam`` file.

    Returns
    -------
    ImportedModel
        The classifier and its encoder.

    Raises
    ------
    ModelFileError
        If ``path`` exists, or ``source`` is not a model.
    """
    with translate_errors(path):
        if os.path.lexists(path):
            raise file_error(
                "it is there already.",
                "Import to another file; `fecam merge` then adds it to this one.",
            )
        imported = import_model(source)
        working = WorkingCopy(imported.classifier, encoder=imported.encoder)
        name = Path(source).name.encode(errors="replace").decode()
        note = f"imported from {name}"[:MAX_TEXT]
        create_file(Path(os.path.realpath(path)), working, "save", note, replace=False)
    return imported


def _safetensors() -> Any:
    with needs_extra("exchanging models with other programs", "export"):
        import safetensors
        import safetensors.numpy
    return safetensors


# -- writing ---------------------------------------------------------------------------------------


def _metadata(classifier: FeCAMClassifier, encoder: EncoderRecord | None) -> dict[str, str]:
    values = {name: json.loads(text) for name, text in pack_settings(classifier).items()}
    objects = {
        "labels": list(classifier.state_.classes),
        "settings": {name: values[name] for name in PARAMETERS},
        "found": {name.removesuffix("_"): values[name] for name in FITTED},
        "encoder": None if encoder is None else vars(encoder),
    }
    return {
        "format": FORMAT,
        "version": str(VERSION),
        **{name: json.dumps(value) for name, value in objects.items()},
        "written_by": f"fecam {values['fecam_']}",
    }


def _tensors(state: ClassifierState, layout: Layout) -> dict[str, NDArray[Any]]:
    classes = list(state.classes.values())
    moments = [stats.distance_moments for stats in classes]
    columns: dict[str, list[Any]] = {
        "count": [stats.count for stats in classes],
        "visits": [stats.n_batches for stats in classes],
        "task": [state.tasks[label] for label in state.classes],
        "sampled_count": [count for count, _, _ in moments],
        "sampled": [sums for _, *sums in moments],
        "mean": [to_numpy(stats.mean) for stats in classes],
        "raw_mean": [to_numpy(stats.raw_mean) for stats in classes],
    }
    tensors = {
        name: np.asarray(columns[name], dtype).reshape(shape)
        for name, (dtype, shape) in _columns(layout, len(classes)).items()
    }
    if state.transform.projection is not None:
        tensors[PROJECTION] = np.ascontiguousarray(
            to_numpy(state.transform.projection), layout.dtype
        )
    for i, stats in enumerate(classes):
        pair = stats.scatter, stats.domain_mean_covariance
        for name, scatter in zip(_SCATTERS, pair, strict=True):
            if scatter is not None:
                data = to_numpy(scatter.data)
                tensors[f"{name}.{i}"] = np.ascontiguousarray(data, layout.dtype)
        if stats.calibration is not None and len(stats.calibration):
            tensors[f"calibration.{i}"] = stats.calibration
    return tensors


def _columns(layout: Layout, n_classes: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return dtype and shape of the tensors that every file has."""
    return {
        **{name: ("int64", (n_classes,)) for name in _COUNTS},
        "sampled": ("float64", (n_classes, 2)),
        "mean": ("float64", (n_classes, layout.n_features)),
        "raw_mean": (layout.dtype, (n_classes, layout.n_features_in)),
    }


# -- reading ---------------------------------------------------------------------------------------


def _read(file: Any) -> ImportedModel:
    metadata = file.metadata() or {}
    _check_version(metadata)
    classifier, empty = _settings(metadata)
    labels = _parse(metadata, "labels", list)
    names = set(file.keys())
    if PROJECTION in names:
        empty = compressed(empty, _read_projection(file, empty.n_features, classifier.dtype))
    layout = Layout.of(empty, classifier.dtype)
    columns = _columns(layout, len(labels))
    optional = {f"{name}.{i}" for name in _OPTIONAL for i in range(len(labels))}
    for name in sorted(names - columns.keys() - optional - {PROJECTION}):
        raise file_error(f"it holds {name[:80]!r}, which is not part of a model.", _NOT_OURS)
    for name, (dtype, shape) in columns.items():
        if name not in names:
            raise file_error(f"{name!r} is missing.", _EXPORT_AGAIN)
        _check_tensor(file, name, dtype, [shape])
    for name in names & optional:
        dtype = "float32" if name.startswith("calibration.") else layout.dtype
        _check_tensor(file, name, dtype, _optional_shapes(file, name, layout))
    table = {name: file.get_tensor(name) for name in columns}
    classes = []
    for i, label in enumerate(map(json.dumps, labels)):
        scatter, averaged, measured = (
            to_bytes(file.get_tensor(f"{name}.{i}")) if f"{name}.{i}" in names else None
            for name in _OPTIONAL
        )
        values = {name: column[i] for name, column in table.items()}
        classes.append(_unpack(label, values, (scatter, averaged), measured, layout))
    _ = classifier.set_state(build_state(empty, classes)).metric_  # checks the settings
    encoder = json.dumps(_parse(metadata, "encoder"))
    return ImportedModel(classifier, unpack_encoder(encoder, layout.n_features_in))


def _read_projection(file: Any, n_features_in: int, dtype: str) -> NDArray[Any]:
    """Return the projection of a compressed model."""
    shape = tuple(file.get_slice(PROJECTION).get_shape())
    square = n_features_in, n_features_in
    is_right = len(shape) == 2 and shape[0] == n_features_in and 1 <= shape[1] <= n_features_in
    _check_tensor(file, PROJECTION, dtype, [shape if is_right else square])
    matrix: NDArray[Any] = file.get_tensor(PROJECTION)
    if not np.all(np.isfinite(matrix)):
        raise file_error("its projection has a number that is not finite.", _EXPORT_AGAIN)
    return matrix


def _check_version(metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise file_error("it holds tensors of another program.", _NOT_OURS)
    version = metadata.get("version", "")
    if not re.fullmatch("[1-9][0-9]{0,7}", version):
        raise file_error(f"its version cannot be {version[:80]!r}.", _EXPORT_AGAIN)
    if int(version) > VERSION:
        raise file_error(
            f"it has version {version} of the layout; this fecam reads versions up to {VERSION}.",
            "Upgrade fecam.",
        )


def _settings(metadata: Mapping[str, str]) -> tuple[FeCAMClassifier, ClassifierState]:
    values: dict[str, Any] = {"fecam_": "", "version_": 0, "prior_": None}
    for part, names in {"settings": PARAMETERS, "found": FITTED}.items():
        given = _parse(metadata, part, dict)
        if part == "settings":
            given = {"priors": None, **given}  # older files do not have it
        if part == "found":
            given = {f"{name}_": value for name, value in given.items()}
        for name in sorted(given.keys() ^ set(names)):
            problem = f"{name[:80]!r} is missing in its {part}, or not known."
            raise file_error(problem, _EXPORT_AGAIN)
        values |= given
    settings = {name: json.dumps(value) for name, value in values.items()}
    classifier, empty = unpack_settings(settings)
    if empty.scatter_kind == "full" and empty.n_features > MAX_MATRIX_WIDTH:
        raise file_error(
            f"matrices of {empty.n_features} features are more than fecam computes with.",
            f"Store less (covariance='diagonal'), or at most {MAX_MATRIX_WIDTH} features.",
        )
    return classifier, empty


def _parse(metadata: Mapping[str, str], name: str, kind: type = object) -> Any:
    """Return a value of the metadata; its length is bounded by that of the file."""
    remedy = LABEL_RULE if name == "labels" else _EXPORT_AGAIN
    value = parse_json(f"metadata {name!r}", metadata.get(name), remedy, max_length=math.inf)
    if not isinstance(value, kind):
        raise file_error(f"its {name} are no JSON {'list' if kind is list else 'object'}.", remedy)
    return value


def _optional_shapes(file: Any, name: str, layout: Layout) -> list[tuple[int, ...]]:
    """Return the shapes that a scatter or measured rows may have."""
    width, shape = layout.n_features, tuple(file.get_slice(name).get_shape())
    if name.startswith("calibration."):
        is_right = len(shape) == 2 and shape[0] <= MAX_CALIBRATION_ROWS
        return [(shape[0], N_COLUMNS)] if is_right else []
    packed = {"full": [(width * (width + 1) // 2,)], "diagonal": [(width,)], "none": []}
    is_low_rank = len(shape) == 2 and shape[1] == width and shape[0] <= width // 2
    low_rank = [shape] if layout.scatter_kind == "full" and is_low_rank else []
    return [*packed[layout.scatter_kind], *low_rank]


def _check_tensor(file: Any, name: str, dtype: str, shapes: list[tuple[int, ...]]) -> None:
    """Reject a tensor of another dtype or shape before it is read."""
    tensor = file.get_slice(name)
    actual, shape = _DTYPES.get(tensor.get_dtype(), tensor.get_dtype()), tuple(tensor.get_shape())
    if actual != dtype or shape not in shapes:
        expected = " or ".join(map(str, shapes)) or "nothing"
        raise file_error(
            f"{name!r} is {actual} {shape}; expected is {dtype} {expected}.", _EXPORT_AGAIN
        )


def _unpack(
    label: str,
    values: Mapping[str, NDArray[Any]],
    matrices: Matrices,
    calibration: bytes | None,
    layout: Layout,
) -> tuple[int | str, ClassStatistics, int]:
    """Return label, statistics and task of a class, checked as those of a ``.fecam`` file are."""
    numbers = (*(int(values[name]) for name in _COUNTS), *map(float, values["sampled"]))
    means = to_bytes(values["raw_mean"]), to_bytes(values["mean"])
    row = signed_row(label, numbers, Provenance("", "", "", b""), means, matrices, calibration)
    return unpack_class(row, layout, lambda: check_matrices(row, matrices, layout))
