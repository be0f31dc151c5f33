"""A folder of Parquet files, on a disk or at an address of Arrow; files are written atomically."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

_COUNTS = b"fecam"


@dataclass(frozen=True)
class OutputFolder:
    """The folder of predictions, which every machine can write to."""

    address: str

    def __post_init__(self) -> None:
        if "://" not in self.address:  # a worker has another working directory
            object.__setattr__(self, "address", str(Path(self.address).resolve()))

    def _open(self) -> Any:
        """Return Arrow's file system of the folder; paths are relative to it."""
        from pyarrow import fs

        return fs.SubTreeFileSystem(*reversed(fs.FileSystem.from_uri(self.address)))

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if it does not exist."""
        try:
            with self._open().open_input_stream(name) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file in one step: readers see all of it or nothing."""
        folder = self._open()
        folder.base_fs.create_dir(folder.base_path, recursive=True)
        partial = f".{token_hex(8)}.tmp"
        with folder.open_output_stream(partial) as file:
            file.write(data)
        folder.move(partial, name)

    def write_table(self, name: str, table: Any, items: int, unreadable: int) -> None:
        """Write a table as Parquet, with its counts as metadata."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        metadata = {_COUNTS: f"{items} {unreadable}".encode()}
        sink = pa.BufferOutputStream()
        pq.write_table(table.replace_schema_metadata(metadata), sink)
        self.write(name, sink.getvalue().to_pybytes())

    def counts(self, name: str) -> tuple[int, int] | None:
        """Return the counts of a table; None if it does not exist or is incomplete."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with self._open().open_input_file(name) as file:
                metadata = pq.read_schema(file).metadata or {}
            items, unreadable = map(int, metadata[_COUNTS].split())
        except (FileNotFoundError, pa.ArrowException, KeyError, ValueError):
            return None
        return items, unreadable

    def tables(self) -> list[str]:
        """Return the names of all tables."""
        from pyarrow import fs

        files = self._open().get_file_info(fs.FileSelector("", allow_not_found=True))
        names = [file.base_name for file in files]
        return [name for name in names if name.startswith("part-") and name.endswith(".parquet")]

    def remove(self, names: Iterable[str]) -> None:
        """Remove tables."""
        for name in names:
            self._open().delete_file(name)
