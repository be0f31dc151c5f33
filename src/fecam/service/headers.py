"""Response headers: the request ID, and security headers for browsers."""

import random
import re

RawHeaders = list[tuple[bytes, bytes]]

_ID = re.compile(rb"[\w.-]{1,64}")
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    b"media-src 'self' blob:; connect-src 'self'; font-src 'self'; manifest-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ALWAYS: RawHeaders = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(self), microphone=(), geolocation=()"),
]
_API: RawHeaders = [
    *_ALWAYS,
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]
_PAGE: RawHeaders = [
    *_ALWAYS,
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),  # revalidated each time
    (b"content-security-policy", _POLICY),
]


def headers_for(path: str) -> RawHeaders:
    """Return the security headers of a path."""
    return _PAGE if path == "/" or path.startswith(("/page", "/docs")) else _API


def request_id(given: bytes | None) -> bytes:
    """Return the ID of a request: the one of the caller if it is valid.

    >>> request_id(b"abc-1"), len(request_id(b"<script>"))
    (b'abc-1', 16)
    """
    if given is not None and _ID.fullmatch(given):
        return given
    # An ID is no secret, so the fast generator will do.
    return b"%016x" % random.getrandbits(64)
