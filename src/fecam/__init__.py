"""Teach a frozen encoder new classes, one after another, without keeping data or forgetting."""

from fecam.classifier import FeCAMClassifier
from fecam.model_file import load

__all__ = ["FeCAMClassifier", "load"]
__version__ = "0.1.0"
