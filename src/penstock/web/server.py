"""Runs the dashboard by itself, with uvicorn."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.app import Penstock
from penstock.errors import ConfigError, Unavailable, ValidationError, shown
from penstock.web.access import Level, check_level, check_roles
from penstock.web.application import assemble, open_database
from penstock.web.live import Sampler
from penstock.web.login import BasicLogin, Login, ProxyLogin, TokenLogin, User, read_users
from penstock.web.redact import Hide

HEADER_SECONDS = 10.0  # for the head of a request: a client that sends a byte now and then is cut off
MAX_CONNECTIONS = 1000
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
AUTHS = ("basic", "token", "proxy")


@dataclass(frozen=True, slots=True)
class Options:
    """How a standalone dashboard is served."""

    host: str = "127.0.0.1"
    port: int = 8080
    auth: str | None = None
    users: Path | None = None
    level: Level = "reader"
    proxy_header: str = "X-Forwarded-User"
    root_path: str = ""
    hosts: Sequence[str] = ()
    hide: Hide | None = None
    secret: bytes | None = None


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for the head of each request."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._late = self.loop.call_later(HEADER_SECONDS, self._cut_off)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        waiting = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if waiting and self._late.cancelled():
            self._late = self.loop.call_later(HEADER_SECONDS, self._cut_off)
        elif not waiting:
            self._late.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        self._late.cancel()
        super().connection_lost(exc)

    def _cut_off(self) -> None:
        self.transport.close()


class DashboardServer(uvicorn.Server):
    """Ends the open streams before it waits for its requests to end."""

    def __init__(self, config: uvicorn.Config, sampler: Sampler) -> None:
        super().__init__(config)
        self._sampler = sampler

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if sig == signal.SIGTERM:  # uvicorn would raise it again after the shutdown, and the exit code would not be 0
            self._captured_signals.remove(sig)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._sampler.close()
        await super().shutdown(sockets)


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach a server on this address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def make_login(options: Options, token: str) -> Login:
    """Returns how visitors log in. Without --auth, only on loopback, the token is the way in."""
    if options.auth is None:
        if not is_loopback(options.host):
            raise ConfigError(
                f"web: {options.host} can be reached from other machines, and --auth is not given",
                hint="Choose --auth basic, token or proxy; or listen on 127.0.0.1.",
            )
        return TokenLogin([User("", options.level, token)])
    if options.auth not in AUTHS:
        raise ValidationError(f"auth: {shown(options.auth)} is not one of {', '.join(AUTHS)}", field="auth")
    users = [] if options.users is None else read_users(options.users)
    if options.auth == "proxy":
        return ProxyLogin(options.proxy_header, users, options.level)
    if options.users is None:
        raise ConfigError(
            f"users: --auth {options.auth} needs --users FILE", hint="Each line of the file is name:level:secret."
        )
    return BasicLogin(users) if options.auth == "basic" else TokenLogin(users)


def list_hosts(options: Options) -> list[str]:
    """Returns the names that a request may use for this server: a page of another site must not reach a server on
    loopback by a name of its own that leads there."""
    given = [name.lower() for name in options.hosts]
    return [*LOOPBACK_NAMES, options.host.lower(), *given] if given or is_loopback(options.host) else []


def open_socket(host: str, port: int) -> socket.socket:
    """Listens. Port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(1024)
    except OSError as error:
        found.close()
        said = f"web: cannot listen on {host}, port {port}: {error.strerror}"
        raise Unavailable(said, hint="Is it in use? Choose another one with --port.") from error
    return found


def serve(app: Penstock, options: Options, announce: Callable[[str], None]) -> None:
    """Serves the dashboard until SIGTERM or Ctrl-C. `announce` gets its address once it can be opened."""
    check_level(options.level, "level")
    token = secrets.token_urlsafe(24)
    login = make_login(options, token)
    asyncio.run(check_rights(app, options.level))
    listener = open_socket(options.host, options.port)
    application = assemble(app, login=login, hide=options.hide, secret=options.secret, hosts=list_hosts(options))
    config = uvicorn.Config(
        application,
        http=BoundedProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        root_path=options.root_path,
        proxy_headers=options.auth == "proxy",
        limit_concurrency=MAX_CONNECTIONS,
        h11_max_incomplete_event_size=32 << 10,
        timeout_graceful_shutdown=3,
    )
    announce(make_address(options, listener.getsockname()[1], token))
    with listener:
        DashboardServer(config, application.app.state.site.sampler).run(sockets=[listener])


def make_address(options: Options, port: int, token: str) -> str:
    """Returns the address to open, with the token if that is the way in."""
    host = f"[{options.host}]" if ":" in options.host else options.host
    query = f"?token={token}" if options.auth is None else ""
    return f"http://{host}:{port}{options.root_path}/{query}"


async def check_rights(app: Penstock, level: Level) -> None:
    """Checks before the start that the login may act as the roles that visitors get."""
    database = open_database(app)
    try:
        await check_roles(database, "reader")
        if level != "none":
            await check_roles(database, level)
    finally:
        await database.close()
