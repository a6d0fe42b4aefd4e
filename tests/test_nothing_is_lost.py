"""A reported push is followed by a run with its payload, whatever claims, settles and pushes happen at the same time.

The test would notice errors: with `renew` broken, and with a claim that reads documents in the snapshot in which it
chose them, it finds pushes that were never run.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg import Connection

from penstock import Penstock, Queue

PRODUCERS, WORKERS = 4, 4


class Storm:
    """Producers push versions of their own subjects, and workers record which version of a subject they got."""

    def __init__(self, queue: Queue, seconds: float) -> None:
        self.queue = queue
        self.until = time.monotonic() + seconds
        self.pushed: dict[str, int] = {}
        self.ran: dict[str, int] = {}
        self.results: Counter[str] = Counter()
        self._lock = threading.Lock()

    def produce(self, producer: int) -> None:
        dice = random.Random(producer)
        n = 0
        while time.monotonic() < self.until:
            subject = f"{producer}-{(n := n + 1)}"
            for version in range(1, 5):
                pushed = self.queue.push({"v": version}, subject=subject, on_conflict="update")
                with self._lock:
                    self.pushed[subject] = version
                    self.results[pushed.result] += 1
                time.sleep(dice.random() / 500)

    def work(self, limit: int) -> bool:
        claim = self.queue.claim(limit)
        with self._lock:
            for task in claim.tasks:
                assert task.subject is not None
                self.ran[task.subject] = max(self.ran.get(task.subject, 0), task.payload["v"])
        if claim:
            self.queue.settle(claim)
        return bool(claim)

    def keep_working(self, worker: int) -> None:
        while time.monotonic() < self.until:
            self.work(1 + worker)

    def run(self) -> list[str]:
        """Runs the storm and returns the subjects whose last version was never run."""
        with ThreadPoolExecutor(PRODUCERS + WORKERS) as pool:
            running = [pool.submit(self.produce, n) for n in range(PRODUCERS)]
            running += [pool.submit(self.keep_working, n) for n in range(WORKERS)]
            for one in running:
                one.result()
        while self.work(100):
            pass
        return [subject for subject, version in self.pushed.items() if self.ran.get(subject, 0) < version]


def make_queue(dsn: str) -> tuple[Penstock, Queue]:
    app = Penstock(dsn, max_connections=PRODUCERS + WORKERS)
    return app, app.create_queue("storm")


def test_every_reported_push_is_run(dsn: str) -> None:
    app, queue = make_queue(dsn)
    with app:
        storm = Storm(queue, 6)
        assert storm.run() == []
        assert {"created", "updated", "renewed"} <= storm.results.keys(), storm.results
        assert app.verify().ok


@pytest.mark.unbalanced
def test_a_broken_renew_is_noticed(dsn: str, sql: Connection) -> None:
    app, queue = make_queue(dsn)
    (body,) = sql.execute("select pg_get_functiondef('penstock._refresh'::regproc)").fetchone() or ("",)
    broken = body.replace("set renew = coalesce(g.due, v_now)", "set renew = null")
    assert broken != body
    sql.execute(broken.encode())
    with app:
        assert Storm(queue, 3).run() != []


# A claim in one statement. The pause widens the window between its snapshot and its locks. The real claim below has the
# same pause and is not harmed.
ONE_STATEMENT = """
    create or replace function penstock.claim(
        p_queue text, p_limit int default 1, p_lease interval default null, p_worker text default '',
        p_hint penstock.place default null, p_quarantined boolean default true, p_durable boolean default true
    ) returns table (
        token uuid, until timestamptz, id bigint, kind text, subject text, payload jsonb, priority smallint,
        due timestamptz, attempt int, iterations int, created timestamptz,
        since timestamptz, alone boolean, key text, meta jsonb
    ) language sql as $$
        with paused as materialized (
            select pg_sleep(0.004)
        ), chosen as materialized (
            select a.task_id, a.due from penstock.agenda as a, paused where a.pending
            order by a.due limit p_limit for update of a skip locked
        ), taken as (
            delete from penstock.agenda as a using chosen as c where a.task_id = c.task_id
        ), leased as (
            insert into penstock.lease (claimed_at, until, queue_id, alone, named, open, ids, dues)
            select now(), now() + '30 s', 1, false, true, repeat('1', count(*)::int)::varbit, array_agg(c.task_id),
                   array_agg(c.due)
            from chosen as c having count(*) > 0
            returning token, until
        )
        select l.token, l.until, t.id, t.kind, t.subject, t.payload, t.priority, c.due, 1, t.iterations, t.created,
               t.since, false, t.key, t.meta
        from chosen as c join penstock.task as t on t.id = c.task_id, leased as l
    $$
"""


@pytest.mark.unbalanced
def test_a_claim_in_one_statement_is_noticed(dsn: str, sql: Connection) -> None:
    app, queue = make_queue(dsn)
    sql.execute(ONE_STATEMENT)
    with app:
        assert Storm(queue, 5).run() != []


def test_a_slow_claim_in_two_statements_is_not_harmed(dsn: str, sql: Connection) -> None:
    app, queue = make_queue(dsn)
    (body,) = sql.execute("select pg_get_functiondef('penstock._pick'::regproc)").fetchone() or ("",)
    slow = body.replace(
        "            from penstock.agenda as a\n",
        "            from (select pg_sleep(0.004) offset 0) as paused, penstock.agenda as a\n",
    ).replace("for update skip locked", "for update of a skip locked")
    assert slow != body
    sql.execute(slow.encode())
    with app:
        assert Storm(queue, 5).run() == []
        assert app.verify().ok
