"""Features of a data set, extracted once and kept."""

from fecam.features.extraction import Progress, encode_readable, extract
from fecam.features.store import FeatureStore

__all__ = ["FeatureStore", "Progress", "encode_readable", "extract"]
