"""A liveness probe: a file that is written every second, or a port that answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError, shown

Probe = Callable[[], dict[str, Any]]  # {"ok": bool, …}


async def serve(where: str, probe: Probe) -> None:
    """Serves the probe forever. `8080` and `host:8080` are ports (on loopback by default); anything else is a file."""
    host, _, port = where.rpartition(":")
    if port.isdecimal() and "/" not in where:
        await on_port(host or "127.0.0.1", int(port), probe)
    else:
        await in_file(Path(where), probe)


async def on_port(host: str, port: int, probe: Probe) -> None:
    """Answers HTTP requests on a port: 200 if all is well, or else 503."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, TimeoutError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            async with asyncio.timeout(5):
                await reader.readuntil(b"\r\n")
                state = probe()
                body = json.dumps(state).encode()
                status = b"200 OK" if state["ok"] else b"503 Service Unavailable"
                head = (
                    b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
                )
                writer.write(head % (status, len(body)) + body)
                await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(answer, host, port)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"health: {shown(f'{host}:{port}')} cannot be listened on: {error}") from error
    async with server:
        await server.serve_forever()


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
