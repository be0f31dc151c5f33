"""Settings and limits of a service."""

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
    """Limits per request, and of the queues."""

    max_bytes: int = 32_000_000
    """Bytes of a request body."""
    max_items: int = 1024
    """Images, texts or rows in one request."""
    max_pixels: int = 25_000_000
    """Pixels of one image, read from its header; larger images are not decoded."""
    seconds: float = 30.0
    """Seconds for a request to arrive, and then for its response. A change that has started is
    finished."""
    queue: int = 64
    """Requests that may wait for the encoder, and changes that may wait for the writer."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise SettingsError(f"{name}={value!r} must be above zero.")
        if self.max_pixels > MAX_PIXELS:
            raise SettingsError(f"max_pixels={self.max_pixels} must be at most {MAX_PIXELS}.")


@dataclass(frozen=True)
class ServiceSettings:
    """Settings of a service.

    >>> ServiceSettings(Path("birds.fecam")).is_local
    True
    >>> ServiceSettings(Path("birds.fecam"), host="0.0.0.0")
    Traceback (most recent call last):
    ...
    fecam.errors.SettingsError: host='0.0.0.0' is reachable from other machines, so tokens are \
required. Create one with `fecam token add NAME --scope teach --tokens FILE` and serve with \
--tokens FILE, or listen on 127.0.0.1.
    """

    model: Path
    host: str = "127.0.0.1"
    port: int = 8765
    workers: int = 1
    predict_workers: int | None = None
    """Prediction workers per worker process; 0: none; None: 1 if a core is free, else 0."""
    search: str | None = None
    """Overrides the ``search`` of the model: see `FeCAMClassifier`."""
    tokens: Path | None = None
    limits: Limits = field(default_factory=Limits)
    encoder: str | None = None
    device: str | None = None
    cors: tuple[str, ...] = ()
    """Allowed origins of other pages, such as https://birds.example.org."""
    docs: bool = False
    """Whether to serve API documentation at /docs. It loads scripts from a CDN."""
    log_json: bool = False
    access_log: bool = False

    def __post_init__(self) -> None:
        if not self.is_local and self.tokens is None:
            raise SettingsError(
                f"host={self.host!r} is reachable from other machines, so tokens are required. "
                "Create one with `fecam token add NAME --scope teach --tokens FILE` and serve with "
                "--tokens FILE, or listen on 127.0.0.1."
            )
        if not 0 <= self.port < 65536:
            raise SettingsError(f"port={self.port} must be from 0 to 65535.")
        if not 1 <= self.workers <= 256:
            raise SettingsError(f"workers={self.workers} must be from 1 to 256.")
        if self.predict_workers is not None and not 0 <= self.predict_workers <= 64:
            raise SettingsError(f"predict_workers={self.predict_workers} must be from 0 to 64.")
        if self.search is not None and self.search not in CHOICES["search"]:
            choices = ", ".join(map(str, CHOICES["search"]))
            raise SettingsError(f"search={self.search!r} must be one of {choices}.")

    @property
    def is_local(self) -> bool:
        """Whether the host is a loopback address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def to_json(self) -> str:
        """Return the settings as JSON, for another process."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the settings that `to_json` wrote.

        >>> settings = ServiceSettings(Path("birds.fecam"), cors=("https://a.org",))
        >>> ServiceSettings.from_json(settings.to_json()) == settings
        True
        """
        values = json.loads(text)
        tokens = values.pop("tokens")
        return cls(
            model=Path(values.pop("model")),
            tokens=None if tokens is None else Path(tokens),
            limits=Limits(**values.pop("limits")),
            cors=tuple(values.pop("cors")),
            **values,
        )
