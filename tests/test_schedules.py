"""Schedules in a real PostgreSQL: one task per tick in every race, missed ticks, pauses, changes and drops."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from conftest import Clock
from penstock import (
    AsyncHandler,
    AsyncPenstock,
    ConfigError,
    Context,
    Handler,
    NotFound,
    Penstock,
    Queue,
    Schedule,
    ValidationError,
)
from penstock.errors import PayloadTooLarge
from penstock.schedule import cron_of, decide

SPAWN = multiprocessing.get_context("spawn")
HOURLY = "0 * * * *"


@pytest.fixture
def noon(sql: Connection, clock: Clock) -> Clock:
    """A clock that is fixed at half a minute past noon."""
    sql.execute("update penstock_test.clock set fixed = '2026-11-15 12:00:30+00'")
    return clock


def stands(app: Penstock, name: str = "s") -> Schedule:
    (found,) = [one for one in app.schedules() if one.name == name]
    return found


def ticks(queue: Queue) -> list[str]:
    """Returns the ticks whose tasks exist, as day and hour."""
    return [str(task.subject).partition("@")[2][8:16] for task in queue.tasks(limit=10_000)]


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-{text}").replace(tzinfo=UTC)


# --- from tick to task ------------------------------------------------------------------------------------------------


def test_a_tick_is_a_task(app: Penstock, queue: Queue, noon: Clock) -> None:
    new = app.set_schedule(
        "nightly", "0 6 * * *", queue="work", kind="report", tz="Europe/Rome", payload={"to": "ann"}, priority=2
    )
    assert (new.next_at, new.mark, new.last_tick, new.paused) == (at("16 05:00"), noon.now(), None, False)
    assert app.run_schedules() == (0, {})
    noon.advance(17 * 3600)
    assert app.run_schedules() == (1, {})
    assert app.run_schedules() == (0, {})
    (task,) = queue.tasks()
    assert (task.kind, task.payload, task.priority, task.state) == ("report", {"to": "ann"}, 2, "pending")
    assert task.subject == "nightly@2026-11-16T05:00:00Z"
    found = stands(app, "nightly")
    assert (found.last_tick, found.next_at, found.mark) == (at("16 05:00"), at("17 05:00"), noon.now())


def test_upkeep_fires_too(app: Penstock, queue: Queue, noon: Clock) -> None:
    app.set_schedule("s", HOURLY, queue="work")
    noon.advance(3600)
    assert app.upkeep()["scheduled"] == 1
    assert ticks(queue) == ["15T13:00"]


def test_a_tick_that_was_pushed_by_hand_is_left_alone(app: Penstock, queue: Queue, noon: Clock) -> None:
    app.set_schedule("s", HOURLY, queue="work", backfill="all")
    queue.push({"mine": True}, subject="s@2026-11-15T14:00:00Z")
    noon.advance(3 * 3600)
    assert app.run_schedules().pushed == 2
    assert sorted(ticks(queue)) == ["15T13:00", "15T14:00", "15T15:00"]
    assert queue.tasks(subject="s@2026-11-15T14:00:00Z")[0].payload == {"mine": True}


def test_a_done_tick_does_not_come_back(app: Penstock, queue: Queue, noon: Clock) -> None:
    app.set_schedule("s", HOURLY, queue="work", backfill="all")
    noon.advance(3600)
    app.run_schedules()
    queue.settle(queue.claim())
    assert queue.tasks() == []
    app.set_schedule("s", HOURLY, queue="work", backfill="all", payload={"n": 2})
    assert app.run_schedules().pushed == 0


# --- missed ticks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backfill", "pushed"),
    [("none", []), ("last", ["15T17:00"]), ("all", ["15T13:00", "15T14:00", "15T15:00", "15T16:00", "15T17:00"])],
)
def test_what_was_missed(app: Penstock, queue: Queue, noon: Clock, backfill: Any, pushed: list[str]) -> None:
    app.set_schedule("s", HOURLY, queue="work", backfill=backfill)
    noon.advance(5 * 3600 + 1800)
    assert app.run_schedules().pushed == len(pushed)
    assert ticks(queue) == pushed, "the first runs first"
    assert stands(app).next_at == at("15 19:00") - timedelta(hours=1)
    noon.advance(1800)
    app.run_schedules()
    assert ticks(queue) == [*pushed, "15T18:00"], "a tick on time is pushed in any case"


def test_very_many_come_in_rounds(app: Penstock, queue: Queue, noon: Clock) -> None:
    app.set_schedule("s", "* * * * *", queue="work", backfill="all")
    noon.advance(2 * 86400)
    assert [app.run_schedules().pushed for _ in range(4)] == [1000, 1000, 880, 0]
    assert len({*ticks(queue)}) == 2880
    assert ticks(queue)[0] == "15T12:01"


def test_a_schedule_that_cannot_fire_holds_up_no_other(
    app: Penstock, queue: Queue, sql: Connection, noon: Clock
) -> None:
    for name in ("a", "b", "c"):
        app.set_schedule(name, HOURLY, queue="work")
    sql.execute("update penstock.schedule set tz = 'Mars/Phobos' where name = 'a'")
    noon.advance(3600)
    done = app.run_schedules()
    assert (done.pushed, [*done.failed]) == (2, ["a"])
    assert "tz: 'Mars/Phobos'" in done.failed["a"].message
    assert app.upkeep()["schedules failed"] == 1


# --- racing -----------------------------------------------------------------------------------------------------------


def test_eight_race_and_one_task_is_there_per_tick(app: Penstock, queue: Queue, noon: Clock, dsn: str) -> None:
    for n in range(5):
        app.set_schedule(f"s{n}", "* * * * *", queue="work", backfill=("last", "all")[n % 2])
    start = threading.Barrier(8)

    def race(_: int) -> int:
        with Penstock(dsn) as own:
            pushed = 0
            for _round in range(20):
                if start.wait() == 0:
                    noon_forward()
                start.wait()
                pushed += own.run_schedules().pushed
            return pushed

    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as mine:

        def noon_forward() -> None:
            mine.execute("update penstock_test.clock set shift = shift + '1 minute'")

        with ThreadPoolExecutor(8) as pool:
            pushed = sum(pool.map(race, range(8)))
    pushed += app.run_schedules().pushed
    subjects = [str(task.subject) for task in queue.tasks(limit=10_000)]
    assert pushed == len(subjects) == len({*subjects})
    for n in (1, 3):
        assert len([one for one in subjects if one.startswith(f"s{n}@")]) == 20, "each schedule has its ticks"
    assert queue.status().totals["pushed"] == len(subjects)


def fire_for_ever(dsn: str) -> None:
    with Penstock(dsn) as app:
        while True:
            app.run_schedules()


def working(sql: Connection) -> bool:
    """Whether another connection runs a statement."""
    return bool(
        sql.execute(
            "select from pg_stat_activity"
            " where datname = current_database() and state <> 'idle' and pid <> pg_backend_pid()"
            " and backend_type = 'client backend'"
        ).fetchall()
    )


def test_a_killed_process_leaves_no_tick_half_fired(
    app: Penstock, queue: Queue, sql: Connection, noon: Clock, dsn: str
) -> None:
    app.set_schedule("s", "* * * * *", queue="work", backfill="all")
    processes = [SPAWN.Process(target=fire_for_ever, args=(dsn,)) for _ in range(2)]
    for one in processes:
        one.start()
    minutes = 0
    try:
        while not queue.status().pending:  # they have begun
            noon.advance(60)
            minutes += 1
            time.sleep(0.05)
        for step in range(60):
            noon.advance(60 * (step % 7))
            minutes += step % 7
            if step == 30:
                assert processes[0].pid is not None
                os.kill(processes[0].pid, signal.SIGKILL)
    finally:
        for one in processes:
            one.kill()
            one.join()
    while working(sql):  # PostgreSQL finishes its last statement, and the schedule is locked until then
        time.sleep(0.05)
    while app.run_schedules().pushed:
        pass
    assert len({*ticks(queue)}) == len(queue.tasks(limit=10_000)) == minutes


def test_of_several_that_saw_the_same_mark_one_fires(app: Penstock, queue: Queue, sql: Connection, noon: Clock) -> None:
    app.set_schedule("s", HOURLY, queue="work")
    noon.advance(3600)
    told = decide(stands(app))
    values = ("s", stands(app).mark, told.ticks, told.decided, told.next_at)
    fire = "select penstock.fire(%s, %s, %s, %s, %s)"
    assert sql.execute(fire, values).fetchone() == (1,)
    assert sql.execute(fire, values).fetchone() == (None,)


def test_a_schedule_that_is_being_fired_is_not_waited_for(
    app: Penstock, queue: Queue, noon: Clock, direct_dsn: str
) -> None:
    app.set_schedule("s", HOURLY, queue="work")
    noon.advance(3600)
    with psycopg.connect(direct_dsn) as other:
        other.execute("select from penstock.schedule for update")
        assert app.run_schedules() == (0, {})
        other.rollback()
    assert app.run_schedules().pushed == 1


REFUSED: dict[str, tuple[str, str | None, list[str | None], str, str]] = {
    "a null": ("s", None, [], "15 12:00", "15 13:00"),
    "a mark after what is decided": ("s", "15 12:00", [], "15 11:00", "15 13:00"),
    "a next tick that is decided": ("s", "15 10:00", [], "15 11:00", "15 11:00"),
    "what is yet to come": ("s", "15 10:00", [], "15 12:01", "15 13:00"),
    "a tick before the mark": ("s", "15 10:00", ["15 10:00"], "15 11:00", "15 13:00"),
    "a tick after what is decided": ("s", "15 10:00", ["15 11:01"], "15 11:00", "15 13:00"),
    "ticks in no order": ("s", "15 10:00", ["15 10:30", "15 10:20"], "15 11:00", "15 13:00"),
    "a tick twice": ("s", "15 10:00", ["15 10:30", "15 10:30"], "15 11:00", "15 13:00"),
    "no tick": ("s", "15 10:00", [None], "15 11:00", "15 13:00"),
    "too many": ("s", "15 10:00", ["15 10:30"] * 1001, "15 11:00", "15 13:00"),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("what", REFUSED)
def test_schedules_that_cannot_fire(app: Penstock, queue: Queue, sql: Connection, noon: Clock, what: str) -> None:
    app.set_schedule("s", HOURLY, queue="work")
    before = stands(app)
    name, mark, given, decided, next_at = REFUSED[what]
    moments = [None if one is None else at(one) for one in given]
    with pytest.raises(psycopg.Error) as refused:
        sql.execute(
            "select penstock.fire(%s, %s, %s::timestamptz[], %s, %s)",
            (name, None if mark is None else at(mark), moments, at(decided), at(next_at)),
        )
    assert refused.value.sqlstate == "PS400"
    assert (stands(app), queue.tasks()) == (before, [])


# --- changes ----------------------------------------------------------------------------------------------------------


def test_another_line_counts_from_now_and_fires_nothing_again(app: Penstock, queue: Queue, noon: Clock) -> None:
    app.set_schedule("s", HOURLY, queue="work", backfill="all")
    noon.advance(3600)
    app.run_schedules()
    noon.advance(3 * 3600 + 600)  # 16:10; three ticks of the old line are missed
    found = app.set_schedule("s", "*/30 * * * *", queue="work", backfill="all")
    assert (found.next_at, found.last_tick) == (at("15 16:30"), at("15 13:00"))
    assert app.run_schedules().pushed == 0
    noon.advance(1800)
    app.run_schedules()
    assert ticks(queue) == ["15T13:00", "15T16:30"]
    back = app.set_schedule("s", HOURLY, queue="work", backfill="all")
    assert back.next_at == at("15 17:00")


def test_another_zone_too(app: Penstock, queue: Queue, noon: Clock) -> None:
    assert app.set_schedule("s", "0 14 * * *", queue="work").next_at == at("15 14:00")
    assert app.set_schedule("s", "0 14 * * *", queue="work", tz="Europe/Rome").next_at == at("15 13:00")


def test_the_rest_may_change_and_nothing_is_lost(app: Penstock, queue: Queue, sql: Connection, noon: Clock) -> None:
    other = app.create_queue("other")
    first = app.set_schedule("s", HOURLY, queue="work", backfill="all")
    noon.advance(2 * 3600)
    changed = app.set_schedule("s", HOURLY, queue="other", kind="k", payload={"n": 1}, priority=0, backfill="all")
    assert (changed.mark, changed.created, changed.updated) == (first.mark, first.created, noon.now())
    assert app.run_schedules().pushed == 2
    assert [(task.kind, task.payload, task.priority) for task in other.tasks()] == [("k", {"n": 1}, 0)] * 2
    before = sql.execute("select count(*) from penstock.audit").fetchone()
    app.set_schedule("s", HOURLY, queue="other", kind="k", payload={"n": 1}, priority=0, backfill="all")
    assert sql.execute("select count(*) from penstock.audit").fetchone() == before, "nothing was audited"


def test_a_paused_schedule_collects_no_ticks(app: Penstock, queue: Queue, noon: Clock) -> None:
    app.set_schedule("s", HOURLY, queue="work", backfill="all")
    assert app.pause_schedule("s").paused
    assert app.pause_schedule("s").paused
    noon.advance(3 * 3600)
    assert app.run_schedules() == (0, {})
    app.set_schedule("s", HOURLY, queue="work", backfill="all", payload={"n": 1})
    assert stands(app).paused, "a deployment does not resume it"
    resumed = app.resume_schedule("s")
    assert (resumed.paused, resumed.next_at) == (False, at("15 16:00"))
    assert app.run_schedules().pushed == 0
    noon.advance(3600)
    assert app.resume_schedule("s").next_at == at("15 16:00"), "a schedule that is not paused loses no tick by it"
    assert app.run_schedules().pushed == 1
    assert ticks(queue) == ["15T16:00"]


def test_sql_alone_may_set_a_schedule(app: Penstock, queue: Queue, sql: Connection, noon: Clock) -> None:
    """SQL knows no cron: the next client that looks finds out when the schedule runs."""
    sql.execute("select penstock.set_schedule('s', 'work', '0 * * * *')")
    assert stands(app).next_at == noon.now()
    noon.advance(3600)
    assert app.run_schedules().pushed == 1
    assert stands(app).next_at == at("15 14:00")


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("null, 'work', '0 * * * *'", "PS400"),
        ("'', 'work', '0 * * * *'", "PS400"),
        ("'s', 'nowhere', '0 * * * *'", "PS404"),
        ("'s', 'work', null", "PS400"),
        ("'s', 'work', '0 * * * * *'", "PS400"),
        ("'s', 'work', '0 * * * *', null", "PS400"),
        ("'s', 'work', '0 * * * *', 'Mars/Phobos'", "PS400"),
        ("'s', 'work', '0 * * * *', 'UTC', ''", "PS400"),
        ("'s', 'work', '0 * * * *', 'UTC', 'k', '[]'", "PS422"),
        ("'s', 'work', '0 * * * *', 'UTC', 'k', null", "PS422"),
        ("'s', 'work', '0 * * * *', 'UTC', 'k', '{}', 101::smallint", "PS400"),
        ("'s', 'work', '0 * * * *', 'UTC', 'k', '{}', 5::smallint, 'some'", "PS400"),
    ],
)
def test_what_sql_refuses(app: Penstock, queue: Queue, sql: Connection, arguments: str, code: str) -> None:
    with pytest.raises(psycopg.Error) as refused:
        sql.execute(f"select penstock.set_schedule({arguments})".encode())
    assert refused.value.sqlstate == code
    assert app.schedules() == []


def test_bad_input_is_refused_before_anything_is_written(app: Penstock, queue: Queue) -> None:
    queue.set(max_payload=100)
    for change, error in (
        ({"cron": "60 * * * *"}, ValidationError),
        ({"cron": "0 0 31 2 *"}, ValidationError),
        ({"tz": "Mars/Phobos"}, ValidationError),
        ({"queue": "nowhere"}, NotFound),
        ({"payload": {"x": "y" * 100}}, PayloadTooLarge),
        ({"backfill": "some"}, ValidationError),
    ):
        with pytest.raises(error):
            app.set_schedule(**{"name": "s", "cron": HOURLY, "queue": "work", **change})  # type: ignore[arg-type]
    assert app.schedules() == []


def test_a_schedule_that_does_not_exist(app: Penstock, queue: Queue) -> None:
    app.set_schedule("nightly", HOURLY, queue="work")
    for verb in (app.drop_schedule, app.pause_schedule, app.resume_schedule):
        with pytest.raises(NotFound, match="'nightyl' does not exist") as refused:
            verb("nightyl")
        assert "'nightly'" in (refused.value.hint or "")
        with pytest.raises(ValidationError, match=r"^name: "):
            verb("")
    app.drop_schedule("nightly")
    assert app.schedules() == []


def test_a_rehearsal_changes_nothing(app: Penstock, queue: Queue, noon: Clock, dsn: str) -> None:
    app.set_schedule("s", HOURLY, queue="work")
    noon.advance(3600)
    before = app.schedules()
    with Penstock(dsn, rehearse=True) as rehearsal:
        assert rehearsal.run_schedules().pushed == 1
        assert rehearsal.set_schedule("t", HOURLY, queue="work").next_at == at("15 14:00")
        assert rehearsal.pause_schedule("s").paused
        rehearsal.drop_schedule("s")
    assert (app.schedules(), queue.tasks()) == (before, [])


# --- dropped queues ---------------------------------------------------------------------------------------------------


def test_a_dropped_queue_takes_its_schedules_along(app: Penstock, queue: Queue, noon: Clock) -> None:
    app.create_queue("other")
    app.set_schedule("s", HOURLY, queue="work")
    app.set_schedule("t", HOURLY, queue="other")
    noon.advance(3600)
    queue.drop()
    assert [one.name for one in app.schedules()] == ["t"]
    assert app.run_schedules() == (1, {})
    with pytest.raises(NotFound, match="queue 'work' does not exist"):
        app.set_schedule("s", HOURLY, queue="work")


def test_a_schedule_whose_queue_was_dropped_meanwhile_is_ignored(
    app: Penstock, queue: Queue, sql: Connection, noon: Clock
) -> None:
    """Only a call that set it while the queue was dropped can leave one behind. It wakes no worker."""
    app.set_schedule("s", HOURLY, queue="work")
    sql.execute("update penstock.schedule set queue_id = 77")
    noon.advance(3600)
    assert (app.schedules(), app.run_schedules()) == ([], (0, {}))
    assert sql.execute("select penstock.next_schedule()").fetchone() == (None,)
    with pytest.raises(psycopg.Error, match="its queue was dropped") as refused:
        sql.execute("select penstock.fire('s', mark, array[next_at], next_at, next_at + '1 h') from penstock.schedule")
    assert refused.value.sqlstate == "PS404"
    assert app.set_schedule("s", HOURLY, queue="work").queue == "work"


def test_drops_and_fires_do_not_wait_in_a_circle(app: Penstock, queue: Queue, noon: Clock, dsn: str) -> None:
    stop, errors = threading.Event(), list[object]()

    def fire() -> None:
        with Penstock(dsn) as own:
            while not stop.is_set():
                errors.extend(own.run_schedules().failed.values())

    with ThreadPoolExecutor(3) as pool:
        firing = [pool.submit(fire) for _ in range(3)]
        for n in range(15):
            own = app.create_queue("brief")
            for m in range(5):
                app.set_schedule(f"s{m}", "* * * * *", queue="brief", backfill="all")
            noon.advance(60 * n)
            own.drop(force=True)
        stop.set()
        for one in firing:
            one.result()
    assert [error for error in errors if not isinstance(error, NotFound)] == []
    with psycopg.connect(dsn) as sql:
        (deadlocks,) = sql.execute(
            "select deadlocks from pg_stat_database where datname = current_database()"
        ).fetchone() or (None,)
    assert deadlocks == 0


# --- decorators -------------------------------------------------------------------------------------------------------

NOWHERE = "postgresql://user@127.0.0.1:1/nothing"


def test_above_and_below_a_handler() -> None:
    app = Penstock(NOWHERE)

    @app.schedule("0 6 * * *", tz="Europe/Rome")
    @app.task(queue="mail", priority=3)
    def above() -> None: ...

    @app.task(queue="mail")
    @app.schedule(HOURLY, name="hourly", backfill="all", payload={"n": 7}, priority=1)
    @app.schedule("30 * * * *", name="half", payload={"n": 8})
    async def below(n: int) -> None: ...

    first, half, hourly = app.registry.schedules_of("mail")
    assert first == ("mail/above", "mail", "0 6 * * *", "Europe/Rome", "above", {}, 3, "last", None, None)
    assert hourly == ("hourly", "mail", HOURLY, "UTC", "below", {"n": 7}, 1, "all", None, None)
    assert (half.name, half.payload) == ("half", {"n": 8})
    assert app.registry.schedules_of("other") == []
    assert isinstance(above, Handler)
    assert isinstance(below, Handler)


def test_above_and_below_an_async_handler() -> None:
    app = AsyncPenstock(NOWHERE)

    @app.schedule("0 6 * * *")
    @app.task(queue="mail")
    async def above() -> None: ...

    @app.task(queue="mail")
    @app.schedule("0 7 * * *")
    def below() -> None: ...

    assert isinstance(above, AsyncHandler)
    assert [new.name for new in app.registry.schedules_of("mail")] == ["mail/above", "mail/below"]


def test_a_schedule_that_could_not_work_is_refused_at_decoration() -> None:
    app, other = Penstock(NOWHERE), Penstock(NOWHERE)

    @app.task(queue="mail")
    def needs(n: int) -> None: ...

    @app.task(queue="mail", kind="*")
    def anything(payload: dict[str, Any]) -> None: ...

    with pytest.raises(ValidationError, match="n"):
        app.schedule(HOURLY)(needs)
    with pytest.raises(ValidationError, match="cron: '60"):
        app.schedule("60 * * * *", payload={"n": 1})(needs)
    with pytest.raises(ConfigError, match="one kind"):
        app.schedule(HOURLY)(anything)
    with pytest.raises(ConfigError, match="another application"):
        other.schedule(HOURLY, payload={"n": 1})(needs)
    app.schedule(HOURLY, payload={"n": 1})(needs)
    app.schedule(HOURLY, payload={"n": 1})(needs)  # imported twice
    with pytest.raises(ConfigError, match="another one called 'mail/needs'"):
        app.schedule("30 * * * *", payload={"n": 1})(needs)
    app.schedule(HOURLY)(lambda: None)
    with pytest.raises(ConfigError, match="is not a handler"):
        app.registry.schedules_of("mail")


# --- again: a task that is its own schedule ---------------------------------------------------------------------------


def test_a_task_may_be_its_own_schedule(app: Penstock, noon: Clock) -> None:
    """`again(due)` by a cron expression: the row, subject and payload stay, and iterations are counted."""
    queue = app.create_queue("calendar")
    ran: list[tuple[int, datetime]] = []

    @app.task(queue="calendar", kind="clean")
    def clean(room: str, context: Context) -> None:
        ran.append((context.iterations, context.task.due))
        context.again(cron_of("0 6 * * *", "Europe/Rome").next(noon.now()))

    clean.push("hall", subject="clean:hall")
    for _ in range(3):
        assert app.drain_inline() == {"planned": 1}
        (task,) = queue.tasks()
        assert (task.subject, task.payload, task.state) == ("clean:hall", {"room": "hall"}, "planned")
        noon.advance(86400)
    assert [n for n, _ in ran] == [0, 1, 2]
    assert [due for _, due in ran][1:] == [at("16 05:00"), at("17 05:00")]
    assert queue.status().totals["again"] == 3


# --- async ------------------------------------------------------------------------------------------------------------


@contextmanager
def async_client(dsn: str) -> Iterator[Callable[..., Any]]:
    app = AsyncPenstock(dsn)
    with asyncio.Runner() as runner:
        yield lambda verb, *words, **named: runner.run(getattr(app, verb)(*words, **named))
        runner.run(app.close())


def test_with_await(app: Penstock, queue: Queue, noon: Clock, dsn: str) -> None:
    with async_client(dsn) as call:
        assert call("set_schedule", "s", HOURLY, queue="work").next_at == at("15 13:00")
        noon.advance(3600)
        assert call("run_schedules") == (1, {})
        assert call("pause_schedule", "s").paused
        assert not call("resume_schedule", "s").paused
        assert [one.name for one in call("schedules")] == ["s"]
        call("drop_schedule", "s")
        assert call("schedules") == []
