"""The state of a learner between two tasks as a safetensors file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fecam.encoders.tensor_files import layer_difference, read_tensors, write_tensors
from fecam.errors import TrainingError
from fecam.files import PathLike
from fecam.learners.head_state import pack_head, unpack_head
from fecam.training.base_training import new_network
from fecam.training.checkpoints import different_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fecam.learners.learner import Learner

_FORM = "fecam learner 1"


def write_state(learner: Learner, path: PathLike, notes: Mapping[str, Any]) -> None:
    """Write the state of a learner, and the notes."""
    kept = {
        f"kept.{kind}.{name}": tensor
        for kind, tensors in learner.kept.items()
        for name, tensor in tensors.items()
    }
    arrays, head = pack_head(learner.head)
    description = {
        "learner": learner.describe(),
        "classes": list(learner.classes),
        "tasks": learner.n_tasks,
        "outputs": len(learner.classifier.weight),
        "kept": {kind: list(tensors) for kind, tensors in learner.kept.items()},
        "head": head,
        "notes": dict(notes),
    }
    tensors = {
        **_weights(learner),
        **kept,
        **{f"head.{name}": torch.from_numpy(array) for name, array in arrays.items()},
    }
    write_tensors(path, tensors, {"state": json.dumps(description)}, _FORM, TrainingError)


def read_state(learner: Learner, path: PathLike) -> dict[str, Any]:
    """Restore the state of a learner, and return the notes; raise `TrainingError`."""
    tensors, metadata = read_tensors(path, _FORM, TrainingError)
    try:
        description = json.loads(metadata["state"])
        before, notes = dict(description["learner"]), dict(description["notes"])
        classes = tuple(int(label) for label in description["classes"])
        n_tasks, outputs = int(description["tasks"]), int(description["outputs"])
        kept = {
            kind: {name: tensors[f"kept.{kind}.{name}"] for name in names}
            for kind, names in description["kept"].items()
        }
        packed = description["head"]
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise TrainingError(
            f"{path} does not describe a learner ({error!r}). Delete it to start again."
        ) from None
    now = json.loads(json.dumps(learner.describe()))
    if different := [*different_settings(before, now)]:
        raise TrainingError(
            f"{path} is the state of another learner. Differences: {'; '.join(different)}. Use "
            "another folder, or delete the file to start again."
        )
    learner.network, learner.classifier = new_network(
        lambda: learner.make_network(n_tasks), learner.plan_for(0), outputs
    )
    weights = _weights(learner)
    own = {name: tensor for name, tensor in tensors.items() if name in weights}
    if layer := layer_difference(own, weights, {}):
        raise TrainingError(
            f"{path} is the state of another network: different is {layer}. Use another folder, "
            "or delete the file to start again."
        )
    with torch.no_grad():
        for name, tensor in own.items():
            weights[name].copy_(tensor)
    arrays = {
        name.removeprefix("head."): tensor.numpy()
        for name, tensor in tensors.items()
        if name.startswith("head.")
    }
    unpack_head(learner.head, arrays, packed)
    learner.classes, learner.n_tasks, learner.kept = classes, n_tasks, kept
    return notes


def _weights(learner: Learner) -> dict[str, Tensor]:
    modules = {"network": learner.network, "classifier": learner.classifier}
    return {
        f"{prefix}.{name}": tensor
        for prefix, module in modules.items()
        for name, tensor in module.state_dict().items()
    }
