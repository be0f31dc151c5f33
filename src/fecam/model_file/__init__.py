"""The ``.fecam`` file: all that a model was taught, in one SQLite database.

It holds text, numbers and little-endian arrays, so reading one never runs code of its author. A
file is taken for hostile all the same: its header is looked at before SQLite sees it, its schema
must be ours to the letter, and no array is read before its length is known to be right. Each class
carries checksums, and one more binds the classes and the settings together.

Teaching, forgetting and merging are transactions that write only what they touch: see `ModelFile`.
"""

from fecam.model_file.file import ModelFile
from fecam.model_file.integrity import check, compact, file_info
from fecam.model_file.records import EncoderRecord, FileInfo
from fecam.model_file.save_load import load, save

__all__ = [
    "EncoderRecord",
    "FileInfo",
    "ModelFile",
    "check",
    "compact",
    "file_info",
    "load",
    "save",
]
