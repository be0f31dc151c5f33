"""The jobs of an experiment on a cluster; the driver keeps the records."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fecam.bench.learner_spec import LearnerSpec
from fecam.bench.preparation import PreparedScenario
from fecam.bench.runner import Job, bytes_to_run, run_job
from fecam.bench.spec import HeadSpec
from fecam.data import Dataset
from fecam.distributed.cluster import require_ray
from fecam.encoders.encoder import first_line
from fecam.errors import ClusterError, SpecError

Record = dict[str, Any]
MAX_RETRIES = 10
"""Of a job whose worker dies."""


def run_on_ray(jobs: Sequence[Job]) -> Iterator[Record]:
    """Yield the records of each job when it is complete: an executor for `fecam.bench.run`.

    A job, of a head or a learner, has one processor of the cluster, and the memory that it
    requests. Features are put into the shared memory once for all heads. Raises `ClusterError` if
    a job fails on the cluster, `SpecError` if a head cannot learn the scenario.
    """
    ray = require_ray()
    largest = max(node["Resources"].get("memory", 0) for node in ray.nodes() if node["Alive"])
    work = ray.remote(num_cpus=1, max_retries=MAX_RETRIES)(_run_job)
    shared: dict[int, Any] = {}
    running = []
    for prepared, head in jobs:
        features = prepared.features
        if id(features) not in shared:
            in_memory = replace(features, items=np.asarray(features.items))
            shared[id(features)] = ray.put(in_memory)
        memory = min(bytes_to_run(prepared), int(largest))
        others = (
            prepared.scenario, prepared.encoder, prepared.network_accuracy, prepared.training,
            prepared.network,
        )  # fmt: skip
        running.append(work.options(memory=memory).remote(shared[id(features)], others, head))
    try:
        while running:
            (done,), running = ray.wait(running)
            try:
                records = ray.get(done)
            except ray.exceptions.RayError as error:
                raise ClusterError(
                    f"a job failed ({first_line(error)}). Complete jobs are kept: run it again, on "
                    "machines with more memory"
                ) from error
            if isinstance(records, str):
                raise SpecError(records)
            yield from records
    finally:
        for job in running:
            ray.cancel(job, force=True)


def _run_job(
    features: Dataset, others: tuple[Any, ...], method: HeadSpec | LearnerSpec
) -> list[Record] | str:
    """Return the records of a head or a learner, or the message of its error.

    A learner resumes from the folder of the run if it is shared by the machines.
    """
    try:
        return list(run_job(PreparedScenario(features, *others), method))
    except SpecError as error:
        return str(error)
