"""What of a file has changed, block by block: a lesson touches few, however long the file is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

BLOCK = 64 * 1024
"""Bytes of a block: sixteen pages of SQLite, a four-thousandth part of which is its digest."""


def digests_of(path: Path) -> list[bytes]:
    """A digest a block, in order."""
    return [hashlib.blake2b(block, digest_size=16).digest() for block in _blocks(path)]


def blocks_at(path: Path, places: Sequence[int]) -> dict[int, bytes]:
    """Some blocks of a file by their places."""
    found = {}
    with path.open("rb") as file:
        for place in places:
            file.seek(place * BLOCK)
            found[place] = file.read(BLOCK)
    return found


def changed_blocks(new: Sequence[bytes], old: Sequence[bytes]) -> list[int]:
    """Where the new file has a block that the old one has not.

    >>> changed_blocks([b"a", b"x", b"c", b"d"], [b"a", b"b", b"c"])
    [1, 3]
    """
    return [at for at, one in enumerate(new) if at >= len(old) or old[at] != one]


def apply_blocks(path: Path, blocks: Mapping[int, bytes], size: int) -> None:
    """Write blocks to their places, and make the file as long as it should be."""
    path.touch()
    with path.open("r+b") as file:
        for place, block in blocks.items():
            file.seek(place * BLOCK)
            file.write(block)
        file.truncate(size)


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            yield block
