"""Data sets: what they hold, where they come from."""

from fecam.data.catalogue import available, load
from fecam.data.dataset import Dataset

__all__ = ["Dataset", "available", "load"]
