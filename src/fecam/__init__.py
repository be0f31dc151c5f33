"""Teach a frozen encoder new classes, one after another, without keeping data or forgetting."""

from fecam.classifier import FeCAMClassifier

__all__ = ["FeCAMClassifier"]
__version__ = "0.1.0"
