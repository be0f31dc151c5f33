"""The other classifiers on features, with the same contract as FeCAM."""

from fecam.heads.catalogue import Entry, available, make
from fecam.heads.holdings import bytes_kept

__all__ = ["Entry", "available", "bytes_kept", "make"]
