"""The budget of a fleet: how many workers the operator, the machine and PostgreSQL allow together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from penstock.errors import ConfigError
from penstock.model import ScalerSnapshot

# The connections of `penstock work` with one process, at most: one for claims, four for settles, one that tasks share,
# four for its supervisor, one that listens. Handlers that can open transaction() need more, for each slot.
CONNECTIONS = 11
MIN_CONNECTIONS = 2  # that a worker always has
SPARE = 5  # connections that are left for users and for the scaler
DEFAULT_BYTES = 80 << 20  # of a worker, until one is measured


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of one fleet."""

    max_workers: int = 10
    max_memory: int | None = None  # bytes
    max_connections: int | None = None
    connections_each: int = CONNECTIONS

    def __post_init__(self) -> None:
        if self.max_memory is not None:
            load_psutil()  # raises if it is not installed
        if self.max_connections is not None and self.max_connections < self.connections_each:
            raise ConfigError(
                f"max_connections: {self.max_connections} is not enough for one worker, which may need "
                f"{self.connections_each}",
                hint="Raise it, or lower --concurrency.",
            )

    def allowed(self, snapshot: ScalerSnapshot, ready: int, bytes_each: float | None) -> tuple[int, str]:
        """Returns how many workers are allowed, and by which limit. PostgreSQL already counts connections of ready
        workers."""
        others = max(0, snapshot.connections - ready * MIN_CONNECTIONS)
        room = {
            "max": self.max_workers,
            "server connections": max(0, snapshot.most_connections - SPARE - others) // self.connections_each,
        }
        if self.max_connections is not None:
            room["connections"] = self.max_connections // self.connections_each
        if self.max_memory is not None:
            room["memory"] = max(1, int(self.max_memory // (bytes_each or DEFAULT_BYTES)))
        least = min(room, key=lambda name: room[name])
        return room[least], least


def load_psutil() -> Any:
    try:
        import psutil  # noqa: PLC0415 - only a memory limit needs it
    except ImportError:
        raise ConfigError("max_memory: psutil is not installed", hint="pip install 'penstock[scaler]'") from None
    return psutil


def bytes_of(pids: Iterable[int]) -> float | None:
    """Returns the bytes that a worker and its child processes hold on average; None: there is no worker."""
    psutil = load_psutil()
    found = []
    for pid in pids:
        try:
            family = [psutil.Process(pid)]
            family += family[0].children(recursive=True)
            found.append(sum(one.memory_info().rss for one in family))
        except psutil.Error:  # the process has ended
            continue
    return sum(found) / len(found) if found else None
