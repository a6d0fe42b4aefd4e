"""The doctor finds problems, says what to type, changes nothing, and goes on if one of its queries fails."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import psycopg
import pytest
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from typer.main import get_command

from conftest import Clock
from penstock import Outcome, Penstock, Queue, Unavailable, doctor
from penstock.cli import tree
from penstock.client.database import Database
from penstock.client.session import OUR_CONTRACT
from penstock.doctor import CHECKS, DANGERS, Finding, Inspection, Thresholds, examine, judge_version
from penstock.embedded import Server
from penstock.errors import PenstockError
from penstock.migrate import init
from penstock.revisions import our_revision
from shell import is_one_block, penstock
from workers import eventually

DOCS = Path(__file__).parent.parent / "docs/doctor.md"
CANARY = "canary-4711"
NUMBER = count()


class Findings(list[Finding]):
    def of(self, check: str, *levels: str) -> list[Finding]:
        return [one for one in self if one.check == check and (not levels or one.level in levels)]

    def the(self, check: str) -> Finding:
        (one,) = self.of(check)
        return one

    @property
    def bad(self) -> set[str]:
        """The checks that are not ok, except for fsync, which the test server switches off."""
        return {one.check for one in self if one.level != "ok"} - {"fsync"}


def examined(
    dsn: str, *, source: str = "PENSTOCK_DSN", limits: Thresholds = doctor.DEFAULT_THRESHOLDS, **options: object
) -> Findings:
    return Findings(examine(Database(dsn, source=source), limits=limits, **options))  # type: ignore[arg-type]


# --- all checks -------------------------------------------------------------------------------------------------------


def test_a_healthy_database_has_no_findings(dsn: str, app: Penstock, queue: Queue) -> None:
    queue.push_many([{}] * 3)
    queue.settle(queue.claim(1))
    app.upkeep()
    found = examined(dsn)
    assert found.bad == set(), [one for one in found if one.level != "ok"]
    assert found.the("fsync").level == "error"
    names = {check.name for check in CHECKS} - {"settings"} | set(DANGERS)
    assert {one.check for one in found} == names
    assert all((one.fix is None) == (one.level == "ok") for one in found)
    assert all(one.group and one.what == one.what.strip() for one in found)
    json.dumps([dict(one.numbers) for one in found])


def test_quick_leaves_out_what_reads_whole_tables(dsn: str) -> None:
    left_out = {one.check for one in examined(dsn)} - {one.check for one in examined(dsn, quick=True)}
    assert left_out == {"counters", "unknown_kinds", "crashes"}


def test_without_the_schema_the_rest_is_still_checked(make_database: Callable[..., str]) -> None:
    empty = make_database("template1")
    found = examined(empty)
    assert found.bad == {"schema"}
    assert (found.the("schema").level, found.the("schema").fix) == ("error", "Run `penstock init`.")
    assert not found.of("migrations") + found.of("upkeep") + found.of("counters")
    assert found.the("snapshots").level == "ok"


def test_checks_cannot_change_anything(dsn: str) -> None:
    database = Database(dsn)
    with database.session() as connection:
        inspection = Inspection(connection, database)
        with pytest.raises(PenstockError, match="read-only"):
            inspection.rows("create table penstock.mischief ()")
        assert inspection.row("show search_path") == ("pg_catalog, pg_temp",)
        assert connection.execute("show lock_timeout").fetchone() == ("0",), "the session keeps no setting"


def test_a_check_that_fails_stops_no_other(dsn: str, sql: Connection) -> None:
    sql.execute("drop table penstock.chore")
    with psycopg.connect(dsn) as other:
        other.execute("lock table penstock.worker in access exclusive mode")
        began = time.monotonic()
        found = examined(dsn, quick=True)
        assert time.monotonic() - began < 60, "no check waits for a lock for long"
    for check in ("workers", "upkeep"):
        assert found.the(check).level == "warning"
        assert found.the(check).what.startswith("could not look: ")
    assert found.the("leases").level == found.the("contract").level == "ok"


def test_a_cut_connection_is_not_a_finding(dsn: str, sql: Connection) -> None:
    def cut() -> float:
        sql.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = current_database() and application_name = 'penstock'"
        )
        return time.time()

    with pytest.raises(Unavailable):
        examined(dsn, now=cut)


def test_the_commands_of_fixes_exist() -> None:
    sources = "".join(path.read_text("utf-8") for path in Path(doctor.__file__).parent.glob("*.py"))
    said = re.findall(r"`penstock ([^`]+)`", sources)
    assert len(said) >= 6
    for line in said:
        command, words = get_command(tree()), iter(line.split())
        while hasattr(command, "commands"):
            command = command.commands[next(words)]
        options = [word for word in words if word.startswith("--")]
        assert set(options) <= {name for parameter in command.params for name in parameter.opts}, line


def test_the_page_explains_every_check() -> None:
    explained = set(re.findall(r"^\| `(\w+)` \|", DOCS.read_text("utf-8"), re.MULTILINE))
    checks = {check.name for check in CHECKS} - {"settings"} | set(DANGERS) | {"functions"}
    assert explained == checks


# --- the connection ---------------------------------------------------------------------------------------------------


def test_where_the_dsn_came_from_and_what_was_not_used(dsn: str) -> None:
    parts = conninfo_to_dict(dsn)
    alone = examined(dsn, environ={"PENSTOCK_DSN": dsn}).the("dsn")
    assert (alone.level, alone.fix) == ("ok", None)
    assert alone.what == f"{parts['dbname']} at {parts['host']}:{parts['port']} as {parts['user']}, from PENSTOCK_DSN"

    environ = {"PENSTOCK_DSN": dsn, "DATABASE_URL": f"postgresql://u:{CANARY}@h/d", "PGHOST": "elsewhere", "PGUSER": ""}
    both = examined(dsn, environ=environ).the("dsn")
    assert both.level == "info"
    assert both.what.endswith("from PENSTOCK_DSN; DATABASE_URL and PGHOST are set but not used")
    assert both.fix is not None
    assert CANARY not in both.what + both.fix

    beside = examined(dsn, environ={"PGSERVICE": "mine"}, source="DATABASE_URL").the("dsn")
    assert beside.what.endswith("from DATABASE_URL, completed by PGSERVICE")


def test_versions() -> None:
    levels = {number: judge_version(number).level for number in (140012, 150000, 180001, 190000)}
    assert levels == {140012: "error", 150000: "ok", 180001: "ok", 190000: "info"}


def test_a_database_that_takes_no_writes(dsn: str, sql: Connection) -> None:
    name = conninfo_to_dict(dsn)["dbname"]
    sql.execute(f"alter database {name} set default_transaction_read_only = on")
    found = examined(dsn)
    assert found.bad == {"writable"}
    assert found.the("writable").level == "error"
    assert "default_transaction_read_only" in found.the("writable").what


def test_clocks_that_differ(dsn: str) -> None:
    behind = examined(dsn, now=lambda: time.time() + 90).the("clock")
    assert behind.level == "warning"
    assert -91 < behind.numbers["seconds"] < -89
    assert "behind" in behind.what
    assert "NTP" in str(behind.fix)
    sluggish = iter(range(0, 100, 20))
    start = time.time()
    unsure = examined(dsn, now=lambda: start - 10 + next(sluggish)).the("clock")
    assert unsure.level == "ok", "a difference within the round trip says nothing"


def test_a_pooler_is_noticed(dsn: str, server_dsn: str) -> None:
    assert examined(dsn).the("pooler").level == "ok"
    with go_between(dsn) as through:
        found = examined(through)
    assert found.bad == {"pooler"}
    assert found.the("pooler").level == "info"
    assert "LISTEN" in str(found.the("pooler").fix)


@contextmanager
def go_between(dsn: str) -> Iterator[str]:
    """Runs a server that answers the start of a session as poolers do, with a process id that it makes up."""
    parts = conninfo_to_dict(dsn)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with client, socket.socket(socket.AF_UNIX) as server:
                server.connect(f"{parts['host']}/.s.PGSQL.{parts['port']}")
                back = threading.Thread(target=forward_messages, args=(server, client), daemon=True)
                back.start()
                while data := client.recv(65536):
                    server.sendall(data)
                server.shutdown(socket.SHUT_WR)
                back.join()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        address = {
            "host": "127.0.0.1",
            "port": listening.getsockname()[1],
            "sslmode": "disable",
            "gssencmode": "disable",
        }
        yield make_conninfo(dsn, password=password_of(parts), **address)
        thread.join(10)


def forward_messages(server: socket.socket, client: socket.socket) -> None:
    """Forwards message by message, so that it can replace the key of the session."""
    with server.makefile("rb") as stream:
        while head := stream.read(5):
            kind, length = struct.unpack("!cI", head)
            body = stream.read(length - 4)
            client.sendall(head + (struct.pack("!I", 1) + body[4:] if kind == b"K" else body))


def password_of(parts: Mapping[str, object]) -> str:
    """Returns the password, because the passfile has an entry only for the socket."""
    return Path(str(parts["passfile"])).read_text().strip().split(":", 4)[4]


# --- the schema -------------------------------------------------------------------------------------------------------


VERSION = "create or replace function penstock.{}() returns int language sql return {}"


@pytest.mark.parametrize(("theirs", "fix"), [(0, "penstock init"), (999, "pip install -U penstock")])
def test_an_older_and_a_newer_contract(dsn: str, sql: Connection, theirs: int, fix: str) -> None:
    for name in ("contract", "oldest_client"):
        sql.execute(VERSION.format(name, theirs))
    found = examined(dsn)
    assert found.bad - {"migrations"} == {"contract"}, "all possible checks run"
    assert found.the("contract").level == "error"
    assert fix in str(found.the("contract").fix)


def test_a_schema_without_versions_is_older(dsn: str, sql: Connection) -> None:
    sql.execute("drop function penstock.oldest_client(), penstock.revision()")
    found = examined(dsn).the("contract")
    assert (found.level, found.fix) == ("error", "Run `penstock init` against this database.")


def test_a_newer_schema_that_serves_this_client(dsn: str, sql: Connection) -> None:
    sql.execute(VERSION.format("contract", OUR_CONTRACT + 1))
    sql.execute(VERSION.format("revision", 999))
    found = examined(dsn)
    assert found.bad == {"functions"}
    assert found.the("contract").level == "ok"
    assert found.the("functions").level == "info"
    assert "is at revision 999" in found.the("functions").what


def test_the_revision_is_in_the_finding(dsn: str) -> None:
    found = examined(dsn).the("migrations")
    assert found.numbers == {"revision": our_revision()}
    assert f"(revision {our_revision()})" in found.what


def test_migrations_that_are_missing_and_unknown(dsn: str, sql: Connection) -> None:
    sql.execute("update penstock.migration set checksum = 'another' where number = 0")
    found = examined(dsn)
    assert found.bad == {"functions"}
    assert found.the("functions").level == "warning"

    sql.execute("delete from penstock.migration where number = 1")
    missing = examined(dsn).the("migrations")
    assert (missing.level, missing.fix) == ("error", "Run `penstock init`.")
    assert "0001_tables.sql" in missing.what

    sql.execute("insert into penstock.migration values (9999, 'future', '')")
    newer = examined(dsn).the("functions")
    assert newer.level == "info"
    assert "is at migration 9999" in newer.what
    assert "Upgrade this Penstock" in str(newer.fix)


def test_roles_without_rights(dsn: str, sql: Connection) -> None:
    sql.execute("revoke usage on schema penstock from penstock_producer")
    found = examined(dsn)
    assert found.bad == {"roles"}
    assert found.the("roles").level == "warning"


# --- rights -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def other_role(dsn: str, sql: Connection) -> Iterator[tuple[str, str]]:
    """A role without any rights, and the DSN with its password."""
    name = f"doctor_{os.getpid()}_{next(NUMBER)}"
    sql.execute(f"create role {name} login password '{CANARY}'")
    sql.execute(f"grant usage on schema penstock_test to {name}; grant select on penstock_test.clock to {name}")
    yield name, make_conninfo(dsn, user=name, password=CANARY)
    sql.execute(f"drop owned by {name}; drop role {name}")


def test_a_reader_sees_all_but_sessions_of_others(sql: Connection, queue: Queue, other_role: tuple[str, str]) -> None:
    name, dsn = other_role
    sql.execute(f"grant penstock_reader to {name}")
    found = examined(dsn)
    assert found.bad == {"sessions"}, [one for one in found if one.level != "ok"]
    assert found.the("sessions").level == "info"
    assert found.the("sessions").numbers["hidden"] >= 1
    assert found.the("sessions").fix == f"Let an administrator: grant pg_read_all_stats to {name};"
    sql.execute(f"grant pg_read_all_stats to {name}")
    assert examined(dsn).bad == set()


def test_a_role_without_rights_is_told_what_to_ask_for(other_role: tuple[str, str]) -> None:
    name, dsn = other_role
    found = examined(dsn)
    blind = {one.check for one in found if one.what.startswith("could not look: permission denied")}
    assert blind >= {"migrations", "contract", "counter_log", "upkeep", "paused", "leases", "workers", "counters"}
    assert {one.fix for one in found if one.check in blind} == {
        f"Let an administrator: grant penstock_reader to {name};"
    }
    assert found.the("schema").level == found.the("notifications").level == "ok"


def test_no_password_is_shown(other_role: tuple[str, str]) -> None:
    _, dsn = other_role
    wrong = make_conninfo(dsn, password=f"{CANARY}-wrong")
    more = {"DATABASE_URL": f"postgresql://u:{CANARY}@h/d", "PGPASSWORD": CANARY}
    for options in ((), ("--json",), ("--verbose", "--quick"), ("--quiet",)):
        ran = penstock("doctor", *options, dsn=dsn, env=more)
        assert CANARY not in ran.out + ran.err
        assert ran.code == 1
    refused = penstock("doctor", dsn=wrong)
    assert (refused.code, refused.out) == (3, "")
    assert is_one_block(refused.err)
    assert CANARY not in refused.err


# --- the server -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A server with default settings that tests may break."""
    home = tmp_path_factory.mktemp("doctor") / "home"
    start_own(home)
    yield home
    if server := Server.running(home):
        server.stop("immediate")


def start_own(home: Path) -> Server:
    settings = {"shared_buffers": "16MB", "max_prepared_transactions": "2"}
    return Server.start(home, environ=os.environ, settings=settings)


@pytest.fixture
def own_server(own_home: Path) -> Server:
    server = start_own(own_home)
    init(server.dsn)
    return server


def test_the_output_as_text_and_as_json(own_server: Server) -> None:
    ran = penstock("doctor", dsn=own_server.dsn)
    lines = ran.out.splitlines()
    assert (ran.code, ran.err) == (0, ""), ran.out
    groups = [line for line in lines[:-1] if not line.startswith(" ")]
    assert groups == ["connection", "schema", "server", "tables", "queues", "counters"]
    assert all(line.startswith("  ✓ ok       ") for line in lines[:-1] if line.startswith(" "))
    assert re.fullmatch(r"\d+ ok, 0 info, 0 warnings, 0 errors", lines[-1])

    told = penstock("doctor", "--json", dsn=own_server.dsn)
    assert told.code == 0
    assert told.json["ok"] is True
    assert {tuple(one) for one in told.json["findings"]} == {("check", "level", "what", "fix", "numbers")}
    assert len(told.json["findings"]) == len(lines) - 1 - len(groups)
    quiet = penstock("doctor", "--quiet", dsn=own_server.dsn)
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")


def test_problems_come_with_their_fix_and_an_exit_code(dsn: str, make_database: Callable[..., str]) -> None:
    ran = penstock("doctor", "--quick", dsn=dsn, env={"DATABASE_URL": "postgresql://elsewhere/d"})
    lines = ran.out.splitlines()
    assert ran.code == 1
    at = next(n for n, line in enumerate(lines) if line.startswith("  ✗ error    fsync: "))
    assert lines[at + 1].strip() == "alter system set fsync = on; select pg_reload_conf();"
    assert any(line.startswith("  i info     dsn: ") for line in lines)
    assert lines[-1].endswith("1 info, 0 warnings, 1 error")

    empty = penstock("doctor", "--quiet", dsn=make_database("template1"))
    assert empty.code == 1
    assert "schema: there is no schema penstock" in empty.out
    assert "`penstock init`" in empty.out
    ascii_only = penstock("doctor", dsn=dsn, env={"PYTHONIOENCODING": "ascii"})
    assert r"  \u2713 ok       version: PostgreSQL" in ascii_only.out


def test_without_a_connection_there_are_no_findings() -> None:
    down = penstock("doctor", "--json", dsn="postgresql://u@127.0.0.1:1/d")
    assert (down.code, down.out) == (4, "")
    nowhere = penstock("doctor")
    assert (nowhere.code, nowhere.out) == (3, "")


def test_settings_that_lose_work_are_errors(own_server: Server) -> None:
    names = sorted(DANGERS)
    with psycopg.connect(own_server.dsn, autocommit=True) as sql:
        switch(sql, "alter system set {} = off", names, "off")
        try:
            found = examined(own_server.dsn)
        finally:
            switch(sql, "alter system reset {}", names, "on")
    assert found.bad == set(names) - {"fsync"}
    for name in names:
        assert found.the(name).level == "error"
        assert found.the(name).fix == f"alter system set {name} = on; select pg_reload_conf();"
    assert examined(own_server.dsn).the("fsync").level == "ok"


def switch(sql: Connection, statement: str, names: list[str], value: str) -> None:
    """Changes a setting and waits until the reload has taken effect."""
    for name in names:
        sql.execute(statement.format(name))
    sql.execute("select pg_reload_conf()")
    for name in names:
        deadline = time.monotonic() + 30
        while sql.execute(f"show {name}").fetchone() != (value,):
            assert time.monotonic() < deadline, name
            time.sleep(0.02)
    sql.execute("select pg_sleep(0.2)")  # for the postmaster, from which new sessions get their settings


def test_a_setting_of_the_database_is_distinguished(dsn: str, sql: Connection) -> None:
    sql.execute(f"alter database {conninfo_to_dict(dsn)['dbname']} set synchronous_commit = off")
    found = examined(dsn)
    assert found.bad == {"synchronous_commit"}
    assert str(found.the("synchronous_commit").fix).startswith("alter database … reset synchronous_commit;")


def test_a_database_in_another_encoding(server_dsn: str) -> None:
    name = f"latin_{os.getpid()}"
    with psycopg.connect(server_dsn, autocommit=True) as sql:
        sql.execute(f"create database {name} encoding 'LATIN1' locale 'C' template template0")
        try:
            found = examined(make_conninfo(server_dsn, dbname=name)).the("encoding")
        finally:
            sql.execute(f"drop database {name} with (force)")
    assert (found.level, "LATIN1" in found.what) == ("error", True)
    assert "encoding 'UTF8' template template0" in (found.fix or "")


def test_a_standby_is_an_error(own_server: Server) -> None:
    own_server.stop()
    signal = own_server.data / "standby.signal"
    signal.touch()
    os.chown(signal, own_server.data.stat().st_uid, own_server.data.stat().st_gid)
    try:
        standby = start_own(own_server.home)
        found = examined(standby.dsn)
        standby.stop()
    finally:
        signal.unlink()
    assert found.bad == {"writable"}, [one for one in found if one.level != "ok"]
    assert found.the("writable").level == "error"
    assert "primary" in str(found.the("writable").fix)


def test_a_held_snapshot_is_named_with_its_holder(dsn: str) -> None:
    with psycopg.connect(dsn, application_name="report\n") as holder:
        holder.execute("set transaction isolation level repeatable read")
        holder.execute("select count(*) from penstock.task")
        pid = holder.info.backend_pid
        for limits, level in (
            (Thresholds(snapshot_warning=0), "warning"),
            (Thresholds(snapshot_warning=0, snapshot_error=0), "error"),
        ):
            # Only the ten oldest are reported, and these may be transactions of other tests.
            (one,) = eventually(lambda limits=limits: held_by(pid, examined(dsn, limits=limits)))  # type: ignore[misc]
            assert one.level == level
            assert f"session {pid} of penstock in 'report" in one.what
            assert "(idle in transaction) holds a snapshot for" in one.what
            assert f"pg_terminate_backend({pid})" in str(one.fix)
            assert "\n" not in one.what
        assert examined(dsn).the("snapshots").level == "ok", "it is not old yet"
    assert not held_by(pid, examined(dsn, limits=Thresholds(snapshot_warning=0)))


def held_by(pid: int, found: Findings) -> list[Finding]:
    """Returns the findings about the snapshots of a session."""
    return [one for one in found.of("snapshots") if one.numbers.get("pid") == pid]


def test_another_database_matters_only_when_it_writes(dsn: str, server_dsn: str) -> None:
    with psycopg.connect(server_dsn) as reader, psycopg.connect(server_dsn) as writer:
        reader.execute("set transaction isolation level repeatable read")
        reader.execute("select 1 from pg_class")
        writer.execute("select pg_current_xact_id()")
        told: list[Findings] = []

        def writer_is_reported() -> bool:
            told.append(examined(dsn, limits=Thresholds(snapshot_warning=0)))
            return bool(held_by(writer.info.backend_pid, told[-1]))

        eventually(writer_is_reported)
        assert not held_by(reader.info.backend_pid, told[-1]), "it is older: it would be reported before the writer"


def test_a_prepared_transaction_holds_a_snapshot_too(own_server: Server) -> None:
    with psycopg.connect(own_server.dsn, autocommit=True) as sql:
        sql.execute("begin; create table left_over (); prepare transaction 'it''s mine'")
        try:
            (one,) = examined(own_server.dsn, limits=Thresholds(snapshot_warning=0)).of("snapshots")
        finally:
            sql.execute("rollback prepared 'it''s mine'")
    assert one.what.startswith('prepared transaction "it\'s mine" of penstock holds a snapshot')
    assert one.fix == "rollback prepared 'it''s mine';"
    assert "pid" not in one.numbers


def test_idle_in_transaction(dsn: str) -> None:
    with psycopg.connect(dsn, application_name="careless") as careless:
        careless.execute("select 1")
        pid = careless.info.backend_pid
        found = examined(dsn, limits=Thresholds(idle=0))
        (one,) = [one for one in found.of("idle") if one.numbers["pid"] == pid]
        assert one.level == "warning"
        assert "in 'careless' has been idle in a transaction" in one.what
        assert "locks" not in one.what
        careless.execute("select from penstock.task for update")
        (one,) = examined(dsn, limits=Thresholds(idle=0)).of("idle")
        assert "locks on tables of Penstock" in one.what
        assert examined(dsn).the("idle").level == "ok", "it is not idle for a minute yet"


def test_limits_that_are_nearly_reached(dsn: str) -> None:
    found = examined(dsn, limits=Thresholds(connections=0, notify=0))
    assert found.bad == {"connections", "notifications"}
    assert found.the("connections").numbers["used"] >= 1
    assert found.the("connections").numbers["most"] > 100


# --- our tables -------------------------------------------------------------------------------------------------------


def test_dead_rows(dsn: str, queue: Queue, sql: Connection) -> None:
    sql.execute("alter table penstock.agenda set (autovacuum_enabled = off)")
    queue.push_many([{}] * 10)
    for _ in range(3):
        sql.execute("update penstock.agenda set attempts = attempts")
    sql.execute("select pg_stat_force_next_flush()")
    switched_off, dead = examined(dsn, limits=Thresholds(dead_rows=20)).of("dead_rows", "warning")
    assert switched_off.fix == "alter table penstock.agenda reset (autovacuum_enabled);"
    assert re.fullmatch(r"penstock\.agenda has 30 dead rows beside \d+ live, never vacuumed", dead.what)
    assert dead.numbers["dead"] == 30
    sql.execute("vacuum penstock.agenda")
    sql.execute("alter table penstock.agenda reset (autovacuum_enabled)")
    assert examined(dsn, limits=Thresholds(dead_rows=20)).the("dead_rows").level == "ok"


def test_invalid_indexes(dsn: str, queue: Queue, sql: Connection) -> None:
    queue.push_many([{}] * 2)
    with pytest.raises(psycopg.errors.UniqueViolation):
        sql.execute('create unique index concurrently "One Only" on penstock.agenda (priority)')
    left = examined(dsn).the("invalid_indexes")
    assert left.level == "warning"
    assert left.fix == 'drop index concurrently penstock."One Only";'
    sql.execute("update pg_index set indisvalid = false where indexrelid = 'penstock.agenda_pick'::regclass")
    ours, _ = sorted(examined(dsn).of("invalid_indexes"), key=lambda one: str(one.fix), reverse=True)
    assert ours.fix == "reindex index concurrently penstock.agenda_pick;"
    sql.execute(ours.fix.encode())
    sql.execute(str(left.fix).encode())
    assert examined(dsn).the("invalid_indexes").level == "ok"


def test_an_index_that_outgrew_its_table(dsn: str) -> None:
    found = examined(dsn, limits=Thresholds(index_bytes=0, index_ratio=0))
    assert found.bad == {"index_size"}
    assert found.the("index_size").level == "info"


def test_a_counter_log_that_is_not_squeezed(dsn: str, app: Penstock, queue: Queue) -> None:
    for _ in range(3):
        queue.push()
    found = examined(dsn, limits=Thresholds(log_rows=2))
    assert found.the("counter_log").level == "warning"
    assert found.the("counter_log").numbers["rows"] >= 6
    app.upkeep()
    assert examined(dsn).the("counter_log").level == "ok"


def test_history_without_days_ahead(dsn: str, app: Penstock, queue: Queue, sql: Connection) -> None:
    today = datetime.now(UTC).date()
    ahead = [f"penstock.history_{today + timedelta(days=n):%Y%m%d}" for n in range(16)]
    sql.execute(f"drop table if exists {', '.join(ahead[3:])}".encode())
    few = examined(dsn)
    assert few.bad == {"history_days"}
    assert few.the("history_days").level == "warning"
    assert few.the("history_days").numbers == {"ahead": 2}
    sql.execute(f"drop table {', '.join(ahead[:3])}".encode())
    assert examined(dsn).the("history_days").what == "history has no partition for today"
    app.upkeep()
    assert examined(dsn).bad == set()


# --- queues and counters ----------------------------------------------------------------------------------------------


def test_tasks_wait_and_no_upkeep_runs(dsn: str, app: Penstock, queue: Queue, clock: Clock) -> None:
    queue.push()
    never = examined(dsn)
    assert never.bad == {"upkeep"}
    assert "no upkeep has ever run, with 1 task waiting" in never.the("upkeep").what
    app.upkeep()
    assert examined(dsn).the("upkeep").level == "ok"
    clock.advance(130)
    late = examined(dsn).the("upkeep")
    assert late.level == "warning"
    assert "`penstock upkeep`" in str(late.fix)
    queue.settle(queue.claim())
    assert examined(dsn).the("upkeep").level == "ok", "no task waits"


def test_a_part_of_upkeep_fails_all_the_time(
    dsn: str, app: Penstock, queue: Queue, clock: Clock, sql: Connection
) -> None:
    app.upkeep()
    sql.execute("""
        create function penstock_test.refuse() returns trigger language plpgsql as
            $$ begin raise exception 'deletes are refused here'; end $$;
        create trigger refuse before delete on penstock.audit
            for each row execute function penstock_test.refuse();
        insert into penstock.audit (at, verb) values ('2000-01-01', 'drop');
    """)
    clock.advance(901)
    app.upkeep()
    found = examined(dsn).the("upkeep")
    assert (found.level, found.numbers["failing"]) == ("warning", 1)
    assert "no run has done audit entries dropped" in found.what
    assert "`penstock upkeep`: it says what fails" in str(found.fix)


def test_a_lease_that_was_not_expired(dsn: str, app: Penstock, queue: Queue, clock: Clock) -> None:
    queue.push_many([{}] * 3)
    queue.claim(3)
    clock.advance(10 + 59)
    assert examined(dsn).the("leases").level == "ok"
    clock.advance(2)
    late = examined(dsn).the("leases")
    assert (late.level, late.numbers) == ("warning", {"leases": 1, "tasks": 3})
    assert re.match(r"queue work: 1 lease with 3 tasks ended, the oldest 6\d s ago", late.what), late.what
    app.upkeep()
    assert examined(dsn).the("leases").level == "ok"


def test_a_paused_queue_with_tasks(dsn: str, app: Penstock, queue: Queue) -> None:
    queue.pause()
    assert examined(dsn).bad == set()
    queue.push()
    app.upkeep()
    found = examined(dsn)
    assert found.bad == {"paused"}
    assert found.the("paused").level == "warning"
    assert "work" in str(found.the("paused").fix)


def test_planned_tasks_that_are_overdue(dsn: str, app: Penstock, queue: Queue, clock: Clock) -> None:
    queue.push(due=clock.now() + timedelta(seconds=10))
    app.upkeep()
    assert examined(dsn).bad == set()
    clock.advance(75)
    found = examined(dsn)
    assert found.bad == {"overdue"}
    assert found.the("overdue").numbers == {"tasks": 1, "seconds": 65.0}


def test_a_schedule_that_is_not_fired(dsn: str, app: Penstock, queue: Queue, clock: Clock) -> None:
    app.set_schedule("s\x1b[2J", "* * * * *", queue="work")
    app.set_schedule("later", "* * * * *", queue="work")
    app.pause_schedule("later")
    clock.advance(60)
    assert examined(dsn).bad == set()
    clock.advance(61)
    found = examined(dsn)
    assert found.bad == {"schedules"}
    assert r"schedule 's\x1b[2J' is overdue by " in found.the("schedules").what
    app.upkeep()
    assert examined(dsn).bad == set()


def test_a_broken_promise(dsn: str, app: Penstock, queue: Queue, clock: Clock) -> None:
    queue.set(sla="30s")
    queue.push()
    clock.advance(29)
    app.upkeep()
    assert examined(dsn).bad == set()
    clock.advance(2)
    found = examined(dsn)
    assert found.bad == {"sla"}
    assert found.the("sla").what == "queue work breaks its SLA of 30 s: its oldest task waits 31 s"


def test_tasks_that_end_their_workers(dsn: str, app: Penstock, clock: Clock) -> None:
    queue = app.create_queue("deadly", lease="1s", retry="fixed:1h", max_crashes=5)
    queue.push()
    for _ in range(2):
        assert queue.claim()
        clock.advance(2)
    queue.claim()
    found = examined(dsn).the("crashes")
    assert (found.level, dict(found.numbers)) == ("info", {"tasks": 1, "crashes": 2, "max_crashes": 5})
    assert found.what == "queue deadly: 1 waiting task ended workers, up to 2 times; at 5 such a task is dead"


def test_dead_tasks_and_unknown_kinds(dsn: str, queue: Queue) -> None:
    queue.push(kind="mail\x1b[2J")
    claim = queue.claim()
    queue.settle(claim, {claim.ids[0]: Outcome.dead("?", error_class="UnknownKind")})
    found = examined(dsn)
    assert found.bad == {"dead_tasks", "unknown_kinds"}
    assert found.the("dead_tasks").level == "info"
    assert found.the("unknown_kinds").level == "warning"
    assert r"kind 'mail\x1b[2J'" in found.the("unknown_kinds").what


def test_silent_workers(dsn: str, app: Penstock, queue: Queue, clock: Clock) -> None:
    app.beat("w1", ["work"], slots=4, busy=3, host="somewhere")
    assert examined(dsn).the("workers").what == "1 worker known, none of them silent"
    clock.advance(61)
    app.beat("w2", ["work"])
    silent = examined(dsn).the("workers")
    assert silent.level == "warning"
    said = r"worker 'w1' on 'somewhere' has been silent for 6\d s with 3 tasks in work"
    assert re.fullmatch(said, silent.what), silent.what


@pytest.mark.unbalanced
def test_a_counter_that_drifted(dsn: str, queue: Queue, sql: Connection) -> None:
    sql.execute(
        "insert into penstock.counter_log (queue_id, metric, delta) select id, 'pending', 5 from penstock.queue"
    )
    assert examined(dsn, quick=True).of("counters") == []
    drift, *_ = examined(dsn).of("counters", "error")
    assert drift.what == "queue work: drift: pending: expected 0, found 5"
    assert drift.numbers == {"expected": 0, "found": 5}
    assert str(drift.fix).startswith("Run `penstock verify work --repair`")
