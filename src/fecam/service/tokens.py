"""Access tokens, stored as SHA-256 hashes.

A token is 32 random bytes, so its hash cannot be reversed; a slow password hash is not needed.
"""

import hashlib
import hmac
import json
import os
import re
import secrets
import threading
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from fecam.errors import SettingsError
from fecam.files import atomic_file

SCOPES = ("read", "teach")
"""Each scope includes those before it."""
_NAME = re.compile(r"[\w.@-]{1,64}")
_PREFIX = "fecam_"


@dataclass(frozen=True)
class Token:
    """A stored token."""

    name: str
    scope: str
    sha256: str
    made: str


class TokenFile:
    """The tokens of a service, in a file that only its owner can read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tokens = TokenFile(Path(folder) / "tokens.json")
    ...     text = tokens.add("camera", "read")
    ...     tokens.find(text).scope, tokens.find("guess")
    ('read', None)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._signature: tuple[int, int, int] | None = None
        self._tokens: list[Token] = []
        self._lock = threading.Lock()

    def add(self, name: str, scope: str) -> str:
        """Create a token and return it; it is not stored in clear."""
        if not _NAME.fullmatch(name):
            raise SettingsError(f"token name {name[:80]!r} must be 1 to 64 letters, digits or ._@-")
        if scope not in SCOPES:
            raise SettingsError(f"scope={scope!r} must be one of {', '.join(SCOPES)}.")
        tokens = self.tokens() if self.path.exists() else []
        if any(token.name == name for token in tokens):
            raise SettingsError(
                f"token {name!r} already exists. Choose another name, or revoke it first."
            )
        text = _PREFIX + secrets.token_urlsafe(32)
        made = datetime.now(UTC).isoformat(timespec="seconds")
        self._write([*tokens, Token(name, scope, _hash(text), made)])
        return text

    def revoke(self, name: str) -> None:
        """Remove a token; running services notice it with the next request."""
        tokens = self.tokens()
        remaining = [token for token in tokens if token.name != name]
        if len(remaining) == len(tokens):
            names = ", ".join(token.name for token in tokens) or "none"
            raise SettingsError(f"there is no token {name!r}. Existing tokens: {names}.")
        self._write(remaining)

    def tokens(self) -> list[Token]:
        """Return all stored tokens."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            tokens = [Token(**fields) for fields in content["tokens"]]
        except FileNotFoundError:
            raise SettingsError(
                f"{self.path} does not exist. `fecam token add NAME --scope teach --tokens "
                f"{self.path}` creates it."
            ) from None
        except OSError as error:
            raise SettingsError(
                f"{self.path} cannot be read: {error.strerror}. "
                "It must belong to the user that runs the service."
            ) from None
        except (ValueError, TypeError, KeyError):
            raise SettingsError(
                f"{self.path} is not a token file. Create one with `fecam token add`."
            ) from None
        if any(token.scope not in SCOPES for token in tokens):
            raise SettingsError(f"a scope in {self.path} is not one of {', '.join(SCOPES)}.")
        return tokens

    def find(self, text: str) -> Token | None:
        """Return the stored token of a text; None if it is unknown."""
        given, found = _hash(text), None
        for token in self._current():  # no early exit: the time must not depend on the token
            if hmac.compare_digest(token.sha256, given):
                found = token
        return found

    def _current(self) -> list[Token]:
        """Return the tokens, read again if the file has changed; none if it is missing."""
        with self._lock:
            try:
                stat = os.stat(self.path)
            except OSError:
                self._signature, self._tokens = None, []
                return []
            signature = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if signature != self._signature:
                try:
                    self._tokens = self.tokens()
                except SettingsError:
                    self._tokens = []
                self._signature = signature
            return self._tokens

    def _write(self, tokens: list[Token]) -> None:
        text = json.dumps({"tokens": [asdict(token) for token in tokens]}, indent=2) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(self.path, mode=0o600) as file:
            file.write(text.encode())


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
