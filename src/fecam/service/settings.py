"""Settings and limits of a service."""

import ipaddress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from fecam.data.images import MAX_PIXELS
from fecam.errors import SettingsError
from fecam.settings import CHOICES
from fecam.validation import check_choice, check_int


@dataclass(frozen=True)
class Limits:
    """Limits per request, and of the queues.

    Parameters
    ----------
    max_bytes : int
        Bytes of a request body.
    max_items : int
        Images, texts or rows in one request.
    max_pixels : int
        Pixels of one image, read from its header; larger images are not decoded.
    seconds : float
        Seconds for a request to arrive, and then for its response. A change that has started is
        finished.
    queue : int
        Requests that may wait for the encoder, and changes that may wait for the writer.

    Examples
    --------
    >>> Limits(max_items=10).max_items
    10
    """

    max_bytes: int = 32_000_000
    max_items: int = 1024
    max_pixels: int = 25_000_000
    seconds: float = 30.0
    queue: int = 64

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise SettingsError(f"{name}={value!r} must be above zero.")
        if self.max_pixels > MAX_PIXELS:
            raise SettingsError(f"max_pixels={self.max_pixels} must be at most {MAX_PIXELS}.")


@dataclass(frozen=True)
class ServiceSettings:
    """Settings of a service.

    Parameters
    ----------
    model : Path
        The model file; the first change creates it.
    host, port : str, int
        Address to listen on; port 0 is any free port.
    workers : int
        Processes that share the file.
    search : str or None
        Overrides the ``search`` of the model: see `FeCAMClassifier`.
    tokens : Path or None
        Token file; required unless the host is a loopback address.
    limits : Limits
        Limits per request.
    encoder, device : str or None
        Encoder of a new model, and its device.
    cors : tuple of str
        Allowed origins of other pages, such as https://birds.example.org.
    docs : bool
        Whether to serve API documentation at /docs.
    log_json, access_log : bool
        Whether to log as JSON, and whether to log each request.

    Examples
    --------
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
    search: str | None = None
    tokens: Path | None = None
    limits: Limits = field(default_factory=Limits)
    encoder: str | None = None
    device: str | None = None
    cors: tuple[str, ...] = ()
    docs: bool = False
    log_json: bool = False
    access_log: bool = False

    def __post_init__(self) -> None:
        if not self.is_local and self.tokens is None:
            raise SettingsError(
                f"host={self.host!r} is reachable from other machines, so tokens are required. "
                "Create one with `fecam token add NAME --scope teach --tokens FILE` and serve with "
                "--tokens FILE, or listen on 127.0.0.1."
            )
        check_int("port", self.port, 0, 65535)
        check_int("workers", self.workers, 1, 256)
        if self.search is not None:
            check_choice("search", self.search, CHOICES["search"])

    @property
    def is_local(self) -> bool:
        """Whether the host is a loopback address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def encode_settings(settings: ServiceSettings) -> str:
    """Return settings as JSON, for another process.

    >>> settings = ServiceSettings(Path("birds.fecam"), cors=("https://a.org",))
    >>> decode_settings(encode_settings(settings)) == settings
    True
    """
    return msgspec.json.encode(settings, enc_hook=str).decode()


def decode_settings(text: str) -> ServiceSettings:
    """Return the settings that `encode_settings` wrote."""
    return msgspec.json.decode(text, type=ServiceSettings, dec_hook=lambda kind, value: kind(value))
