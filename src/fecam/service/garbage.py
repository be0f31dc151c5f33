"""What a process holds until it ends is not looked at again and again for garbage."""

from __future__ import annotations

import gc


def spare() -> None:
    """Leave out all that there is now when garbage is looked for.

    That is modules and what they define: to go through them took a sixth of the time of a service
    under load, and each time all requests waited. What is let go of is still freed at once; only
    what refers to itself in a circle would stay, and models do not.
    """
    gc.collect()
    gc.freeze()
