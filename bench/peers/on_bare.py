"""The limit: COPY into a one-table queue, and a loop that claims, deletes and writes history, without retries, a fence
or counters."""

from __future__ import annotations

import json
import os

import psycopg

import track

BATCH = track.setting("batch", 500)
DSN = os.environ.get("PENSTOCK_DSN", "")

SETUP = """
    create table bare (
        id bigint generated always as identity primary key, payload jsonb not null, claimed_at timestamptz
    );
    create table bare_history (task_id bigint not null, claimed_at timestamptz, finished_at timestamptz);
    create index bare_waiting on bare (id) where claimed_at is null;
"""
CLAIM = """
    with chosen as materialized (
        select id from bare where claimed_at is null order by id limit %s for update skip locked
    )
    update bare set claimed_at = now() where id = any(array(select id from chosen)) returning id, payload
"""
FINISH = """
    with gone as (delete from bare where id = any(%s) returning id, claimed_at)
    insert into bare_history select id, claimed_at, now() from gone
"""


def setup() -> None:
    with psycopg.connect(DSN, autocommit=True) as sql:
        sql.execute(SETUP)


def push(count: int) -> None:
    rows = [track.payload(n) for n in range(count)]
    with psycopg.connect(DSN) as sql, track.timed():
        with sql.cursor().copy("copy bare (payload) from stdin") as copy:
            for row in rows:
                copy.write_row((json.dumps(row),))
        sql.commit()


def work(_: int) -> None:
    track.ready()
    with psycopg.connect(DSN, autocommit=True) as sql:
        # Settings for the best plans: without these it may read whole tables.
        sql.execute("set enable_seqscan = off; set enable_bitmapscan = off")
        sql.prepare_threshold = 0
        while rows := sql.execute(CLAIM, (BATCH,)).fetchall():
            track.ran(len(rows))
            sql.execute(FINISH, ([task for task, _ in rows],))


if __name__ == "__main__":
    track.run(setup=setup, push=push, work=work)
