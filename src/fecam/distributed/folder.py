"""A folder of answers, on a disk or at an address that Arrow knows, with files in one piece."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

_COUNTS = b"fecam"


@dataclass(frozen=True)
class Folder:
    """Where answers are written: the same place for every machine."""

    address: str

    def __post_init__(self) -> None:
        if "://" not in self.address:  # a worker has another current folder
            object.__setattr__(self, "address", str(Path(self.address).resolve()))

    def _place(self) -> tuple[Any, str]:
        from pyarrow import fs

        if "://" in self.address:
            found: tuple[Any, str] = fs.FileSystem.from_uri(self.address)
            return found
        return fs.LocalFileSystem(), self.address

    def read(self, name: str) -> bytes | None:
        """What is in a file; None if it is not there."""
        system, root = self._place()
        try:
            with system.open_input_stream(f"{root}/{name}") as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file so that nobody ever sees half of it."""
        system, root = self._place()
        system.create_dir(root, recursive=True)
        aside = f"{root}/.{token_hex(8)}.tmp"
        with system.open_output_stream(aside) as file:
            file.write(data)
        system.move(aside, f"{root}/{name}")

    def write_table(self, name: str, table: Any, items: int, unreadable: int) -> None:
        """Write a table as Parquet, with the numbers of its items."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        about = {_COUNTS: f"{items} {unreadable}".encode()}
        sink = pa.BufferOutputStream()
        pq.write_table(table.replace_schema_metadata(about), sink)
        self.write(name, sink.getvalue().to_pybytes())

    def metadata(self, name: str) -> tuple[int, int] | None:
        """The numbers of a table that is there and whole; None if it is not."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        system, root = self._place()
        try:
            with system.open_input_file(f"{root}/{name}") as file:
                about = pq.read_schema(file).metadata or {}
            items, unreadable = map(int, about[_COUNTS].split())
        except (FileNotFoundError, pa.ArrowException, KeyError, ValueError):
            return None
        return items, unreadable

    def parts(self) -> list[str]:
        """The names of all tables."""
        from pyarrow import fs

        system, root = self._place()
        chosen = fs.FileSelector(root, allow_not_found=True)
        names = [one.base_name for one in system.get_file_info(chosen)]
        return [name for name in names if name.startswith("part-") and name.endswith(".parquet")]

    def remove(self, names: Iterable[str]) -> None:
        """Remove tables."""
        system, root = self._place()
        for name in names:
            system.delete_file(f"{root}/{name}")
