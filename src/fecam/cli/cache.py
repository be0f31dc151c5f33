"""`fecam cache`: what is kept, how much, and how to be rid of it."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.filesize import decimal as format_bytes

from fecam.cli.output import (
    AsJson,
    counted,
    parse_bytes,
    print_note,
    show_json,
    show_table,
)
from fecam.features import FeatureStore

app = typer.Typer(invoke_without_command=True)


@app.callback()
def show(context: typer.Context, as_json: AsJson = False) -> None:
    """Look at the cache of features, limit it, empty it.

    Without a command it lists what is there, the most recently used first.

    Example: `fecam cache`
    """
    if context.invoked_subcommand is not None:
        return
    store = FeatureStore()
    entries = store.entries()
    total = sum(one.bytes for one in entries)
    if as_json:
        show_json(
            {
                "folder": str(store.folder),
                "bytes": total,
                "limit": store.limit,
                "unfinished": [str(one) for one in store.unfinished()],
                "entries": [
                    {"key": one.key, "bytes": one.bytes, "used": one.used, **one.about}
                    for one in entries
                ],
            }
        )
        return
    if entries:
        show_table(
            ["key", "data set", "encoder", "items", "size", "used"],
            [
                [
                    one.key,
                    one.about.get("dataset", "?"),
                    one.about.get("encoder", "?"),
                    f"{one.about.get('items', 0):,}",
                    format_bytes(one.bytes),
                    time.strftime("%Y-%m-%d %H:%M", time.localtime(one.used)),
                ]
                for one in entries
            ],
        )
    print_note(
        f"{counted(len(entries), 'set')}, {format_bytes(total)} of at most "
        f"{format_bytes(store.limit)}, in {store.folder}"
    )
    if unfinished := store.unfinished():
        print_note(f"{len(unfinished)} unfinished: run the same command again to go on")


@app.command()
def limit(
    size: Annotated[str, typer.Argument(help="500MB, 20GB, ...")], as_json: AsJson = False
) -> None:
    """Set how much the cache may take; what was not used for longest goes first.

    Example: `fecam cache limit 5GB`
    """
    store = FeatureStore()
    store.limit = parse_bytes(size)
    removed = store.shrink()
    if as_json:
        show_json({"limit": store.limit, "removed": [one.key for one in removed]})
    else:
        print_note(f"at most {format_bytes(store.limit)}; removed: {counted(len(removed), 'set')}")


@app.command()
def remove(
    key: Annotated[str, typer.Argument(help="As `fecam cache` lists them.")],
    as_json: AsJson = False,
) -> None:
    """Remove one set of features.

    Example: `fecam cache remove 0f3a...`
    """
    FeatureStore().remove(key)
    if as_json:
        show_json({"removed": [key]})
    else:
        print_note(f"removed {key}")


@app.command()
def clear(as_json: AsJson = False) -> None:
    """Remove everything from the cache.

    Example: `fecam cache clear`
    """
    count = FeatureStore().clear()
    if as_json:
        show_json({"removed": count})
    else:
        print_note(f"removed: {counted(count, 'set')}")
