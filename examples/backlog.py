"""An existing table of another program, drained in place. Run it twice: the second pass finds nothing due yet.

penstock up
python examples/backlog.py
"""

from typing import Any

import psycopg

from penstock import Penstock, Progressive

app = Penstock()


def make_table() -> None:
    """Makes the table as its owner would have, so that this file runs by itself."""
    with psycopg.connect(app.dsn) as connection:
        connection.execute(
            "create table if not exists public.backlog"
            " (id bigint primary key, status text not null, date_inserted timestamptz not null)"
        )
        connection.execute(
            "insert into public.backlog select id, 'NEW', now() - age::interval from (values"
            " (4, '8 minutes'), (3, '5 hours'), (2, '3 days'), (1, '2 months')) as r(id, age) on conflict do nothing"
        )


def handle(record: dict[str, Any]) -> None:
    """The record becomes SUCCESS if this returns, and ERROR if it raises, until it is tried again."""
    if record["id"] in (1, 4):
        raise RuntimeError("the service has a problem, temporary or not")


if __name__ == "__main__":
    make_table()
    backlog = app.adopt(
        "public.backlog",
        key="id",
        status="status",
        inserted="date_inserted",
        ready=["NEW"],
        retry=["ERROR"],
        done="SUCCESS",
        failed="ERROR",
        dead="DEAD",
        strategy=Progressive.default(),
    )
    report = backlog.process(handle, max_age="360d", limit=1000)
    print(f"{report.done} done, {report.failed} failed, {report.later} for later")
