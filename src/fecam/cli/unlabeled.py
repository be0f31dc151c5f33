"""Items without labels, with names and features, for commands that look at all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from typer import Argument

from fecam.cli.items import load_labeled
from fecam.cli.model import encoding_bar
from fecam.errors import InputError

if TYPE_CHECKING:
    from fecam.data import Dataset
    from fecam.model import Model

Paths = Annotated[
    list[str],
    Argument(
        metavar="PATH",
        help="Images, folders of images, tables of texts or features, .txt with one text per "
        "line, .npy with one row of features per item.",
    ),
]


UNLABELED = "unlabeled"
"""The label of items whose labels are not used."""


@dataclass(frozen=True, eq=False)
class ItemPool:
    """Items that can be read."""

    kind: str
    names: list[str]
    """Path, text, or the row of a table of features."""
    contents: list[Any]
    """What `Model.learn` takes: paths, texts or rows."""
    features: NDArray[Any]
    labels: list[str]
    """The labels that the items have, if they were read as labeled ones."""
    unreadable: list[str]


def read_pool(
    model: Model,
    paths: Sequence[str],
    option: list[str] | None,
    as_label: str | None = UNLABELED,
) -> ItemPool:
    """Return the items of paths; features are cached. Without ``as_label`` each has its own."""
    data = load_labeled(paths, as_label, None, False, option)
    pools = [_pool_of(model, dataset) for dataset in data]
    width = model.classifier.n_features_in_
    features = [pool.features for pool in pools if len(pool.names)]
    return ItemPool(
        pools[0].kind,
        [name for pool in pools for name in pool.names],
        [content for pool in pools for content in pool.contents],
        np.concatenate(features) if features else np.empty((0, width), np.float32),
        [label for pool in pools for label in pool.labels],
        [reason for pool in pools for reason in pool.unreadable],
    )


def _pool_of(model: Model, dataset: Dataset) -> ItemPool:
    content = getattr(dataset.items, "content", dataset.items.__getitem__)
    with encoding_bar(dataset.name, dataset.kind) as report:
        features, rows, unreadable = model.encode_readable(dataset, report=report)
    contents = [content(i) for i in rows]
    is_row = dataset.kind == "features"
    names = [
        f"{dataset.name} row {i + 1}" if is_row else _name(item, dataset.name, i)
        for i, item in zip(rows, contents, strict=True)
    ]
    labels = [dataset.label_names[dataset.labels[i]] for i in rows]
    return ItemPool(dataset.kind, names, contents, features, labels, unreadable)


def _name(item: Any, dataset: str, index: int) -> str:
    return str(item) if isinstance(item, (str, Path)) else f"{dataset} item {index + 1}"


def require_items(pool: ItemPool, paths: Sequence[str]) -> None:
    """Raise if no item can be read."""
    if not pool.names:
        reason = f": {pool.unreadable[0]}" if pool.unreadable else ""
        raise InputError(
            f"{', '.join(paths)} has no item that can be read{reason}. Remedy: give other files"
        )
