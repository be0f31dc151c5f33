"""Collections of other programs: LanceDB, Qdrant, and data sets of Hugging Face.

An address is the name of the program, a folder and the name of a table in it. Each reader returns
a table of Arrow, whose columns mean what those of a ``.parquet`` file mean.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fecam.data._files import listed
from fecam.data.dataset import Dataset
from fecam.data.table import dataset_of
from fecam.data.table_columns import Options, Rows
from fecam.data.table_parquet import rows_of_arrow
from fecam.errors import DatasetError, needs_extra

EMBEDDING = "embedding"
"""The column of vectors that have no name, and of LanceDB's usual column ``vector``."""
_PAGE = 1000
"""Points of Qdrant per request."""


def load_collection(
    address: str,
    *,
    label: str | None = None,
    text: str | None = None,
    image: str | None = None,
    features: str | Sequence[str] | None = None,
    split: str | None = None,
    domain: str | None = None,
    as_label: str | None = None,
    name: str | None = None,
) -> Dataset:
    """Return a collection as a data set.

    ``lancedb:FOLDER/TABLE``, ``qdrant:FOLDER/COLLECTION``, ``qdrant:http://HOST:6333/COLLECTION``
    (with the key in the environment variable ``QDRANT_API_KEY``), or ``huggingface:FOLDER``, which
    ``datasets.Dataset.save_to_disk`` has written. The options name columns, as for `load_table`;
    vectors without a name are the column ``embedding``, and payloads of Qdrant are columns.
    """
    program, _, place = address.partition(":")
    given = Options(label, text, image, features, split, domain, as_label is None)
    rows = READERS[program](address, place, given)
    return dataset_of(address, rows, name or place.rstrip("/").rpartition("/")[2], as_label)


def _lancedb(address: str, place: str, given: Options) -> Rows:
    with needs_extra(f"reading {address}", "collections"):
        import lancedb
    folder, table_name = _folder_and_name(address, place)
    database = lancedb.connect(folder)
    names = list(database.list_tables().tables)
    if table_name not in names:
        raise _no_table(address, names)
    table = database.open_table(table_name)
    schema, renamed = table.schema, {}
    if "vector" in schema.names and EMBEDDING not in schema.names:
        renamed = {EMBEDDING: "vector"}
        schema = _renamed(schema, "vector", EMBEDDING)

    def read(columns: list[str]) -> Any:
        found = table.to_arrow().select([renamed.get(column, column) for column in columns])
        return found.rename_columns(columns)

    return rows_of_arrow(address, schema, given, read)


def _qdrant(address: str, place: str, given: Options) -> Rows:
    with needs_extra(f"reading {address}", "collections"):
        import pyarrow as pa
        import qdrant_client
    folder, collection = _folder_and_name(address, place)
    try:
        if "://" in folder:
            key = os.environ.get("QDRANT_API_KEY")
            client = qdrant_client.QdrantClient(url=folder, api_key=key)
        else:
            client = qdrant_client.QdrantClient(path=folder)
    except RuntimeError as error:  # the folder is in use
        raise DatasetError(f"{address} cannot be opened: {error}") from None
    try:
        names = [found.name for found in client.get_collections().collections]
        if collection not in names:
            raise _no_table(address, names)
        points, offset = [], None
        while True:
            page, offset = client.scroll(
                collection, limit=_PAGE, offset=offset, with_vectors=True, with_payload=True
            )
            points += page
            if offset is None:
                break
    except qdrant_client.http.exceptions.ResponseHandlingException as error:
        raise DatasetError(
            f"{address} cannot be read: {error}. Remedy: check the address"
        ) from None
    finally:
        client.close()
    if not points:
        raise DatasetError(f"{address} has no points. Remedy: one point per item")
    vectors = [p.vector if isinstance(p.vector, dict) else {EMBEDDING: p.vector} for p in points]
    payloads = [point.payload or {} for point in points]
    columns: dict[str, list[Any]] = {}
    for records in (payloads, vectors):
        for column in dict.fromkeys(key for record in records for key in record):
            columns[column] = [record.get(column) for record in records]
    try:
        table = pa.table(columns)
    except pa.ArrowException as error:
        raise DatasetError(
            f"{address}: the payloads of one name differ in type ({error}). Remedy: correct them"
        ) from None
    return rows_of_arrow(address, table.schema, given, table.select)


def _huggingface(address: str, place: str, given: Options) -> Rows:
    with needs_extra(f"reading {address}", "collections"):
        import datasets
        import pyarrow as pa
    folder = _existing(address, place)
    try:
        loaded = datasets.load_from_disk(str(folder))
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"{address} cannot be read: {error}. Remedy: give a folder that "
            "Dataset.save_to_disk has written"
        ) from None
    parts = loaded if isinstance(loaded, dict) else {"": loaded}
    tables = []
    for split, part in parts.items():
        table = part.with_format("arrow")[:]
        tables.append(
            table.append_column("split", pa.array([split] * len(part))) if split else table
        )
    table = pa.concat_tables(tables, promote_options="default")
    kinds = next(iter(parts.values())).features
    contents: list[bytes] = []
    for column, kind in kinds.items():
        index = table.column_names.index(column)
        if isinstance(kind, datasets.ClassLabel):
            names = [kind.int2str(i) if i is not None else "" for i in table[column].to_pylist()]
            table = table.set_column(index, column, pa.array(names))
        elif isinstance(kind, datasets.Image) and not contents:
            contents = [_image_bytes(address, value) for value in table[column].to_pylist()]
            places = [str(i) for i in range(len(contents))]  # stand for the images below
            table = table.set_column(index, column, pa.array(places))
            if given.text is given.image is given.features is None:
                given = Options(**{**vars(given), "image": column})
    rows = rows_of_arrow(address, table.schema, given, table.select)
    if rows.kind == "images" and contents:
        rows.items = [contents[int(item)] for item in rows.items]
    return rows


READERS: dict[str, Callable[[str, str, Options], Rows]] = {
    "lancedb": _lancedb,
    "qdrant": _qdrant,
    "huggingface": _huggingface,
}
"""The reader of each program, by the first word of an address."""


def _image_bytes(address: str, value: Any) -> bytes:
    content, path = value["bytes"], value["path"]
    if content is not None:
        return bytes(content)
    try:
        return Path(path).read_bytes()
    except (OSError, TypeError) as error:
        raise DatasetError(f"{address}: the image {path} cannot be read: {error}") from None


def _folder_and_name(address: str, place: str) -> tuple[str, str]:
    folder, slash, name = place.rstrip("/").rpartition("/")
    if not slash or not name:
        raise DatasetError(
            f"{address!r} names no table. Remedy: the folder, a slash and the name of the table"
        )
    return folder if "://" in folder else str(_existing(address, folder)), name


def _existing(address: str, folder: str) -> Path:
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise DatasetError(f"{address}: there is no folder {path}. Remedy: check the path")
    return path


def _no_table(address: str, names: Sequence[str]) -> DatasetError:
    return DatasetError(f"{address}: there is no such table. Tables: {listed(names) or 'none'}")


def _renamed(schema: Any, old: str, new: str) -> Any:
    index = schema.get_field_index(old)
    return schema.set(index, schema.field(index).with_name(new))
