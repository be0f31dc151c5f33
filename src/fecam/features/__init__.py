"""Features of a data set, extracted once and kept."""

from fecam.features.extraction import (
    Encoded,
    Progress,
    Report,
    encode_dataset,
    encode_readable,
    extract,
)
from fecam.features.store import FeatureStore

__all__ = [
    "Encoded",
    "FeatureStore",
    "Progress",
    "Report",
    "encode_dataset",
    "encode_readable",
    "extract",
]
