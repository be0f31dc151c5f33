"""Features of a data set, extracted once and cached."""

from fecam.features.extraction import Progress, extract
from fecam.features.store import FeatureStore

__all__ = ["FeatureStore", "Progress", "extract"]
