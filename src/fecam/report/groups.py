"""HTML page of groups of unknown items, with thumbnails of images."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from fecam.data.images import thumbnail
from fecam.errors import ItemError
from fecam.report.layout import Section, page, section
from fecam.report.text import markup
from fecam.validation import counted

MAX_SHOWN = 24
"""Items shown per group, the most typical ones."""
MAX_THUMBNAILS = 1000
"""Thumbnails on a page: each has a few kilobytes."""


def groups_page(document: Mapping[str, Any], title: str) -> str:
    """Return the page of the groups that `fecam discover` found."""
    groups, single = document["groups"], document["single"]
    per_group = max(min(MAX_SHOWN, MAX_THUMBNAILS // max(len(groups), 1)), 1)
    sections = [_group_section(group, document["kind"], per_group) for group in groups]
    if single:
        text = _items(single, document["kind"], MAX_SHOWN)
        sections.append(section("single", f"In no group: {counted(len(single), 'item')}", text))
    grouped = sum(group["size"] for group in groups)
    lead = (
        f"{counted(document['items'], 'item')}: {document['known']:,} fit a class, {grouped:,} are "
        f"in {counted(len(groups), 'group')}, {len(single):,} fit neither."
    )
    return page(title, lead, sections)


def _group_section(group: Mapping[str, Any], kind: str, n_shown: int) -> Section:
    facts = (
        f"Median novelty {group['novelty']:.1f}, stability {group['stability']:.2f}, nearest class "
        f"{group['nearest']}. The most typical items come first."
    )
    title = f"Group {group['number']}: {counted(group['size'], 'item')}"
    content = f"<p>{markup(facts)}</p>{_items(group['items'], kind, n_shown)}"
    return section(f"group-{group['number']}", title, content)


def _items(names: list[str], kind: str, n_shown: int) -> str:
    """Return the first items: thumbnails of images, or a list of names."""
    if kind == "images":
        shown = "\n".join(map(image_element, names[:n_shown]))
    else:
        shown = "<ul>" + "".join(f"<li>{markup(name)}</li>" for name in names[:n_shown]) + "</ul>"
    more = len(names) - n_shown
    return shown + (f"<p>... and {counted(more, 'item')} more</p>" if more > 0 else "")


def image_element(name: str) -> str:
    """Return an image file as an element of a page, or its name if it cannot be read."""
    try:
        content = b64encode(thumbnail(name)).decode("ascii")
    except ItemError:
        return f"<span>{markup(name)}</span>"
    text = markup(name)
    return f'<img src="data:image/png;base64,{content}" alt="{text}" title="{text}">'
