"""The state of a head as arrays and JSON: heads keep immutable dataclasses of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fecam.classifier import FeCAMClassifier
from fecam.errors import TrainingError
from fecam.heads.head import Head

Arrays = dict[str, NDArray[Any]]
_PACKAGE = "fecam."


def pack_head(head: Any) -> tuple[Arrays, Any]:
    """Return what a head stores as arrays by name, and the JSON value that refers to them."""
    if head is None or not head.__sklearn_is_fitted__():
        return {}, None
    arrays: Arrays = {}
    return arrays, {"width": int(head.n_features_in_), "state": _pack(head.state_, arrays)}


def unpack_head(head: Any, arrays: Arrays, packed: Any) -> None:
    """Restore what a head stored."""
    if packed is None or head is None:
        return
    try:
        state, width = _unpack(packed["state"], arrays), int(packed["width"])
    except (KeyError, TypeError, ValueError, AttributeError, ImportError) as error:
        raise TrainingError(
            f"the state of the head cannot be read ({error!r}). Delete the file to start again."
        ) from None
    if isinstance(head, FeCAMClassifier):
        head.set_state(state)
        return
    head.n_features_in_ = width
    head._settings = {name: getattr(head, name) for name in head._fixed}
    head._set_state(state)


def can_save(head: Any) -> bool:
    """Return whether the state of a head can be written to a file."""
    return head is None or isinstance(head, (FeCAMClassifier, Head))


def _pack(value: Any, arrays: Arrays) -> Any:
    """Return a value as JSON, and add its arrays."""
    if isinstance(value, np.ndarray):
        if not value.size:
            return {"empty": [value.dtype.str, list(value.shape)]}
        name = str(len(arrays))
        arrays[name] = np.array(value)  # a view may be read-only
        return {"array": name}
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        values = {x.name: _pack(getattr(value, x.name), arrays) for x in fields(value) if x.init}
        return {"class": f"{kind.__module__}:{kind.__qualname__}", "fields": values}
    if isinstance(value, Mapping):
        return {"mapping": [[_pack(k, arrays), _pack(v, arrays)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [_pack(item, arrays) for item in value]}
    return value.item() if isinstance(value, np.generic) else value


def _unpack(value: Any, arrays: Arrays) -> Any:
    """Return the value that `_pack` packed; only dataclasses of this package are created."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = [(key, item) for key, item in value.items() if key != "fields"]
    if kind == "array":
        return arrays[content]
    if kind == "empty":
        return np.empty(content[1], content[0])
    if kind == "mapping":
        return {_unpack(k, arrays): _unpack(v, arrays) for k, v in content}
    if kind in ("list", "tuple"):
        items = [_unpack(item, arrays) for item in content]
        return tuple(items) if kind == "tuple" else items
    module, _, name = content.partition(":")
    if not module.startswith(_PACKAGE):
        raise ValueError(f"{content} is not of this package")
    created = getattr(import_module(module), name)
    if not (isinstance(created, type) and is_dataclass(created)):
        raise ValueError(f"{content} is not a dataclass")
    return created(**{key: _unpack(item, arrays) for key, item in value["fields"].items()})
