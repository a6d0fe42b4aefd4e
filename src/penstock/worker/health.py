"""A liveness probe: a file that is written every second, or a port that answers, and has the metrics too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError, shown
from penstock.prometheus_text import CONTENT_TYPE

Probe = Callable[[], dict[str, Any]]  # {"ok": bool, …}
Metrics = Callable[[], str]
METRICS = b"/metrics"
HEAD = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"


async def serve(where: str, probe: Probe, metrics: Metrics = str) -> None:
    """Serves the probe forever. `8080` and `host:8080` are ports (on loopback by default); anything else is a file."""
    port = parse_port(where)
    if port is None:
        await in_file(Path(where), probe)
    else:
        await on_port(*port, probe, metrics)


def parse_port(where: str) -> tuple[str, int] | None:
    """Returns host and port of a probe, or None if it is a file."""
    host, _, port = where.rpartition(":")
    return (host or "127.0.0.1", int(port)) if port.isdecimal() and "/" not in where else None


async def on_port(host: str, port: int, probe: Probe, metrics: Metrics) -> None:
    """Answers HTTP requests on a port: with the metrics at /metrics, and elsewhere 200 if all is well, or else 503."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, TimeoutError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            async with asyncio.timeout(5):
                request = await reader.readuntil(b"\r\n")
                if request.split()[1:2] == [METRICS]:
                    await reader.readuntil(b"\r\n\r\n")  # what is unread at the end would reset the connection
                    writer.write(format_answer(b"200 OK", CONTENT_TYPE, metrics()))
                else:
                    state = probe()
                    status = b"200 OK" if state["ok"] else b"503 Service Unavailable"
                    writer.write(format_answer(status, "application/json", json.dumps(state)))
                await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(answer, host, port)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"health: {shown(f'{host}:{port}')} cannot be listened on: {error}") from error
    async with server:
        await server.serve_forever()


def format_answer(status: bytes, kind: str, text: str) -> bytes:
    """Formats an answer of HTTP."""
    body = text.encode()
    return HEAD % (status, kind.encode(), len(body)) + body


async def in_file(path: Path, probe: Probe) -> None:
    """Writes a file every second while all is well, and removes it at the end. The probe checks the age of the file."""
    written = False
    try:
        while True:
            state = probe()
            if state["ok"]:
                try:
                    path.write_text(json.dumps(state) + "\n", "utf-8")
                    written = True
                except OSError as error:
                    if not written:  # later errors may be temporary, such as a full disk
                        raise ConfigError(f"health: {shown(str(path))} cannot be written: {error}") from error
            await asyncio.sleep(1)
    finally:
        path.unlink(missing_ok=True)
