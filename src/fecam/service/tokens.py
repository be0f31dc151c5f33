"""Who may ask and who may teach: tokens, kept only as their hashes.

A token is 32 random bytes, so it cannot be guessed from its SHA-256, and a slow hash, which makes
guessing of passwords dear, would only make every request slower.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import tempfile
import threading
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from fecam.errors import SettingsError

SCOPES = ("read", "teach")
"""Each may what those before it may."""
_NAME = re.compile(r"[\w.@-]{1,64}")
_PREFIX = "fecam_"


@dataclass(frozen=True)
class Token:
    """What is kept of a token."""

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
    ...     tokens.scope_of(text), tokens.scope_of("guess")
    ('read', None)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._tokens: list[Token] = []
        self._lock = threading.Lock()

    def add(self, name: str, scope: str) -> str:
        """Make a token, which is shown this once."""
        if not _NAME.fullmatch(name):
            raise SettingsError(f"a token's name {name[:80]!r} may have letters, digits and ._@-")
        if scope not in SCOPES:
            raise SettingsError(f"scope {scope!r} is none of {', '.join(SCOPES)}.")
        tokens = self.tokens() if self.path.exists() else []
        if any(one.name == name for one in tokens):
            raise SettingsError(
                f"there is a token {name!r} already. Choose another name, or revoke it first."
            )
        text = _PREFIX + secrets.token_urlsafe(32)
        made = datetime.now(UTC).isoformat(timespec="seconds")
        self._write([*tokens, Token(name, scope, _hash(text), made)])
        return text

    def revoke(self, name: str) -> None:
        """A token that is good no more; services that run see it at once."""
        tokens = self.tokens()
        left = [one for one in tokens if one.name != name]
        if len(left) == len(tokens):
            names = ", ".join(one.name for one in tokens) or "none"
            raise SettingsError(f"there is no token {name!r}. There are: {names}.")
        self._write(left)

    def tokens(self) -> list[Token]:
        """All tokens, without what cannot be shown."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            tokens = [Token(**one) for one in found["tokens"]]
        except FileNotFoundError:
            raise SettingsError(
                f"{self.path} does not exist; `fecam token add NAME --scope teach --tokens "
                f"{self.path}` makes it"
            ) from None
        except OSError as error:
            raise SettingsError(
                f"{self.path} cannot be read: {error.strerror}. "
                "It must belong to the user who serves."
            ) from None
        except (ValueError, TypeError, KeyError):
            raise SettingsError(
                f"{self.path} is no file of tokens. Make it anew with `fecam token add`."
            ) from None
        if any(one.scope not in SCOPES for one in tokens):
            raise SettingsError(f"{self.path} has a scope that is none of {', '.join(SCOPES)}.")
        return tokens

    def scope_of(self, text: str) -> str | None:
        """What the bearer of this token may do; None if it is none of ours."""
        given = _hash(text)
        scope = None
        for one in self._current():  # all of them, so that time does not tell which it was
            if hmac.compare_digest(one.sha256, given):
                scope = one.scope
        return scope

    def _current(self) -> list[Token]:
        """The tokens, read again when the file has changed. Without a file nobody may anything."""
        with self._lock:
            try:
                found = os.stat(self.path)
            except OSError:
                self._seen, self._tokens = None, []
                return []
            seen = (found.st_mtime_ns, found.st_size, found.st_ino)
            if seen != self._seen:
                try:
                    self._tokens = self.tokens()
                except SettingsError:
                    self._tokens = []
                self._seen = seen
            return self._tokens

    def _write(self, tokens: list[Token]) -> None:
        text = json.dumps({"tokens": [asdict(one) for one in tokens]}, indent=2) + "\n"
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        # mkstemp makes files that only their owner can read.
        handle, name = tempfile.mkstemp(prefix=".tokens-", dir=folder)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
