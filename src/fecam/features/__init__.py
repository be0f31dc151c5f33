"""Features of a data set, extracted once and cached."""

from fecam.features.extraction import Progress, extract

__all__ = ["Progress", "extract"]
