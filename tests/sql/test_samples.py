"""An idle queue has few samples, and a sample for every ten seconds can be restored from them."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from psycopg import Connection

from conftest import Clock
from penstock import NewTask, Penstock, Queue
from penstock.scaler.standing import SAMPLES, RecentBoards

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
STEP, PAUSE = timedelta(seconds=10), timedelta(minutes=11)
COUNTS = "planned, pending, active, done, dead, cancelled, oldest_age, sla, workers, totals"


@pytest.fixture(autouse=True)
def at_noon(sql: Connection, clock: Clock) -> None:
    set_clock(sql, NOON)


def set_clock(sql: Connection, moment: datetime) -> None:
    sql.execute("update penstock_test.clock set fixed = %s, shift = '0'", (moment,))


def look(sql: Connection) -> int:
    row = sql.execute("select penstock._take_samples()").fetchone()
    assert row is not None
    return int(row[0])


def look_for(sql: Connection, clock: Clock, seconds: int) -> int:
    """Takes samples every ten seconds and returns how many were written."""
    taken = 0
    for _ in range(seconds // 10):
        clock.advance(10)
        taken += look(sql)
    return taken


def moments(sql: Connection) -> list[float]:
    """The times of the samples, in seconds from noon."""
    rows = sql.execute("select at from penstock.sample order by at").fetchall()
    return [(at - NOON).total_seconds() for (at,) in rows]


def seen_now(sql: Connection) -> dict[int, tuple[Any, ...]]:
    """What a sample of each queue would contain now."""
    rows = sql.execute("""
        select q.id, s.planned, s.pending, s.active, s.done, s.dead, s.cancelled, s.oldest_pending_age, s.sla,
               (select count(*) from penstock.worker as w where s.queue = any(w.queues)), s.totals
        from penstock.status() as s join penstock.queue as q on q.name = s.queue
    """)
    return {row[0]: row[1:] for row in rows}


def known(sql: Connection) -> dict[tuple[int, datetime], tuple[Any, ...]]:
    """The samples by queue and ten seconds, filled in between two samples that are equal."""
    rows = sql.execute(f"select queue_id, at, {COUNTS} from penstock.sample order by queue_id, at".encode()).fetchall()
    found = {row[:2]: row[2:] for row in rows}
    for (queue, at, *counts), (other, upto, *later) in pairwise(rows):
        if queue == other and counts == later and counts[6] is None and upto - at <= PAUSE and at.date() == upto.date():
            found |= {(queue, at + n * STEP): tuple(counts) for n in range((upto - at) // STEP)}
    return found


def test_an_idle_queue_has_a_sample_every_ten_minutes(queue: Queue, clock: Clock, sql: Connection) -> None:
    assert look(sql) == 1
    assert look_for(sql, clock, 3600) == 6
    assert moments(sql) == [600.0 * n for n in range(7)]


def test_what_waits_is_sampled_every_time(queue: Queue, clock: Clock, sql: Connection) -> None:
    queue.push()
    assert look_for(sql, clock, 60) == 6, "the oldest task grows older"


def test_a_change_is_preceded_by_the_last_unchanged_look(queue: Queue, clock: Clock, sql: Connection) -> None:
    look(sql)
    look_for(sql, clock, 200)
    queue.push_many([{}] * 7)
    assert look_for(sql, clock, 10) == 2
    rows = sql.execute("select at, (totals->>'pushed')::int, pending from penstock.sample order by at").fetchall()
    assert [((at - NOON).total_seconds(), *counts) for at, *counts in rows] == [(0, 0, 0), (200, 0, 0), (210, 7, 7)]


def test_a_gap_without_upkeep_stays_a_gap(queue: Queue, clock: Clock, sql: Connection) -> None:
    look(sql)
    look_for(sql, clock, 50)
    clock.advance(300)
    queue.push()
    look(sql)
    assert moments(sql) == [0, 50, 350], "the last look is known, the time after it is not"


def test_a_second_look_in_the_same_ten_seconds(queue: Queue, clock: Clock, sql: Connection) -> None:
    look(sql)
    look_for(sql, clock, 50)
    clock.advance(4)
    queue.push()
    assert look(sql) == 2
    assert moments(sql) == [0, 40, 50]


@pytest.mark.parametrize("what", ["sla", "worker", "planned"])
def test_everything_that_changes_is_sampled(queue: Queue, clock: Clock, sql: Connection, what: str) -> None:
    look(sql)
    look_for(sql, clock, 30)
    if what == "sla":
        queue.set(sla="5m")
    elif what == "worker":
        sql.execute("insert into penstock.worker (name, queues, beat) values ('w', '{work,work}', penstock.clock())")
    else:
        queue.push(due=NOON + timedelta(hours=1))
    assert look_for(sql, clock, 10) == 2
    assert look_for(sql, clock, 60) == 0
    assert sql.execute("select max(workers) from penstock.sample").fetchone() == (int(what == "worker"),)


def test_no_idle_period_crosses_midnight(queue: Queue, clock: Clock, sql: Connection) -> None:
    """The lake writes each day by itself."""
    set_clock(sql, NOON + timedelta(hours=11, minutes=57))
    look(sql)
    look_for(sql, clock, 360)
    midnight = 12 * 3600.0
    assert moments(sql) == [midnight - 180, midnight - 10, midnight]


def test_every_ten_seconds_can_be_restored(app: Penstock, queue: Queue, clock: Clock, sql: Connection) -> None:
    """Compares with a sample every ten seconds, over midnight, with queues that change now and then."""
    queues, dice = [queue, app.create_queue("image", keep_done="1h")], random.Random(5)
    set_clock(sql, NOON + timedelta(hours=11, minutes=40))
    truth: dict[tuple[int, datetime], tuple[Any, ...]] = {}
    for _ in range(300):
        clock.advance(10)
        look(sql)
        truth |= {(id_, clock.now()): counts for id_, counts in seen_now(sql).items()}
        chosen, chance = dice.choice(queues), dice.random()
        if chance < 0.02:
            chosen.push_many([NewTask(due=dice.choice((None, clock.now() + 4 * STEP)))] * dice.randrange(1, 4))
        elif chance < 0.25 and (claim := chosen.claim(2)):
            clock.advance(0.5)
            chosen.settle(claim)
            clock.advance(-0.5)
        elif chance < 0.26:
            chosen.set(sla=dice.choice(("10s", "30s")))
    queue.push()  # ends the last idle period
    queues[1].push()
    clock.advance(10)
    look(sql)
    found = known(sql)
    assert {place: found.get(place) for place in truth} == truth
    assert len(sql.execute("select from penstock.sample").fetchall()) < 0.7 * len(truth)


def test_rates_are_not_spread_over_an_idle_period(app: Penstock, queue: Queue, clock: Clock, sql: Connection) -> None:
    look(sql)
    look_for(sql, clock, 590)
    queue.push_many([{}] * 70)
    clock.advance(5)
    board = app.board(decisions=0, samples=SAMPLES)
    points = [one.at - NOON.timestamp() for one in board.samples["work"]]
    assert points == [530.0, 540.0, 550.0, 560.0, 570.0, 580.0, 590.0]
    [standing] = RecentBoards().see(board)
    assert standing.arriving == pytest.approx(70 / 65, rel=0.01)


def test_a_board_has_no_samples_of_a_gap(app: Penstock, queue: Queue, clock: Clock, sql: Connection) -> None:
    look(sql)
    clock.advance(400)
    assert app.board(samples=SAMPLES).samples["work"] == ()
