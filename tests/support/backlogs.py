"""The table of the first reader, its terms, and handlers that fail on chosen records."""

from __future__ import annotations

from typing import Any

from psycopg import Connection

Record = dict[str, Any]
TERMS: dict[str, Any] = {
    "key": "id",
    "status": "status",
    "inserted": "date_inserted",
    "ready": ["NEW"],
    "retry": ["ERROR"],
    "done": "SUCCESS",
    "failed": "ERROR",
    "dead": "DEAD",
}
COLUMNS: dict[str, Any] = {"failures": "failures", "last_failure": "last_failure"}


def make_backlog(sql: Connection, status: str = "text", id_: str = "bigint primary key") -> None:
    """Makes the table BACKLOG as printed: four records, 8 minutes, 5 hours, 3 days and 2 months old."""
    sql.execute(f"create table public.backlog (id {id_}, status {status}, date_inserted timestamptz)".encode())
    sql.execute(
        "insert into public.backlog select id, 'NEW', penstock.clock() - age::interval from (values"
        " (4, '8 minutes'), (3, '5 hours'), (2, '3 days'), (1, '2 months')) as r(id, age)"
    )


def statuses(sql: Connection) -> dict[Any, str]:
    return dict(sql.execute("select id, status from public.backlog order by id").fetchall())


class Handler:
    """A handler that fails on chosen records and remembers which it was given."""

    def __init__(self, *bad: Any) -> None:
        self.bad = {*bad}
        self.seen: list[Any] = []

    def __call__(self, record: Record) -> None:
        self.seen.append(record["id"])
        if record["id"] in self.bad:
            raise RuntimeError(f"record {record['id']} is bad")
