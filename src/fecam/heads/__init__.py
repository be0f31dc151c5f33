"""The other classifiers on features, with the same contract as FeCAM."""

from fecam.heads.catalogue import Entry, available, make
from fecam.heads.memory import state_nbytes

__all__ = ["Entry", "available", "make", "state_nbytes"]
