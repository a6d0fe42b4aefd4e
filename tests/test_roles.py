"""What each role may and may not do, and that no role can replace the functions that are called (B90 to B94)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import orjson
import psycopg
import pytest
from psycopg import Connection
from psycopg.conninfo import make_conninfo

from penstock import AuthError, LeaseLost, NewTask, NotFound, Outcome, Penstock, Queue, Unavailable
from penstock.client import history, streams
from penstock.client.database import Database
from penstock.client.workers import set_kinds
from penstock.model import Json
from shell import penstock

ROLES = ("producer", "worker", "reader", "operator", "admin")
READERS = ("reader", "operator", "admin")  # roles that may read everything
OUTSIDER = "outsider"  # may connect, but has none of our roles
LATER = datetime.now(UTC) + timedelta(days=1)


class World:
    """A database with a queue, and clients for every role."""

    def __init__(self, owner_dsn: str, users: dict[str, str]) -> None:
        self.owner_dsn = owner_dsn
        self._users = users

    def dsn(self, role: str, **more: str) -> str:
        if role == "owner":
            return make_conninfo(self.owner_dsn, **more)
        return make_conninfo(self.owner_dsn, user=self._users[role], password="secret", **more)

    @contextmanager
    def client(self, role: str, **more: str) -> Iterator[Queue]:
        with self.app(role, **more) as app:
            yield app.queue("work")

    def app(self, role: str, **more: str) -> Penstock:
        return Penstock(self.dsn(role, **more))

    def sql(self, role: str, **more: str) -> Connection:
        return psycopg.connect(self.dsn(role, **more), autocommit=True)


@pytest.fixture(scope="module")
def users(server_dsn: str) -> Iterator[dict[str, str]]:
    """Login roles, each a member of one role of ours, because some verbs look at logins."""
    names = {role: f"test_{os.getpid()}_{role}" for role in (*ROLES, OUTSIDER)}
    with psycopg.connect(server_dsn, autocommit=True) as sql:
        for role, name in names.items():
            sql.execute(f"create role {name} login password 'secret'")
            if role != OUTSIDER:
                sql.execute(f"grant penstock_{role} to {name}")
        yield names
        for name in names.values():
            sql.execute(f"drop role {name}")


@pytest.fixture
def world(users: dict[str, str], make_database: Callable[..., str]) -> Iterator[World]:
    """A database as init makes it, with its clock: the clock of other tests reads a table that the roles may not."""
    world = World(make_database("template0"), users)
    with world.app("owner") as app:
        app.init()
        app.create_queue("work", keep_done="1d")
        yield world
        assert app.verify().ok, app.verify().findings


# --- what roles may do ------------------------------------------------------------------------------------------------


def test_a_producer_writes_keys_and_ends_but_not_what_a_task_waits_for(world: World) -> None:
    with world.client("producer") as queue:
        queue.push(key="a", meta={"n": 1}, expires="1h")
        queue.push_many([NewTask({}, key="b", meta={"n": 2}, expires="1h"), NewTask({}, key="b")])
        queue.upsert_many([NewTask({}, key="c", subject="s")])
    with world.sql("producer") as sql, pytest.raises(psycopg.errors.InsufficientPrivilege):
        sql.execute("insert into penstock.task (queue_id, waits_for) values (1, 1)")
    with world.client("worker") as queue:
        claim = queue.claim(9)
        assert [task.key for task in claim.tasks] == ["a", "b", "b", "c"]
        queue.settle(claim)
    with world.sql("reader") as sql:
        assert sql.execute("select count(*) from penstock.key").fetchone() == (3,)
        assert sql.execute("select key_ids from penstock.lease").fetchall() == []


def test_a_producer_pushes_in_every_way(world: World) -> None:
    named = [NewTask({"n": n}, f"s{n}") for n in range(30)]
    full = [NewTask({}, f"full{n}", LATER, n % 10, "other") for n in range(10)]
    with world.client("producer") as queue:
        assert queue.push({"a": 1}).result == "created"
        assert queue.push(subject="one", kind="mail", due=LATER, priority=1).state == "planned"
        assert queue.push(subject="one").result == "skipped"
        assert queue.push({"b": 2}, subject="one", on_conflict="update").result == "updated"
        assert queue.push_many([{}] * 20).created == 20  # COPY
        assert queue.push_many([NewTask({}, None, LATER, 3, "other")] * 5).created == 5
        report = queue.push_many(named)  # COPY, with subjects
        assert report.created == 30
        assert queue.push_many(named, batch_id=report.batch_id).created == 30
        assert queue.push_many(named).skipped == 30
        assert queue.upsert_many(named).updated == 30
        assert queue.upsert_many(full).created == 10
        assert queue.push_many([NewTask({}, f"strict{n}") for n in range(5)], on_conflict="error").created == 5
        with psycopg.connect(world.dsn("producer")) as own:
            assert queue.push({}, connection=own).result == "created"
            assert queue.push_many(named, connection=own).skipped == 30
        status = queue.status()
    assert (status.pending, status.planned, status.totals["pushed"]) == (57, 16, 73)
    with world.client("worker") as queue:
        assert len(queue.claim(100)) == 57, "copied tasks wait like all others"


def test_a_worker_claims_and_settles(world: World) -> None:
    with world.client("owner") as queue:
        queue.push_many([{}] * 4)
        queue.push_many([NewTask({}, f"s{n}") for n in range(4)])
    with world.app("worker") as app:
        queue = app.queue("work")
        assert list(app.beat("w", ["work"], slots=2)) == ["work"]
        claim = queue.claim(6, worker="w")
        assert not queue.extend(claim).revoked
        outcomes = (Outcome.done(), Outcome.failed("x"), Outcome.again(), Outcome.dead("y"), Outcome.release())
        told = dict(zip(claim.ids, outcomes, strict=False))
        states = dict(zip(claim.ids, ("done", "planned", "pending", "dead", "pending"), strict=False))
        assert queue.settle(claim, told) == states
        assert queue.release(str(claim.token)) == {claim.ids[5]: "pending"}
        assert queue.status().totals["done"] == 1
        assert "expired" in app.upkeep()


def test_a_settle_of_a_worker_pushes_follow_ups(world: World) -> None:
    """A worker may not push, but its settles push what a kind declares."""
    with world.client("owner") as queue:
        queue.push_many([{}] * 2)
    with world.app("worker") as app:
        with closing(Database(world.dsn("worker"))) as database:
            set_kinds(database, "work", [{"kind": "default", "on_dead": "work:buried", "on_done": "work:kept"}])
        queue = app.queue("work")
        claim = queue.claim(2)
        queue.settle(claim, {claim.ids[0]: Outcome.done(), claim.ids[1]: Outcome.dead("no")})
        assert sorted(task.kind for task in queue.claim(9).tasks) == ["buried", "kept"]
        with pytest.raises(AuthError):
            queue.push()


def test_a_worker_needs_no_other_role_to_work(world: World, tmp_path: Path) -> None:
    with world.client("owner") as queue:
        queue.push_many([NewTask({"n": n}, kind="handle") for n in range(20)])
    (tmp_path / "mine.py").write_text(
        "from penstock import Context, Penstock\n"
        "app = Penstock()\n"
        "@app.schedule('0 6 * * *', payload={'n': 1})\n"
        "@app.task(queue='work', max_attempts=2)\n"
        "def handle(n: int, context: Context) -> None:\n"
        "    with context.transaction():\n"
        "        pass\n"
    )
    ran = penstock("work", "mine:app", "--until-empty", "--json", dsn=world.dsn("worker"), cwd=tmp_path)
    assert (ran.code, ran.json["done"]) == (0, 20), ran.err
    with world.app("reader") as app:
        assert [one.name for one in app.schedules()] == ["work/handle"]


def test_a_worker_scales_and_a_reader_sees_why(world: World, tmp_path: Path) -> None:
    with world.app("owner") as app:
        app.queue("work").set(sla="30s")
    (tmp_path / "mine.py").write_text(
        "from penstock import Penstock\napp = Penstock()\n@app.task(queue='work')\ndef handle(): pass\n"
    )
    ran = penstock("scale", "mine:app", "--advise", "--once", "--json", dsn=world.dsn("worker"), cwd=tmp_path)
    assert ran.code == 0, ran.err
    with world.sql("reader") as sql:
        assert sql.execute("select penstock.target_workers('work')").fetchone() == (1,)
        assert sql.execute("select queue, workers, bound_by from penstock.decisions('work')").fetchall() == [
            ("work", 1, "min")
        ]


def test_a_worker_drives_a_stream(world: World) -> None:
    with world.client("owner") as queue:
        queue.push_many([{}] * 4)
    database = Database(world.dsn("worker"))
    held = streams.hold_stream(database, "work", "g", epoch=streams.next_epoch(database), driver="d", lease="1m")
    assert streams.waiting_now(database, "work")[1] == 4
    assert streams.next_batch(database, held, after=0, limit=10, slots=1, lease="1m").tasks == 4
    ((token, _),) = streams.batch_leases(database, held, 0, 1)
    with database.session() as connection:
        assert len(streams.read_lease(connection, token, 0, 10)) == 4
    streams.keep_stream(database, held, lease="1m")
    assert streams.next_batch(database, held, after=1, limit=10, slots=1, lease="1m").tasks == 0
    streams.leave_stream(database, held)
    database.close()
    with world.client("reader") as queue, world.sql("reader") as sql:
        assert queue.status().totals["done"] == 4
        assert sql.execute("select name, batch, driver from penstock.stream").fetchall() == [("g", 1, "d")]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            sql.execute("select tokens from penstock.stream")


def test_a_reader_sees_everything(world: World, users: dict[str, str]) -> None:
    with world.app("owner") as app:
        queue = app.queue("work")
        queue.push_many([NewTask({"n": n}, f"s{n}") for n in range(3)])
        queue.settle(queue.claim(1))
        app.upkeep()
    with world.app("reader") as app, world.sql("reader") as sql:
        queue = app.queue("work")
        assert app.verify().ok
        assert [one.queue for one in app.status()] == ["work"]
        assert [one.queue for one in app.queues()] == ["work"]
        assert queue.settings().keep_done == timedelta(days=1)
        assert [one.payload for one in queue.tasks(state="pending")] == [{"n": 1}, {"n": 2}]
        assert sql.execute("select outcome from penstock.history").fetchall() == [("done",)]
        assert sql.execute("select count(*) from penstock.sample").fetchone() == (1,)


def test_an_admin_may_do_everything(world: World, users: dict[str, str]) -> None:
    with world.app("admin") as app:
        queue = app.create_queue("second", max_attempts=1)
        first, second, third = (queue.push({}, subject=name).id for name in ("a", "b", "c"))
        queue.push_many([{}] * 5)
        assert queue.cancel([first]) == {first: "cancelled"}
        assert queue.redrive([first]) == {first: "redriven"}
        assert queue.reprioritise(1, [second]) == {second: "reprioritised"}
        assert queue.reschedule(LATER, [third]) == {third: "rescheduled"}
        queue.settle(queue.claim(1))
        assert len(queue.tasks()) == 7
        assert queue.purge("pending") == 6
        queue.pause()
        queue.resume()
        assert app.verify().ok
        assert app.repair() == []
        app.upkeep()
        app.beat("w", ["second"])
        assert queue.drop(force=True) == 1
    with world.sql("reader") as sql:
        actors = sql.execute("select distinct actor from penstock.audit where queue = 'second'").fetchall()
        assert actors == [(users["admin"],)], "the audit names logins, not roles"


def test_a_role_that_only_reads_holds_back_no_history(world: World) -> None:
    """A registered reader holds back the days that it has not read for ever, so such a role may not register one."""
    database = Database(world.dsn("reader"))
    with pytest.raises(AuthError, match="note_reader"):
        history.note_reader(database, "lake", history.read_horizon(database))
    database.close()
    with world.sql("reader") as sql:
        assert sql.execute("select count(*) from penstock.history_reader").fetchone() == (0,)
        (mark,) = sql.execute("select system, database, branch from penstock.history_horizon()").fetchall()
    with world.sql("worker") as sql:
        sql.execute("select penstock.note_reader('lake', %s, %s, %s, 0)", mark)


# --- without the verbs: what a producer may INSERT and COPY -----------------------------------------------------------

MIB = 1 << 20
QUOTES = '\\"'
WIDE = {
    "text": f'{{"a": "{"x" * (MIB + 100)}"}}',  # PostgreSQL stores it in a hundredth of this size
    "many": f'{{"a": [{",".join(map(str, range(100_000, 300_000)))}]}}',
    "zeros": f'{{"a": "{"0" * (6 * MIB + 100)}"}}',
    "blanks": f'{{"a": "{", " * MIB}x", "b": [0, 0, 0]}}',
    "escapes": f'{{"a": "{QUOTES * (MIB + 100)}"}}',
}


def inserted(sql: Connection, *payloads: str) -> None:
    with sql.transaction():
        sql.execute("insert into penstock.task (queue_id, payload) select 1, unnest(%s::jsonb[])", ([*payloads],))


def copied(sql: Connection, *payloads: str) -> None:
    with sql.cursor().copy("copy penstock.task (queue_id, payload) from stdin") as copy:
        for payload in payloads:
            copy.write_row((1, payload))


@pytest.mark.sample(5)
@pytest.mark.parametrize("payload", WIDE.values(), ids=WIDE.keys())
@pytest.mark.parametrize("write", [inserted, copied])
def test_no_role_can_exceed_the_largest_payload(world: World, write: Callable[..., None], payload: str) -> None:
    with world.sql("producer") as sql:
        with pytest.raises(psycopg.Error, match=r"payload: .* bytes are more than 1048576") as refused:
            write(sql, "{}", payload, "{}")
        assert refused.value.sqlstate == "PS413"
    with world.client("owner") as queue:
        assert queue.status().pending == 0


def test_the_queues_own_limit_holds_for_every_role(world: World) -> None:
    with world.client("owner") as queue:
        queue.set(max_payload=100)
    with world.sql("producer") as sql:
        with pytest.raises(psycopg.Error, match=r"payload: .* bytes are more than 100"):
            copied(sql, f'{{"a": "{"x" * 100}"}}')
        copied(sql, f'{{"a": "{"x" * 90}"}}')
    with world.client("owner") as queue:
        queue.set(max_payload=8 * MIB)
    with world.sql("producer") as sql:
        copied(sql, *WIDE.values())


LARGE: dict[str, Json] = {
    "digits": {"a": [n % 10 for n in range(MIB // 2 - 10)]},  # stored it takes six times this size
    "zeros": {"a": [1e300, 1e-300, 1e5, 1e22] * (MIB // 30)},  # 1e300 is written with 300 zeros when it is read
    "objects": {"a": [{"b": [], "c": {}} for _ in range(MIB // 20)]},
    "text": {"a": "x" * (MIB - 10)},
    "escapes": {"a": '"\\' * (MIB // 4 - 10)},
    "unicode": {"a": "Zoë 🐘 " * (MIB // 12)},
}


@pytest.mark.parametrize("payload", LARGE.values(), ids=LARGE.keys())
def test_a_payload_that_is_small_enough_to_send_is_small_enough_to_store(world: World, payload: Json) -> None:
    """A push by COPY is checked by what it sends, whatever the stored size."""
    assert 0.75 * MIB < len(orjson.dumps(payload)) <= MIB
    with world.client("producer") as queue:
        assert queue.push_many([{}, payload]).created == 2
        assert queue.push_many([NewTask(payload, "s")]).created == 1
        assert queue.push(payload).result == "created"


WAITS = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


def test_a_push_whose_ids_are_taken_draws_others(world: World) -> None:
    """A bulk push draws its ids before it writes them. If another producer writes a task with one of them meanwhile,
    nothing is lost."""
    tasks = [NewTask({"n": n}, f"s{n}") for n in range(20)]
    with (
        world.client("producer") as queue,
        world.sql("owner") as sql,
        psycopg.connect(world.dsn("producer")) as first,
        ThreadPoolExecutor(1) as pool,
    ):
        first.execute("select * from penstock.push('work', '{}', 's0')")  # its first subject, so that it has to wait
        pushing = pool.submit(queue.push_many, tasks)
        while not sql.execute(WAITS).fetchone():
            assert not pushing.done(), pushing.result()
        with world.sql("producer") as thief:
            last = sql.execute("select last_value from penstock.task_id_seq").fetchone()
            thief.execute("insert into penstock.task (id, queue_id) values (%s, 1)", last)
        first.rollback()
        assert pushing.result(30).created == 20
        assert queue.status().pending == 21


def test_a_push_of_one_task_whose_id_is_taken_draws_another(world: World) -> None:
    """It waits for a subject after it has drawn its id, and meanwhile another producer writes a task with that id."""
    with (
        world.client("producer") as queue,
        world.sql("owner") as sql,
        psycopg.connect(world.dsn("producer")) as first,
        ThreadPoolExecutor(1) as pool,
    ):
        first.execute("select * from penstock.push('work', '{}', 's')")
        pushing = pool.submit(queue.push, {"n": 1}, subject="s")
        while not sql.execute(WAITS).fetchone():
            assert not pushing.done(), pushing.result()
        with world.sql("producer") as thief:
            last = sql.execute("select last_value from penstock.task_id_seq").fetchone()
            thief.execute("insert into penstock.task (id, queue_id) values (%s, 1)", last)
        first.rollback()
        pushed = pushing.result(30)
        assert pushed.result == "created"
        assert pushed.id > last[0]  # type: ignore[index]
        assert queue.status().pending == 2


def test_a_push_of_one_task_draws_at_most_six_ids(world: World) -> None:
    with world.client("producer") as queue, world.sql("owner") as sql:
        queue.push_many([{}] * 11)
        sql.execute("alter sequence penstock.task_id_seq restart")  # so that each of these ids is given once more
        with pytest.raises(Unavailable, match="task_pkey") as refused:
            queue.push()
        assert (refused.value.reason, queue.status().pending) == ("retry", 11)
        assert (queue.push().id, queue.status().pending) == (12, 12)


# --- what roles may not do: B90 ---------------------------------------------------------------------------------------

ALL_ROLES = {"producer", "worker", "reader", "operator", "admin"}
VERBS: dict[str, tuple[set[str], Callable[[Penstock, Queue], object]]] = {
    "push": ({"producer", "admin"}, lambda _, queue: queue.push()),
    "push, update": ({"producer", "admin"}, lambda _, queue: queue.push(subject="s", on_conflict="update")),
    "push_many": ({"producer", "admin"}, lambda _, queue: queue.push_many([{}])),
    "push_many, subjects": ({"producer", "admin"}, lambda _, queue: queue.push_many([NewTask({}, "t")])),
    "upsert_many": ({"producer", "admin"}, lambda _, queue: queue.upsert_many([NewTask({}, "u")])),
    "claim": ({"worker", "admin"}, lambda _, queue: queue.claim()),
    "extend": ({"worker", "admin"}, lambda _, queue: queue.extend(uuid4())),
    "settle": ({"worker", "admin"}, lambda _, queue: queue.settle(uuid4(), [1])),
    "release": ({"worker", "admin"}, lambda _, queue: queue.release(uuid4())),
    "upkeep": ({"worker", "admin"}, lambda app, _: app.upkeep()),
    "beat": ({"worker", "admin"}, lambda app, _: app.beat("w", ["work"])),
    "set_schedule": ({"worker", "admin"}, lambda app, _: app.set_schedule("s", "0 6 * * *", queue="work")),
    "run_schedules": ({"worker", "admin"}, lambda app, _: app.run_schedules()),
    "schedules": ({"worker", "reader", "operator", "admin"}, lambda app, _: app.schedules()),
    "pause_schedule": ({"operator", "admin"}, lambda app, _: app.pause_schedule("s")),
    "resume_schedule": ({"operator", "admin"}, lambda app, _: app.resume_schedule("s")),
    "drop_schedule": ({"admin"}, lambda app, _: app.drop_schedule("s")),
    "status": (ALL_ROLES, lambda _, queue: queue.status()),
    "verify": ({"reader", "operator", "admin"}, lambda app, _: app.verify()),
    "tasks": ({"reader", "operator", "admin"}, lambda _, queue: queue.tasks()),
    "task": ({"reader", "operator", "admin"}, lambda _, queue: queue.task(1)),
    "attempts": ({"reader", "operator", "admin"}, lambda _, queue: queue.attempts(1)),
    "why": ({"reader", "operator", "admin"}, lambda _, queue: queue.why(1)),
    "queues": ({"reader", "operator", "admin"}, lambda app, _: app.queues()),
    "create_queue": ({"admin"}, lambda app, _: app.create_queue("new", exist_ok=True)),
    "set": ({"admin"}, lambda _, queue: queue.set(paused=False)),
    "pause": ({"operator", "admin"}, lambda _, queue: queue.pause()),
    "resume": ({"operator", "admin"}, lambda _, queue: queue.resume()),
    "cancel": ({"operator", "admin"}, lambda _, queue: queue.cancel([1])),
    "redrive": ({"operator", "admin"}, lambda _, queue: queue.redrive()),
    "reschedule": ({"operator", "admin"}, lambda _, queue: queue.reschedule(LATER, [1])),
    "reprioritise": ({"operator", "admin"}, lambda _, queue: queue.reprioritise(1, [1])),
    "purge": ({"admin"}, lambda _, queue: queue.purge("dead")),
    "repair": ({"admin"}, lambda app, _: app.repair()),
    "retentions": ({"reader", "operator", "admin"}, lambda app, _: app.retentions()),
    "set_retention": ({"admin"}, lambda app, _: app.set_retention("history", "30d")),
    "drop": ({"admin"}, lambda _, queue: queue.drop(force=True)),
}


def permitted(app: Penstock, act: Callable[[Penstock, Queue], object]) -> bool:
    """Whether a role may call a verb. Errors about lost leases and unknown tasks mean that it may."""
    try:
        with suppress(LeaseLost, NotFound):
            act(app, app.queue("work"))
    except AuthError as error:
        return "permission denied" not in error.message
    return True


@pytest.mark.parametrize("role", [*ROLES, OUTSIDER])
def test_the_verbs_of_each_role(world: World, role: str) -> None:
    with world.app(role) as app:
        found = {verb for verb, (_, act) in VERBS.items() if permitted(app, act)}
    assert found == {verb for verb, (roles, _) in VERBS.items() if role in roles}


FUNCTIONS = {
    "producer": {
        "clock", "contract", "enter_part", "enter_partition", "job_report", "judge_payloads", "largest_payload",
        "moment", "note_rejects", "note_report", "oldest_client", "push", "push_many", "revision", "seal_job", "status",
        "take_job_slot", "the_queue",
    },
    "worker": {
        "at_place", "batch_leases", "beat", "beat_all", "begin_pass", "begin_walk", "board", "claim", "clock",
        "contract", "decide", "decisions", "dismiss", "due_schedules", "end_passes", "end_leases", "end_leases_of",
        "expire_leases",
        "extend", "extend_many", "find_work", "fire", "forget_records", "hold_scaling", "hold_stream", "keep_stream",
        "largest_payload", "leave", "leave_scaling", "leave_stream", "scaler_snapshot", "mark_adopted", "next_batch",
        "next_epoch", "next_pass", "next_schedule", "note_failures", "note_pass_record", "note_pass", "note_reader",
        "note_progress", "note_records", "oldest_client", "pass_on", "prepare_work",
        "profiles", "read_lease", "release", "revision",
        "scalers", "schedules",
        "set_kinds", "set_profiles", "set_schedule", "settle", "status", "take_quarantine", "target_age",
        "target_workers", "the_queue", "upkeep", "upkeep_part", "upkeep_parts", "waiting_now",
    },
    "reader": {
        "board", "check_mark", "check_window", "clock", "contract", "decisions", "find_branch", "history_between",
        "history_horizon", "history_spans", "history_sums", "largest_payload", "mentions", "metrics", "note_horizon",
        "attempts", "failed_ids", "failures", "find_progress", "find_removed", "note_reveal", "oldest_client",
        "places_of", "profiles", "queues_named", "recent_times", "sample_series", "task_page",
        "refuse", "retry_delay", "retry_spread", "revision", "running_times", "sample_days", "scalers", "schedules",
        "start_latencies", "status", "target_age", "target_workers",
        "the_queue", "timeline", "upkeep_pace", "verify", "why",
    },
    "outsider": set[str](),
}  # fmt: skip
FUNCTIONS["operator"] = FUNCTIONS["reader"] | {
    "cancel", "pause_schedule", "redrive", "reprioritise", "reschedule", "resume_schedule", "set_paused",
}  # fmt: skip
FUNCTIONS["admin"] = set().union(*FUNCTIONS.values()) | {
    "abandon", "adopt", "create_queue", "drop_queue", "drop_schedule", "forget_reader", "purge", "rebase_history",
    "release_day", "repair", "set_queue", "set_retention",
}  # fmt: skip


@pytest.mark.parametrize("role", [*ROLES, OUTSIDER])
def test_exactly_these_functions_can_be_called(world: World, role: str, users: dict[str, str]) -> None:
    """No role may call a new function until it is listed here and in grants.sql."""
    with world.sql("owner") as sql:
        rows = sql.execute(
            "select distinct p.proname from pg_proc as p where p.pronamespace = 'penstock'::regnamespace"
            " and has_function_privilege(%s, p.oid, 'execute')",
            (users[role],),
        )
        assert {name for (name,) in rows} == FUNCTIONS[role]


def test_internal_functions_begin_with_an_underscore(world: World) -> None:
    with world.sql("owner") as sql:
        rows = sql.execute(
            "select distinct p.proname from pg_proc as p where p.pronamespace = 'penstock'::regnamespace"
            " and p.prorettype <> 'trigger'::regtype"
        ).fetchall()
    assert {name for (name,) in rows if not name.startswith("_")} == FUNCTIONS["admin"]


RIGHTS = """
    select c.relname, p.privilege
    from pg_class as c
    cross join unnest('{select,insert,update,delete,truncate,references,trigger}'::text[]) as p(privilege)
    where c.relnamespace = 'penstock'::regnamespace and c.relkind in ('r', 'p', 'v')
      and (has_table_privilege(%(user)s, c.oid, p.privilege)
           or p.privilege in ('select', 'insert', 'update', 'references')
          and has_any_column_privilege(%(user)s, c.oid, p.privilege))
"""
COLUMNS = """
    select a.attname from pg_attribute as a
    where a.attrelid = 'penstock.task'::regclass and a.attnum > 0
      and has_column_privilege(%(user)s, a.attrelid, a.attname, 'insert')
"""
SEQUENCES = """
    select c.relname, p.privilege
    from pg_class as c cross join unnest(array['select', 'update', 'usage']) as p(privilege)
    where c.relnamespace = 'penstock'::regnamespace and c.relkind = 'S'
      and has_sequence_privilege(%(user)s, c.oid, p.privilege)
"""


@pytest.mark.parametrize("role", [*ROLES, OUTSIDER])
def test_exactly_these_tables_can_be_touched(world: World, role: str, users: dict[str, str]) -> None:
    with world.sql("owner") as sql:
        tables = {
            name
            for (name,) in sql.execute(
                "select relname from pg_class where relnamespace = 'penstock'::regnamespace"
                " and relkind in ('r', 'p', 'v') and not relispartition"
            )
        }
        readable = {(name, "select") for name in tables} if role in READERS else set()
        if role == "worker":
            readable = {(name, "select") for name in ("adopted", "adopted_record", "adopted_failure")}
        producing = role in ("producer", "admin")
        user = {"user": users[role]}
        assert len(tables) > 10
        assert set(sql.execute(RIGHTS, user)) == readable | ({("task", "insert")} if producing else set())
        columns = {"id", "queue_id", "priority", "kind", "subject", "payload", "due", "key", "meta", "expires"}
        assert {name for (name,) in sql.execute(COLUMNS, user)} == (columns if producing else set())
        assert set(sql.execute(SEQUENCES, user)) == ({("task_id_seq", "usage")} if producing else set())


INNER = (
    "penstock._expire(1)",
    "penstock._squeeze(1)",
    "penstock._promote(1)",
    "penstock._make_history('2030-01-01')",
    "penstock._drop_history(now())",
    "penstock._retire()",
    "penstock._reopen('{1}', null, now())",
    "penstock._revoke(1, '{1}', now())",
    "penstock._finish(null, now(), '{1}')",
    "penstock._close_lease(null, '{1}')",
    "penstock._conclude(null, now(), '{1}', '{done}', null, null, null, null, null)",
    "penstock._note_audit('x', null, '{}')",
    "penstock._wake('q', '{1}', 1)",
    "penstock._nearest_schedule('s')",
    "penstock._check_origin()",
)
WRITES = (
    "update penstock.task set payload = '{}'",
    "delete from penstock.task",
    "truncate penstock.task",
    "insert into penstock.task (queue_id, ended, ended_at) values (1, 'done', now())",
    "insert into penstock.task (queue_id, error) values (1, 'x')",
    "insert into penstock.task (queue_id, created) values (1, now())",
    "insert into penstock.task (queue_id, iterations) values (1, 7)",
    "insert into penstock.agenda (task_id, due, queue_id, priority, pending) values (1, now(), 1, 5, true)",
    "insert into penstock.lease (token, queue_id, open, ids) values (gen_random_uuid(), 1, '1', '{1}')",
    "insert into penstock.counter_log (queue_id, metric, delta) values (1, 'pending', 9)",
    "insert into penstock.counter (queue_id, metric, value) values (1, 'pending', 9)",
    "insert into penstock.queue (name) values ('mine')",
    "insert into penstock.migration (number, name, checksum) values (99, 'mine', '')",
    "insert into penstock.ledger select * from penstock.ledger",
    "update penstock.queue set paused = true",
    "update penstock.schedule set paused = true",
    "update penstock.lease set until = now()",
    "delete from penstock.history",
    "delete from penstock.audit",
    "lock table penstock.task in access exclusive mode",
    "select setval('penstock.task_id_seq', 1)",
    "select nextval('penstock.history_id_seq')",
    "select from penstock.task for update",
    "create table penstock.mine (n int)",
    "create function penstock.mine() returns int language sql return 1",
    "create rule mine as on insert to penstock.task do instead nothing",
    "alter table penstock.task disable trigger all",
    "alter function penstock.claim security invoker",
    "drop table penstock.task",
    "drop schema penstock cascade",
)
READS = (
    "select payload from penstock.task",
    "select payload from penstock.tasks",
    "select ids from penstock.lease",
    "select token from penstock.lease",
    "select * from penstock.agenda",
    "select * from penstock.history",
    "select * from penstock.counter",
    "copy penstock.task to stdout",
    "insert into penstock.task (queue_id) values (1) returning payload",
)


@pytest.mark.parametrize("way", ["login", "set role"])
@pytest.mark.parametrize("role", [*ROLES, OUTSIDER])
def test_no_role_can_go_round_the_verbs(world: World, role: str, way: str) -> None:
    if role == OUTSIDER and way == "set role":
        return
    with world.client("owner") as queue:
        queue.push_many([{}] * 2)
        queue.claim()
    calls = [f"select {call}" for call in INNER]
    with world.sql(role if way == "login" else "owner") as sql:
        if way == "set role":
            sql.execute(f"set role penstock_{role}")
        for statement in (*calls, *WRITES, *(READS if role not in READERS else ())):
            with pytest.raises(psycopg.Error) as refused, sql.transaction():
                sql.execute(statement.encode())
            assert refused.value.sqlstate == "42501", (statement, refused.value)


def test_a_producer_cannot_copy_in_unreadable_values(world: World) -> None:
    """A due that no Python datetime can hold would break every claim with this task, again and again."""
    with world.sql("producer") as sql:
        for due in ("4712-01-01 BC", "0001-01-01", "9999-12-31", "294276-01-01", "infinity", "-infinity"):
            with pytest.raises(psycopg.Error, match=r"due: .* is not between 0001-01-02 and 9999-12-30"):
                sql.execute("insert into penstock.task (queue_id, due) values (1, %s::text::timestamptz)", (due,))
        sql.execute("insert into penstock.task (queue_id, due) values (1, '0001-01-02 00:00:00+00')")
        sql.execute("insert into penstock.task (queue_id, due) values (1, '9999-12-30 00:00:00+00')")
    with world.app("worker") as app:
        queue = app.queue("work")
        assert queue.settle(queue.claim(10)).popitem()[1] == "done"
        assert queue.status().planned == 1


def test_a_worker_cannot_delete_history(world: World) -> None:
    with world.client("owner") as queue:
        queue.push()
        queue.settle(queue.claim())
    with world.sql("worker") as sql:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            sql.execute("select penstock.set_retention('history', '1 day')")
        sql.execute("call penstock.upkeep()")
    with world.sql("admin") as sql:
        for name in ("history", "samples", "ledger"):
            for keep in ("-100 days", "0", "23 hours"):
                with pytest.raises(psycopg.Error, match="is less than 1 day") as refused:
                    sql.execute("select penstock.set_retention(%s, %s)", (name, keep))
                assert refused.value.sqlstate == "PS400"
        sql.execute("select penstock.set_retention('history', '1 day')")


def test_public_has_nothing(world: World) -> None:
    with world.sql("owner") as sql:
        given = sql.execute("""
            select 'function', p.oid::regprocedure::text
            from pg_proc as p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a
            where p.pronamespace = 'penstock'::regnamespace and a.grantee = 0
            union all
            select 'relation', c.relname
            from pg_class as c
            cross join lateral (select case c.relkind when 'S' then 's' else 'r' end::"char" as letter) as k
            cross join lateral aclexplode(coalesce(c.relacl, acldefault(k.letter, c.relowner))) as a
            where c.relnamespace = 'penstock'::regnamespace and c.relkind in ('r', 'p', 'v', 'S') and a.grantee = 0
            union all
            select 'schema', n.nspname
            from pg_namespace as n, aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) as a
            where n.nspname = 'penstock' and a.grantee = 0
        """).fetchall()
        assert given == []
    with world.sql(OUTSIDER) as sql, pytest.raises(psycopg.Error, match="permission denied for schema penstock"):
        sql.execute("select penstock.contract()")
    with world.app(OUTSIDER) as app, pytest.raises(AuthError, match="permission denied for schema penstock"):
        app.status()


def test_rights_that_were_taken_off_the_list_are_taken_back(world: World) -> None:
    """An upgrade revokes all rights on functions, tables and sequences that only an older version granted."""
    with world.app("owner") as app, world.sql("owner") as sql:
        sql.execute("grant execute on function penstock._squeeze to penstock_worker, public")
        sql.execute("grant update on penstock.task to penstock_worker")
        sql.execute("grant delete on penstock.lease to public")
        sql.execute("grant usage on sequence penstock.history_id_seq to penstock_producer")
        sql.execute("update penstock.migration set checksum = 'older' where number = 0")
        assert app.init() == ["functions"]
    with world.sql("worker") as sql:
        for statement in (
            "select penstock._squeeze(1)",
            "update penstock.task set payload = '{}'",
            "delete from penstock.lease",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                sql.execute(statement)
    with world.sql("producer") as sql, pytest.raises(psycopg.errors.InsufficientPrivilege):
        sql.execute("select nextval('penstock.history_id_seq')")


# --- B93: a hostile search_path ---------------------------------------------------------------------------------------

# All that our functions call without a schema, with the same parameters, in a schema that comes first. A call fails.
TRAPS = r"""
create schema evil;
grant usage, create on schema evil to public;

create function evil.trap() returns void language plpgsql set search_path = pg_catalog as
    $$ begin raise exception 'captured' using errcode = 'EV666'; end $$;

do $do$
declare
    v_body constant text := 'language plpgsql as $t$ begin perform evil.trap(); end $t$';
    v_one  record;
    v_n    int := 0;
begin
    for v_one in
        with called as materialized (
            select distinct m.word[1] as name
            from pg_proc as p, regexp_matches(pg_get_functiondef(p.oid), '\m([a-z_0-9]+)\s*\(', 'g') as m(word)
            where p.pronamespace = 'penstock'::regnamespace
        )
        select p.proname as name, pg_get_function_identity_arguments(p.oid) as takes,
               pg_get_function_result(p.oid) as gives
        from pg_proc as p
        where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind <> 'p'
          and (p.proname in (select c.name from called as c) or p.proname = 'now')
          and pg_get_function_identity_arguments(p.oid) !~ '"any"|internal|cstring|ORDER BY'
    loop
        begin
            execute format('create function evil.%I(%s) returns %s ', v_one.name, v_one.takes, v_one.gives) || v_body;
        exception when feature_not_supported or invalid_function_definition or undefined_object then
            null;    -- types that no such function can take
        end;
    end loop;

    for v_one in
        select o.oprname as name, o.oprresult::regtype as gives,
               format('%s, %s', o.oprleft::regtype, o.oprright::regtype) as takes,
               format('leftarg = %s, rightarg = %s', o.oprleft::regtype, o.oprright::regtype) as sides
        from pg_operator as o
        where o.oprnamespace = 'pg_catalog'::regnamespace and o.oprkind = 'b'
          and o.oprname in ('=', '<>', '<', '>', '<=', '>=', '+', '-', '*', '/', '||', '->', '->>', '?', '&&', '~',
                            '!~', '~~', '!~~')
          and o.oprleft::regtype::text !~ 'cstring|any$' and o.oprright::regtype::text !~ 'cstring|any$'
          and o.oprresult::regtype::text not in ('"any"', 'internal')
    loop
        v_n := v_n + 1;
        begin
            execute format('create function evil.trap_%s(%s) returns %s ', v_n, v_one.takes, v_one.gives) || v_body;
            execute format('create operator evil.%s (function = evil.trap_%s, %s)', v_one.name, v_n, v_one.sides);
        exception when feature_not_supported or invalid_function_definition then
            null;
        end;
    end loop;
end
$do$;
"""
TABLES = (
    "task", "agenda", "lease", "queue", "counter", "counter_log", "low", "history", "worker", "ledger", "audit", "kind",
    "sample", "reject", "history_gone", "history_origin", "queue_gone",
    "arrived", "parted", "pg_roles", "pg_inherits", "pg_class",
)  # fmt: skip
TYPES = ("text", "jsonb", "uuid", "timestamptz", "date", "varbit", "int8", "tid", "regclass", "place")


def set_traps(sql: Connection) -> None:
    sql.execute(TRAPS.encode())
    for table in TABLES:
        sql.execute(f"create table evil.{table} (evil int)")
        sql.execute(f"grant all on evil.{table} to public")
    for type_ in TYPES:
        if type_ not in TABLES:
            sql.execute(f"create domain evil.{type_} as pg_catalog.bool")
    traps = sql.execute("select count(*) from pg_proc where pronamespace = 'evil'::regnamespace").fetchone()
    assert traps is not None
    assert traps[0] > 300


def lay_temporary_traps(sql: Connection) -> None:
    for table in TABLES:
        sql.execute(f"create temp table {table} (evil int)")
    for type_ in TYPES:
        if type_ not in TABLES:
            sql.execute(f"create domain pg_temp.{type_} as pg_catalog.bool")


CALLS: dict[str, tuple[str, ...]] = {
    "producer": (
        "select penstock.contract()",
        "select penstock.clock()",
        "select penstock.the_queue('work')",
        "select * from penstock.push('work', '{\"a\": 1}', 'push', 'k', null, 3::pg_catalog.int2)",
        "select * from penstock.push_many('work', '{\"{}\",\"{}\"}', '{one,two}')",
        "select * from penstock.push_many('work', '{\"{}\",\"{}\"}', '{one,two}', p_on_conflict => 'skip')",
        "select * from penstock.push_many('work', '{\"{}\",\"{}\"}', '{one,one}', p_on_conflict => 'update')",
        "select penstock.enter_part('work', '{uuid}', 0, 1, 'x', '{{}}')",
        "select penstock.note_report('{uuid}', 0, '{{\"created\": 1}}')",
        "select penstock.enter_partition('work', '{job}', 0, '{other}', 1, 'x')",
        'select * from penstock.judge_payloads(\'{"{}","[]",NaN}\')',
        "select penstock.note_rejects('work', '{job}', 0, '{why}', '{x}', '{x}', '{x}', null, null, null, null, null)",
        "select penstock.seal_job('work', '{job}', 1, 1, 'x', '{{}}')",
        "select penstock.job_report('{job}')",
        "insert into penstock.task (queue_id, payload) values (1, '{}'), (1, '{}')",
        "insert into penstock.task (queue_id, subject, payload, due) values (1, 'copied', '{}', '2030-01-01')",
        "select * from penstock.status('work')",
    ),
    "worker": (
        "select * from penstock.beat('w', '{work}', 2, 1)",
        "select * from penstock.claim('work', 2, '1 minute', 'w')",
        "select * from penstock.claim('work', p_hint => penstock.at_place(5::pg_catalog.int2, '2020-01-01', 1))",
        "select * from penstock.extend('{token}')",
        "select * from penstock.settle('{token}', '{open}', '{again,failed,dead}')",
        "select * from penstock.settle('{token}', '{more}')",
        "select * from penstock.release('{token}')",
        "call penstock.upkeep()",
        "select * from penstock.upkeep_part('expired')",
        "select * from penstock.status()",
    ),
    "reader": (
        "select * from penstock.status()",
        "select * from penstock.verify()",
        'select penstock.retry_delay(\'{"type": "fibonacci", "unit": 1, "jitter": 0.5}\', 3)',
        "select * from penstock.tasks",
        "select * from penstock.history_horizon()",
        (
            "select penstock.check_mark(h.system, h.database, h.branch, h.xid),"
            " penstock.check_window(0, 3, h.dropped, 'work', '2020-01-01', '2040-01-01')"
            " from penstock.note_horizon() as h"
        ),
        "select penstock.history_between(1, 5)",
        "select * from penstock.history_spans(0, 5)",
        "select * from penstock.history_spans(1, 1000000, '2020-01-01', p_roughly => true)",
        "select * from penstock.history_sums('2030-01-01', 0, 10, 100, true)",
        "select * from penstock.sample_days(0, 100)",
        "select * from penstock.places_of(1)",
    ),
    "operator": (
        "select * from penstock.cancel('work', '{leased}')",
        "select * from penstock.redrive('work', p_subjects => '{s}')",
        "select * from penstock.reschedule('work', '2030-01-01', p_subjects => '{s}')",
        "select * from penstock.reprioritise('work', 1::pg_catalog.int2, p_subjects => '{s}')",
        "select penstock.set_paused('work', true)",
        "select penstock.set_paused('work', false)",
        "select * from penstock.task_page('work')",
        "select * from penstock.failures('work')",
    ),
    "admin": (
        "select penstock.create_queue('more', '1 minute', 3, '{\"type\": \"fixed\", \"delay\": 1}')",
        'select penstock.set_queue(\'more\', \'{"lease": "2 minutes", "max_payload": 100}\')',
        "select * from penstock.push('more', '{}', 's')",
        "select * from penstock.cancel('more', p_subjects => '{s}')",
        "select * from penstock.redrive('more', p_subjects => '{s}')",
        "select * from penstock.reschedule('more', '2030-01-01', p_subjects => '{s}')",
        "select * from penstock.reprioritise('more', 1::pg_catalog.int2, p_subjects => '{s}')",
        "select * from penstock.claim('more')",
        "select * from penstock.cancel('work', '{leased}')",
        "select penstock.purge('more', '{planned,dead}')",
        "select * from penstock.repair()",
        "select penstock.rebase_history()",
        "select penstock.note_reader('lake', h.system, h.database, h.branch, 0) from penstock.history_horizon() as h",
        "select penstock.forget_reader('lake')",
        "select penstock.drop_queue('more')",
    ),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("where", ["schema", "pg_temp"])
@pytest.mark.parametrize("role", ROLES)
def test_a_hostile_search_path_captures_nothing(world: World, role: str, where: str) -> None:
    with world.client("owner") as queue:
        queue.push_many([NewTask({}, f"s{n}") for n in range(10)])
        queue.push_many([{}] * 10)
        claim = queue.claim(8)
        queue.settle(claim, [claim.ids[7]])
    fill = {
        "{token}": str(claim.token),
        "{open}": "{" + ",".join(map(str, claim.ids[:3])) + "}",
        "{more}": "{" + ",".join(map(str, claim.ids[3:5])) + "}",
        "{leased}": "{" + str(claim.ids[6]) + "}",
        "{uuid}": str(UUID(int=7)),
        "{job}": str(UUID(int=8)),
        "{other}": str(UUID(int=9)),
    }
    with world.sql("owner") as sql:
        set_traps(sql)
    with world.sql(role) as sql:
        if where == "pg_temp":
            lay_temporary_traps(sql)
            sql.execute("set search_path = pg_temp, evil, pg_catalog, penstock")
        else:
            sql.execute("set search_path = evil, pg_catalog, penstock")
        for bait in ("select jsonb_typeof('{}'::pg_catalog.jsonb)", "select 1 operator(evil.=) 1", "select 1 = 1"):
            with pytest.raises(psycopg.Error) as caught:
                sql.execute(bait.encode())
            assert caught.value.sqlstate == "EV666", "the traps work"
        for call in CALLS[role]:
            statement = call
            for name, value in fill.items():
                statement = statement.replace(name, value)
            sql.execute(statement.replace("{{", "{").replace("}}", "}").encode())
        rows = sql.execute("select pg_catalog.current_setting('search_path')").fetchone()
        assert rows is not None
        assert "evil" in rows[0], "the search_path of the session is unchanged"


def test_the_python_client_beside_a_hostile_schema(world: World) -> None:
    """PostgreSQL's own functions come first by default, and missing functions are not taken from elsewhere."""
    with world.sql("owner") as sql:
        set_traps(sql)
    path = {"options": "-c search_path=evil"}
    with world.client("producer", **path) as queue:
        queue.push_many([{}] * 5)
        queue.push_many([NewTask({}, f"s{n}") for n in range(5)])
        queue.upsert_many([NewTask({}, f"s{n}") for n in range(6)])
    with world.app("worker", **path) as app:
        queue = app.queue("work")
        app.beat("w", ["work"])
        claim = queue.claim(8)
        queue.extend(claim)
        queue.settle(claim, {id_: Outcome.failed("x") for id_ in claim.ids[:4]})
        assert len(queue.release(str(claim.token))) == 4
        app.upkeep()
    with world.app("reader", **path) as app:
        assert app.verify().ok
        assert len(app.queue("work").tasks()) == 11
        assert len(app.queues()) == 1
    with world.app("admin", **path) as app:
        queue = app.queue("work")
        queue.set(lease="1m")
        assert set(queue.cancel(subjects=["s0"]).values()) == {"cancelled"}
        assert set(queue.redrive(subjects=["s0"]).values()) == {"redriven"}
        assert app.repair() == []
        assert queue.purge("pending", "planned") == 11


# --- B91, B92, B94 ----------------------------------------------------------------------------------------------------

READING = {"status", "verify", "tasks", "task", "attempts", "why", "queues", "schedules", "retentions"}


def test_a_read_only_transaction_reads(world: World) -> None:
    with world.client("owner") as queue:
        queue.push_many([{}] * 3)
    with world.app("admin", options="-c default_transaction_read_only=on") as app:
        for verb, (_, act) in VERBS.items():
            if verb in READING:
                act(app, app.queue("work"))
                continue
            with pytest.raises(Unavailable) as refused:
                act(app, app.queue("work"))
            assert refused.value.reason == "read_only", verb


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_other_isolation_levels(world: World, level: str) -> None:
    """Claim refuses, because it must see the latest commits. The other verbs answer as usual."""
    with world.client("owner") as queue, world.sql("admin") as sql:
        queue.push_many([NewTask({}, f"s{n}") for n in range(4)])
        claim = queue.claim(2)
        sql.execute(f"set default_transaction_isolation = '{level}'")
        with pytest.raises(psycopg.Error, match=f"claim cannot run in a {level} transaction") as refused:
            sql.execute("select penstock.claim('work')")
        assert refused.value.sqlstate == "PS400"
        assert refused.value.diag.message_hint

        def words(call: str, *parameters: object) -> list[str]:
            return [str(row[0]) for row in sql.execute(f"select result from penstock.{call}".encode(), parameters)]

        assert words("push('work', '{}', 's2', p_on_conflict => 'update')") == ["updated"]
        assert words("push('work', '{}', 's0', p_on_conflict => 'update')") == ["renewed"]
        assert sorted(words("push_many('work', array['{}', '{}'], '{s2,new}')")) == ["created", "skipped"]
        assert words("settle(%s, %s)", claim.token, claim.ids[:1]) == ["pending"]
        assert words("release(%s)", claim.token) == ["pending"]
        assert words("cancel('work', p_subjects => '{s3}')") == ["cancelled"]
        assert words("redrive('work', p_subjects => '{s3}')") == ["redriven"]
        assert words("reschedule('work', now() + interval '1 h', p_subjects => '{s3}')") == ["rescheduled"]
        assert words("reprioritise('work', 1::smallint, p_subjects => '{s3}')") == ["reprioritised"]
        sql.execute("select penstock.beat('w', '{work}')")
        sql.execute("call penstock.upkeep()")
        assert sql.execute("select penstock.purge('work', '{planned}')").fetchone() == (1,)
        assert sql.execute("select pending, active from penstock.status('work')").fetchone() == (4, 0)

    # If two transactions change the same row, the later one is told to try again.
    with world.client("owner") as queue, psycopg.connect(world.dsn("admin")) as other:
        other.isolation_level = psycopg.IsolationLevel[level.replace(" ", "_").upper()]
        other.execute("select penstock.contract()")
        queue.push({}, subject="s2", on_conflict="update")
        with pytest.raises(psycopg.errors.SerializationFailure):
            other.execute("select penstock.push('work', '{}', 's2', p_on_conflict => 'update')")


def test_a_wake_up_is_short_and_says_only_which_queue(world: World) -> None:
    """NOTIFY takes a channel of 63 bytes and a payload of 8,000 bytes. The test uses the longest names."""
    name = "q" * 63
    with world.app("owner") as app, world.sql("owner") as sql:
        queue = app.create_queue(name)
        channel = app.beat("w" * 200, [name])[name]
        assert re.fullmatch(r"penstock_[0-9]{1,19}", channel)
        sql.execute(f"listen {channel}")
        queue.push({"large": "x" * 100_000})
        queue.push_many([NewTask({}, f"s{n}") for n in range(1_000)])
        received = list(sql.notifies(timeout=10, stop_after=2))
        assert [(one.channel, one.payload) for one in received] == [(channel, name)] * 2
