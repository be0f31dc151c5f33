"""The state in a checkpoint, and the differences between two runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fecam.errors import TrainingError
from fecam.training.records import EpochRecord


def read_state(path: Path, metadata: Mapping[str, str]) -> tuple[dict[str, Any], list[EpochRecord]]:
    """Return the settings of the run that wrote a checkpoint, and its records."""
    try:
        state = json.loads(metadata["state"])
        identity = dict(state["identity"])
        records = [EpochRecord(**{**values, "restored": True}) for values in state["records"]]
        if [record.epoch for record in records] != list(range(1, len(records) + 1)):
            raise ValueError("its epochs are not in order")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise TrainingError(
            f"{path} does not describe its run ({error!r}). Delete it to start again."
        ) from None
    return identity, records


def different_settings(saved: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    """Yield a description of each setting that differs."""
    for name in dict.fromkeys([*current, *saved]):
        theirs, ours = (str(values.get(name, "none")) for values in (saved, current))
        if saved.get(name) != current.get(name) or (name in saved) != (name in current):
            yield f"{name} ({theirs[:60]} in the file, {ours[:60]} now)"
