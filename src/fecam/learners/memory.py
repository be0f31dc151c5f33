"""What a learner needs besides the data of the current task, in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from fecam.heads.memory import state_nbytes

if TYPE_CHECKING:
    from fecam.learners.learner import Learner


def bytes_by_kind(learner: Learner) -> dict[str, int]:
    """Return the bytes of networks, statistics of the head, and what the method keeps."""
    modules = {"network": learner.network, "classifier": learner.classifier}
    sizes = {kind: _nbytes(module.state_dict()) for kind, module in modules.items()}
    if learner.needs_old_network:
        sizes["old network"] = sizes["network"] + sizes["classifier"]
    if learner.head is not None:
        sizes["statistics"] = state_nbytes(learner.head)
    for kind, tensors in learner.kept.items():
        sizes[kind] = sizes.get(kind, 0) + _nbytes(tensors)
    return sizes


def _nbytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
