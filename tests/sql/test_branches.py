"""Failovers, restores and restarts: the mark of a reader is valid only if the database remembers it. After a promotion
that lost transactions, or on an older copy, transaction ids are assigned again: the mark is refused for ever."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import Connection
from psycopg.conninfo import make_conninfo
from pyspark.sql.streaming.datasource import ReadAllAvailable

from conftest import CLOCK, Clock
from penstock import Conflict, Penstock, Queue, ValidationError
from penstock.client import history
from penstock.client.database import Database
from penstock.doctor import Finding, examine
from penstock.embedded import Server
from penstock.model import Horizon, Window
from penstock.spark import options
from penstock.spark.history import HistoryReader, HistoryStream
from standby import replicated_pair
from workers import eventually

DAY = 86400
MANY = 500  # transactions: more than are lost in any test here


def finish(app: Penstock, count: int = 10) -> None:
    """Pushes tasks and settles them, two in a transaction, and folds the counters' log in between."""
    queue = app.queue("work")
    queue.push_many([{}] * count)
    while claim := queue.claim(2):
        queue.settle(claim)
    app.upkeep()


@contextmanager
def prepared(dsn: str) -> Iterator[tuple[Penstock, Database]]:
    """The schema, a queue, and a clock that the test controls."""
    with Penstock(dsn) as app:
        app.init()
        app.upkeep()
        with psycopg.connect(dsn, autocommit=True) as sql:
            sql.execute(CLOCK.encode())
        app.create_queue("work")
        database = Database(dsn)
        yield app, database
        database.close()


def mark(database: Database) -> Horizon:
    """A noted mark that is above every transaction so far."""
    with database.transaction() as connection:
        row = connection.execute("select pg_current_xact_id()::text::bigint").fetchone()
    assert row is not None
    eventually(lambda: history.note_horizon(database).xid > row[0])
    return history.note_horizon(database)


def spend(database: Database, transactions: int = MANY) -> None:
    with database.session() as connection:
        connection.execute(
            f"do $$ begin for n in 1 .. {transactions} loop perform pg_current_xact_id(); commit; end loop; end $$"
        )


def ids(dsn: str, start: Horizon | None = None) -> list[int]:
    """The tasks that a reader gets after a mark."""
    given = {"url": dsn}
    database = Database(dsn)
    if start is not None:
        window = Window(start, history.read_horizon(database))
        given["window"] = json.dumps([one._asdict() for one in window[:2]])
    database.close()
    reader = HistoryReader(options.parse_history_options(given))
    return sorted(row for part in reader.partitions() for batch in reader.read(part) for row in batch["id"].to_pylist())


def ids_in_table(dsn: str, *, since_id: int = 0) -> list[int]:
    with psycopg.connect(dsn) as sql:
        return [id_ for (id_,) in sql.execute("select id from penstock.history where id > %s order by id", (since_id,))]


def latest(dsn: str, start: dict[str, Any] | None = None) -> dict[str, Any]:
    """The offset that a stream of history gives to Spark, with or without a checkpoint."""
    stream = HistoryStream(options.parse_history_stream_options({"url": dsn}))
    return stream.latestOffset(start or stream.initialOffset(), ReadAllAvailable())


def readers(database: Database) -> list[Finding]:
    return [one for one in examine(database) if one.check == "readers"]


def number(sql: Connection, query: str) -> int:
    row = sql.execute(query.encode()).fetchone()
    assert row is not None
    return int(row[0])


def test_a_promotion_that_lost_something(tmp_path: Path) -> None:
    with replicated_pair(tmp_path) as pair, prepared(pair.dsn) as (app, database):
        finish(app)
        offset = latest(pair.dsn)
        kept = mark(database)
        history.note_reader(database, "lake", kept)
        last = max(ids_in_table(pair.dsn))
        pair.wait_for_replay()

        # A standby is read up to the last note that it has; a newer mark is ahead of it.
        copy = Database(pair.standby.dsn)
        assert history.read_horizon(copy)[:4] == kept[:4]
        assert ids(pair.standby.dsn) == ids_in_table(pair.dsn)
        pair.cut_off_standby()
        finish(app)
        lost = mark(database)
        ahead = latest(pair.dsn, offset)
        history.note_reader(database, "lake", lost)
        assert ids(pair.dsn, kept) == ids_in_table(pair.dsn, since_id=last)
        with pytest.raises(Conflict, match="ahead of this cluster"):
            history.check_mark(copy, lost)
        copy.close()
        folded = pair.primary.value("(select xid from penstock.watermark)")
        pair.primary.kill()
        database.close()

        pair.promote()
        with psycopg.connect(pair.dsn, autocommit=True) as sql:
            assert number(sql, "select penstock.timeline()") == 2
            assert number(sql, "select pg_current_xact_id()::text::bigint") < int(str(folded)), (
                "otherwise this test proves nothing"
            )
            # Counters: their marks are in the database and went back together with it.
            for _ in range(3):
                finish(app, 6)
                assert app.verify().ok, app.verify().findings
            assert app.queue("work").status().totals["done"] == 28

            for _ in range(2):  # also when the lost transaction ids have been assigned again
                history.check_mark(database, kept)
                with pytest.raises(Conflict) as told:
                    history.check_mark(database, lost)
                for said in (
                    f"transaction {lost.xid} of timeline 1",
                    "(timeline 2)",
                    "failed over",
                    f"from transaction {kept.xid} on",
                ):
                    assert said in told.value.message
                assert "penstock pipeline rebase" in str(told.value.hint)
                with pytest.raises(Conflict, match="failed over"):
                    history.note_reader(database, "lake", lost)
                with pytest.raises(Conflict, match="failed over"):
                    ids(pair.dsn, lost)
                with pytest.raises(Conflict, match="failed over"):
                    latest(pair.dsn, ahead)
                spend(database)
            assert history.read_horizon(database).xid > lost.xid
            assert ids(pair.dsn, kept) == ids_in_table(pair.dsn, since_id=last)
            assert latest(pair.dsn, offset)["xid"] > offset["xid"]

            # History that the reader may have to compare is kept, and the doctor says why.
            (found,) = readers(database)
            assert (found.level, "timeline 1" in found.what, "timeline 2" in found.what) == ("warning", True, True)
            assert "penstock pipeline rebase" in str(found.fix)
            Clock(sql).advance(40 * DAY)
            app.upkeep()
            assert number(sql, "select count(*) from penstock.history") == 28
            history.note_reader(database, "lake", mark(database))
            eventually(lambda: app.upkeep() and number(sql, "select count(*) from penstock.history") == 0)
            assert [one.level for one in readers(database)] == ["ok"]
            assert app.verify().ok


@pytest.mark.slow  # tests/pipeline/test_failover.py has one too
def test_a_promotion_that_lost_nothing(tmp_path: Path) -> None:
    with replicated_pair(tmp_path, synchronous=True) as pair, prepared(pair.dsn) as (app, database):
        finish(app)
        kept = mark(database)
        history.note_reader(database, "lake", kept)
        offset = latest(pair.dsn)
        last = max(ids_in_table(pair.dsn))
        finish(app)
        offset = latest(pair.dsn, offset)
        pair.primary.kill()
        pair.promote()
        database.close()
        finish(app)
        assert ids(pair.dsn, kept) == ids_in_table(pair.dsn, since_id=last)
        assert latest(pair.dsn, offset)["xid"] > offset["xid"], "a stream goes on by itself"
        now = mark(database)
        assert (kept.branch[:2], now.branch[:2]) == ("1-", "2-")
        assert [one.level for one in readers(database)] == ["warning"], "it has not read since then"
        history.note_reader(database, "lake", kept)
        assert [one.level for one in readers(database)] == ["ok"]
        assert app.verify().ok


def test_an_older_copy_on_the_same_timeline(tmp_path: Path) -> None:
    """A data directory, a volume or a machine is put back as it was: nothing distinguishes it from the original."""

    def start() -> Server:
        return Server.start(tmp_path / "pg", environ=os.environ, settings={"shared_buffers": "64MB", "fsync": "off"})

    server = start()
    try:
        with prepared(server.dsn) as (app, database):
            finish(app)
            kept = mark(database)
        server.stop()
        data, copy = server.data, server.data.with_name("copy")
        shutil.copytree(data, copy, copy_function=with_owner)
        with_owners(data, copy)
        server = start()
        with Penstock(server.dsn) as app:
            database = Database(server.dsn)
            history.check_mark(database, kept)  # a restart loses nothing
            finish(app)
            lost = mark(database)
            assert lost.branch != kept.branch
            database.close()
        server.stop()
        shutil.rmtree(data)
        copy.rename(data)
        server = start()
        with Penstock(server.dsn) as app:
            database = Database(server.dsn)
            for _ in range(2):
                history.check_mark(database, kept)
                with pytest.raises(Conflict, match=r"\(timeline 1\).*restored from an older copy"):
                    history.check_mark(database, lost)
                finish(app)
                spend(database)
            assert history.read_horizon(database).xid > lost.xid
            assert app.verify().ok

            # A dump, restored in place of what is there.
            dumped = mark(database)
            dump = tmp_path / "dump"
            program(server, "pg_dump", "--format=custom", f"--file={dump}", server.dsn)
            finish(app)
            lost = mark(database)
            database.close()
            program(
                server, "pg_restore", "--clean", "--if-exists", "--exit-on-error", f"--dbname={server.dsn}", str(dump)
            )
            finish(app)
            for _ in range(2):
                history.check_mark(database, dumped)
                with pytest.raises(Conflict, match="restored from an older copy"):
                    history.check_mark(database, lost)
                mark(database)
            assert app.verify().ok
            database.close()
    finally:
        server.stop("immediate")


def with_owner(source: str, target: str) -> None:
    shutil.copy2(source, target)
    found = Path(source).stat()
    os.chown(target, found.st_uid, found.st_gid)


def with_owners(source: Path, target: Path) -> None:
    for directory in (target, *(one for one in target.rglob("*") if one.is_dir())):
        os.chown(directory, source.stat().st_uid, source.stat().st_gid)
        directory.chmod(0o700)


def program(server: Server, name: str, *arguments: str) -> None:
    done = subprocess.run([server.binaries / name, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_role_that_may_not_write_reads_up_to_the_last_note(
    queue: Queue, app: Penstock, dsn: str, sql: Connection
) -> None:
    queue.push_many([{}] * 4)
    queue.settle(queue.claim(2))
    database, shy = Database(dsn), Database(make_conninfo(dsn, options="-c default_transaction_read_only=on"))
    noted = mark(database)
    assert history.read_horizon(shy)[:3] == noted[:3]
    sql.execute("update penstock.history_branch set started = started - interval '1 day'")  # a start without a note
    queue.settle(queue.claim(2))
    assert history.note_horizon(shy)[:4] == noted[:4]
    assert len(ids(shy.dsn)) == 2
    assert mark(database).branch != noted.branch
    assert history.note_horizon(shy).branch != noted.branch
    assert len(ids(shy.dsn)) == 4
    history.check_mark(shy, noted)
    database.close()
    shy.close()


@pytest.mark.parametrize("commits", ["on", "off"])
def test_a_note_is_on_disk_before_it_is_given_out(queue: Queue, dsn: str, commits: str) -> None:
    database = Database(make_conninfo(dsn, options=f"-c synchronous_commit={commits}"))
    with database.transaction() as connection:
        connection.execute("select * from penstock.note_horizon()")
        row = connection.execute("show synchronous_commit").fetchone()
    assert row == ("on" if commits == "on" else "local",)
    database.close()


def test_what_a_mark_may_be(queue: Queue, dsn: str) -> None:
    database = Database(dsn)
    now = mark(database)
    history.check_mark(database, now)
    history.check_mark(database, now._replace(branch="9-f", xid=0))  # nothing was read yet
    for wrong, said in (
        (now._replace(system="1"), "another cluster"),
        (now._replace(database=1), "another database"),
        (now._replace(branch="9-f"), r"timeline 9, and this database \(timeline 1\) does not remember that"),
        (now._replace(xid=now.xid + 10**6), "ahead of this cluster"),
    ):
        with pytest.raises(Conflict, match=said):
            history.check_mark(database, wrong)
    with pytest.raises(ValidationError, match="below 0"):
        history.check_mark(database, now._replace(xid=-1))
    database.close()
