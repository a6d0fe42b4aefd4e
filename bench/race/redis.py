"""A Redis for the race, on a loopback port, in a directory of its own, which is ended by its process."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.race.install import redis_environment, redis_server
from bench.support.recovery import wait_until

SETTINGS = ["--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--bind", "127.0.0.1"]


@dataclass(frozen=True, slots=True)
class Redis:
    port: int

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def ask(self, command: str) -> int:
        """Sends a command that is answered with a number or with OK."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as line:
            line.sendall(command.encode() + b"\r\n")
            answer = line.makefile("rb").readline().strip()
        return int(answer[1:]) if answer[:1] == b":" else 0

    def answers(self) -> bool:
        with suppress(OSError):
            self.ask("PING")
            return True
        return False


@contextmanager
def redis(home: Path) -> Iterator[Redis]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        found = Redis(free.getsockname()[1])
    command = [str(redis_server()), "--port", str(found.port), "--dir", str(home), *SETTINGS]
    process = subprocess.Popen(command, env=redis_environment(), stdout=subprocess.DEVNULL)
    try:
        wait_until(found.answers)
        yield found
    finally:
        process.terminate()
        process.wait(60)
