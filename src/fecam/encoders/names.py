"""Names of encoders with options, as in ``efficientnet-lite0?resolution=128``."""

import json
from collections.abc import Mapping
from typing import Any

from fecam.errors import EncoderError


def with_options(name: str, options: Mapping[str, Any]) -> str:
    """Return a name that contains the options which are not None.

    >>> with_options("efficientnet-lite0", {"resolution": 128, "squash": None})
    'efficientnet-lite0?resolution=128'
    """
    pairs = [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in options.items()
        if value is not None
    ]
    return name + ("?" + "&".join(pairs) if pairs else "")


def split_options(name: str) -> tuple[str, dict[str, Any]]:
    """Return the name alone and its options, whose values are JSON or plain text.

    >>> split_options("hf:folder?pooling=mean&half=true")
    ('hf:folder', {'pooling': 'mean', 'half': True})
    """
    name, _, text = name.partition("?")
    options: dict[str, Any] = {}
    for pair in filter(None, text.split("&")):
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise EncoderError(
                f"the option {pair!r} of the encoder {name!r} must be key=value, as in "
                "efficientnet-lite0?resolution=128."
            )
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
    return name, options
