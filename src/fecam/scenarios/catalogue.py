"""Every kind of scenario by name, for experiments that are written in a file."""

from __future__ import annotations

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
    """The scenario of a kind. The seed decides all that the options leave open, the order too.

    >>> from fecam.data import load
    >>> build(load("digits"), "class-incremental", seed=1993, increment=2)
    Scenario('class-incremental', 5 tasks, 10 classes)

    Raises:
        SettingsError: no such kind, or options that it does not have or cannot be.
        DatasetError: the data set does not have what the scenario needs.
    """
    check_options(kind, options)
    if "order" in signature(KINDS[kind]).parameters:
        options.setdefault("order", seed)
    return KINDS[kind](data, seed=seed, **options)


def check_options(kind: str, options: Collection[str]) -> None:
    """Refuse a kind or an option that there is not, or the lack of one; no data are needed.

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
