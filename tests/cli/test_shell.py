"""The shell, run from outside, as a person or a script uses it. test_bad_input.py tests what it refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict
from typer.main import get_command
from typer.testing import CliRunner

from penstock import Penstock, Queue, __version__
from penstock.cli import tree
from penstock.embedded import Server
from shell import COMMAND, each, environment, interrupted_demo, is_one_block, penstock

GAUGES = ("waiting", "planned", "pending", "active", "done", "dead", "cancelled")


# --- queues -----------------------------------------------------------------------------------------------------------


def test_a_queue_is_created_and_listed(dsn: str, app: Penstock) -> None:
    create = (
        "queues",
        "create",
        "mail",
        "--sla",
        "30s",
        "--lease",
        "30s",
        "--max-attempts",
        "5",
        "--retry",
        "fibonacci:1m",
    )
    ran = penstock(*create, dsn=dsn)
    assert (ran.code, ran.out, ran.err) == (0, "queue mail created\n", "")

    again, tolerant, dry, listed, table = each(
        create,
        (*create, "--exist-ok", "--json"),
        ("queues", "create", "other", "--dry-run", "--json"),
        ("queues", "ls", "--json"),
        ("queues", "ls"),
        dsn=dsn,
    )
    assert again.code == 1
    assert "'mail' exists already" in again.err
    assert tolerant.json == {"queue": "mail", "created": False}
    assert dry.json == {"queue": "other", "created": False, "dry_run": True}
    (mail,) = listed.json["queues"]
    assert mail.pop("created").startswith("20")
    assert mail == {
        "queue": "mail",
        "lease": 30.0,
        "max_attempts": 5,
        "retry": {"type": "fibonacci", "unit": 60.0},
        "sla": 30.0,
        "keep_done": None,
        "paused": False,
    }
    head, row = table.out.splitlines()
    assert head.split()[0] == "queue"
    assert row.split() == ["mail", "30s", "5", "fibonacci:1m", "30s", "–"]


def test_settings_that_make_no_sense_are_usage_errors(dsn: str) -> None:
    wrong = (("--sla", "0s"), ("--max-attempts", "0"), ("--retry", "sometimes"), ("--keep-done", "-1d"))
    for ran, (option, _) in zip(
        each(*(("queues", "create", "q", *one, "--dry-run") for one in wrong), dsn=dsn), wrong, strict=True
    ):
        assert ran.code == 2
        assert is_one_block(ran.err)
        assert option.removeprefix("--").replace("-", "_") in ran.err


# --- status, verify ---------------------------------------------------------------------------------------------------


def test_where_there_are_no_queues_it_says_how_to_make_one(dsn: str, app: Penstock) -> None:
    for ran in each(("status",), ("queues", "ls"), dsn=dsn):
        assert (ran.code, ran.out) == (0, "no queues; create one: penstock queues create NAME\n")
    assert penstock("queues", "ls", "-q", dsn=dsn).out == ""


def test_status(dsn: str, app: Penstock, queue: Queue) -> None:
    app.create_queue("mail", sla="30s")
    queue.push_many([{}, {}, {}])
    queue.settle(queue.claim(1))
    queue.claim(1)
    every, one, table, quiet, unknown = each(
        ("status", "--json"), ("status", "work", "--json"), ("status",), ("status", "-q"), ("status", "mial"), dsn=dsn
    )
    assert [queue["queue"] for queue in every.json["queues"]] == ["mail", "work"]
    (work,) = one.json["queues"]
    assert set(work) == {"queue", *GAUGES, "oldest_pending_age", "sla", "paused", "totals", "at"}
    assert {name: work[name] for name in GAUGES} == dict.fromkeys(GAUGES, 0) | {"pending": 1, "active": 1}
    assert work["oldest_pending_age"] > 0
    assert {name: count for name, count in work["totals"].items() if count} == {"pushed": 3, "done": 1, "removed": 1}
    mail = every.json["queues"][0]
    assert (mail["oldest_pending_age"], mail["sla"]) == (None, 30.0)
    head, *rows = [line.split() for line in table.out.splitlines()]
    assert head[:8] == ["queue", *GAUGES[1:], "finished"]
    assert [row[0] for row in rows] == ["mail", "work"]
    assert rows[0][-2] == "30s"
    assert rows[1][1:8] == ["0", "1", "1", "0", "0", "0", "1"]  # done tasks are not kept; one has finished
    assert (quiet.out, quiet.err) == ("", "")
    assert unknown.code == 1
    assert "Did you mean 'mail'?" in unknown.err


@pytest.mark.unbalanced
def test_verify(dsn: str, queue: Queue, sql: Connection) -> None:
    queue.push_many([{}, {}])
    good, said = each(("verify", "--json"), ("verify", "work"), dsn=dsn)
    assert good.json == {"drift": 0, "orphans": 0, "history": 0, "balance": 0, "dropped": 0, "findings": []}
    assert good.code == said.code == 0
    assert "all is well" in said.out

    sql.execute(
        "insert into penstock.counter_log (queue_id, metric, delta) select id, 'pending', 1 from penstock.queue"
    )
    bad, said = each(("verify", "--json"), ("verify", "work"), dsn=dsn)
    assert bad.code == said.code == 1
    assert (bad.json["drift"], bad.json["orphans"], bad.json["balance"]) == (1, 0, 1)
    assert {"queue": "work", "what": "drift: pending", "expected": 2, "found": 3} in bad.json["findings"]
    assert "work: drift: pending: expected 2, found 3" in said.out
    assert said.err == ""


# --- init -------------------------------------------------------------------------------------------------------------


def test_init(make_database: Callable[..., str]) -> None:
    dsn = make_database("template0")
    planned = penstock("init", "--plan", dsn=dsn)
    assert planned.out == "would apply: 0001_tables.sql, functions\n"
    first = penstock("init", "--json", dsn=dsn)  # so the plan changed nothing
    assert first.json == {"applied": ["0001_tables.sql", "functions"]}
    second = penstock("init", dsn=dsn)
    assert (second.code, second.out) == (0, "the schema is up to date\n")


def test_init_prints_the_schema_for_people_who_apply_their_own(make_database: Callable[..., str]) -> None:
    printed, value = each(("init", "--sql"), ("init", "--sql", "--json"))  # needs no database
    assert printed.code == 0
    assert value.json == {"sql": printed.out.removesuffix("\n")}
    dsn = make_database("template0")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(printed.out.encode())
    ran = penstock("init", dsn=dsn)
    assert (ran.code, ran.out) == (0, "the schema is up to date\n")
    with Penstock(dsn) as app:
        app.create_queue("mail").push()


# --- where the database is --------------------------------------------------------------------------------------------


def test_without_a_dsn_the_ways_are_named_and_nothing_is_started(tmp_path: Path) -> None:
    ran = subprocess.run([*COMMAND, "status"], capture_output=True, text=True, env={}, cwd=tmp_path, check=False)
    assert (ran.returncode, ran.stdout) == (3, "")
    assert is_one_block(ran.stderr)
    for way in ("--dsn", "PENSTOCK_DSN", "DATABASE_URL", "PGHOST", "penstock up"):
        assert way in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_dsn_comes_from_the_first_that_is_set(dsn: str, tmp_path: Path) -> None:
    nowhere = "host=127.0.0.1 port=1"
    parts = conninfo_to_dict(dsn)
    libpq = {name: str(parts[key]) for name, key in LIBPQ.items()}
    lower = {"PGHOST": "127.0.0.1", "PGPORT": "1"}
    tries: tuple[tuple[tuple[str, ...], dict[str, str], str], ...] = (
        (("--dsn", dsn), {"PENSTOCK_DSN": nowhere, "DATABASE_URL": nowhere, **lower}, "the dsn given"),
        ((), {"PENSTOCK_DSN": dsn, "DATABASE_URL": nowhere, **lower}, "PENSTOCK_DSN"),
        ((), {"DATABASE_URL": dsn, **lower}, "DATABASE_URL"),
        ((), libpq, "libpq's PGHOST, PGDATABASE"),
    )
    for flag, env, source in tries:
        ran = penstock("status", "-v", *flag, env=env, cwd=tmp_path)
        assert ran.code == 0, ran.err
        assert f"from {source}" in ran.err
    empty = penstock("status", "--dsn", "", env={"PENSTOCK_DSN": dsn})
    assert empty.code == 3


LIBPQ = {"PGHOST": "host", "PGPORT": "port", "PGUSER": "user", "PGPASSFILE": "passfile", "PGDATABASE": "dbname"}


# --- conventions ------------------------------------------------------------------------------------------------------


def test_errors_are_one_block_or_one_json_value(dsn: str) -> None:
    block, value = each(("status", "nowhere"), ("status", "nowhere", "--json"), dsn=dsn)
    assert (block.code, block.out) == (1, "")
    assert is_one_block(block.err)
    assert block.err == "error PS2001: queue 'nowhere' does not exist\n  `penstock queues ls` lists them.\n"
    assert (value.code, value.out) == (1, "")
    assert json.loads(value.err)["error"].keys() == {"code", "message", "hint"}


def test_a_traceback_only_when_asked_for_and_without_secrets(dsn: str) -> None:
    for more, code, said in ((("nowhere",), 1, "PS2001"), (("--dsn", "password=s3kr3t x"), 3, "PS3001")):
        command = [*COMMAND, "status", *more, "--debug"]
        ran = subprocess.run(command, capture_output=True, text=True, env=environment(dsn), check=False)
        assert ran.returncode == code
        assert "Traceback" in ran.stderr
        assert f"error {said}: " in ran.stderr
        assert "s3kr3t" not in ran.stderr


def test_help_breaks_lines_only_where_the_terminal_ends() -> None:
    ran = CliRunner().invoke(tree(), ["settle", "--help"], prog_name="penstock", env={"COLUMNS": "400"})
    assert " failed: the queue's strategy decides when it is tried again. dead: it is not tried again." in ran.output
    upkeep = CliRunner().invoke(tree(), ["upkeep", "--help"], prog_name="penstock", env={"COLUMNS": "400"})
    assert "Without them, call it about every ten seconds, from cron or a loop." in upkeep.output


def test_every_command_has_help() -> None:
    runner = CliRunner()  # in this process: a dozen new ones would give the same answers

    def commands(group: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        for name, command in getattr(group, "commands", {}).items():
            yield from commands(command, (*path, name))

    whole = tree()
    found = list(commands(get_command(whole), ()))
    assert len(found) >= 11
    for path in found:
        ran = runner.invoke(whole, [*path, "--help"], prog_name="penstock")
        assert ran.exit_code == 0
        assert " ".join(("Usage: penstock", *path)) in ran.output
    root, version, nothing = each(("--help",), ("--version",), ())
    assert (root.code, root.err) == (0, "")
    assert "Usage: penstock" in root.out
    assert (version.code, version.out) == (0, f"{__version__}\n")
    assert nothing.code == 2


def test_the_version_waits_for_nothing() -> None:
    """It also checks that the package does not import PostgreSQL's client."""
    code = "import sys; sys.argv = ['penstock', '--version']; from penstock.__main__ import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}; print('psycopg' in sys.modules, 'typer' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines() == [__version__, "False False"]


INTERRUPTED = "raise KeyboardInterrupt\n"
SLOW_STREAM = """
import io, sys
class Stream(io.TextIOWrapper):
    def reconfigure(self, **options):
        raise KeyboardInterrupt
sys.stdout = Stream(sys.stdout.buffer)
"""


@pytest.mark.parametrize(
    ("module", "text"),
    [("typer", INTERRUPTED), ("orjson", INTERRUPTED), ("psycopg", INTERRUPTED), ("sitecustomize", SLOW_STREAM)],
    ids=["of the shell", "of a command", "of the package", "before the command"],
)
def test_ctrl_c_before_a_command_begins(dsn: str, tmp_path: Path, module: str, text: str) -> None:
    """Ctrl-C arrives while modules are imported. Here an import raises KeyboardInterrupt."""
    (tmp_path / f"{module}.py").write_text(text)
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", "status"],
        capture_output=True,
        text=True,
        env=environment(dsn) | {"PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


def test_a_full_disk_is_told(dsn: str) -> None:
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [*COMMAND, "status", "--json"], stdout=full, stderr=subprocess.PIPE, env=environment(dsn), check=False
        )
    assert ran.returncode == 1
    assert b"No space left" in ran.stderr
    assert b"Traceback" not in ran.stderr


def test_head_may_leave(dsn: str) -> None:
    """A real pipe is closed before all output is written."""
    script = '"$@" init --sql | head -n 1; "$@" init --sql | cat >/dev/null'
    ran = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {script}", "sh", *COMMAND],
        capture_output=True,
        text=True,
        env=environment(dsn),
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "begin isolation level read committed;\n", "")


# --- the embedded server ----------------------------------------------------------------------------------------------


def test_up_and_down(tmp_path: Path) -> None:
    home = tmp_path / "Ünï"
    env = {"PENSTOCK_HOME": str(home), "LC_ALL": "C"}
    try:
        first = penstock("up", "--json", env=env)
        assert first.code == 0, first.err
        url = urlsplit(first.json["dsn"])
        assert url.password is None
        assert parse_qs(url.query)["passfile"] == [str(home / "pgpass")]
        assert first.json["home"] == str(home)
        assert first.json["applied"] == ["roles", "0001_tables.sql", "functions"]

        second, status = each(("up", "--json"), ("status", "-v"), env=env)
        assert second.json == first.json | {"applied": []}
        assert status.code == 0
        assert "from the embedded server in " in status.err

        down = penstock("down", "--json", env=env)
        assert down.json == {"home": str(home), "stopped": True}
        again, status = each(("down",), ("status",), env=env)
        assert (again.code, again.out.endswith("is not running\n")) == (0, True)
        assert status.code == 3
    finally:
        if server := Server.running(home):
            server.stop("immediate")


def test_an_interrupted_up_says_what_runs(tmp_path: Path) -> None:
    home = tmp_path / "home"
    env = {"PENSTOCK_HOME": str(home)}
    try:
        assert penstock("up", "-q", env=env).code == 0
        server = Server.running(home)
        assert server
        with psycopg.connect(server.dsn) as other:
            other.execute("lock table penstock.migration in access exclusive mode")
            with subprocess.Popen([*COMMAND, "up"], stderr=subprocess.PIPE, env=environment(more=env)) as process:
                waiting = "select from pg_locks where not granted"
                while not other.execute(waiting).rowcount:
                    assert process.poll() is None
                process.send_signal(signal.SIGINT)
                _, err = process.communicate(timeout=30)
        assert (process.returncode, err.decode()) == (
            130,
            f"interrupted; PostgreSQL runs in {home}: `penstock down` stops it\n",
        )
    finally:
        if server := Server.running(home):
            server.stop("immediate")


def test_demo(tmp_path: Path) -> None:
    home = tmp_path / "home"
    env = {"PENSTOCK_HOME": str(home)}
    ran = penstock("demo", "--tasks", "2000", "--no-spark", env=env)
    assert ran.code == 0, ran.err
    for line in (
        "PostgreSQL 18 is up",
        "2,000 tasks pushed",
        "a second wave: 1,000 tasks more",
        "kill -9 of ",
        "verified: ",
    ):
        assert line in ran.out
    ten = ran.out.splitlines()[-10:]
    assert ten[0] == "pushed 3,000 = done 2,988 + dead 12 + waiting 0"
    assert ten[5] == f"the data is in {home}, and PostgreSQL is stopped: `penstock up` starts it again"
    assert Server.running(home) is None
    assert (home / "data").stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == [home]


@pytest.mark.slow
def test_a_demo_beside_a_server_that_runs(tmp_path: Path) -> None:
    home = tmp_path / "home"
    env = {"PENSTOCK_HOME": str(home)}
    try:
        kept = penstock("demo", "--tasks", "200", "--no-spark", "--keep", env=env)
        again = penstock("demo", "--tasks", "200", "--no-spark", "--json", env=env)
        assert (kept.code, again.code) == (0, 0), kept.err + again.err
        assert f"the data is in {home}\n" in kept.out
        assert again.json["pushed"] == again.json["done"] + again.json["dead"] == 300
        assert Server.running(home)
    finally:
        if server := Server.running(home):
            server.stop("immediate")


@pytest.mark.parametrize(
    "after",
    [b"PostgreSQL 18 is up", b"the scaler keeps", pytest.param(b"a second wave", marks=pytest.mark.slow)],
)
def test_an_interrupted_demo_stops_what_it_started(tmp_path: Path, after: bytes) -> None:
    code, out, err = interrupted_demo(tmp_path / "home", after, "--tasks", "20000", "--no-spark")
    assert (code, err) == (130, b"interrupted\n")
    assert b"PostgreSQL is stopped again" in out
