"""The ``.fecam`` file: a model in one SQLite database.

It holds text, numbers and little-endian arrays, so reading it never runs code. A file may be
hostile: its header is checked before SQLite opens it, its schema must match exactly, and no array
is read before its length was checked. Each class has checksums, and one more covers all classes and
settings. Every change is a transaction that writes only what it changes: see `file.ModelFile`.
"""

from fecam.model_file.records import EncoderRecord
from fecam.model_file.save_load import load, save

__all__ = ["EncoderRecord", "load", "save"]
