"""Access checks: host, origin and token of a request.

A service on loopback without tokens is open to all programs of the machine. Two checks reject
foreign pages in a browser: the Host must be this machine (DNS rebinding), the Origin the service.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

from fecam.api import OPERATIONS
from fecam.service.problems import Problem
from fecam.service.settings import ServiceSettings
from fecam.service.tokens import TokenFile

Headers = Mapping[bytes, bytes]

AUTHOR = "fecam.author"
"""Key of an ASGI scope: the name of the token of a request, or an empty string."""

_LOCAL = {"127.0.0.1", "localhost", "[::1]"}
_LIVENESS = {"/healthz", "/readyz"}
_OPEN = {"/", "/openapi.json", "/docs", *_LIVENESS}
_OPEN_FOLDERS = ("/page/", "/docs/")
_OWN_PAGE = {b"same-origin", b"none"}
_CHANGES = {(op.method, op.path) for op in OPERATIONS if op.tag == "teach"}


class Access:
    """The access rules of one service."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = settings
        self._tokens = None if settings.tokens is None else TokenFile(settings.tokens)
        host = settings.host
        self._hosts = {*_LOCAL, f"[{host}]" if ":" in host else host}

    def check(self, method: str, path: str, headers: Headers) -> str:
        """Return the name of the token, if any; raise `Problem` if a request is not allowed."""
        if self._tokens is None and path not in _LIVENESS:
            self._check_host(headers)
        if path in _OPEN or path.startswith(_OPEN_FOLDERS):
            return ""
        self._check_origin(headers)
        if self._tokens is None:
            return ""
        return self._check_token(self._tokens, method, path, headers)

    def _check_host(self, headers: Headers) -> None:
        if _name(headers.get(b"host", b"").decode("latin-1")) not in self._hosts:
            raise Problem(
                403,
                "foreign_host",
                "this service accepts only the host names of its own machine. Use "
                f"http://127.0.0.1:{self._settings.port}, or serve with --tokens.",
            )

    def _check_origin(self, headers: Headers) -> None:
        origin = headers.get(b"origin")
        if origin is not None:
            text = origin.decode("latin-1")
            if text in self._settings.cors:
                return
            if urlsplit(text).netloc.lower() == headers.get(b"host", b"").decode("latin-1").lower():
                return
        elif headers.get(b"sec-fetch-site", b"none") in _OWN_PAGE:
            return
        raise Problem(
            403,
            "foreign_page",
            "this service rejects pages of other origins. Serve with --cors ORIGIN to allow one.",
        )

    def _check_token(self, tokens: TokenFile, method: str, path: str, headers: Headers) -> str:
        kind, _, text = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        token = tokens.find(text.strip()) if kind.lower() == "bearer" else None
        if token is None:
            raise Problem(
                401,
                "token",
                "a token is required: Authorization: Bearer TOKEN. `fecam token add` creates one.",
                WWW_Authenticate='Bearer realm="fecam"',
            )
        is_change = method in ("DELETE", "PATCH") or (method, path.rstrip("/")) in _CHANGES
        if is_change and token.scope != "teach":
            raise Problem(
                403,
                "scope",
                "this token has scope read. To teach, forget and undo, use one of scope teach.",
                WWW_Authenticate='Bearer realm="fecam", error="insufficient_scope", scope="teach"',
            )
        return token.name


def _name(host: str) -> str:
    """Return a host without its port.

    >>> _name("LocalHost:8765"), _name("[::1]:80"), _name("example.org")
    ('localhost', '[::1]', 'example.org')
    """
    end = host.rfind("]") if host.startswith("[") else -1
    colon = host.rfind(":")
    return (host[:colon] if colon > end else host).lower()
