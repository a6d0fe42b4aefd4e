"""The line between two of our processes: one JSON value a line, over a pair of sockets. It ends when either does."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Self, cast

Message = dict[str, Any]
LONGEST = 64 << 20  # a payload of 16 MiB, escaped
AT_ONCE = 1 << 20


async def close_when_over(link: Link, process: subprocess.Popen[bytes]) -> None:
    """A process that a handler forked holds the line too: when ours is over, so is the line, whoever holds it."""
    while process.poll() is None:
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.2)  # what it said last is still to be read
    link.close()


class Link:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        return cls(*await asyncio.open_connection(sock=end, limit=LONGEST))

    def send(self, **message: Any) -> None:
        """Never waits: what is sent is little, and who does not read is soon noticed otherwise."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self) -> Message | None:
        """None: the other one is gone."""
        try:
            line = await self._reader.readline()
        except (ConnectionError, ValueError):
            return None
        return json.loads(line) if line.endswith(b"\n") else None

    async def __aiter__(self) -> AsyncIterator[Message]:
        while (message := await self.receive()) is not None:
            yield message

    async def heaps(self) -> AsyncIterator[list[Message]]:
        """All that came since it was last asked for, until the other one is gone. Until it is asked nobody is woken:
        that would take a core from who sends. By an end of our own: what the other one said last can still be read when
        he no longer hears us."""
        cast("asyncio.Transport", self._writer.transport).pause_reading()
        loop, rest = asyncio.get_running_loop(), b""
        with self._writer.get_extra_info("socket").dup() as end, suppress(ConnectionError):
            end.setblocking(False)
            while data := await loop.sock_recv(end, AT_ONCE):
                *lines, rest = (rest + data).split(b"\n")
                yield [json.loads(line) for line in lines]

    def close(self) -> None:
        with suppress(OSError):  # it is over already
            self._writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)  # whoever else holds it
        self._writer.close()
