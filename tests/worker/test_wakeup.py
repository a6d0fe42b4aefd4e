"""A resting worker is notified of a push, and claims through the connection that received the notification."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock import Penstock, Queue
from penstock.client.claims import Claimer
from penstock.client.database import Database
from penstock.client.listener import Listener, open_listener
from penstock.worker.wakeup import PushListener
from proxy import Proxy
from workers import Worker, eventually, working

CODE = """
@app.task(queue="work", kind="default")
async def one() -> None:
    note("one")

@app.task(queue="work")
async def blocking() -> None:
    await asyncio.sleep(0.3)  # until the runner rests
    note("began")
    wait_for("go")
    note("ended")
"""


def listening_sessions(activity: Connection) -> dict[int, str]:
    """The sessions whose last statement was LISTEN, by process id, with that statement."""
    rows = activity.execute(
        "select pid, query from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    )
    return {pid: query for pid, query in rows if query.startswith("listen ")}


def last_statement(activity: Connection, pid: int) -> str:
    row = activity.execute("select query from pg_stat_activity where pid = %s", (pid,)).fetchone()
    return "" if row is None else row[0]


def find_listener(activity: Connection) -> int:
    return eventually(lambda: [*listening_sessions(activity)])[0]


def push_and_wait(queue: Queue, worker: Worker) -> None:
    before = len(worker.noted)
    queue.push({})
    eventually(lambda: len(worker.noted) > before)


def wait_until_it_claims(activity: Connection, listener: int, queue: Queue, worker: Worker) -> None:
    """Pushes until this connection claims. If its runner does not rest at a push, the runner claims by itself."""

    def push_and_look() -> bool:
        push_and_wait(queue, worker)
        return "penstock.claim(" in last_statement(activity, listener)

    eventually(push_and_look)


def test_a_notified_connection_claims_by_itself(queue: Queue, sql: Connection, direct_dsn: str, tmp_path: Path) -> None:
    with working(tmp_path, direct_dsn, CODE) as worker:
        wait_until_it_claims(sql, find_listener(sql), queue, worker)
        assert worker.stop() == 0


def test_a_listener_whose_session_ends_is_replaced(
    queue: Queue, sql: Connection, direct_dsn: str, tmp_path: Path
) -> None:
    with working(tmp_path, direct_dsn, CODE) as worker:
        first = find_listener(sql)
        wait_until_it_claims(sql, first, queue, worker)
        sql.execute("select pg_terminate_backend(%s)", (first,))
        wait_until_it_claims(sql, find_listener(sql), queue, worker)
        assert worker.stop() == 0


def test_pushes_to_a_queue_that_is_created_anew_are_noticed(
    app: Penstock, queue: Queue, sql: Connection, direct_dsn: str, tmp_path: Path
) -> None:
    with working(tmp_path, direct_dsn, CODE) as worker:
        listener = find_listener(sql)
        queue.drop(force=True)
        anew = app.create_queue("work")
        wait_until_it_claims(sql, listener, anew, worker)
        assert worker.stop() == 0


def test_a_listener_with_serializable_transactions_only_wakes_its_runner(
    queue: Queue, sql: Connection, direct_dsn: str, tmp_path: Path
) -> None:
    strict = make_conninfo(direct_dsn, options="-c default_transaction_isolation=serializable")
    with working(tmp_path, strict, CODE) as worker:
        listener = find_listener(sql)
        for _ in range(5):
            push_and_wait(queue, worker)
        assert last_statement(sql, listener).startswith("listen ")
        assert worker.stop() == 0


def test_a_claimer_that_is_always_notified_still_finds_due_tasks(queue: Queue, direct_dsn: str) -> None:
    """A claim after a notification looks for nothing else, but twice a second it does."""
    found: list[str] = []
    with closing(Database(direct_dsn)) as database, open_listener(database, []) as listener:
        claimer = Claimer(database, "work")
        claimer.claim(10)
        queue.push({}, kind="planned", due=datetime.now(UTC) + timedelta(seconds=0.1))
        for _ in range(4):
            time.sleep(0.2)
            queue.push({})
            claim = claimer.claim_notified(listener.once, 10)
            found += [task.kind for task in claim.tasks]
    assert sorted(found) == ["default"] * 4 + ["planned"]


def test_a_hint_of_place_0_finds_pushed_tasks_first(queue: Queue, sql: Connection) -> None:
    """Place 0 is before all tasks. A claim with this hint that finds a task looks for no planned tasks."""
    queue.push({}, kind="planned", due=datetime.now(UTC) - timedelta(seconds=1))
    queue.push({})
    claim = "select kind from penstock.claim('work', 10, p_hint => penstock.at_place(0::smallint, '-infinity', 0))"
    assert sql.execute(claim).fetchall() == [("default",)]
    assert sql.execute(claim).fetchall() == [("planned",)], "if it finds nothing, it does"


def test_what_is_claimed_while_a_handler_holds_the_loop_goes_back(
    queue: Queue, direct_dsn: str, tmp_path: Path
) -> None:
    queue.set(lease="10m")  # so that they cannot go back because a lease ended
    with working(tmp_path, direct_dsn, CODE) as worker:
        queue.push({}, kind="blocking")
        eventually(lambda: "began" in worker.noted)
        queue.push_many([{}] * 3)
        time.sleep(0.5)  # the listener claims them
        eventually(lambda: (now := queue.status()).pending == 3 and now.active == 1)
        assert "ended" not in worker.noted
        worker.allow()
        eventually(lambda: worker.noted.count("one") == 3)
        assert worker.stop() == 0


class Told:
    """An owner of a PushListener that records the calls."""

    def __init__(self) -> None:
        self.queues: list[str] = []
        self.listening: list[bool] = []

    def notice_push(self, queue: str, listener: Listener) -> None:
        assert listener.can_claim
        self.queues.append(queue)

    def report_listening(self, listening: bool) -> None:
        self.listening.append(listening)


def test_a_connection_that_hangs_is_replaced(queue: Queue, sql: Connection, direct_dsn: str) -> None:
    """TCP still acknowledges, so the only sign is a notification that does not arrive."""
    port = int(str(conninfo_to_dict(direct_dsn)["port"]))
    told = Told()
    with Proxy(port) as proxy, closing(Database(proxy.add_lane().dsn(direct_dsn))) as database:
        listener = PushListener(database, told, every=1.0, patience=2.0)
        try:
            listener.listen("penstock_7")
            eventually(lambda: told.listening == [True])
            listens = (
                "select client_port from pg_stat_activity where datname = current_database() and query ~ '^listen '"
            )
            ((behind,),) = sql.execute(listens).fetchall()
            (route,) = [one for one in proxy.lanes[0].routes if one.server and one.server.getsockname()[1] == behind]
            route.hangs = True
            eventually(lambda: told.listening[:3] == [True, False, True])
            assert told.queues == []
            eventually(lambda: sql.execute("select pg_notify('penstock_7', 'work')") and told.queues)
            assert {*told.queues} == {"work"}
        finally:
            listener.close()


def test_a_connection_that_works_is_kept(sql: Connection, direct_dsn: str) -> None:
    told = Told()
    with closing(Database(direct_dsn)) as database:
        listener = PushListener(database, told, every=0.1, patience=20)
        try:
            listener.listen("penstock_7")
            eventually(lambda: told.listening == [True])
            eventually(lambda: len(listening_sessions(sql)) == 1)  # one that received nothing in time was replaced
            first = find_listener(sql)
            time.sleep(1)
            assert [*listening_sessions(sql)] == [first]
            assert told.listening == [True]
        finally:
            listener.close()
