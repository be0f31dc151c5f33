"""Data sets: public ones by name, folders of images, and tables."""

from fecam.data.catalogue import available, load
from fecam.data.dataset import Dataset

__all__ = ["Dataset", "available", "load"]
