"""Names of encoders, with the options that were chosen: ``efficientnet-lite0?resolution=128``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fecam.errors import EncoderError


def with_options(name: str, options: Mapping[str, Any]) -> str:
    """The name under which the same encoder is had again; options that are None are left out.

    >>> with_options("efficientnet-lite0", {"resolution": 128, "squash": None})
    'efficientnet-lite0?resolution=128'
    """
    chosen = [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in options.items()
        if value is not None
    ]
    return name + ("?" + "&".join(chosen) if chosen else "")


def split_options(name: str) -> tuple[str, dict[str, Any]]:
    """The name alone, and its options; values are numbers, true, false, lists or text.

    >>> split_options("hf:folder?pooling=mean&half=true")
    ('hf:folder', {'pooling': 'mean', 'half': True})
    """
    name, _, text = name.partition("?")
    options: dict[str, Any] = {}
    for pair in filter(None, text.split("&")):
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise EncoderError(
                f"the encoder {name!r} with {pair!r}: options look like "
                "efficientnet-lite0?resolution=128"
            )
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
    return name, options
