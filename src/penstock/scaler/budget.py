"""How many workers there may be in all: what was allowed, and what the machine and PostgreSQL have room for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigError
from penstock.model import Look

# Of `penstock work` with one process, at most: one connection for claims, four for settles, one for tasks in turn,
# four for its supervisor, one that listens. Handlers that may open transaction() need more, for each slot.
CONNECTIONS = 11
FEWEST_CONNECTIONS = 2  # that a worker which is up has all the time
SPARE = 5  # connections that are left to people, and to the scaler
GUESS = 80 << 20  # bytes of a worker, until one was measured


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of one fleet."""

    max_workers: int = 10
    max_memory: int | None = None  # bytes
    max_connections: int | None = None
    connections_each: int = CONNECTIONS

    def __post_init__(self) -> None:
        if self.max_memory is not None:
            processes()  # says what to install
        if self.max_connections is not None and self.max_connections < self.connections_each:
            raise ConfigError(
                f"max_connections: {self.max_connections} is not enough for one worker, which may need "
                f"{self.connections_each}",
                hint="Raise it, or lower --concurrency.",
            )

    def allowed(self, look: Look, ready: int, bytes_each: float | None) -> tuple[int, str]:
        """How many in all, and which limit says so. `ready`: workers whose connections PostgreSQL counts already."""
        others = max(0, look.connections - ready * FEWEST_CONNECTIONS)
        room = {
            "max": self.max_workers,
            "server connections": max(0, look.most_connections - SPARE - others) // self.connections_each,
        }
        if self.max_connections is not None:
            room["connections"] = self.max_connections // self.connections_each
        if self.max_memory is not None:
            room["memory"] = max(1, int(self.max_memory // (bytes_each or GUESS)))
        least = min(room, key=lambda name: room[name])
        return room[least], least


def processes() -> Any:
    try:
        import psutil  # noqa: PLC0415 - only for who limits memory
    except ImportError:
        raise ConfigError("max_memory: psutil is not installed", hint="pip install 'penstock[scaler]'") from None
    return psutil


def bytes_of(pids: Iterable[int]) -> float | None:
    """What a worker holds on average, the processes below it included; None: there is none."""
    psutil = processes()
    found = []
    for pid in pids:
        try:
            family = [psutil.Process(pid)]
            family += family[0].children(recursive=True)
            found.append(sum(one.memory_info().rss for one in family))
        except psutil.Error:  # gone
            continue
    return sum(found) / len(found) if found else None
