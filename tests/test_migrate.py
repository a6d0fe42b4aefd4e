"""`init`: once, again, from many processes, on older, newer and edited schemas; and the dump that reviewers read."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Self

import psycopg
import pytest
from psycopg import Connection
from psycopg.conninfo import make_conninfo

from penstock import AuthError, ConfigError, NewTask, Penstock, SchemaVersionError, Unavailable, migrate
from penstock.embedded import Server
from penstock.embedded.binaries import find_binaries
from scripts.dump_schema import TARGET, dumped
from shell import each, is_one_block, penstock

NUMBER = count()


@pytest.fixture
def empty(make_database: Callable[..., str]) -> str:
    return make_database("template0")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A cluster without our roles."""
    home = tmp_path_factory.mktemp("bare") / "pg"
    server = Server.start(home, environ=os.environ, settings={"shared_buffers": "64MB", "fsync": "off"})
    yield server
    server.stop("immediate")


@pytest.fixture
def apart(bare: Server) -> str:
    """An empty database in a cluster where transactions may stay open, which would hold up squeezes of other tests."""
    name = f"apart_{next(NUMBER)}"
    with psycopg.connect(bare.dsn, autocommit=True) as sql:
        sql.execute(f"create database {name}")
    return make_conninfo(bare.dsn, dbname=name)


def test_fresh_is_what_reviewers_read(empty: str) -> None:
    with Penstock(empty) as penstock:
        penstock.init()
    assert dumped(find_binaries({}) / "pg_dump", empty) == TARGET.read_text("utf-8"), "run `make schema`"


def test_init_is_safe_to_repeat(empty: str) -> None:
    with Penstock(empty) as penstock:
        assert penstock.plan() == ["0001_tables.sql", "functions"]
        assert penstock.init() == ["0001_tables.sql", "functions"]
        assert penstock.init() == []
        assert penstock.plan() == []


def init(dsn: str) -> list[str]:
    with Penstock(dsn) as penstock:
        return penstock.init()


def test_many_at_once_do_everything_once(empty: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        done = [name for names in pool.map(init, [empty] * 6) for name in names]
    assert sorted(done) == ["0001_tables.sql", "functions"]


def test_the_first_step_of_another_init_ends_between_two_looks(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema exists by then, so creating it waits for nothing, and the lock on the table must be taken."""
    recorded = migrate.read_checksums

    def look(connection: Connection) -> dict[int, str]:
        monkeypatch.setattr(migrate, "read_checksums", recorded)
        found = recorded(connection)
        with psycopg.connect(empty, autocommit=True) as other:
            assert migrate.advance(other, False) == "0001_tables.sql"
        return found

    monkeypatch.setattr(migrate, "read_checksums", look)
    with psycopg.connect(empty, autocommit=True) as sql, sql.transaction():
        migrate.exclude_others(sql)
        locks = "select mode from pg_locks where relation = 'penstock.migration'::regclass and pid = pg_backend_pid()"
        assert ("ShareRowExclusiveLock",) in sql.execute(locks).fetchall()


CATALOG = """
    select 'class', oid, xmin::text from pg_class where relnamespace = 'penstock'::regnamespace
    union all select 'proc', oid, xmin::text from pg_proc where pronamespace = 'penstock'::regnamespace
    union all select 'trigger', oid, xmin::text from pg_trigger where tgfoid::regproc::text like 'penstock.%'
    union all select 'schema', oid, xmin::text from pg_namespace where nspname = 'penstock'
    union all select 'migration', number::oid, xmin::text from penstock.migration
    order by 1, 2
"""


def test_a_second_init_touches_nothing(empty: str) -> None:
    with Penstock(empty) as penstock, psycopg.connect(empty, autocommit=True) as sql:
        penstock.init()
        before = sql.execute(CATALOG).fetchall()
        assert len(before) > 100
        assert penstock.init() == []
        assert sql.execute(CATALOG).fetchall() == before


def test_init_leaves_no_lock_behind(dsn: str, sql: Connection) -> None:
    """Behind a pooler the session outlives the client, and the next init would wait for its lock for ever."""
    for _ in range(3):
        sql.execute("update penstock.migration set checksum = 'older' where number = 0")
        assert init(dsn) == ["functions"]
        locks = "select count(*) from pg_locks as l join pg_database as d on d.oid = l.database"
        held = sql.execute(f"{locks} where l.locktype = 'advisory' and d.datname = current_database()").fetchone()
        assert held == (0,)


def test_functions_are_applied_when_their_text_changed(empty: str) -> None:
    with Penstock(empty) as penstock, psycopg.connect(empty, autocommit=True) as sql:
        penstock.init()
        sql.execute("drop function penstock.claim")
        assert penstock.init() == [], "changes by hand in a database are not noticed"
        sql.execute("update penstock.migration set checksum = 'older' where number = 0")
        assert penstock.init() == ["functions"]
        penstock.create_queue("work").claim()


def test_an_edited_migration_is_refused(empty: str) -> None:
    with Penstock(empty) as penstock, psycopg.connect(empty, autocommit=True) as sql:
        penstock.init()
        sql.execute("update penstock.migration set checksum = 'other' where number = 1")
        with pytest.raises(SchemaVersionError, match="was edited"):
            penstock.init()


def test_a_missing_schema_names_the_command(empty: str) -> None:
    with Penstock(empty) as penstock, pytest.raises(SchemaVersionError) as missing:
        penstock.queue("work").push()
    assert "penstock init" in (missing.value.hint or "")


def test_every_statement_of_a_failed_step_is_undone(empty: str, tmp_path: Path) -> None:
    with psycopg.connect(empty, autocommit=True) as sql:
        broken = migrate.Step(7, "broken", "create schema penstock; create table penstock.x (n int); select 1/0;")
        with pytest.raises(psycopg.errors.DivisionByZero):
            migrate.apply(sql, broken)
        assert sql.execute("select to_regnamespace('penstock')").fetchone() == (None,)


def test_functions_pin_their_search_path(sql: Connection) -> None:
    """Each function pins its search_path, or has a body that was parsed when it was created."""
    loose = sql.execute(
        "select proname from pg_proc where pronamespace = 'penstock'::regnamespace and prokind = 'f'"
        " and not coalesce(proconfig::text like '%%search_path%%', false) and prosqlbody is null and proname <> 'clock'"
    ).fetchall()
    assert loose == []


# --- another version (B85) --------------------------------------------------------------------------------------------

OTHER = """
    create or replace function penstock.contract() returns int language sql immutable parallel safe return {};
    create or replace function penstock.oldest_client() returns int language sql immutable parallel safe return {};
"""
SAID = {"missing": "penstock init", "older": "penstock init", "newer": "pip install -U penstock"}


@pytest.mark.parametrize("version", SAID)
def test_another_version_is_recognised_at_once(version: str, make_database: Callable[..., str]) -> None:
    dsn = make_database("template0" if version == "missing" else "penstock_template")
    if version != "missing":
        with psycopg.connect(dsn) as sql:
            sql.execute(OTHER.format(*{"older": (0, 0), "newer": (99, 98)}[version]).encode())
    acts: tuple[Callable[[Penstock], object], ...] = (
        lambda app: app.queue("work").push(),
        lambda app: app.queue("work").push_many([{}]),
        lambda app: app.queue("work").claim(),
        lambda app: app.status(),
        lambda app: app.verify(),
        lambda app: app.create_queue("work"),
    )
    for act in acts:
        with Penstock(dsn) as app, pytest.raises(SchemaVersionError) as refused:
            act(app)
        assert SAID[version] in (refused.value.hint or "")
    for ran in each(("status",), ("verify",), ("push", "work"), ("queues", "create", "work"), dsn=dsn):
        assert (ran.code, ran.out) == (3, "")
        assert ran.err.startswith(f"error {SchemaVersionError.code}: ")
        assert is_one_block(ran.err)
        assert SAID[version] in ran.err


def test_a_schema_that_no_longer_serves_this_client_is_left_alone(empty: str) -> None:
    with Penstock(empty) as app, psycopg.connect(empty, autocommit=True) as sql:
        app.init()
        sql.execute(OTHER.format(99, 98).encode())
        sql.execute("update penstock.migration set checksum = 'newer' where number = 0")
        for act in (app.init, app.plan):
            with pytest.raises(SchemaVersionError, match="contract 99, which serves clients from 98 on") as refused:
                act()
            assert "pip install -U penstock" in (refused.value.hint or "")


@pytest.mark.parametrize("mark", ["migration", "revision", "contract"])
def test_init_leaves_a_newer_schema_as_it_is(mark: str, empty: str, caplog: pytest.LogCaptureFixture) -> None:
    """The schema serves this client, so that an old program may still run `init` when it starts."""
    newer = {
        "migration": "insert into penstock.migration (number, name, checksum) values (99, 'later', 'x')",
        "revision": "create or replace function penstock.revision() returns int language sql return 99",
        "contract": "create or replace function penstock.contract() returns int language sql return 99",
    }
    with Penstock(empty) as app, psycopg.connect(empty, autocommit=True) as sql:
        app.init()
        sql.execute(newer[mark].encode())
        sql.execute("update penstock.migration set checksum = 'newer' where number = 0")
        before = sql.execute(CATALOG).fetchall()
        assert app.plan() == []
        assert app.init() == []
        assert sql.execute(CATALOG).fetchall() == before
        app.create_queue("work").push()
    assert f"leaves the schema as it is: it is at {mark} 99, and this Penstock has " in caplog.text
    ran = penstock("init", dsn=empty)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"the schema is left as it is: it is at {mark} 99, and this Penstock has ")
    found = penstock("init", "--plan", "--json", dsn=empty).json
    assert found["planned"] == []
    assert found["newer"].startswith(f"is at {mark} 99")


def test_an_old_schema_is_brought_up_to_date(empty: str) -> None:
    with Penstock(empty) as app, psycopg.connect(empty, autocommit=True) as sql:
        app.init()
        sql.execute(OTHER.format(0, 0).encode())
        sql.execute("update penstock.migration set checksum = 'older' where number = 0")
        assert app.init() == ["functions"]
        app.create_queue("work").push()


def test_functions_come_anew_after_a_migration(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their text is the same, but the migration may have made the objects that they use."""
    with Penstock(empty) as app, psycopg.connect(empty, autocommit=True) as sql:
        app.init()
        known = migrate.migrations()
        later = migrate.Step(2, "0002_later.sql", "create table penstock.later (n int);")
        monkeypatch.setattr(migrate, "migrations", lambda: [*known, later])
        assert app.plan() == ["0002_later.sql", "functions"]
        assert app.init() == ["0002_later.sql", "functions"]
        readable = "select has_table_privilege('penstock_reader', 'penstock.later', 'select')"
        assert sql.execute(readable).fetchone() == (True,)
        assert app.init() == []


# --- on a busy queue --------------------------------------------------------------------------------------------------


def change_functions(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    known = migrate.functions()
    monkeypatch.setattr(migrate, "functions", lambda: replace(known, text=f"{known.text}\n-- {word}\n"))


class Busy:
    """Clients that repeat a call, each in a thread of its own. Keeps how long the longest call took, and the errors."""

    def __init__(self, *acts: Callable[[], object]) -> None:
        self.turns: Counter[int] = Counter()
        self.longest = 0.0
        self.errors: list[Exception] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._repeat, args=(n, act)) for n, act in enumerate(acts)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, n: int, act: Callable[[], object]) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                act()
            except Exception as error:
                self.errors.append(error)
                return
            self.longest = max(self.longest, time.monotonic() - began)
            self.turns[n] += 1

    def go_on(self, turns: int) -> None:
        """Returns when every client has made `turns` more calls."""
        goal = {n: self.turns[n] + turns for n in range(len(self._threads))}
        await_(lambda: bool(self.errors) or all(self.turns[n] >= goal[n] for n in goal))


def await_(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.005)


def test_new_functions_under_load_stop_no_client(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Penstock(empty) as app, Penstock(empty, max_connections=12) as crowd:
        app.init()
        app.create_queue("work", lease="5s", max_attempts=None)
        queue = crowd.queue("work")

        def drain() -> None:
            if claim := queue.claim(200):
                queue.extend(claim)
                queue.settle(claim)

        def upsert() -> None:
            queue.upsert_many([NewTask({}, f"s{n}") for n in range(50)])

        with Busy(lambda: queue.push_many([{}] * 200), upsert, queue.push, drain, drain, crowd.upkeep) as busy:
            busy.go_on(3)
            for word in ("one", "two", "three", "four", "five"):
                change_functions(monkeypatch, word)
                assert app.init() == ["functions"]
                busy.go_on(2)
        assert busy.errors == []
        assert busy.longest < migrate.LOCK_SECONDS + 10
        assert app.verify().ok, app.verify().findings


def test_new_functions_wait_for_no_transaction(apart: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They lock no table, so init waits for no transaction and keeps none waiting."""
    monkeypatch.setattr(migrate, "PAUSES", ())
    with Penstock(apart) as app, psycopg.connect(apart) as long:
        app.init(roles=False)
        app.create_queue("work").push_many([{}] * 2)
        long.execute("select penstock.push('work')")
        long.execute("select penstock.claim('work')")
        change_functions(monkeypatch, "new")
        assert app.init(roles=False) == ["functions"]


def test_init_gives_way_to_a_long_transaction(apart: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open transaction is in its way: init waits for two seconds, lets the sessions behind it pass, and tries again
    until it succeeds."""
    monkeypatch.setattr(migrate, "PAUSES", (0.3,) * 100)
    waiting = (
        "select count(*) from pg_locks"
        " where not granted and mode = 'AccessExclusiveLock' and relation = 'penstock.task'::regclass"
    )
    with (
        Penstock(apart) as app,
        psycopg.connect(apart) as long,
        psycopg.connect(apart, autocommit=True) as sql,
        ThreadPoolExecutor(1) as pool,
    ):

        def init_waits() -> bool:
            return sql.execute(waiting).fetchone() == (1,)

        app.init(roles=False)
        queue = app.create_queue("work")
        known = migrate.migrations()
        later = migrate.Step(2, "0002_later.sql", "alter table penstock.task add column later int;")
        monkeypatch.setattr(migrate, "migrations", lambda: [*known, later])
        long.execute("select penstock.push('work')")
        under_way = pool.submit(app.init, roles=False)
        for _ in range(2):
            await_(init_waits)
            began = time.monotonic()
            queue.push()  # it waits behind init, which waits behind the long transaction
            assert time.monotonic() - began < migrate.LOCK_SECONDS + 10
            await_(lambda: not init_waits())
        assert not under_way.done()
        long.commit()
        assert under_way.result(30) == ["0002_later.sql", "functions"]
        assert queue.status().pending == 3


def test_init_names_the_session_in_its_way(apart: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "PAUSES", ())
    monkeypatch.setattr(migrate, "LOCK_SECONDS", 0.2)
    with Penstock(apart) as app, psycopg.connect(apart, application_name="night job") as long:
        app.init(roles=False)
        app.create_queue("work")
        known = migrate.migrations()
        later = migrate.Step(2, "0002_later.sql", "alter table penstock.task add column later int;")
        monkeypatch.setattr(migrate, "migrations", lambda: [*known, later])
        long.execute("select penstock.push('work')")
        with pytest.raises(Unavailable, match="'night job'") as refused:
            app.init(roles=False)
        assert f"process {long.info.backend_pid} " in refused.value.message
        assert f"pg_terminate_backend({long.info.backend_pid})" in (refused.value.hint or "")
        long.commit()
        assert app.init(roles=False) == ["0002_later.sql", "functions"]


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "upgrade"])
def test_no_login_can_stop_init_with_an_advisory_lock(empty: str, monkeypatch: pytest.MonkeyPatch, fresh: bool) -> None:
    with Penstock(empty) as app, psycopg.connect(empty, autocommit=True) as other_session:
        if not fresh:
            app.init()
            change_functions(monkeypatch, "new")
        other_session.execute("select pg_advisory_lock(1346719315)")
        with ThreadPoolExecutor(1) as pool:
            under_way = pool.submit(app.init)
            try:
                assert under_way.result(20) == (["0001_tables.sql", "functions"] if fresh else ["functions"])
            finally:
                other_session.close()


def test_a_role_that_may_only_read_is_told_that_nothing_is_missing(empty: str, server_dsn: str) -> None:
    init(empty)
    name = f"viewer_{os.getpid()}"
    with psycopg.connect(server_dsn, autocommit=True) as sql:
        sql.execute(f"create role {name} login password 'secret' in role penstock_reader")
        try:
            assert init(make_conninfo(empty, user=name, password="secret")) == []
        finally:
            sql.execute(f"drop role {name}")


# --- settings of the database and the session -------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_in_another_encoding_is_refused_before_anything_is_written(bare: Server, encoding: str) -> None:
    name = f"odd_{next(NUMBER)}"
    with psycopg.connect(bare.dsn, autocommit=True) as sql:
        sql.execute(f"create database {name} encoding '{encoding}' locale 'C' template template0")
        roles = sql.execute("select count(*) from pg_roles").fetchall()  # other tests made some of them
    dsn = make_conninfo(bare.dsn, dbname=name)
    with Penstock(dsn) as app:
        for act in (app.init, app.plan):
            with pytest.raises(ConfigError, match=f"is {encoding}, and Penstock needs UTF8") as refused:
                act()
            assert "encoding 'UTF8' template template0" in (refused.value.hint or "")
    ran = penstock("init", dsn=dsn)
    assert (ran.code, ran.out) == (3, "")
    assert is_one_block(ran.err)
    with pytest.raises(AssertionError, match=f"the encoding of this database is {encoding}"):
        psql(dsn, migrate.script())
    with psycopg.connect(dsn, autocommit=True) as sql:
        assert sql.execute("select to_regnamespace('penstock')").fetchone() == (None,)
        assert sql.execute("select count(*) from pg_roles").fetchall() == roles


UNUSUAL = {
    "client_encoding": "LATIN1", "datestyle": "German, DMY", "intervalstyle": "sql_standard",
    "timezone": "Pacific/Chatham", "standard_conforming_strings": "off", "array_nulls": "off",
    "quote_all_identifiers": "on", "default_transaction_isolation": "serializable", "extra_float_digits": "-15",
}  # fmt: skip


@pytest.mark.parametrize("way", ["init", "script"])
def test_the_installers_settings_change_nothing(make_database: Callable[..., str], way: str) -> None:
    usual, unusual = make_database("template0"), make_database("template0")
    init(usual)
    with psycopg.connect(unusual, autocommit=True) as sql:
        for name, value in UNUSUAL.items():
            sql.execute(f"alter database \"{sql.info.dbname}\" set {name} = '{value}'".encode())
    if way == "init":
        init(unusual)
    else:
        psql(unusual, migrate.script())
    with psycopg.connect(unusual, autocommit=True) as sql:
        for name in UNUSUAL:
            sql.execute(f'alter database "{sql.info.dbname}" reset {name}'.encode())
    pg_dump = find_binaries(os.environ) / "pg_dump"
    assert dumped(pg_dump, unusual) == dumped(pg_dump, usual)


# --- other ways to install --------------------------------------------------------------------------------------------


def psql(dsn: str, text: str) -> None:
    program = find_binaries(os.environ) / "psql"
    command = [str(program), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", dsn]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("options", [(), ("--no-roles",)], ids=["roles", "no roles"])
def test_the_script_is_the_same_as_init(options: tuple[str, ...], make_database: Callable[..., str]) -> None:
    by_init, by_psql = make_database("template0"), make_database("template0")
    assert init(by_init) == ["0001_tables.sql", "functions"]
    written = penstock("init", "--sql", *options)
    assert written.code == 0
    assert ("create role" in written.out) is not bool(options)
    psql(by_psql, written.out)
    pg_dump = find_binaries(os.environ) / "pg_dump"
    assert dumped(pg_dump, by_psql) == dumped(pg_dump, by_init)
    assert noted(by_psql) == noted(by_init)
    assert penstock("init", dsn=by_psql).out == "the schema is up to date\n"


def noted(dsn: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn) as sql:
        return sql.execute("select number, name, checksum from penstock.migration order by 1").fetchall()


def test_the_installers_search_path_captures_nothing(empty: str) -> None:
    """A schema that comes first has better matches than PostgreSQL's own functions and operators."""
    with psycopg.connect(empty, autocommit=True) as sql:
        sql.execute("""
            create schema evil;
            create function evil.make_interval(secs numeric) returns interval language sql return '66 years'::interval;
            create function evil.clock_timestamp() returns timestamptz language sql return 'epoch'::timestamptz;
            create function evil.jsonb_typeof(jsonb) returns text language sql return 'evil';
            create function evil.octet_length(text) returns int language sql return 1;
            create function evil.differ(int, int) returns boolean language sql return false;
            create operator evil.= (function = evil.differ, leftarg = int, rightarg = int);
            create operator evil.>= (function = evil.differ, leftarg = int, rightarg = int);
            create table evil.task (id int);
            create domain evil.interval as text;
            create domain evil.jsonb as text;
        """)
    hostile = make_conninfo(empty, options="-c search_path=evil,pg_catalog")
    assert init(hostile) == ["0001_tables.sql", "functions"]
    assert dumped(find_binaries(os.environ) / "pg_dump", empty) == dumped_elsewhere(empty)


def dumped_elsewhere(dsn: str) -> str:
    """Returns the dump of a new database after init."""
    with psycopg.connect(dsn, autocommit=True) as sql:
        sql.execute("drop schema penstock cascade")
    init(dsn)
    return dumped(find_binaries(os.environ) / "pg_dump", dsn)


def test_the_owner_of_a_database_needs_no_right_to_make_roles(bare: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(bare.dsn, autocommit=True) as sql:
        sql.execute("create role tenant login password 'secret' nosuperuser nocreaterole nocreatedb")
        sql.execute("create database tenancy owner tenant")
    dsn = make_conninfo(bare.dsn, dbname="tenancy", user="tenant", password="secret")
    with Penstock(dsn) as app, psycopg.connect(dsn, autocommit=True) as sql:
        with pytest.raises(AuthError) as refused:
            app.init()
        assert "--no-roles" in (refused.value.hint or "")
        assert sql.execute("select to_regnamespace('penstock')").fetchone() == (None,)
        ran = penstock("init", dsn=dsn)
        assert (ran.code, ran.out) == (3, "")
        assert "--no-roles" in ran.err
        assert is_one_block(ran.err)

        assert penstock("init", "--no-roles", "--json", dsn=dsn).json == {"applied": ["0001_tables.sql", "functions"]}
        assert app.init(roles=False) == []
        live(app)

        # An administrator makes the roles later: init grants their rights, and needs no more for itself.
        with Penstock(make_conninfo(bare.dsn, dbname="tenancy")) as admin:
            assert admin.init() == ["roles", "functions"]
        assert sql.execute("select has_schema_privilege('penstock_worker', 'penstock', 'usage')").fetchone() == (True,)
        assert app.init() == []
        change_functions(monkeypatch, "more")
        assert app.init() == ["functions"]
        change_functions(monkeypatch, "even more")
        assert app.init(roles=False) == ["functions"]
        live(app)


def live(app: Penstock) -> None:
    """Uses a queue in all basic ways."""
    queue = app.create_queue("work", exist_ok=True)
    queue.push_many([{}] * 3)
    queue.push_many([NewTask({}, f"s{n}") for n in range(3)])
    app.upkeep()
    app.beat("w", ["work"])
    queue.settle(queue.claim(6))
    assert queue.status().queued == 0
    assert app.verify().ok, app.verify().findings
