"""History: its horizon, windows and readers, and the statements that read its rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from penstock.model import Window

HORIZON = "select system, database, branch, xid, dropped from penstock.history_horizon()"
NOTE_HORIZON = "select system, database, branch, xid, dropped from penstock.note_horizon()"
CHECK_MARK = "select penstock.check_mark(%s, %s, %s, %s)"
CHECK_WINDOW = "select penstock.check_window(%s, %s, %s, %s, %s, %s)"
BETWEEN = "select penstock.history_between(%s, %s)"
SPANS = "select day, relation, first_page, pages from penstock.history_spans(%s, %s, %s, %s, %s)"
QUEUE_NAMES = "select id, name from penstock.queue union all select id, name from penstock.queue_gone"
QUEUES_NAMED = "select penstock.queues_named(%s)"
NOTE_READER = "select penstock.note_reader(%s, %s, %s, %s, %s)"
FIND_READER = "select passed, seen from penstock.history_reader where name = %s"
FORGET_READER = "select penstock.forget_reader(%s)"
HISTORY_SUMS = "select queue_id, outcome, rows, checksum from penstock.history_sums(%s, %s, %s, %s, %s)"
HISTORY_GONE = (
    "select day, queue_id, pg_catalog.sum(rows)::bigint from penstock.history_gone where n > %s group by day, queue_id"
)
RELEASE_DAY = "select penstock.release_day(%s, %s, %s)"
SAMPLE_DAYS = "select day from penstock.sample_days(%s, %s)"
TODAY = "select (penstock.clock() at time zone 'UTC')::date"
REBASE_HISTORY = "select penstock.rebase_history()"
# A snapshot that is held for long keeps vacuum from the queue's dead rows, so statements that read history are ended
# before that. Names resolve to PostgreSQL's own, whatever the session has set.
SHORTLY = """
    select pg_catalog.set_config('statement_timeout', '4s', true),
           pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)
"""


def window_parameters(window: Window) -> tuple[Any, ...]:
    """Returns the parameters of CHECK_WINDOW. If the two ends of a window know different drops, the earlier one counts:
    a start that is made anew must not hide what was dropped since the end was noted."""
    known = min(window.start.dropped, window.end.dropped)
    return (window.start.xid, window.end.xid, known, window.queue, window.since, window.until)


# This statement reads a day's rows with any driver. Only numbers and moments are inserted into it, and Penstock formats
# them itself.
HISTORY = """
    select id, xid, queue_id, task_id, created, due, claimed_at, finished_at, iteration, attempt, outcome, kind, worker,
           subject, error_class, error
    from penstock.history
    where finished_at >= '{since}' and finished_at < '{until}' and xid >= {start} and xid < {end}
      and ctid >= '({first},0)'::pg_catalog.tid and ctid < '({last},0)'::pg_catalog.tid
"""
OF_QUEUES = "and queue_id = any('{{{ids}}}'::int[])"
# A row means that the day's table still exists. Its value says whether workers are active: claims become leases.
STILL_THERE = """
    select exists (select from penstock.lease where claimed_at > pg_catalog.clock_timestamp() - interval '1 s')
    from pg_catalog.pg_inherits
    where inhrelid = {relation} and inhparent = 'penstock.history'::pg_catalog.regclass
"""
# This statement reads a day's samples of a window in the same way. It goes by queue in order to use the primary key.
SAMPLES = """
    select s.queue_id, s.xid, s.at, s.waiting, s.planned, s.pending, s.active, s.done, s.dead, s.cancelled,
           extract(epoch from s.oldest_age)::float8 as oldest_age, extract(epoch from s.sla)::float8 as sla, s.workers,
           {totals}
    from pg_catalog.unnest('{{{queues}}}'::int[]) as q(id)
    join penstock.sample as s on s.queue_id = q.id
    where s.at >= '{since}' and s.at < '{until}' and s.xid >= {start} and s.xid < {end}
"""


def sample_rows(window: Window, queues: Sequence[int], day: date, totals: Sequence[str]) -> str:
    """Returns the statement that reads a day's samples of a window. `totals` are names of Penstock's own counters,
    which become columns."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return SAMPLES.format(
        totals=", ".join(f"coalesce((s.totals->>'{name}')::bigint, 0) as {name}_total" for name in totals),
        queues=",".join(map(str, map(int, queues))),
        since=midnight.isoformat(),
        until=(midnight + DAY).isoformat(),
        start=int(window.start.xid),
        end=int(window.end.xid),
    )


def history_rows(window: Window, queues: Sequence[int] | None, day: date, pages: range) -> str:
    """Returns the statement that reads some pages of a day of history."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    bounds = (max(midnight, window.since or midnight), min(midnight + DAY, window.until or midnight + DAY))
    statement = HISTORY.format(
        since=bounds[0].astimezone(UTC).isoformat(),
        until=bounds[1].astimezone(UTC).isoformat(),
        start=int(window.start.xid),
        end=int(window.end.xid),
        first=pages.start,
        last=pages.stop,
    )
    return statement if queues is None else statement + OF_QUEUES.format(ids=",".join(map(str, map(int, queues))))


DAY = timedelta(days=1)
