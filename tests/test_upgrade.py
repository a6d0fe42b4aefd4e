"""Upgrades from one version of Penstock to another: the versions of the schema, scripts for psql, and old workers
beside new ones."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from other_versions import NoHistoryError, check_out, find_commit_before, make_later
from penstock import Penstock, migrate
from penstock.client.session import OUR_CONTRACT
from penstock.embedded.binaries import find_binaries
from penstock.revisions import our_revision, parse_revisions, revisions
from scripts.dump_schema import dumped
from shell import Ran, environment, penstock
from workers import Worker, eventually, noted, working

RAISE = "the text of the functions has changed: run `make schema`, which raises their revision, and commit the list"


@pytest.fixture
def empty(make_database: Callable[..., str]) -> str:
    return make_database("template0")


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of a Penstock whose contract is the next one."""
    return make_later(tmp_path_factory.mktemp("later"))


def run(source: Path, *words: str, dsn: str | None = None) -> Ran:
    """Runs a command of another version."""
    return penstock(*words, dsn=dsn, env={"PYTHONPATH": str(source)})


# --- the versions of the schema ---------------------------------------------------------------------------------------


def test_the_list_ends_with_this_revision(sql: psycopg.Connection) -> None:
    last = revisions()[-1]
    assert sql.execute("select penstock.revision()").fetchone() == (last.number,), RAISE
    assert migrate.functions().checksum == last.checksum, RAISE
    assert migrate.migrations()[-1].number == last.migration, RAISE


def test_revisions_and_migrations_only_grow() -> None:
    numbers = [revision.number for revision in revisions()]
    assert numbers == sorted(set(numbers))
    found = [revision.migration for revision in revisions()]
    assert found == sorted(found)


def test_a_release_is_in_the_list() -> None:
    from penstock import __version__

    if ".dev" not in __version__:
        assert __version__ in revisions()[-1].releases, "run `make schema` after a change of the version"


def test_a_line_of_the_list() -> None:
    text = "# words\n\n   12         3  abc  1.0.0 1.0.1\n"
    (revision,) = parse_revisions(text)
    assert (revision.number, revision.migration, revision.checksum) == (12, 3, "abc")
    assert revision.releases == ("1.0.0", "1.0.1")
    assert parse_revisions(str(revision)) == [revision]


def test_the_contract_in_the_code_is_that_of_the_functions(sql: psycopg.Connection) -> None:
    row = sql.execute("select penstock.contract(), penstock.oldest_client()").fetchone()
    assert row is not None
    assert row[0] == OUR_CONTRACT
    assert OUR_CONTRACT - 1 <= row[1] <= OUR_CONTRACT, "a new contract serves the one before it, and no older one"


# --- an older and a later version ------------------------------------------------------------------------------------


def test_a_client_works_with_the_next_contract(empty: str, later: Path) -> None:
    assert run(later, "init", dsn=empty).code == 0
    with Penstock(empty) as app:
        queue = app.create_queue("work")
        queue.push()
        queue.settle(queue.claim())
        assert queue.status().queued == 0
        assert app.verify().ok


def test_a_client_is_refused_by_the_contract_after_the_next(empty: str, tmp_path: Path) -> None:
    assert run(make_later(tmp_path, contracts=2), "init", dsn=empty).code == 0
    ran = penstock("status", dsn=empty)
    assert ran.code == 3
    assert f"contract {OUR_CONTRACT + 2}, which serves clients from {OUR_CONTRACT + 1} on" in ran.err
    assert "pip install -U penstock" in ran.err
    assert penstock("init", dsn=empty).code == 3


def test_a_client_is_refused_by_an_older_schema(empty: str, later: Path) -> None:
    assert penstock("init", dsn=empty).code == 0
    ran = run(later, "status", dsn=empty)
    assert ran.code == 3
    assert f"contract {OUR_CONTRACT}, needed {OUR_CONTRACT + 1}" in ran.err
    assert "Run `penstock init`" in ran.err


def test_an_older_init_puts_nothing_back(empty: str, later: Path) -> None:
    pg_dump = find_binaries({}) / "pg_dump"
    assert penstock("init", dsn=empty).code == 0
    assert run(later, "init", "--json", dsn=empty).json == {"applied": ["0002_later.sql", "functions"]}
    upgraded = dumped(pg_dump, empty), noted_steps(empty)
    ran = penstock("init", dsn=empty)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("the schema is left as it is: it is at migration 2, and this Penstock has 1")
    assert (dumped(pg_dump, empty), noted_steps(empty)) == upgraded
    assert run(later, "init", dsn=empty).out == "the schema is up to date\n"


def noted_steps(dsn: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn) as sql:
        return sql.execute("select number, name, checksum from penstock.migration order by 1").fetchall()


# --- `init --sql --from` ----------------------------------------------------------------------------------------------


def apply(dsn: str, script: str) -> str:
    """Applies a script with psql, and returns what psql complains of."""
    program = find_binaries({}) / "psql"
    command = [str(program), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", dsn]
    return subprocess.run(command, input=script, capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize("options", [(), ("--no-roles",)], ids=["roles", "no roles"])
def test_the_script_does_what_init_does(
    options: tuple[str, ...], make_database: Callable[..., str], later: Path
) -> None:
    by_init, by_psql = make_database("template0"), make_database("template0")
    for dsn in (by_init, by_psql):
        assert penstock("init", dsn=dsn).code == 0
    assert run(later, "init", dsn=by_init).code == 0
    script = run(later, "init", "--sql", "--from", str(our_revision()), *options)
    assert script.code == 0
    assert "create table penstock.queue" not in script.out, "it contains no migration that is applied already"
    assert ("create role" in script.out) is not bool(options)
    assert apply(by_psql, script.out) == ""
    pg_dump = find_binaries({}) / "pg_dump"
    assert dumped(pg_dump, by_psql) == dumped(pg_dump, by_init)
    assert noted_steps(by_psql) == noted_steps(by_init)
    assert run(later, "init", dsn=by_psql).out == "the schema is up to date\n"


def test_the_script_refuses_another_version(make_database: Callable[..., str], later: Path) -> None:
    script = run(later, "init", "--sql", "--from", str(our_revision())).out
    dsn = make_database("template0")
    assert "this database has no Penstock" in apply(dsn, script)
    assert penstock("init", dsn=dsn).code == 0
    cases = {
        our_revision() + 1: "It has been upgraded already",
        our_revision() + 2: "It is newer than this script",
        our_revision() - 1: f"init --sql --from {our_revision() - 1}" if our_revision() > 1 else "run penstock init",
    }
    for revision, hint in cases.items():
        with psycopg.connect(dsn) as sql:
            sql.execute(f"create or replace function penstock.revision() returns int return {revision}".encode())
        said = apply(dsn, script)
        assert (
            f"from revision {our_revision()} to {our_revision() + 1}, and this database is at revision {revision}"
            in said
        )
        assert hint in said
    with psycopg.connect(dsn) as sql:
        assert sql.execute("select to_regclass('penstock.later')").fetchone() == (None,)


def test_the_script_refuses_other_migrations(empty: str, later: Path) -> None:
    script = run(later, "init", "--sql", "--from", str(our_revision())).out
    assert penstock("init", dsn=empty).code == 0
    for change in (
        "insert into penstock.migration (number, name, checksum) values (2, 'mine', 'x')",
        "update penstock.migration set checksum = 'edited' where number = 1",
    ):
        with psycopg.connect(empty, autocommit=True) as sql:
            sql.execute(change.encode())
            said = apply(empty, script)
            assert f"of this database differs from that of revision {our_revision()}" in said
            assert "penstock doctor" in said
            sql.execute("delete from penstock.migration where number = 2")


def test_the_script_from_this_version_changes_nothing(empty: str) -> None:
    assert penstock("init", dsn=empty).code == 0
    before = noted_steps(empty)
    script = penstock("init", "--sql", "--from", str(our_revision()), "--json").json["sql"]
    assert "create or replace" not in script
    assert apply(empty, script) == ""
    assert noted_steps(empty) == before


@pytest.mark.parametrize("version", ["0", "9.9.9", "", "latest", "-1", "1.5"])
def test_a_version_that_is_not_known(version: str) -> None:
    ran = penstock("init", "--sql", f"--from={version}")
    assert (ran.code, ran.out) == (2, "")
    assert f"from: {version!r} is not known; known are the revisions 1 to {our_revision()} and the releases" in ran.err
    assert "select penstock.revision()" in ran.err


def test_from_needs_sql() -> None:
    ran = penstock("init", "--from", "1")
    assert (ran.code, ran.out) == (2, "")
    assert "Add --sql" in ran.err


def test_a_release_is_accepted(later: Path, tmp_path: Path) -> None:
    source = make_later(tmp_path)
    path = source / "penstock/sql/revisions.txt"
    path.write_text("1 1 abc 0.1.0 0.1.1\n2 1 def\n3 2 ghi 0.2.0\n")
    assert "this script upgrades Penstock from revision 1 to 3" in run(source, "init", "--sql", "--from", "v0.1.1").out
    ran = run(source, "init", "--sql", "--from", "0.3.0")
    assert "the revisions 1 to 3 and the releases 0.1.0, 0.1.1, 0.2.0" in ran.err


# --- old workers beside new ones --------------------------------------------------------------------------------------

JOBS = """
import penstock

Path("code").write_text(penstock.__file__)

@app.task(queue="work", kind="plain")
def plain(serial: str) -> None:
    note(serial)

@app.task(queue="work", kind="quick")
async def quick(serial: str) -> None:
    note(serial)

@app.task(queue="work", kind="exact")
def exact(serial: str, context: Context) -> None:
    with context.transaction() as connection:
        connection.execute("insert into effect values (%s)", (serial,))
    note(serial)
"""

# It keeps some tasks waiting, so that all workers have something to do, however fast the machine is.
PUSHER = """
import sys, time
from itertools import count
from pathlib import Path

from penstock import NewTask, Penstock

KINDS = ("plain", "quick", "exact")
with Penstock() as app, open("pushed", "a") as record:
    queue = app.queue("work")
    for n in count():
        if Path("stop").exists():
            break
        if queue.status().pending > 300:
            time.sleep(0.02)
            continue
        keys = [f"{sys.argv[1]}-{n}-{m}" for m in range(20)]
        queue.push_many([NewTask({"serial": key}, kind=KINDS[m % 3]) for m, key in enumerate(keys[1:])])
        queue.push({"serial": keys[0]}, kind="plain", subject=keys[0])
        record.write("".join(f"{key}\\n" for key in keys))
        record.flush()
"""


@pytest.fixture(params=["from the commit before", "to the next contract"])
def versions(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """The sources of an older and a newer Penstock: one of them is this one."""
    here = Path(__file__).parent.parent / "src"
    if request.param == "to the next contract":
        return here, make_later(tmp_path)
    try:
        before = check_out(find_commit_before(), tmp_path)
    except NoHistoryError as error:
        pytest.skip(f"there is no commit before: {error}")
    first = "penstock/sql/migrations/0001_tables.sql"
    if (before / first).read_text("utf-8") != (here / first).read_text("utf-8"):
        pytest.skip("the first migration was edited since that commit: its databases cannot be upgraded")
    return before, here


class Site:
    """A database, and the programs of several versions that use it, each in a directory of its own."""

    def __init__(self, dsn: str, home: Path) -> None:
        self.dsn = dsn
        self.home = home

    def make_home(self, name: str) -> Path:
        (self.home / name).mkdir()
        return self.home / name

    def working(self, name: str, source: Path) -> AbstractContextManager[Worker]:
        """Starts a worker of these sources."""
        env = {"PYTHONPATH": str(source)}
        return working(self.make_home(name), self.dsn, JOBS, "--concurrency", "10", processes=2, env=env)

    def go_on(self, *workers: Worker, tasks: int = 100) -> None:
        """Returns when each of these workers has run more tasks."""
        goals = {worker: len(worker.noted) + tasks for worker in workers}
        eventually(lambda: all(len(worker.noted) >= goal for worker, goal in goals.items()), within=100)

    @contextmanager
    def pushing(self, name: str, source: Path) -> Iterator[None]:
        """Pushes tasks with these sources until the end, and checks that no push failed."""
        home = self.make_home(name)
        command = [sys.executable, "-c", PUSHER, name]
        env = environment(self.dsn, {"PYTHONPATH": str(source)})
        with (home / "errors").open("wb") as errors:
            process = subprocess.Popen(command, cwd=home, env=env, stderr=errors)
        try:
            yield
            (home / "stop").touch()
            assert process.wait(30) == 0, (home / "errors").read_text()
        finally:
            process.kill()
            process.wait()

    @property
    def pushed(self) -> list[str]:
        return [key for path in self.home.glob("*/pushed") for key in path.read_text().splitlines()]

    @property
    def ran(self) -> Counter[str]:
        return Counter(key for path in self.home.glob("*/effects") for key in noted(path.parent))


@pytest.mark.slow
def test_old_workers_beside_new_ones_during_an_upgrade(versions: tuple[Path, Path], empty: str, tmp_path: Path) -> None:
    """An upgrade under load, in the order of docs/upgrade.md: each task runs once and is settled once."""
    old, new = versions
    site = Site(empty, tmp_path)
    assert run(old, "init", dsn=empty).code == 0
    assert run(old, "queues", "create", "work", dsn=empty).code == 0
    with psycopg.connect(empty, autocommit=True) as sql, ExitStack() as workers:
        sql.execute("create table effect (key text not null)")
        with ExitStack() as pushers:
            pushers.enter_context(site.pushing("old-pusher", old))
            first = workers.enter_context(site.working("old", old))
            site.go_on(first)
            assert "functions" in run(new, "init", "--json", dsn=empty).json["applied"]
            upgraded = noted_steps(empty)
            site.go_on(first)
            pushers.enter_context(site.pushing("new-pusher", new))
            newer = workers.enter_context(site.working("new", new))
            second = workers.enter_context(site.working("old-2", old))
            site.go_on(first, newer, second)
            if (old / "penstock/revisions.py").exists():
                assert run(old, "init", "--json", dsn=empty).json["applied"] == []
                assert noted_steps(empty) == upgraded
            assert (first.stop(), second.stop()) == (0, 0)
            site.go_on(newer)
        left = "select (select count(*) from penstock.agenda) + (select count(*) from penstock.lease)"
        eventually(lambda: sql.execute(left).fetchone() == (0,), within=60)
        assert newer.stop() == 0
        for worker, source in ((first, old), (second, old), (newer, new)):
            assert Path((worker.home / "code").read_text()).is_relative_to(source)
        check_settled_once(site, sql)
    verdict = run(new, "verify", dsn=empty)
    assert verdict.code == 0, verdict.out


def check_settled_once(site: Site, sql: psycopg.Connection) -> None:
    """Compares what the pushers and the handlers recorded with each other and with history."""
    pushed = site.pushed
    assert len(pushed) == len(set(pushed)) > 1000
    assert site.ran == Counter(pushed), "each task ran once"
    effects = [str(key) for (key,) in sql.execute("select key from effect")]
    assert len(effects) == len(set(effects)) == sum(is_exact(key) for key in pushed)
    ends = "select outcome, count(*), count(distinct task_id) from penstock.history group by outcome"
    found = {outcome: counts for outcome, *counts in sql.execute(ends)}
    assert found.pop("done") == [len(pushed)] * 2, "each task was settled as done once"
    assert set(found) <= {"released"}, "what a stopped worker had claimed and not begun"


def is_exact(key: str) -> bool:
    """Returns whether the task with this key has the kind `exact`: see PUSHER."""
    number = int(key.rpartition("-")[2])
    return number > 0 and (number - 1) % 3 == 2
