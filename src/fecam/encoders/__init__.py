"""Frozen encoders from images and texts to features."""

from fecam.encoders.callables import wrap
from fecam.encoders.catalogue import available, load
from fecam.encoders.encoder import Encoder

__all__ = ["Encoder", "available", "load", "wrap"]
