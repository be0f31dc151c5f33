"""Classifiers on features for comparison with FeCAM, with the same interface."""

from fecam.heads.catalogue import Entry, available, make
from fecam.heads.memory import state_nbytes

__all__ = ["Entry", "available", "make", "state_nbytes"]
