"""Commands that start while PostgreSQL accepts no writes wait for it with --wait, and say so."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock import Penstock
from penstock.cli.commands.work import find_max_wait
from penstock.errors import ValidationError
from relay import Relay
from shell import Running, is_one_block, penstock, start_penstock
from workers import PATIENCE, eventually, noted, write_app

JOBS = """
@app.task(queue="work")
def job() -> None:
    note("ran")

def handle(payload: dict[str, Any]) -> None:
    note("handled")
"""
COMMANDS = {
    "work": ("work", "jobs:app", "--until-empty"),
    "drain": ("drain", "work", "--handler", "jobs:handle"),
    "scale": ("scale", "jobs:app", "--min-workers", "0"),
}
LINE = "waiting for PostgreSQL, "


@pytest.fixture
def relay(direct_dsn: str) -> Iterator[Relay]:
    relay = Relay(int(str(conninfo_to_dict(direct_dsn)["port"])))
    relay.close()
    yield relay
    relay.close()


@pytest.fixture
def away(relay: Relay, direct_dsn: str, tmp_path: Path) -> str:
    """The DSN of a PostgreSQL that cannot be reached until `relay.open()`, with a task of `jobs` in it."""
    with Penstock(direct_dsn) as app:
        app.create_queue("work", sla="30s").push(kind="job")
    write_app(tmp_path, JOBS)
    return make_conninfo(direct_dsn, host="127.0.0.1", port=relay.port)


class Started:
    def __init__(self, process: Running, home: Path) -> None:
        self.process = process
        self._home = home

    @property
    def stderr(self) -> str:
        return (self._home / "stderr").read_text("utf-8")

    def says(self, words: str) -> None:
        eventually(lambda: words in self.stderr or self.process.poll() is not None)
        assert words in self.stderr, self.stderr

    def ends(self, within: float = PATIENCE) -> int:
        code = self.process.wait(within)
        assert "Traceback" not in self.stderr, self.stderr
        return code


@contextmanager
def started(home: Path, dsn: str, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Started]:
    with (home / "stderr").open("wb") as err, Path(os.devnull).open("wb") as out:
        process = start_penstock(*arguments, dsn=dsn, stdout=out, stderr=err, env=env, cwd=home)
    try:
        yield Started(process, home)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("command", ["work", "drain"])
def test_it_begins_as_soon_as_postgresql_is_there(command: str, away: str, relay: Relay, tmp_path: Path) -> None:
    with started(tmp_path, away, *COMMANDS[command], "--wait") as found:
        found.says(LINE)
        time.sleep(1.5)
        assert found.stderr.count(LINE) == 1, "logged once, not with every attempt"
        relay.open()
        assert found.ends() == 0
    assert noted(tmp_path) == ["ran" if command == "work" else "handled"]
    assert "PostgreSQL accepts writes" in found.stderr


def test_a_scaler_begins_as_soon_as_postgresql_is_there(
    away: str, relay: Relay, tmp_path: Path, sql: psycopg.Connection
) -> None:
    with started(tmp_path, away, *COMMANDS["scale"], "--advise", "--wait") as found:
        found.says(LINE)
        relay.open()
        eventually(lambda: sql.execute("select from penstock.decision").fetchone() is not None)
        found.process.terminate()
        assert found.ends() == 0


@pytest.mark.sample(3)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"])
def test_a_signal_ends_the_waiting(command: str, number: int, code: int, away: str, tmp_path: Path) -> None:
    with started(tmp_path, away, *COMMANDS[command], "--wait") as found:
        found.says(LINE)
        found.process.send_signal(number)
        assert found.ends(10) == code


@pytest.mark.parametrize("silent", [False, True], ids=["refuses", "silent"])
def test_a_signal_ends_a_try_that_gets_no_answer(silent: bool, away: str, relay: Relay, tmp_path: Path) -> None:
    if silent:
        relay.open()
        relay.silence()
    with started(tmp_path, away, *COMMANDS["work"], "--wait", "--health", "health") as found:
        eventually((tmp_path / "health").exists)
        found.process.terminate()
        assert found.ends(10) == 0
    assert not (tmp_path / "health").exists()


def test_the_probe_answers_while_it_waits(away: str, relay: Relay, tmp_path: Path, free_port: int) -> None:
    """The probe still answers when the work begins."""
    with started(tmp_path, away, "work", "jobs:app", "--wait", "--health", str(free_port)) as found:

        def told() -> dict[str, object]:
            try:
                with urlopen(f"http://127.0.0.1:{free_port}/", timeout=5) as answer:
                    return dict(json.load(answer))
            except OSError:
                return {}

        assert eventually(told)["waiting"] is True
        relay.open()
        eventually(lambda: told().get("processes") == 1)
        assert told()["ok"] is True
        eventually(lambda: noted(tmp_path))
        found.process.terminate()
        assert found.ends() == 0


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def test_a_standby_is_waited_for_too(
    away: str, relay: Relay, direct_dsn: str, sql: psycopg.Connection, tmp_path: Path
) -> None:
    database = conninfo_to_dict(direct_dsn)["dbname"]
    sql.execute(f"alter database {database} set default_transaction_read_only = on")
    relay.open()
    with started(tmp_path, away, *COMMANDS["work"], "--wait") as found:
        found.says("accepts no writes")
        sql.execute(f"alter database {database} reset default_transaction_read_only")
        assert found.ends() == 0
    assert noted(tmp_path) == ["ran"]


def test_a_mistake_is_an_error_at_once(
    away: str, relay: Relay, tmp_path: Path, make_database: Callable[..., str]
) -> None:
    relay.open()
    empty = conninfo_to_dict(make_database("template1"))["dbname"]
    wrong = {
        "password": make_conninfo(away, passfile="/dev/null", password="wrong"),
        "role": make_conninfo(away, user="no_such_role", password="wrong"),
        "database": make_conninfo(away, dbname="not_there"),
        "schema": make_conninfo(away, dbname=empty),
    }
    for what, dsn in wrong.items():
        ran = penstock(*COMMANDS["work"], "--wait", dsn=dsn, cwd=tmp_path)
        assert ran.code == 3, (what, ran)
        assert is_one_block(ran.err), (what, ran)


def test_it_does_not_wait_without_the_option(away: str, tmp_path: Path) -> None:
    for arguments in (*COMMANDS.values(), (*COMMANDS["work"], "--no-wait")):
        ran = penstock(*arguments, dsn=away, cwd=tmp_path)
        assert ran.code == 4, ran
    ran = penstock(*COMMANDS["work"], "--max-wait", "1s", dsn=away, cwd=tmp_path)
    assert ran.code == 4
    assert LINE in ran.err
    assert ran.err.splitlines()[-2].startswith("error PS4001")
    ran = penstock(*COMMANDS["work"], "--max-wait", "1s", "--no-wait", dsn=away, cwd=tmp_path)
    assert ran.code == 2
    ran = penstock(*COMMANDS["scale"], "--once", "--advise", dsn=away, cwd=tmp_path, env={"INVOCATION_ID": "1"})
    assert ran.code == 4, "a command that asks once reports the failure"


@pytest.mark.parametrize("variable", ["INVOCATION_ID", "NOTIFY_SOCKET", "KUBERNETES_SERVICE_HOST"])
def test_below_a_supervisor_it_waits_by_default(variable: str, away: str, tmp_path: Path) -> None:
    with started(tmp_path, away, *COMMANDS["work"], env={variable: "here"}) as found:
        found.says(LINE)
    ran = penstock(*COMMANDS["work"], "--no-wait", dsn=away, cwd=tmp_path, env={variable: "here"})
    assert ran.code == 4


def test_how_long_it_waits() -> None:
    nothing: dict[str, str] = {}
    assert find_max_wait(None, None, nothing) is None
    assert find_max_wait(None, None, {"INVOCATION_ID": ""}) is None
    assert find_max_wait(True, None, nothing) == float("inf")
    assert find_max_wait(False, None, {"INVOCATION_ID": "1"}) is None
    assert find_max_wait(None, "10m", nothing) == 600
    for wait, text in ((False, "10m"), (None, "soon")):
        with pytest.raises(ValidationError) as error:
            find_max_wait(wait, text, nothing)
        assert "max_wait" in error.value.message
