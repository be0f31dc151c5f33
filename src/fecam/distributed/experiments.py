"""The heads and seeds of an experiment spread over a cluster; the driver keeps the records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fecam.bench.preparation import Prepared
from fecam.bench.runner import bytes_to_run
from fecam.bench.scenario_evaluation import evaluate_scenario
from fecam.bench.spec import HeadSpec
from fecam.data import Dataset
from fecam.distributed.cluster import the_ray
from fecam.errors import ClusterError, SpecError

Record = dict[str, Any]
TRIES = 10
"""A head whose worker dies goes through its seed again, so often at most."""


def run_on_ray(jobs: Sequence[tuple[Prepared, HeadSpec]]) -> Iterator[Record]:
    """Each head through its seed on a processor of the cluster, for `fecam.bench.runner.run`.

    Features lie in the memory that the cluster shares, once, and not once a head or seed. A head
    claims the memory that it needs, so that no machine is given more than it can hold.
    """
    ray = the_ray()
    largest = max(one["Resources"].get("memory", 0) for one in ray.nodes() if one["Alive"])
    work = ray.remote(num_cpus=1, max_retries=TRIES)(_through)
    shared: dict[int, Any] = {}
    running = []
    for prepared, head in jobs:
        features = prepared.features
        if id(features) not in shared:
            plain = replace(features, items=np.asarray(features.items))
            shared[id(features)] = ray.put(plain)
        need = min(bytes_to_run(prepared), int(largest))
        about = (prepared.scenario, prepared.encoder, prepared.network_accuracy)
        running.append(work.options(memory=need).remote(shared[id(features)], about, head))
    try:
        while running:
            (done,), running = ray.wait(running)
            try:
                found = ray.get(done)
            except ray.exceptions.RayError as error:
                why = str(error).strip().partition("\n")[0]
                raise ClusterError(
                    f"a head could not be taken through its seed ({why}). What is done is kept: "
                    "run it again, on machines with more memory"
                ) from error
            if isinstance(found, str):
                raise SpecError(found)
            yield from found
    finally:
        for one in running:
            ray.cancel(one, force=True)


def _through(features: Dataset, about: tuple[Any, ...], head: HeadSpec) -> list[Record] | str:
    """In a worker: the records of a head, or why it cannot go on."""
    try:
        return list(evaluate_scenario(Prepared(features, *about), head))
    except SpecError as error:
        return str(error)
