"""What every check uses: findings, thresholds, and a read-only session."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from penstock.client.connections import Connection
from penstock.client.database import Database
from penstock.client.sqlstate import translate_errors

Level = Literal["ok", "info", "warning", "error"]
Row = tuple[Any, ...]
NOTHING: Mapping[str, str] = MappingProxyType({})
CHECK_TIMEOUT = 30  # seconds; 0: as long as it takes
MAX_FINDINGS = 10  # findings of one kind
UPKEEP = "Run `penstock upkeep` every ten seconds or so, from cron or a loop."


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: the facts, and what to type if they are bad."""

    check: str
    level: Level
    what: str
    fix: str | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    group: str = ""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds from which a figure is reported. Times are in seconds."""

    snapshot_warning: float = 300
    snapshot_error: float = 3600
    idle: float = 60
    clock: float = 1
    connections: float = 0.8
    notify: float = 0.5
    dead_rows: int = 100_000  # a busy queue makes as many in seconds, and autovacuum removes them every minute
    vacuum: float = 600
    index_bytes: int = 64 << 20
    index_ratio: float = 2
    log_rows: int = 100_000
    days_ahead: int = 3
    reader: float = 2 * 86400
    upkeep: float = 120
    upkeep_part: float = 900
    lease: float = 60
    overdue: float = 60
    silent: float = 60


DEFAULT_THRESHOLDS = Thresholds()


class QueueRow(NamedTuple):
    """The columns of penstock.status() that the checks use."""

    name: str
    paused: bool
    waiting: int
    dead: int
    age: float | None
    sla: float | None


class Inspection:
    """A session, and everything else that a check needs."""

    def __init__(
        self,
        connection: Connection,
        database: Database,
        environ: Mapping[str, str] = NOTHING,
        limits: Thresholds = DEFAULT_THRESHOLDS,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.connection = connection
        self.database = database
        self.environ = environ
        self.limits = limits
        self.now = now

    @contextmanager
    def reading(self, seconds: int = CHECK_TIMEOUT) -> Iterator[Connection]:
        """Opens a READ ONLY transaction. Its settings are local to it: behind a pooler the session has other users."""
        with translate_errors(), self.connection.transaction():
            self.connection.execute(
                "set transaction isolation level read committed read only;"
                "set local search_path = pg_catalog, pg_temp; set local extra_float_digits = 1;"
                "set local intervalstyle = postgres; set local lock_timeout = '2s';"
                f"set local statement_timeout = '{seconds}s'".encode()
            )
            for statement in self.database.local_settings:
                self.connection.execute(statement.encode())
            yield self.connection

    def rows(self, query: str, parameters: Sequence[object] = (), *, seconds: int = CHECK_TIMEOUT) -> list[Row]:
        with self.reading(seconds) as connection:
            return connection.execute(query.encode(), parameters or None).fetchall()

    def row(self, query: str, parameters: Sequence[object] = ()) -> Row:
        return self.rows(query, parameters)[0]

    @cached_property
    def me(self) -> str:
        """The role of this session, quoted as SQL needs it."""
        return str(self.row("select quote_ident(current_user)")[0])

    @cached_property
    def has_schema(self) -> bool:
        """Whether the schema exists, by the catalog, which every role can read."""
        query = """
            select exists (
                select from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
                where n.nspname = 'penstock' and c.relname = 'migration')
        """
        return bool(self.row(query)[0])

    @cached_property
    def queues(self) -> list[QueueRow]:
        query = """
            select queue, paused, planned + pending, dead, extract(epoch from oldest_pending_age)::float8,
                   extract(epoch from sla)::float8
            from penstock.status()
        """
        return [QueueRow(*row) for row in self.rows(query)]


class Check(NamedTuple):
    """One check: the group and the name of its findings, and the function that makes them."""

    group: str
    name: str
    run: Callable[[Inspection], list[Finding]]
    ours: bool = False  # it needs the schema of Penstock
    slow: bool = False  # it reads whole tables


def report_ok(check: str, what: str, **numbers: float) -> list[Finding]:
    return [Finding(check, "ok", what, None, numbers)]
