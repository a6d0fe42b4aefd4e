"""A dump is restored into another cluster, whose transaction ids are far smaller: the counters are right from the
start, no old lease is valid there, and everything goes on."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from penstock import Claim, LeaseLost, NewTask, Outcome, Penstock, QueueStatus, migrate
from penstock.embedded import Server

SMALL = {"shared_buffers": "64MB", "fsync": "off"}
TOMORROW = datetime.now(UTC) + timedelta(days=1)
NUMBER = count()


class Source(NamedTuple):
    """The state of the first cluster when it was dumped."""

    server: Server
    statuses: list[QueueStatus]
    leased: Claim  # two of its five tasks are still open
    alone: Claim
    live: list[int]  # tasks of `work` that wait or are leased
    highest: int
    attempts: int  # rows in history


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Server]]:
    made: list[Server] = []

    def make() -> Server:
        home = tmp_path_factory.mktemp("cluster") / "pg"
        made.append(Server.start(home, environ=os.environ, settings=SMALL))
        return made[-1]

    yield make
    for server in made:
        server.stop("immediate")


@pytest.fixture(scope="module")
def source(clusters: Callable[[], Server]) -> Source:
    """A cluster with tasks in every state, history, and a counter log that is not squeezed yet."""
    server = clusters()
    with Penstock(server.dsn) as penstock, psycopg.connect(server.dsn, autocommit=True) as sql:
        penstock.init()
        # The transaction ids of the other cluster stay far below these.
        sql.execute("do $$ begin for n in 1 .. 20000 loop perform pg_current_xact_id(); commit; end loop; end $$")
        work = penstock.create_queue("work", lease="24h", max_attempts=3, retry="fixed:1s", keep_done="1d")
        mail = penstock.create_queue("mail", lease="24h")

        work.push_many([{"n": n} for n in range(20)])
        work.push_many([NewTask({"n": n}, f"s{n}") for n in range(20)])
        claim = work.claim(10)
        outcomes = (Outcome.done(), Outcome.failed("boom", delay="1h"), Outcome.dead("no"), Outcome.again())
        work.settle(claim, {id_: outcomes[n % 4] for n, id_ in enumerate(claim.ids)})
        work.cancel(subjects=["s3"])
        work.push_many([NewTask({}, f"later{n}", due=TOMORROW) for n in range(5)])
        mail.push_many([{}] * 10)
        mail.settle(mail.claim(4))
        penstock.upkeep()

        alone, leased = work.claim(1), work.claim(5)
        work.settle(leased, leased.ids[:2])
        work.cancel(leased.ids[2:3])
        work.push_many([{}] * 7)
        work.push({"n": 0}, subject="s5", on_conflict="update")
        mail.settle(mail.claim(2))
        mail.push()  # after the last claim, so that it is surely in the log

        logged = sql.execute("select count(*), min(xid) > 20000 from penstock.counter_log").fetchone()
        assert logged is not None
        assert logged[0] > 10
        assert logged[1]
        live = [task.id for task in work.tasks(limit=1000) if task.state in ("planned", "pending", "active")]
        numbers = sql.execute(
            "select (select max(id) from penstock.task), (select count(*) from penstock.history)"
        ).fetchone()
        assert numbers is not None
        assert penstock.verify().ok
        time.sleep(1.1)  # once a second claims fold counters and check in which cluster they are
        return Source(server, penstock.status(), leased, alone, live, *numbers)


@pytest.fixture(scope="module")
def target(clusters: Callable[[], Server]) -> Server:
    """Another cluster. It has the roles, as every cluster in which `init` was run has."""
    server = clusters()
    with psycopg.connect(server.dsn, autocommit=True) as sql:
        sql.execute(migrate.roles_step().text.encode())
    return server


def run(program: Path, *arguments: str) -> None:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def restored(source: Source, target: Server, directory: Path, form: str, *options: str) -> str:
    """Restores a dump of the source into a new database of the target, and returns its DSN."""
    dump, name = str(directory / "dump"), f"restored_{next(NUMBER)}"
    run(source.server.binaries / "pg_dump", f"--format={form}", f"--file={dump}", source.server.dsn)
    with psycopg.connect(target.dsn, autocommit=True) as sql:
        sql.execute(f"create database {name}")
    dsn = make_conninfo(target.dsn, dbname=name)
    if form == "custom":
        run(target.binaries / "pg_restore", "--exit-on-error", f"--dbname={dsn}", *options, dump)
    else:
        run(target.binaries / "psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", f"--file={dump}", dsn)
    return dsn


def counted(statuses: list[QueueStatus]) -> list[QueueStatus]:
    """Returns the statuses without the fields that time changes."""
    return [replace(one, at=None, oldest_pending_age=None) for one in statuses]


def number(sql: psycopg.Connection, query: str) -> int:
    row = sql.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("first", ["claim", "upkeep"])
@pytest.mark.parametrize("form", ["custom", "plain"])
def test_a_dump_goes_on_in_another_cluster(
    source: Source, target: Server, tmp_path: Path, form: str, first: str
) -> None:
    dsn = restored(source, target, tmp_path, form)
    with Penstock(dsn) as penstock, psycopg.connect(dsn, autocommit=True) as sql:
        assert number(sql, "select pg_current_xact_id()::text::bigint") < number(
            sql, "select min(xid) from penstock.counter_log"
        ), "otherwise this test proves nothing"
        assert penstock.init() == []
        assert counted(penstock.status()) == counted(source.statuses)
        assert penstock.verify().ok, penstock.verify().findings

        # Rows written here have small transaction ids, and are counted beside the restored ones with large ids.
        work = penstock.queue("work")
        pushed = work.push_many([NewTask({}, f"new{n}") for n in range(3)])
        assert pushed.created == 3
        assert work.status().pending == source.statuses[1].pending + 3
        assert penstock.verify().ok, penstock.verify().findings

        # The workers of the first cluster do not work here: their leases end with the first claim or upkeep.
        begun: list[int] = []
        if first == "claim":
            begun = work.claim(4).ids
        else:
            penstock.upkeep()
        for old in (source.leased, source.alone):
            for act in (work.settle, work.extend, work.release):
                with pytest.raises(LeaseLost):
                    act(old)
        assert work.status().active == len(begun)
        assert number(sql, "select count(*) from penstock.lease where until = '-infinity'") == 0
        assert penstock.verify().ok, penstock.verify().findings

        # A squeeze folds the restored log, and the next one counts nothing twice.
        before = counted(penstock.status())
        penstock.upkeep()
        penstock.upkeep()
        sql.execute("select penstock._squeeze(id) from penstock.queue")
        assert number(sql, "select count(*) from penstock.counter_log") == 0
        assert counted(penstock.status()) == before

        # All live tasks are claimable once, and no id is given out again.
        sql.execute("update penstock.agenda set due = now(), pending = true")
        taken = list(begun)
        while claim := work.claim(3):
            taken += claim.ids
            work.settle(claim)
        fresh = set(taken) - set(source.live)
        assert sorted(taken) == sorted({*source.live, *fresh})
        assert len(fresh) == 3
        assert min(fresh) > source.highest
        assert work.push().id > max(fresh)
        assert number(sql, "select count(*) from penstock.history") > source.attempts
        assert number(sql, "select count(*) - count(distinct id) from penstock.history") == 0
        assert penstock.create_queue("third").push().id > max(fresh)
        assert penstock.verify().ok, penstock.verify().findings


def test_a_restore_without_rights_gets_them_from_init(source: Source, target: Server, tmp_path: Path) -> None:
    dsn = restored(source, target, tmp_path, "custom", "--no-privileges", "--no-owner")
    with Penstock(dsn) as penstock, psycopg.connect(dsn, autocommit=True) as sql:
        allowed = "select has_function_privilege('penstock_reader', 'penstock.status(text)', 'execute')::int"
        assert penstock.init() == ["functions"]
        assert number(sql, allowed) == 1
        assert penstock.init() == []
        assert counted(penstock.status()) == counted(source.statuses)
