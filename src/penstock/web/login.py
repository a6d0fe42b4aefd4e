"""How visitors of a standalone server prove who they are: a token, a name and a password, or a header of a proxy."""

from __future__ import annotations

import hmac
import stat
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlencode

from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from penstock.errors import ConfigError, ValidationError
from penstock.web.access import Level, Visitor, check_level
from penstock.web.guard import is_same_origin, read_form
from penstock.web.sessions import Signer, make_cookie, new_session, read_session

if TYPE_CHECKING:
    from penstock.web.site import Site

NOBODY = Visitor("none")
MIN_SECRET = 8  # characters of a password or token


@dataclass(frozen=True, slots=True)
class User:
    """A line of the file of users."""

    name: str
    level: Level
    secret: str = ""

    @property
    def visitor(self) -> Visitor:
        """The visitor that this user is."""
        return Visitor(self.level, self.name)


class Login(Protocol):
    """A way to log in."""

    async def enter(self, signer: Signer, request: Request) -> Response | None:
        """Answers a request that logs in; None: it does not."""

    def challenge(self, request: Request, site: Site) -> Response:
        """Answers a visitor that has not logged in."""

    def visitor(self, request: HTTPConnection) -> Visitor:
        """Returns the visitor of a request."""

    def bearer(self, request: HTTPConnection) -> Visitor:
        """Returns the program that sends a request to the API with a bearer token."""


def read_users(path: Path) -> list[User]:
    """Reads a file with a line `name:level:secret` for each user. Like a passfile, only its owner may read it."""
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"users: others may read {path}", hint=f"chmod 600 {path}")
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"users: {path} cannot be read: {error.strerror}") from error
    numbered = [(n, line) for n, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    return [parse_user(line, f"line {n} of {path}") for n, line in numbered]


def parse_user(line: str, where: str) -> User:
    """Reads one line of the file of users."""
    name, _, rest = line.strip().partition(":")
    level, _, secret = rest.partition(":")
    if not name or not level:
        raise ValidationError(f"users: {where} is not name:level:secret", field="users")
    if secret and len(secret) < MIN_SECRET:
        raise ValidationError(f"users: the secret in {where} is shorter than {MIN_SECRET} characters", field="users")
    return User(name, check_level(level, f"users: the level in {where}"), secret)


def find_user(users: Sequence[User], secret: str, name: str | None = None) -> User | None:
    """Returns the user with this secret, in a time that does not depend on how much of a secret is right."""
    given = sha256(secret.encode()).digest()
    found = None
    for one in users:
        right = hmac.compare_digest(sha256(one.secret.encode()).digest(), given)
        if right and one.secret and name in (None, one.name):
            found = one
    return found


def find_bearer(users: Sequence[User], request: HTTPConnection) -> Visitor:
    """Returns the user whose secret the header Authorization carries as a bearer token."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    user = find_user(users, token.strip()) if scheme.lower() == "bearer" else None
    return NOBODY if user is None else user.visitor


class TokenLogin:
    """A secret, given once: in the address that the server prints at its start, or in a form. Then a session."""

    def __init__(self, users: Sequence[User]) -> None:
        if not any(one.secret for one in users):
            raise ConfigError("users: no user has a secret", hint="Each line is name:level:secret.")
        self._users = [*users]

    async def enter(self, signer: Signer, request: Request) -> Response | None:
        """Begins a session for a token in the address, and takes the token out of the address."""
        if request.method == "GET" and "token" in request.query_params:
            user = find_user(self._users, request.query_params["token"])
            if user is None:
                return PlainTextResponse("this token is not valid\n", 403)
            rest = urlencode([one for one in request.query_params.multi_items() if one[0] != "token"])
            return begin_session(signer, request, user, request.url.path + (f"?{rest}" if rest else ""))
        return None

    async def submit(self, site: Site, request: Request) -> Response:
        """Begins a session for a token in a form."""
        form = await read_form(request)
        user = find_user(self._users, form.get("token", ""))
        if user is None or not is_same_origin(request):
            return self._show_form(request, site, 403, "This token is not valid.")
        return begin_session(site.signer, request, user, request.scope.get("root_path", "") + "/")

    def challenge(self, request: Request, site: Site) -> Response:
        """Shows the form for a token."""
        return self._show_form(request, site, 401, "")

    def visitor(self, request: HTTPConnection) -> Visitor:
        """Returns the visitor of a session."""
        session = read_session(request.app.state.site.signer, request)
        if session is None or not session.level:
            return NOBODY
        return Visitor(check_level(session.level, "session"), session.name)

    def bearer(self, request: HTTPConnection) -> Visitor:
        """Returns the user of a bearer token."""
        return find_bearer(self._users, request)

    def _show_form(self, request: Request, site: Site, status: int, said: str) -> Response:
        root = str(request.scope.get("root_path", ""))

        def url(screen_name: str, /, **parameters: str) -> str:
            return root + str(request.app.url_path_for(screen_name, **parameters))

        body = site.templates.render(
            "login.html",
            {"url": url, "static": lambda name: url("static", name=site.assets.name(name)), "said": said},
        )
        return HTMLResponse(body, status)


class BasicLogin:
    """A name and a password with every request (RFC 7617). Put TLS before it."""

    def __init__(self, users: Sequence[User]) -> None:
        if not any(one.secret for one in users):
            raise ConfigError("users: no user has a password", hint="Each line is name:level:password.")
        self._users = [*users]

    async def enter(self, signer: Signer, request: Request) -> Response | None:  # noqa: ARG002
        """Does nothing: every request carries its password."""
        return None

    def challenge(self, request: Request, site: Site) -> Response:  # noqa: ARG002
        """Asks the browser for a name and a password."""
        headers = {"WWW-Authenticate": 'Basic realm="Penstock", charset="UTF-8"'}
        return PlainTextResponse("log in\n", 401, headers)

    def visitor(self, request: HTTPConnection) -> Visitor:
        """Returns the user of a name and a password."""
        scheme, _, raw = request.headers.get("authorization", "").partition(" ")
        try:
            name, _, password = b64decode(raw, validate=True).decode().partition(":")
        except ValueError:
            return NOBODY
        user = find_user(self._users, password, name) if scheme.lower() == "basic" else None
        return NOBODY if user is None else user.visitor

    def bearer(self, request: HTTPConnection) -> Visitor:
        """Returns the user of a bearer token."""
        return find_bearer(self._users, request)


class ProxyLogin:
    """A header that a proxy sets after it has checked the user. Requests must not reach the server past the proxy."""

    def __init__(self, header: str, users: Sequence[User], default: Level) -> None:
        self._header, self._default = header, default
        self._users = {one.name: one for one in users}
        self._secrets = [*users]

    async def enter(self, signer: Signer, request: Request) -> Response | None:  # noqa: ARG002
        """Does nothing: the proxy logs in."""
        return None

    def challenge(self, request: Request, site: Site) -> Response:  # noqa: ARG002
        """Refuses a visitor that the proxy does not name, or that has no level."""
        return PlainTextResponse(f"the header {self._header} names no user with access\n", 403)

    def visitor(self, request: HTTPConnection) -> Visitor:
        """Returns the user that the header names."""
        names = request.headers.getlist(self._header)
        if len(names) != 1 or not names[0]:
            return NOBODY
        user = self._users.get(names[0])
        return Visitor(self._default, names[0]) if user is None else user.visitor

    def bearer(self, request: HTTPConnection) -> Visitor:
        """Returns the user of a bearer token."""
        return find_bearer(self._secrets, request)


def begin_session(signer: Signer, request: Request, user: User, target: str) -> Response:
    """Begins a session and redirects to a page."""
    answer = RedirectResponse(target, 303)
    answer.headers["Set-Cookie"] = make_cookie(signer, new_session(user.name, user.level), request)
    return answer
