"""What every request passes: its host, the size of its body, its origin if it changes something, and the headers of
every answer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from urllib.parse import parse_qsl, urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.errors import ValidationError, shown

MAX_FORM = 64 << 10  # bytes of a form's body
MAX_FIELDS = 2000
BODY_SECONDS = 15.0  # for a whole body: a client that sends a byte now and then is cut off
POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'; img-src 'self'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class Guard:
    """Wraps the application. Bodies are read here, up to a limit and within a time, before a page sees the request."""

    def __init__(self, app: Starlette, *, hosts: Collection[str] = (), max_body: int = MAX_FORM) -> None:
        self.app, self._hosts, self._max_body = app, frozenset(hosts), max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._refuse(scope)
        if refusal is None and scope["method"] not in SAFE_METHODS:
            try:
                body = await asyncio.wait_for(read_body(receive, self._max_body), BODY_SECONDS)
            except TimeoutError:
                body, refusal = b"", PlainTextResponse("the body did not arrive in time\n", 408, CLOSE)
            if body is None:
                refusal = too_large(self._max_body)
            receive = replay(body or b"", receive)
        app: ASGIApp = self.app if refusal is None else refusal
        await app(scope, receive, add_headers(scope, send))

    def _refuse(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        host = (urlsplit(f"//{headers.get('host', '')}").hostname or "").lower()
        if self._hosts and host not in self._hosts:
            return PlainTextResponse("this server does not have that name\n", 421)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._max_body:
            return too_large(self._max_body)
        return None


CLOSE = {"Connection": "close"}


def too_large(limit: int) -> PlainTextResponse:
    """Returns the answer to a body above the limit."""
    return PlainTextResponse(f"the body is larger than {limit:,} bytes\n", 413, CLOSE)


async def read_body(receive: Receive, limit: int) -> bytes | None:
    """Reads a body, or returns None as soon as it is larger than the limit."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > limit:
            return None
        if not message.get("more_body"):
            return bytes(body)


def replay(body: bytes, receive: Receive) -> Receive:
    """Returns a `receive` that gives a body that was read already."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def add_headers(scope: Scope, send: Send) -> Send:
    """Returns a `send` that adds the headers of every answer, and the cookie of a session that began with it."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
            if cookie := scope.get("state", {}).get("set_cookie"):
                headers.append("Set-Cookie", cookie)
        await send(message)

    return with_headers


async def read_form(request: Request) -> dict[str, str]:
    """Reads the fields of a form; of a field that is given twice, the last."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/x-www-form-urlencoded":
        raise ValidationError(f"form: {shown(kind)} is not application/x-www-form-urlencoded", field="form")
    try:
        fields = parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise ValidationError(f"form: it is not UTF-8, or has more than {MAX_FIELDS} fields", field="form") from None
    return dict(fields)


def is_same_origin(request: Request) -> bool:
    """Returns whether a browser sent the request from a page of this origin. Browsers say so in Sec-Fetch-Site; older
    ones send only Origin, which is compared with the host of the request."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    return origin_matches(request)


def origin_matches(request: HTTPConnection) -> bool:
    """Returns whether the header Origin names the host of the request."""
    origin = urlsplit(request.headers.get("origin", ""))
    return bool(origin.netloc) and origin.netloc == request.headers.get("host")
