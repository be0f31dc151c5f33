"""How a service is set up: where it listens, what it serves, and what it will not take."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from fecam.data.images import MAX_PIXELS
from fecam.errors import SettingsError
from fecam.settings import CHOICES


@dataclass(frozen=True)
class Limits:
    """What one request may ask for, and how many may wait."""

    max_bytes: int = 32_000_000
    """Of a request's body."""
    max_items: int = 1024
    """Images, texts or rows in one request."""
    max_pixels: int = 25_000_000
    """Of one image, told by its header: nothing is decoded of a larger one."""
    seconds: float = 30.0
    """How long a request may take to arrive, and then to wait and be answered. A lesson that has
    begun is finished, however long it takes."""
    queue: int = 64
    """How many requests may wait for the encoder, and how many lessons for the writer."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise SettingsError(f"{name}={value!r} must be above zero.")
        if self.max_pixels > MAX_PIXELS:
            raise SettingsError(f"max_pixels={self.max_pixels} must be at most {MAX_PIXELS}.")


@dataclass(frozen=True)
class ServiceSettings:
    """All that a service has to know before it starts.

    >>> ServiceSettings(Path("birds.fecam")).is_local
    True
    >>> ServiceSettings(Path("birds.fecam"), host="0.0.0.0")
    Traceback (most recent call last):
    ...
    fecam.errors.SettingsError: host '0.0.0.0' can be reached by others, so tokens are needed. \
Make one, `fecam token add NAME --scope teach --tokens FILE`, and serve with --tokens FILE; or \
listen on 127.0.0.1.
    """

    model: Path
    host: str = "127.0.0.1"
    port: int = 8765
    workers: int = 1
    predict_workers: int | None = None
    """Processes that judge for each worker; 0: it does so itself; None: as there are cores."""
    search: str | None = None
    """How the nearest class is found, whatever the model says: see `FeCAMClassifier`."""
    tokens: Path | None = None
    limits: Limits = field(default_factory=Limits)
    encoder: str | None = None
    device: str | None = None
    cors: tuple[str, ...] = ()
    """Origins of pages elsewhere that may ask, such as https://birds.example.org."""
    docs: bool = False
    """Whether there is a page about the API at /docs. It loads its scripts from elsewhere."""
    log_json: bool = False
    access_log: bool = False

    def __post_init__(self) -> None:
        if not self.is_local and self.tokens is None:
            raise SettingsError(
                f"host {self.host!r} can be reached by others, so tokens are needed. Make one, "
                "`fecam token add NAME --scope teach --tokens FILE`, and serve with --tokens FILE; "
                "or listen on 127.0.0.1."
            )
        if not 0 <= self.port < 65536:
            raise SettingsError(f"port={self.port} must lie between 0 and 65535.")
        if not 1 <= self.workers <= 256:
            raise SettingsError(f"workers={self.workers} must lie between 1 and 256.")
        if self.predict_workers is not None and not 0 <= self.predict_workers <= 64:
            raise SettingsError(f"predict_workers={self.predict_workers} must be from 0 to 64.")
        if self.search is not None and self.search not in CHOICES["search"]:
            known = ", ".join(map(str, CHOICES["search"]))
            raise SettingsError(f"search={self.search!r} is none of {known}.")

    @property
    def is_local(self) -> bool:
        """Whether only programs of this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def to_json(self) -> str:
        """All of it as a text, to hand it to another process."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` wrote.

        >>> one = ServiceSettings(Path("birds.fecam"), cors=("https://a.org",))
        >>> ServiceSettings.from_json(one.to_json()) == one
        True
        """
        found = json.loads(text)
        tokens = found.pop("tokens")
        return cls(
            model=Path(found.pop("model")),
            tokens=None if tokens is None else Path(tokens),
            limits=Limits(**found.pop("limits")),
            cors=tuple(found.pop("cors")),
            **found,
        )
