"""What a checkpoint says, and how the run it is of differs from another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fecam.errors import TrainingError
from fecam.training.records import EpochRecord


def read_state(path: Path, metadata: Mapping[str, str]) -> tuple[dict[str, Any], list[EpochRecord]]:
    """What a checkpoint says of the run it is of: what decides its result, and its records."""
    try:
        state = json.loads(metadata["state"])
        identity = dict(state["identity"])
        records = [EpochRecord(**{**each, "restored": True}) for each in state["records"]]
        if [record.epoch for record in records] != list(range(1, len(records) + 1)):
            raise ValueError("its epochs are not in order")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise TrainingError(
            f"{path} does not say what run it is of ({error!r}). Delete it to start again."
        ) from None
    return identity, records


def different_layers(
    theirs: Mapping[str, Tensor], weights: Mapping[str, Tensor], momenta: Mapping[str, Tensor]
) -> Iterator[str]:
    """The first layer that is not the same, in words."""
    ours = {**weights, **momenta}
    for name in (*weights, *(theirs.keys() - weights.keys())):
        there, here = (
            f"{_kind(tensors[name])}" if name in tensors else "none" for tensors in (theirs, ours)
        )
        if there != here:
            yield f"the layer {name} ({there} there, {here} here)"
            return


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def different_values(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    """Everything named that is not the same, in words."""
    for name in dict.fromkeys([*ours, *theirs]):
        if name not in ours or name not in theirs or ours[name] != theirs[name]:
            there, here = (_short(values.get(name, "none")) for values in (theirs, ours))
            yield f"{name} ({there} there, {here} here)"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
