"""Features as a file for other programs, which `fecam.data.load` reads too."""

from pathlib import Path
from typing import IO

import numpy as np

from fecam.data.dataset import Dataset
from fecam.errors import InputError, needs_extra
from fecam.files import atomic_file


def save_features(features: Dataset, path: Path | str) -> None:
    """Write features, labels and splits to a ``.npz`` or ``.parquet`` file, atomically."""
    path = Path(path)
    writers = {".npz": _write_npz, ".parquet": _write_parquet}
    if path.suffix not in writers:
        raise InputError(f"{path}: the file name must end in {' or '.join(writers)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            writers[path.suffix](features, file)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error}") from error


def _write_npz(features: Dataset, file: IO[bytes]) -> None:
    arrays = {
        "X": np.asarray(features.items),
        "y": features.labels,
        "label_names": np.asarray(features.classes),
        "is_test": np.asarray(features.is_test),
    }
    if features.domains is not None:
        arrays["domains"] = np.asarray(features.domain_names)[features.domains]
    np.savez(file, **arrays)  # type: ignore[arg-type]


def _write_parquet(features: Dataset, file: IO[bytes]) -> None:
    with needs_extra("writing .parquet", "parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    X, classes = np.asarray(features.items), features.classes
    columns = {
        "embedding": pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), X.shape[1]),
        "label": pa.array([classes[label] for label in features.labels]),
        "split": pa.array(["test" if test else "train" for test in np.asarray(features.is_test)]),
    }
    if features.domains is not None:
        columns["domain"] = pa.array([features.domain_names[domain] for domain in features.domains])
    pq.write_table(pa.table(columns), file)
