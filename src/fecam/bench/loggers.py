"""Records of tasks, handed to the loggers that people use. CSV is always written, see `results`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fecam.data.dataset import fingerprint_of
from fecam.errors import MissingPackageError, SpecError

Record = dict[str, Any]
Logger = Callable[[Record, Path], None]

NUMBERS = (
    "accuracy", "seconds_to_learn", "seconds_to_predict", "bytes", "calibration_error",
    "novelty_auroc",
)  # fmt: skip


def make(name: str) -> Logger:
    """A function that is handed each record, and the folder of its run.

    A run that is taken up hands over the records of before, too: what an earlier process has logged
    of a head and a seed is replaced, so that nothing is there twice.

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
        package = "torch" if error.name == "torch" else "tensorboard"
        raise MissingPackageError("logging to TensorBoard", package, "loggers") from None
    writers: dict[Path, Any] = {}

    def log(record: Record, folder: Path) -> None:
        if record["kind"] != "task":
            return
        place = folder / "tensorboard" / f"{_file_name(record['head'])}-{record['seed']}"
        if place not in writers:
            for old in place.glob("events.out.tfevents.*"):
                old.unlink()
            writers[place] = SummaryWriter(str(place))
        for name, value in _numbers(record).items():
            writers[place].add_scalar(name, value, record["task"])
        if record["task"] + 1 == record["tasks"]:
            writers.pop(place).close()
        else:
            writers[place].flush()

    return log


def mlflow() -> Logger:
    """Metrics by task, a run for each head and seed, where MLFLOW_TRACKING_URI says.

    Without it, in ``RUN/mlflow.db``. The package ``mlflow`` has the page to look at it:
    ``mlflow ui --backend-store-uri sqlite:///RUN/mlflow.db``.
    """
    try:
        from mlflow.tracking import MlflowClient  # isort: skip
        import alembic  # noqa: F401  # the slim package leaves out what its database needs
        import sqlalchemy  # noqa: F401
    except ImportError as error:
        raise MissingPackageError("logging to MLflow", error.name or "mlflow", "loggers") from None
    logging.getLogger("mlflow").setLevel(logging.WARNING)  # it tells of every table it makes
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
    """A client, and the experiment that is called as the folder."""
    home = folder.resolve()
    client = make_client(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home}/mlflow.db")
    found = client.get_experiment_by_name(home.name)
    return client, found.experiment_id if found else client.create_experiment(home.name)


def _new_run(client: Any, experiment: str, record: Record, folder: Path) -> str:
    """A run for a head and a seed, in the place of the one that an earlier process has left."""
    # A fingerprint, because a folder or a label may have quotes in it, which a filter has, too.
    which = fingerprint_of([str(folder.resolve()), record["head"], record["seed"]])
    for old in client.search_runs([experiment], filter_string=f"tags.fecam = '{which}'"):
        client.delete_run(old.info.run_id)
    name = f"{record['head']}, seed {record['seed']}"
    run: str = client.create_run(experiment, run_name=name, tags={"fecam": which}).info.run_id
    for option, value in {"seed": record["seed"], **record["options"]}.items():
        client.log_param(run, option, value)
    return run


def _numbers(record: Record) -> dict[str, float]:
    return {name: record[name] for name in NUMBERS if record.get(name) is not None}


def _file_name(label: str) -> str:
    """A label as a file name; what is replaced in it is told apart by a short hash."""
    plain = "".join(one if one.isalnum() else "-" for one in label)
    return plain if plain == label else f"{plain}-{fingerprint_of([label])[:6]}"
