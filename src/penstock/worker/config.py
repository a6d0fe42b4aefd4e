"""The config of a runner: everything that it needs at its start, in one message.

So a DSN is never on a command line.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

Weights = dict[str, int]
DEADLINE = 20.0  # seconds in which PostgreSQL must answer a claim or a settle


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """The settings of one runner."""

    name: str
    target: str  # module:attribute
    dsn: str
    queues: Weights
    leases: dict[str, float]  # seconds
    concurrency: int
    grace: float
    overlap: bool  # claim while earlier tasks are settled; if processes fill all cores, taking turns is faster
    max_tasks: int | None = None
    max_rss: int | None = None
    handler_of: str | None = None  # for `drain`: the queue for which the target is the only handler
    tracebacks: bool = True  # stored with errors, unless the application says otherwise
    log_format: str = "text"
    quiet: bool = False
    # The SLAs of the queues, if this runner is to measure its tasks; without them it measures nothing.
    slas: dict[str, float | None] | None = None
    dev: bool = False  # tracebacks are logged, and a changed file of the application ends the process

    def to_json(self) -> dict[str, Any]:
        """Returns the config as JSON."""
        return asdict(self)
