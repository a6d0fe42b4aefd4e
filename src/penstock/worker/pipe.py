"""The connection between two Penstock processes: one JSON value per line, over a pair of sockets.

It ends when either process ends.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Protocol, Self, cast

Message = dict[str, Any]
LONGEST = 64 << 20  # enough for an escaped payload of 16 MiB
AT_ONCE = 1 << 20


class Process(Protocol):
    """The other end of a pipe: a process, or a thread with the same methods."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Returns the exit code, or None while it lives."""

    def kill(self) -> None: ...


async def close_when_over(pipe: Pipe, process: Process) -> None:
    """Closes the pipe when the process has ended.

    A process that a handler forked also holds the socket, which would otherwise stay open.
    """
    while process.poll() is None:
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.2)  # its last messages are still to be read
    pipe.close()


class Pipe:
    """One end of the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        """Returns a pipe over this end of a pair of sockets."""
        return cls(*await asyncio.open_connection(sock=end, limit=LONGEST))

    def send(self, **message: Any) -> None:
        """Sends a message without waiting.

        Messages are small, and a process that does not read them is soon noticed in other ways.
        """
        if not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def receive(self) -> Message | None:
        """Returns the next message, or None if the other process is gone."""
        try:
            line = await self._reader.readline()
        except (ConnectionError, ValueError):
            return None
        return json.loads(line) if line.endswith(b"\n") else None

    async def __aiter__(self) -> AsyncIterator[Message]:
        while (message := await self.receive()) is not None:
            yield message

    async def batches(self) -> AsyncIterator[list[Message]]:
        """Yields all messages since the last request, until the other process is gone.

        Between two requests this process is not woken, because that would take a core from the sender. It reads from
        its own duplicate of the socket, so that the last messages can still be read when the other process no longer
        reads.
        """
        cast("asyncio.Transport", self._writer.transport).pause_reading()
        loop, rest = asyncio.get_running_loop(), b""
        with self._writer.get_extra_info("socket").dup() as end, suppress(ConnectionError):
            end.setblocking(False)
            while data := await loop.sock_recv(end, AT_ONCE):
                *lines, rest = (rest + data).split(b"\n")
                yield [json.loads(line) for line in lines]

    def close(self) -> None:
        """Closes the connection, also for other processes that hold the socket."""
        with suppress(OSError):  # it is closed already
            self._writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)  # also for other processes that hold it
        self._writer.close()
