"""Serves metrics over HTTP, for Prometheus."""

from __future__ import annotations

import socket
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import ConfigError, ValidationError, shown
from penstock.prometheus_text import CONTENT_TYPE

PATH = "/metrics"
LOOPBACK = "127.0.0.1"
MAX_PORT = 65535
IDLE = 60.0  # seconds after which a connection without a request is closed; Prometheus keeps one open


class MetricsServer(ThreadingHTTPServer):
    """Answers GET /metrics with a text, by a thread per connection."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, where: str, text: Callable[[], str]) -> None:
        host, port = parse_address(where)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.text = text
        try:
            super().__init__((host, port), MetricsHandler)
        except OSError as error:
            raise ConfigError(
                f"listen: {shown(where)} cannot be listened on: {error.strerror or error}",
                hint="Another program may have this port: choose another one.",
            ) from error

    @property
    def url(self) -> str:
        """The address of the metrics."""
        host, port = self.server_address[:2]
        name = f"[{host!s}]" if self.address_family == socket.AF_INET6 else str(host)
        return f"http://{name}:{port}{PATH}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores a client that is gone before it has its answer."""


class MetricsHandler(BaseHTTPRequestHandler):
    """One connection."""

    server: MetricsServer
    protocol_version = "HTTP/1.1"
    server_version = "penstock"
    sys_version = ""
    timeout = IDLE

    def do_GET(self) -> None:
        """Answers with the metrics."""
        if urlsplit(self.path).path == PATH:
            self._answer(HTTPStatus.OK, CONTENT_TYPE, self.server.text())
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", f"not found: the metrics are at {PATH}\n")

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parameter has this name in http.server
        """Logs no request: there are many, and each is the same."""


def parse_address(where: str) -> tuple[str, int]:
    """Reads `9187` or `HOST:9187`. Without a host, only programs of this machine can connect."""
    host, _, port = where.strip().rpartition(":")
    if not (port.isascii() and port.isdecimal()) or int(port) > MAX_PORT:
        raise ValidationError(
            f"listen: {shown(where)} is not [HOST:]PORT with a port from 0 to {MAX_PORT}",
            hint="Write --listen 9187, or --listen 0.0.0.0:9187 for other machines.",
            field="listen",
        )
    return host.strip("[]") or LOOPBACK, int(port)
