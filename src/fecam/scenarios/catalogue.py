"""Scenarios by the name of their kind, for experiments that are written in a file."""

from collections.abc import Callable, Collection
from inspect import Parameter, signature
from typing import Any

from fecam.data.dataset import Dataset
from fecam.errors import SettingsError
from fecam.registry import Registry
from fecam.scenarios.classes import class_incremental
from fecam.scenarios.domains import domain_incremental
from fecam.scenarios.shots import few_shot
from fecam.scenarios.task import Scenario
from fecam.validation import check_keys

KINDS: Registry[Callable[..., Scenario]] = Registry(
    "kind of scenario",
    {
        "class-incremental": class_incremental,
        "few-shot": few_shot,
        "domain-incremental": domain_incremental,
    },
)


def build(data: Dataset, kind: str, *, seed: int, **options: Any) -> Scenario:
    """Return a scenario of the given kind.

    Parameters
    ----------
    data : Dataset
        The data set.
    kind : str
        One of `KINDS`.
    seed : int
        Seed of all random choices; also of the class order, unless ``order`` is given.
    **options : Any
        Options of that kind.

    Returns
    -------
    Scenario
        The tasks.

    Raises
    ------
    SettingsError
        If the kind or an option does not exist or is invalid.
    DatasetError
        If the data set does not have what the scenario needs.

    Examples
    --------
    >>> from fecam.data import load
    >>> build(load("digits"), "class-incremental", seed=1993, increment=2)
    Scenario('class-incremental', 5 tasks, 10 classes)
    """
    check_options(kind, options)
    if "order" in signature(KINDS[kind]).parameters:
        options.setdefault("order", seed)
    return KINDS[kind](data, seed=seed, **options)


def check_options(kind: str, options: Collection[str]) -> None:
    """Raise if the kind or an option does not exist, or a required option is missing.

    >>> check_options("few-shot", ["base", "ways"])
    Traceback (most recent call last):
    ...
    fecam.errors.SettingsError: a few-shot scenario needs the option 'shots'.
    """
    parameters = dict(signature(KINDS[kind]).parameters)
    del parameters["data"], parameters["seed"]
    check_keys(f"a {kind} scenario", options, parameters)
    for name, parameter in parameters.items():
        if parameter.default is Parameter.empty and name not in options:
            raise SettingsError(f"a {kind} scenario needs the option {name!r}.")
