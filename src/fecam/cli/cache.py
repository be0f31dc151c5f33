"""`fecam cache`: list, limit and clear the cache of features."""

import time
from typing import Annotated

import typer
from rich.filesize import decimal as format_bytes
from typer import Argument

from fecam.cli.help import Command
from fecam.cli.output import (
    AsJson,
    parse_bytes,
    print_note,
    show_json,
    show_result,
    show_table,
)
from fecam.features.store import FeatureStore
from fecam.validation import counted

app = typer.Typer(invoke_without_command=True)


@app.callback()
def show(context: typer.Context, as_json: AsJson = False) -> None:
    """List, limit or clear the cache of features.

    Without a subcommand, list the entries, the most recently used first.

    Example: `fecam cache`
    """
    if context.invoked_subcommand is not None:
        return
    store = FeatureStore()
    entries = store.entries()
    total = sum(entry.bytes for entry in entries)
    if as_json:
        document = {
            "folder": str(store.folder),
            "bytes": total,
            "limit": store.limit,
            "unfinished": [str(path) for path in store.unfinished()],
            "entries": [
                {"key": entry.key, "bytes": entry.bytes, "used": entry.used, **entry.about}
                for entry in entries
            ],
        }
        return show_json(document)
    if entries:
        rows = [
            [
                entry.key,
                entry.about.get("dataset", "?"),
                entry.about.get("encoder", "?"),
                f"{entry.about.get('items', 0):,}",
                format_bytes(entry.bytes),
                time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used)),
            ]
            for entry in entries
        ]
        show_table(["key", "data set", "encoder", "items", "size", "last used"], rows)
    print_note(
        f"{counted(len(entries), 'feature set')}, {format_bytes(total)} (limit "
        f"{format_bytes(store.limit)}), in {store.folder}"
    )
    if unfinished := store.unfinished():
        print_note(f"{len(unfinished)} unfinished: run the same command again to resume")


@app.command(cls=Command)
def limit(
    size: Annotated[str, Argument(help="Maximum size, such as 500MB or 20GB.")],
    as_json: AsJson = False,
) -> None:
    """Set the maximum size of the cache; the least recently used entries are removed first.

    Example: `fecam cache limit 5GB`
    """
    store = FeatureStore()
    store.limit = parse_bytes(size)
    removed = store.shrink()
    show_result(
        {"limit": store.limit, "removed": [entry.key for entry in removed]},
        f"limit: {format_bytes(store.limit)}; removed: {counted(len(removed), 'feature set')}",
        as_json,
    )


@app.command(cls=Command)
def remove(
    key: Annotated[str, Argument(help="Key of the entry, as listed by `fecam cache`.")],
    as_json: AsJson = False,
) -> None:
    """Remove one entry from the cache.

    Example: `fecam cache remove 0f3a...`
    """
    FeatureStore().remove(key)
    show_result({"removed": [key]}, f"removed: {key}", as_json)


@app.command(cls=Command)
def clear(as_json: AsJson = False) -> None:
    """Remove all entries from the cache.

    Example: `fecam cache clear`
    """
    count = FeatureStore().clear()
    show_result({"removed": count}, f"removed: {counted(count, 'feature set')}", as_json)
