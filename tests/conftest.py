"""One embedded PostgreSQL for the whole run, a database per test, cloned from a template, and a clock that tests set.

The environment can choose another PostgreSQL and another way to it:
    PENSTOCK_PG_BIN         the programs of another PostgreSQL
    PENSTOCK_TEST_SETTINGS  settings of the server: "enable_hashjoin=off enable_mergejoin=off"
    PENSTOCK_TEST_POOLER    1: through PgBouncer in transaction mode; tests that need a session use `direct_dsn`
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, settings

from penstock import Penstock, Queue
from penstock.client.database import Database
from penstock.embedded import Server
from penstock.embedded.settings import memory
from pooler import Pooler
from proxy import Lane, Proxy

# A run in the background may ignore Ctrl-C, and every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# On a busy machine any example may take long, and so may its values. All else is as Hypothesis has it, here and where
# its profile is for CI.
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")

TEMPLATE = "penstock_template"
SERVER = pytest.StashKey[Server]()
DSN = pytest.StashKey[str]()
POOLER = pytest.StashKey[Pooler]()
POOLED = pytest.StashKey[str]()  # the server's DSN through the pooler, or the direct one without a pooler
NUMBER = count()
LONG = ("faults", "worker")  # directories of tests that start real workers, and wait for them

# The server is temporary, so its files are in memory if there is room. There, to clone and drop a database costs an
# eighth of what it costs on ext4, which searches among the files that were just deleted.
MEMORY = Path("/dev/shm")
ROOM = 4 * 1024**3  # bytes; a run needs a tenth of that
SETTINGS = {
    "fsync": "off",
    "shared_buffers": "512MB",
    "max_connections": "400",  # one test alone has 200 sessions
    "max_wal_size": "512MB",
    "min_wal_size": "80MB",
    # A client that connects and does not log in holds up every DROP DATABASE of the cluster for this long.
    "authentication_timeout": "5s",
}

EVER_USED = "select s.is_called or exists (select from penstock.task) from penstock.task_id_seq as s"

# The time is what a test sets: `fixed`, or the real clock, plus `shift`.
CLOCK = """
    create schema penstock_test;
    create table penstock_test.clock (fixed timestamptz, shift interval not null);
    insert into penstock_test.clock values (null, '0');
    create or replace function penstock.clock() returns timestamptz language sql volatile
        return (select coalesce(fixed, clock_timestamp()) + shift from penstock_test.clock);
"""


def pytest_configure(config: pytest.Config) -> None:
    """The controller starts the server, and tells the workers of xdist its DSN."""
    if hasattr(config, "workerinput"):
        config.stash[DSN] = config.workerinput["dsn"]
        config.stash[POOLED] = config.workerinput["pooled"]
        return
    if config.option.collectonly:
        return
    in_memory = MEMORY.is_dir() and min(shutil.disk_usage(MEMORY).free, memory()) >= ROOM
    home = Path(tempfile.mkdtemp(prefix="penstock-tests-", dir=MEMORY if in_memory else None))
    chosen = dict(one.split("=", 1) for one in os.environ.get("PENSTOCK_TEST_SETTINGS", "").split())
    server = Server.start(home, environ=os.environ, settings={**SETTINGS, **chosen})
    config.stash[SERVER] = server
    config.stash[DSN] = config.stash[POOLED] = server.dsn
    make_logins_cheap(server)
    make_template(server.dsn)
    if os.environ.get("PENSTOCK_TEST_POOLER"):
        config.stash[POOLER] = pooler = Pooler(server)
        config.stash[POOLED] = pooler.dsn(server.dsn)


def make_logins_cheap(server: Server) -> None:
    """Stores the password with one round of hashing; thousands of logins with 4096 rounds cost half a minute."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        if connection.info.server_version >= 160000:
            password = (server.home / "pgpass").read_text().strip().rpartition(":")[2]
            connection.execute("set scram_iterations = 1")
            connection.execute(psycopg.sql.SQL("alter role current_user password {}").format(password))


def make_template(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"create database {TEMPLATE}")
    target = with_database(dsn, TEMPLATE)
    with Penstock(target) as penstock:
        penstock.init()
        penstock.upkeep()
    with psycopg.connect(target, autocommit=True) as connection:
        connection.execute(CLOCK)
        connection.execute("update penstock.chore set done_at = null")  # so that workers find chores at once


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_unsampled(items)
    spread_long_files(items)


def mark_unsampled(items: list[pytest.Item]) -> None:
    """Marks the cases that `make test` leaves to `make test-all`: of a test with `sample(n)`, all but n of them."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample") is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for same in cases.values():
        marker = same[0].get_closest_marker("sample")
        size = marker.args[0] if marker is not None else 0
        chosen = {int((n + 0.5) * len(same) / size) for n in range(size)}
        for n, item in enumerate(same):
            if n not in chosen:
                item.add_marker("unsampled")


def spread_long_files(items: list[pytest.Item]) -> None:
    """Spreads the files with long tests evenly over the run: each process begins with a contiguous part of the list,
    and one with all the long tests would end a minute after the others."""
    by_file: dict[Path, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(item.path, []).append(item)
    long = [path for path in by_file if path.parent.name in LONG]
    short = [path for path in by_file if path.parent.name not in LONG]
    places = {path: (n + 0.5) / len(some) for some in (long, short) for n, path in enumerate(some)}
    items[:] = [item for path in sorted(by_file, key=places.__getitem__) for item in by_file[path]]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    node.workerinput["dsn"] = node.config.stash[DSN]  # type: ignore[attr-defined]
    node.workerinput["pooled"] = node.config.stash[POOLED]  # type: ignore[attr-defined]


def pytest_unconfigure(config: pytest.Config) -> None:
    pooler = config.stash.get(POOLER, None)
    if pooler is not None:
        pooler.stop()
    server = config.stash.get(SERVER, None)
    if server is not None:
        server.stop("immediate")
        shutil.rmtree(server.home, ignore_errors=True)


def with_database(dsn: str, name: str) -> str:
    return psycopg.conninfo.make_conninfo(dsn, dbname=name)


class Clock:
    """The database's clock, which the test controls."""

    def __init__(self, sql: psycopg.Connection) -> None:
        self._sql = sql

    def freeze(self) -> None:
        self._sql.execute("update penstock_test.clock set fixed = clock_timestamp(), shift = '0'")

    def advance(self, seconds: float) -> None:
        self._sql.execute("update penstock_test.clock set shift = shift + %s", (timedelta(seconds=seconds),))

    def now(self) -> datetime:
        row = self._sql.execute("select penstock.clock()").fetchone()
        assert row is not None
        return row[0]  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def server_dsn(pytestconfig: pytest.Config) -> str:
    return pytestconfig.stash[DSN]


@pytest.fixture(scope="session")
def admin(server_dsn: str) -> Iterator[psycopg.Connection]:
    """A session that makes and drops databases."""
    with psycopg.connect(server_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def make_database(server_dsn: str, admin: psycopg.Connection) -> Iterator[Callable[..., str]]:
    """Makes a new database, by default with the schema, and returns its DSN."""
    made: list[str] = []

    def make(template: str = TEMPLATE) -> str:
        name = f"test_{os.getpid()}_{next(NUMBER)}"
        # Copying files costs two thirds of writing their pages into the WAL, and half on a disk.
        admin.execute(f"create database {name} template {template} strategy file_copy")
        made.append(name)
        return with_database(server_dsn, name)

    yield make
    for name in made:
        admin.execute(f"drop database {name} with (force)")


@pytest.fixture
def direct_dsn(make_database: Callable[..., str]) -> str:
    """The DSN of the test's database for uses that need a session: LISTEN, SET, prepared statements."""
    return make_database()


@pytest.fixture
def dsn(direct_dsn: str, pytestconfig: pytest.Config) -> str:
    """The DSN of the same database that clients use."""
    name = psycopg.conninfo.conninfo_to_dict(direct_dsn)["dbname"]
    return with_database(pytestconfig.stash[POOLED], str(name))


@pytest.fixture
def app(dsn: str, request: pytest.FixtureRequest) -> Iterator[Penstock]:
    """A client whose counters are verified after the test, unless there never was a task."""
    with Penstock(dsn) as penstock:
        yield penstock
        if request.node.get_closest_marker("unbalanced") is None and penstock._database.value(EVER_USED):
            verdict = penstock.verify()
            assert verdict.ok, verdict.findings


@pytest.fixture
def queue(app: Penstock) -> Queue:
    return app.create_queue("work", max_attempts=3, lease="10s")


@pytest.fixture
def database(dsn: str) -> Iterator[Database]:
    """The client's connections, for calls that no public class has."""
    with closing(Database(dsn)) as found:
        yield found


@pytest.fixture
def sql(direct_dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(direct_dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def clock(sql: psycopg.Connection) -> Clock:
    clock = Clock(sql)
    clock.freeze()
    return clock


@pytest.fixture
def lane(dsn: str) -> Iterator[Lane]:
    """A route to the test server that can be made to hang."""
    port = psycopg.conninfo.conninfo_to_dict(dsn)["port"]
    with Proxy(int(str(port))) as proxy:
        yield proxy.add_lane()
