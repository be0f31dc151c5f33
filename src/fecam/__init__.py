"""A classifier that learns new classes one after another, without keeping data or forgetting."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fecam.classifier import FeCAMClassifier
    from fecam.model import Model as open
    from fecam.model_file import load

__all__ = ["FeCAMClassifier", "load", "open"]
__version__ = "0.1.0"

_HOMES = {
    "FeCAMClassifier": ("fecam.classifier", "FeCAMClassifier"),
    "load": ("fecam.model_file", "load"),
    "open": ("fecam.model", "Model"),
}


def __getattr__(name: str) -> Any:
    # Loaded when asked for: the command line answers --help, and Ctrl-C, before scikit-learn is in.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    value = globals()[name] = getattr(import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
