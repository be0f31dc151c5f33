"""Records of tasks, handed to the loggers that people use. CSV is always written, see `results`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fecam.errors import MissingPackageError, SpecError

Record = dict[str, Any]
Logger = Callable[[Record, Path], None]

NUMBERS = (
    "accuracy", "seconds_to_learn", "seconds_to_predict", "bytes", "calibration_error",
    "novelty_auroc",
)  # fmt: skip


def make(name: str) -> Logger:
    """A function that is handed each record, and the folder of its run.

    Raises:
        SpecError: there is no such logger.
        MissingPackageError: it is not installed.
    """
    known: dict[str, Callable[[], Logger]] = {"tensorboard": tensorboard, "mlflow": mlflow}
    if name not in known:
        raise SpecError(f"there is no logger {name!r}. Choose from: {', '.join(known)}")
    return known[name]()


def tensorboard() -> Logger:
    """Scalars by task, a run of its own for each head and seed: ``tensorboard --logdir RUN``."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        package = "tensorboard" if "tensorboard" in str(error) else "torch"
        raise MissingPackageError("logging to TensorBoard", package, "loggers") from None

    writers: dict[Path, Any] = {}

    def log(record: Record, folder: Path) -> None:
        if record["kind"] != "task":
            return
        place = folder / "tensorboard" / f"{_file_name(record['head'])}-{record['seed']}"
        if place not in writers:
            writers[place] = SummaryWriter(str(place))
        writer = writers[place]
        for name, value in _numbers(record).items():
            writer.add_scalar(name, value, record["task"])
        writer.flush()
        if record["task"] + 1 == record["tasks"]:
            writers.pop(place).close()

    return log


def mlflow() -> Logger:
    """Metrics by task, a run for each head and seed, where MLFLOW_TRACKING_URI says.

    Without it, in ``RUN/mlflow.db``: ``mlflow ui --backend-store-uri sqlite:///RUN/mlflow.db``.
    """
    try:
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise MissingPackageError("logging to MLflow", "mlflow", "loggers") from None
    opened: dict[tuple[Path, str, int], str] = {}

    def log(record: Record, folder: Path) -> None:
        if record["kind"] != "task":
            return
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.resolve()}/mlflow.db"
        client = MlflowClient(uri)
        key = (folder, record["head"], record["seed"])
        if key not in opened:
            found = client.get_experiment_by_name(folder.name)
            experiment = found.experiment_id if found else client.create_experiment(folder.name)
            new = client.create_run(experiment, run_name=f"{record['head']}, seed {record['seed']}")
            opened[key] = new.info.run_id
            for name, value in {"seed": record["seed"], **record["options"]}.items():
                client.log_param(opened[key], name, value)
        for name, value in _numbers(record).items():
            client.log_metric(opened[key], name, value, step=record["task"])
        if record["task"] + 1 == record["tasks"]:
            client.set_terminated(opened[key])

    return log


def _numbers(record: Record) -> dict[str, float]:
    return {name: record[name] for name in NUMBERS if record.get(name) is not None}


def _file_name(label: str) -> str:
    return "".join(one if one.isalnum() else "-" for one in label)
