"""Who rests hears of a push, and claims by the connection that heard of it."""

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
from penstock.client.listener import Listener, listening
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


def ears(activity: Connection) -> dict[int, str]:
    """Connections that have listened and not claimed yet, and how they said it."""
    rows = activity.execute(
        "select pid, query from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    )
    return {pid: query for pid, query in rows if query.startswith("listen ")}


def last_word(activity: Connection, pid: int) -> str:
    row = activity.execute("select query from pg_stat_activity where pid = %s", (pid,)).fetchone()
    return "" if row is None else row[0]


def an_ear(activity: Connection) -> int:
    return eventually(lambda: [*ears(activity)])[0]


def push_and_wait(queue: Queue, worker: Worker) -> None:
    before = len(worker.noted)
    queue.push({})
    eventually(lambda: len(worker.noted) > before)


def claims_by(activity: Connection, ear: int, queue: Queue, worker: Worker) -> None:
    """It may have heard of a push while its runner did not rest: then that one claimed."""

    def pushed_and_heard() -> bool:
        push_and_wait(queue, worker)
        return "penstock.claim(" in last_word(activity, ear)

    eventually(pushed_and_heard)


def test_who_hears_of_a_push_claims_by_the_same_connection(
    queue: Queue, sql: Connection, direct_dsn: str, tmp_path: Path
) -> None:
    with working(tmp_path, direct_dsn, CODE) as worker:
        claims_by(sql, an_ear(sql), queue, worker)
        assert worker.stop() == 0


def test_a_line_that_was_cut_is_replaced(queue: Queue, sql: Connection, direct_dsn: str, tmp_path: Path) -> None:
    with working(tmp_path, direct_dsn, CODE) as worker:
        first = an_ear(sql)
        claims_by(sql, first, queue, worker)
        sql.execute("select pg_terminate_backend(%s)", (first,))
        claims_by(sql, an_ear(sql), queue, worker)
        assert worker.stop() == 0


def test_a_queue_that_is_created_anew_is_heard_of(
    app: Penstock, queue: Queue, sql: Connection, direct_dsn: str, tmp_path: Path
) -> None:
    with working(tmp_path, direct_dsn, CODE) as worker:
        ear = an_ear(sql)
        queue.drop(force=True)
        anew = app.create_queue("work")
        claims_by(sql, ear, anew, worker)
        assert worker.stop() == 0


def test_where_transactions_are_serializable_it_only_wakes(
    queue: Queue, sql: Connection, direct_dsn: str, tmp_path: Path
) -> None:
    strict = make_conninfo(direct_dsn, options="-c default_transaction_isolation=serializable")
    with working(tmp_path, strict, CODE) as worker:
        ear = an_ear(sql)
        for _ in range(5):
            push_and_wait(queue, worker)
        assert last_word(sql, ear).startswith("listen ")
        assert worker.stop() == 0


def test_who_only_hears_still_finds_what_is_due(queue: Queue, direct_dsn: str) -> None:
    """Who has just heard of something looks for nothing else; but twice a second he does."""
    found: list[str] = []
    with closing(Database(direct_dsn)) as database, listening(database, []) as line:
        claimer = Claimer(database, "work")
        claimer.claim(10)
        queue.push({}, kind="planned", due=datetime.now(UTC) + timedelta(seconds=0.1))
        for _ in range(4):
            time.sleep(0.2)
            queue.push({})
            claim = claimer.claim_notified(line.once, 10)
            found += [task.kind for task in claim.tasks]
    assert sorted(found) == ["default"] * 4 + ["planned"]


def test_who_is_told_of_a_push_takes_what_there_is(queue: Queue, sql: Connection) -> None:
    """Before all is place 0: from there a claim that finds anything looks after nothing else."""
    queue.push({}, kind="planned", due=datetime.now(UTC) - timedelta(seconds=1))
    queue.push({})
    claim = "select kind from penstock.claim('work', 10, p_hint => penstock.at_place(0::smallint, '-infinity', 0))"
    assert sql.execute(claim).fetchall() == [("default",)]
    assert sql.execute(claim).fetchall() == [("planned",)], "finding nothing, it does"


def test_what_is_claimed_while_a_handler_holds_the_loop_goes_back(
    queue: Queue, direct_dsn: str, tmp_path: Path
) -> None:
    queue.set(lease="10m")  # they do not go back because it has ended
    with working(tmp_path, direct_dsn, CODE) as worker:
        queue.push({}, kind="blocking")
        eventually(lambda: "began" in worker.noted)
        queue.push_many([{}] * 3)
        time.sleep(0.5)  # the ear claims them
        eventually(lambda: (now := queue.status()).pending == 3 and now.active == 1)
        assert "ended" not in worker.noted
        worker.allow()
        eventually(lambda: worker.noted.count("one") == 3)
        assert worker.stop() == 0


class Told:
    """An owner of a PushListener that notes what it is told."""

    def __init__(self) -> None:
        self.queues: list[str] = []
        self.hearing: list[bool] = []

    def heard(self, queue: str, listener: Listener) -> None:
        assert listener.can_claim
        self.queues.append(queue)

    def hears(self, does: bool) -> None:
        self.hearing.append(does)


def test_a_connection_that_hangs_is_replaced(queue: Queue, sql: Connection, direct_dsn: str) -> None:
    """TCP still acknowledges, so only a notification that does not arrive tells of it."""
    port = int(str(conninfo_to_dict(direct_dsn)["port"]))
    told = Told()
    with Proxy(port) as proxy, closing(Database(proxy.add_lane().dsn(direct_dsn))) as database:
        ear = PushListener(database, told, every=1.0, patience=2.0)
        try:
            ear.listen("penstock_7")
            eventually(lambda: told.hearing == [True])
            listens = (
                "select client_port from pg_stat_activity where datname = current_database() and query ~ '^listen '"
            )
            ((behind,),) = sql.execute(listens).fetchall()
            (route,) = [one for one in proxy.lanes[0].routes if one.server and one.server.getsockname()[1] == behind]
            route.hangs = True
            eventually(lambda: told.hearing[:3] == [True, False, True])
            assert told.queues == []
            eventually(lambda: sql.execute("select pg_notify('penstock_7', 'work')") and told.queues)
            assert {*told.queues} == {"work"}
        finally:
            ear.close()


def test_a_connection_that_hears_is_kept(sql: Connection, direct_dsn: str) -> None:
    told = Told()
    with closing(Database(direct_dsn)) as database:
        ear = PushListener(database, told, every=0.1, patience=20)
        try:
            ear.listen("penstock_7")
            eventually(lambda: told.hearing == [True])
            eventually(lambda: len(ears(sql)) == 1)  # one that heard nothing in time was replaced
            first = an_ear(sql)
            time.sleep(1)
            assert [*ears(sql)] == [first]
            assert told.hearing == [True]
        finally:
            ear.close()
