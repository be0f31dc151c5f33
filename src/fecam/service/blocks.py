"""Block digests of a file: a replica fetches only the blocks that a change touched."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

BLOCK_BYTES = 64 * 1024
"""Bytes per block: 16 SQLite pages. Its digest is 1/4096 of that."""


def block_digests(path: Path) -> list[bytes]:
    """Return the digest of each block."""
    with path.open("rb") as file:
        blocks = iter(lambda: file.read(BLOCK_BYTES), b"")
        return [hashlib.blake2b(block, digest_size=16).digest() for block in blocks]


def read_blocks(path: Path, indices: Sequence[int]) -> dict[int, bytes]:
    """Return blocks of a file by their index."""
    blocks = {}
    with path.open("rb") as file:
        for index in indices:
            file.seek(index * BLOCK_BYTES)
            blocks[index] = file.read(BLOCK_BYTES)
    return blocks


def changed_blocks(new: Sequence[bytes], old: Sequence[bytes]) -> list[int]:
    """Return the indices of new digests that are not in the old file at that index.

    >>> changed_blocks([b"a", b"x", b"c", b"d"], [b"a", b"b", b"c"])
    [1, 3]
    """
    return [i for i, digest in enumerate(new) if i >= len(old) or old[i] != digest]


def apply_blocks(path: Path, blocks: Mapping[int, bytes], size: int) -> None:
    """Write blocks at their indices and truncate the file to ``size`` bytes."""
    path.touch()
    with path.open("r+b") as file:
        for index, block in blocks.items():
            file.seek(index * BLOCK_BYTES)
            file.write(block)
        file.truncate(size)
