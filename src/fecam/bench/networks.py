"""Networks that learners train in the first task, as encoders for all heads of an experiment."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fecam import heads, learners
from fecam.bench.learner_spec import LearnerSpec
from fecam.data.dataset import fingerprint_of
from fecam.errors import FecamError, SpecError

if TYPE_CHECKING:
    from fecam.bench.preparation import ProgressCallback, TrainingData
    from fecam.learners import Learner


def train_network(
    training: TrainingData,
    spec: LearnerSpec,
    trained: Collection[Path],
    progress: ProgressCallback,
) -> Iterator[dict[str, Any] | Path]:
    """Yield a record per epoch, then the file of the encoder; those in ``trained`` are complete.

    The seed of the records is that of the training plan, which several seeds of a run may share.
    The encoder is the network that the learner would hand to a head. It is cached with the
    checkpoint of the first task, and learners that train alike share it.
    """
    from fecam.bench.preparation import Progress
    from fecam.encoders.resnet import save_encoder

    learner = learners.make(spec.name, **spec.options)
    learner.start(training.recipe(spec.later_tasks), heads.make("ncm"))
    with training.locked_first_checkpoint(learner.first_task_key(), progress) as checkpoint:
        file = checkpoint.with_name(f"{_key(learner)}.safetensors")
        if file not in trained:
            try:
                for epoch in learner.learn(
                    training.first,
                    checkpoint=checkpoint,
                    progress=lambda now: progress(
                        Progress(
                            f"training of {spec.label}",
                            (now.epoch - 1) * now.n_batches + now.batch,
                            now.epochs * now.n_batches,
                            f"loss {now.loss:.3f}",
                        )
                    ),
                ):
                    origin = {"kind": "training", "network": spec.label, "seed": training.plan.seed}
                    yield {**origin, **asdict(epoch)}
            except FecamError as error:
                raise SpecError(f"the network {spec.label!r} cannot be trained: {error}") from error
            names = [training.data.label_names[label] for label in learner.classes]
            notes = {"learner": learner.describe()}
            network: Any = learner.feature_network()
            save_encoder(file, network, learner.recipe.preprocessing, names, notes)
    yield file


def _key(learner: Learner) -> str:
    """Return a hash of what determines the network: some learners train on after the epochs."""
    return fingerprint_of([json.dumps(learner.describe(), sort_keys=True)])
