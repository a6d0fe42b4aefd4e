"""Sessions of browsers: a signed cookie, and a token that every form carries."""

from __future__ import annotations

import hmac
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import orjson
from starlette.requests import HTTPConnection

from penstock.errors import ValidationError

COOKIE = "penstock_session"
MAX_AGE = 12 * 3600  # seconds; a browser then has to log in again
MIN_SECRET = 16  # bytes


@dataclass(frozen=True, slots=True)
class Session:
    """A browser. `name` and `level` are set if it has logged in here; an `access` function decides otherwise."""

    id: str
    since: float
    name: str = ""
    level: str = ""


class Signer:
    """Signs what is given to a browser and comes back: sessions, the tokens of forms, and plans."""

    def __init__(self, secret: bytes | None = None) -> None:
        if secret is not None and len(secret) < MIN_SECRET:
            raise ValidationError(f"secret: {len(secret)} bytes are less than {MIN_SECRET}", field="secret")
        self._secret = secret or secrets.token_bytes(32)

    def sign(self, purpose: str, value: Mapping[str, Any]) -> str:
        """Returns the value as a text that only this signer can make."""
        raw = urlsafe_b64encode(orjson.dumps(value)).decode().rstrip("=")
        return f"{raw}.{self._mark(purpose, raw)}"

    def read(self, purpose: str, text: str) -> dict[str, Any] | None:
        """Returns the value of a signed text, or None if it was not made by `sign` for the same purpose."""
        raw, _, mark = text.partition(".")
        if not text.isascii() or not hmac.compare_digest(mark, self._mark(purpose, raw)):
            return None
        found: dict[str, Any] = orjson.loads(urlsafe_b64decode(raw + "=" * (-len(raw) % 4)))
        return found

    def form_token(self, session: Session) -> str:
        """Returns the token that the forms of a session carry."""
        return self._mark("form", session.id)

    def is_form_token(self, session: Session, given: str) -> bool:
        """Returns whether a form carried the token of its session."""
        return given.isascii() and hmac.compare_digest(given, self.form_token(session))

    def _mark(self, purpose: str, text: str) -> str:
        return hmac.new(self._secret, f"{purpose}:{text}".encode(), sha256).hexdigest()


def new_session(name: str = "", level: str = "") -> Session:
    """Begins a session."""
    return Session(secrets.token_urlsafe(18), time.time(), name, level)


def read_session(signer: Signer, request: HTTPConnection) -> Session | None:
    """Returns the session of a request, if its cookie is ours and not too old."""
    found = signer.read("session", request.cookies.get(COOKIE, ""))
    if found is None or not 0 <= time.time() - found["since"] < MAX_AGE:
        return None
    return Session(**found)


def make_cookie(signer: Signer, session: Session, request: HTTPConnection) -> str:
    """Returns the header that sets the cookie of a session."""
    value = signer.sign(
        "session", {"id": session.id, "since": session.since, "name": session.name, "level": session.level}
    )
    path = request.scope.get("root_path") or "/"
    secure = "; Secure" if request.url.scheme in ("https", "wss") else ""
    return f"{COOKIE}={value}; Path={path}; Max-Age={MAX_AGE}; HttpOnly; SameSite=Strict{secure}"
