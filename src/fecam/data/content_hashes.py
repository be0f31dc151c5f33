"""64-bit content hashes, which identify an item without storing it."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ContentHashes = NDArray[np.uint64]


def content_hashes(items: Sequence[Any] | NDArray[Any], kind: str = "images") -> ContentHashes:
    """Return the first 64 bits of the SHA-256 of each item.

    Hashed are the bytes of image files, the characters of texts, and features in single precision.
    """
    if kind == "features" and isinstance(items, np.ndarray):
        items = np.ascontiguousarray(items, "<f4")  # once: the conversion of a row is slower
    content = getattr(items, "content", items.__getitem__)
    return np.array([_hash(content(i), kind) for i in range(len(items))], np.uint64)


def _hash(item: Any, kind: str) -> int:
    digest = hashlib.sha256(kind.encode())
    if kind == "features":
        digest.update(np.ascontiguousarray(_plain(item), "<f4").tobytes())
    elif isinstance(item, (str, os.PathLike)) and kind == "images":
        _update_with_file(digest, Path(item))
    elif isinstance(item, str):
        digest.update(item.encode("utf-8", "surrogatepass"))
    elif isinstance(item, (bytes, bytearray, memoryview)):
        digest.update(item)
    else:
        array = np.ascontiguousarray(_plain(item))
        digest.update(f"{array.shape}{array.dtype.str}".encode())
        digest.update(array.tobytes())
    return int.from_bytes(digest.digest()[:8], "little")


def _plain(item: Any) -> Any:
    return item.detach().cpu().numpy() if hasattr(item, "detach") else np.asarray(item)


def _update_with_file(digest: Any, path: Path) -> None:
    """Hash the content of a file; the path of an unreadable one, which the decoder reports."""
    try:
        if not path.is_file():
            raise OSError
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    except OSError:
        digest.update(os.fsencode(path))
