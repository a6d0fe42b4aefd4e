"""How a running worker can be watched: the registry, probes, the process list and the log."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import Connection
from psycopg.rows import dict_row

from penstock import NewTask, Queue
from shell import penstock
from workers import command_line, ends, eventually, free_port, probe, registered, working, write_app

WAITS = """
@app.task(queue="work")
def waits(n: int) -> None:
    note("begun", n)
    wait_for("go")
"""


def rows(sql: Connection) -> list[dict[str, Any]]:
    return sql.cursor(row_factory=dict_row).execute("select * from penstock.worker order by pid").fetchall()


def test_the_registry_and_a_port_tell_how_it_stands(dsn: str, queue: Queue, sql: Connection, tmp_path: Path) -> None:
    port = free_port()
    asked = datetime.now(UTC) - timedelta(seconds=5)
    options = ("-c", "3", "--health", str(port), "--requested-at", asked.isoformat())
    with working(tmp_path, dsn, WAITS, *options, processes=2) as worker:
        runners = worker.runners
        eventually(lambda: [row["pid"] for row in rows(sql)] == sorted(runners))
        for row in rows(sql):
            host, word, pid = row["name"].split(":")
            assert len(word) >= 11, "eight random bytes: two containers with one host name and process id differ"
            assert (host, pid, row["host"]) == (socket.gethostname(), str(row["pid"]), socket.gethostname())
            assert (row["queues"], row["slots"], row["busy"], row["first_claim_at"]) == (["work"], 3, 0, None)
        assert sorted(command_line(pid)[-3:] for pid in runners) == [
            ["jobs:app", "work", "1/2"],
            ["jobs:app", "work", "2/2"],
        ]
        queue.push_many([NewTask({"n": n}, kind="waits") for n in range(6)])
        eventually(lambda: sum(row["busy"] for row in rows(sql)) == 6)
        for row in rows(sql):
            assert asked == row["requested_at"] <= row["started_at"] <= row["first_claim_at"] <= row["beat"]
        eventually(lambda: sql.execute("select from penstock.sample").rowcount >= 1)  # upkeep runs too

        status, told = probe(port)
        assert (status, told["ok"], told["processes"], told["busy"]) == (200, True, 2, 6)
        assert (told["pid"], told["silent"], told["stopping"]) == (worker.pid, [], False)
        os.kill(runners[0], signal.SIGSTOP)
        status, told = eventually(lambda: probe(port) if probe(port)[0] != 200 else None)  # type: ignore[misc]
        assert (status, told["ok"]) == (503, False)
        assert [name.split(":")[-1] for name in told["silent"]] == [str(runners[0])]
        os.kill(runners[0], signal.SIGCONT)
        eventually(lambda: probe(port)[0] == 200)

        worker.allow()
        eventually(lambda: queue.status().totals["done"] == 6)
        assert worker.stop() == 0
    assert registered(sql) == [], "a worker that leaves is removed at once"


def test_a_part_of_upkeep_that_fails_is_logged(dsn: str, queue: Queue, sql: Connection, tmp_path: Path) -> None:
    sql.execute("""
        create function penstock_test.refuse() returns trigger language plpgsql as
            $$ begin raise exception 'deletes are refused here'; end $$;
        create trigger refuse before delete on penstock.audit
            for each row execute function penstock_test.refuse();
        insert into penstock.audit (at, verb) values ('2000-01-01', 'drop');
    """)
    with working(tmp_path, dsn, WAITS, "--log-format", "json") as worker:
        failed = eventually(lambda: [one for one in worker.events if one["event"] == "upkeep part failed"])
        assert [(one["part"], one["times"]) for one in failed] == [("audit entries dropped", 1)]
        assert sql.execute("select count(*) from penstock.sample").fetchone() == (1,), "the other parts are done"
        assert worker.stop() == 0


def test_a_file_tells_that_it_lives(dsn: str, queue: Queue, sql: Connection, tmp_path: Path) -> None:
    file = tmp_path / "alive"
    with working(tmp_path, dsn, WAITS, "--health", str(file)) as worker:
        eventually(file.exists)
        first = file.stat().st_mtime_ns
        eventually(lambda: file.stat().st_mtime_ns > first)
        assert json.loads(file.read_text("utf-8"))["ok"]
        (runner,) = worker.runners
        os.kill(runner, signal.SIGSTOP)
        time.sleep(0.5)
        frozen = file.stat().st_mtime_ns
        time.sleep(1.2)
        assert file.stat().st_mtime_ns == frozen, "a worker that cannot work does not report that it lives"
        os.kill(runner, signal.SIGCONT)
        eventually(lambda: file.stat().st_mtime_ns > frozen)
        assert worker.stop() == 0
    assert not file.exists()


# --- no secrets -------------------------------------------------------------------------------------------------------

CANARY = "canary-in-a-mine"
TELLS = """
@app.task(queue="work", retry="fixed:1h")
def raises(secret: str) -> None:
    raise ValueError(secret)

@app.task(queue="work", retry="fixed:1h", run="process")
def raises_apart(secret: str) -> None:
    wait_for("go")
    raise ValueError(secret)

@app.task(queue="work", retry="fixed:1h")
async def raises_on_loop(secret: str, task: Task) -> None:
    raise ValueError(secret)

@app.task(queue="work", retry="fixed:1h", batch=10)
def raise_together(tasks: list[Task]) -> None:
    raise ValueError(tasks[0].payload["secret"])

@app.task(queue="work", retry="fixed:1h")
def refuses(number: int) -> None: ...

@app.task(queue="work", max_attempts=1)
def dies(secret: str) -> None:
    raise ValueError(secret)

@app.on_settled_dead
def tell(task, error) -> None:
    raise ValueError(error)

@app.task(queue="work", retry=lambda error, attempt, age: str(error))
def misjudges(secret: str) -> None:
    raise ValueError(secret)

@app.task(queue="work")
def leaves(secret: str) -> None:
    if not Path("left").exists():
        Path("left").touch()
        sys.exit(secret)
"""
KINDS = ("raises", "raises_apart", "raises_on_loop", "raise_together", "dies", "misjudges", "leaves", "unknown")


@pytest.fixture
def secret_dsn(dsn: str, sql: Connection) -> Iterator[str]:
    """The DSN of a role with a secret password."""
    role = f"canary_{os.getpid()}"
    sql.execute(f"create role {role} superuser login password '{CANARY}'")
    yield psycopg.conninfo.make_conninfo(dsn, user=role, password=CANARY)
    sql.execute(f"drop role {role}")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_payload_no_error_text_and_no_password_is_told(
    queue: Queue, secret_dsn: str, sql: Connection, tmp_path: Path, log_format: str
) -> None:
    queue.push_many([NewTask({"secret": CANARY}, kind=kind) for kind in KINDS])
    queue.push({"number": CANARY}, kind="refuses")
    with working(tmp_path, secret_dsn, TELLS, "--log-format", log_format) as worker:
        eventually(lambda: worker.slot_processes)
        lines = [command_line(pid) for pid in worker.family]
        assert len(lines) == 3
        assert all(lines)
        assert CANARY not in str(lines)
        worker.allow()
        eventually(lambda: (queue.status().pending, queue.status().active) == (0, 0))
        assert worker.stop() == 0
        assert CANARY not in worker.stdout + worker.stderr
        if log_format == "json":
            failed = [one for one in worker.events if one["event"] == "failed"]
            assert {one["error_class"] for one in failed} == {"ValueError", "ValidationError", "SystemExit"}
            assert all(one["queue"] == "work" and one["level"] == "warning" for one in failed)
        else:
            assert " warning failed task=" in worker.stderr
            assert " error_class=ValueError seconds=" in worker.stderr
    assert {
        end.kind: end.error_class for end in ends(sql) if end.kind in ("leaves", "unknown") and end.error_class
    } == {
        "leaves": "SystemExit",
        "unknown": "UnknownKind",
    }
    assert CANARY in (queue.tasks(state="dead")[0].error or ""), "the error text is stored in the task"


def test_verbose_tells_the_database_without_its_password(secret_dsn: str, queue: Queue, tmp_path: Path) -> None:
    write_app(tmp_path, WAITS)
    ran = penstock("drain", "work", "--handler", "jobs:waits", "--verbose", dsn=secret_dsn, cwd=tmp_path)
    assert (ran.code, ran.err.startswith("database: ")) == (0, True)
    assert CANARY not in ran.out + ran.err
