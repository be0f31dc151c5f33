"""Loggers of task records: TensorBoard and MLflow. `results` always writes CSV."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fecam.bench.results import file_name
from fecam.data.dataset import fingerprint_of
from fecam.errors import SpecError, needs_extra
from fecam.registry import Registry

Record = dict[str, Any]
Logger = Callable[[Record, Path], None]

LOGGED_METRICS = (
    "accuracy", "seconds_to_learn", "seconds_to_predict", "bytes", "calibration_error",
    "novelty_auroc",
)  # fmt: skip


def make(name: str) -> Logger:
    """Return a function that logs a record of a run in a folder.

    A resumed run logs its earlier records again: the log of a head and a seed is replaced. Raises
    `SpecError` for an unknown name, `MissingPackageError` if the package is not installed.
    """
    loggers = {"tensorboard": tensorboard, "mlflow": mlflow}
    return Registry("logger", loggers, error=SpecError)[name]()


def tensorboard() -> Logger:
    """Return a logger of scalars by task, one run per head and seed."""
    with needs_extra("logging to TensorBoard", "loggers"):
        from torch.utils.tensorboard import SummaryWriter
    writers: dict[Path, Any] = {}

    def log(record: Record, folder: Path) -> None:
        if record["kind"] != "task":
            return
        path = folder / "tensorboard" / f"{file_name(record['head'])}-{record['seed']}"
        if path not in writers:
            for old in path.glob("events.out.tfevents.*"):
                old.unlink()
            writers[path] = SummaryWriter(str(path))
        for name, value in _numbers(record).items():
            writers[path].add_scalar(name, value, record["task"])
        if record["task"] + 1 == record["tasks"]:
            writers.pop(path).close()
        else:
            writers[path].flush()

    return log


def mlflow() -> Logger:
    """Return a logger of metrics by task to ``MLFLOW_TRACKING_URI``, or to ``RUN/mlflow.db``."""
    with needs_extra("logging to MLflow", "loggers"):
        from mlflow.tracking import MlflowClient  # isort: skip
        import alembic  # noqa: F401  # its database needs both
        import sqlalchemy  # noqa: F401
    logging.getLogger("mlflow").setLevel(logging.WARNING)  # it logs every table it creates
    clients: dict[Path, tuple[Any, str]] = {}
    opened: dict[tuple[Path, str, int], str] = {}

    def log(record: Record, folder: Path) -> None:
        if record["kind"] != "task":
            return
        if folder not in clients:
            clients[folder] = _experiment(MlflowClient, folder)
        client, experiment = clients[folder]
        key = (folder, record["head"], record["seed"])
        if key not in opened:
            opened[key] = _new_run(client, experiment, record, folder)
        for name, value in _numbers(record).items():
            client.log_metric(opened[key], name, value, step=record["task"])
        if record["task"] + 1 == record["tasks"]:
            client.set_terminated(opened.pop(key))

    return log


def _experiment(make_client: Callable[[str], Any], folder: Path) -> tuple[Any, str]:
    """Return a client, and the id of the experiment named after the folder."""
    home = folder.resolve()
    client = make_client(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home}/mlflow.db")
    stored = client.get_experiment_by_name(home.name)
    return client, stored.experiment_id if stored else client.create_experiment(home.name)


def _new_run(client: Any, experiment: str, record: Record, folder: Path) -> str:
    """Return a new run for a head and a seed; one of an earlier process is deleted."""
    # A fingerprint, because quotes in a path or label would break the filter.
    which = fingerprint_of([str(folder.resolve()), record["head"], record["seed"]])
    for old in client.search_runs([experiment], filter_string=f"tags.fecam = '{which}'"):
        client.delete_run(old.info.run_id)
    name = f"{record['head']}, seed {record['seed']}"
    run: str = client.create_run(experiment, run_name=name, tags={"fecam": which}).info.run_id
    for option, value in {"seed": record["seed"], **record["options"]}.items():
        client.log_param(run, option, value)
    return run


def _numbers(record: Record) -> dict[str, float]:
    return {name: record[name] for name in LOGGED_METRICS if record.get(name) is not None}
