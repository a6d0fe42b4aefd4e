"""DSNs with several hosts, one of which is the primary: a silent host, a closed port or a standby delays no client."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock import AsyncPenstock, AuthError, Penstock, Queue, Unavailable
from penstock.client.conninfo import each_host
from penstock.client.database import Database
from relay import Relay

PATIENCE = 30  # seconds; a broken client would wait for the minute that these clients allow


@pytest.fixture
def relay(direct_dsn: str) -> Iterator[Relay]:
    relay = Relay(port_of(direct_dsn))
    yield relay
    relay.close()


@pytest.fixture
def queue(direct_dsn: str) -> Queue:
    with Penstock(direct_dsn) as app:
        return app.create_queue("work")


def port_of(dsn: str) -> int:
    return int(str(conninfo_to_dict(dsn)["port"]))


def through(dsn: str, *ports: int, **more: Any) -> str:
    hosts = ",".join("127.0.0.1" for _ in ports)
    return make_conninfo(dsn, host=hosts, port=",".join(map(str, ports)), connect_timeout=60, **more)


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def push_sync(dsn: str, then: Callable[[], None] | None = None) -> None:
    """Pushes, and pushes again with the same client after `then`."""
    with Penstock(dsn, timeout=60) as app:
        app.queue("work").push()
        if then is not None:
            then()
            app.queue("work").push()


def push_async(dsn: str, then: Callable[[], None] | None = None) -> None:
    async def push() -> None:
        async with AsyncPenstock(dsn, timeout=60) as app:
            await app.queue("work").push()
            if then is not None:
                then()
                await app.queue("work").push()

    asyncio.run(push())


Push = Callable[..., None]
CLIENTS = pytest.mark.parametrize("push", [push_sync, push_async], ids=["sync", "async"])


def in_time(work: Callable[[], object]) -> None:
    """Runs `work` in a thread and raises its error. Fails if it takes too long."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), f"it still waits after {PATIENCE} s"
    if errors:
        raise errors[0]


# --- choice of the host ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        ("host=a", ["host=a"]),
        ("host=a,b", ["host=a target_session_attrs=read-write", "host=b target_session_attrs=read-write"]),
        (
            "host=a,b port=1,2 dbname=x target_session_attrs=primary",
            [
                "host=a port=1 dbname=x target_session_attrs=primary",
                "host=b port=2 dbname=x target_session_attrs=primary",
            ],
        ),
        (
            "postgresql://u@a:1,b:2/x",
            [
                "user=u dbname=x host=a port=1 target_session_attrs=read-write",
                "user=u dbname=x host=b port=2 target_session_attrs=read-write",
            ],
        ),
        ("host=a,b target_session_attrs=any", ["host=a,b target_session_attrs=any"]),
        ("host=a,b target_session_attrs=prefer-standby", ["host=a,b target_session_attrs=prefer-standby"]),
        ("host=a,b port=1,2,3", ["host=a,b port=1,2,3"]),  # libpq refuses this
    ],
)
def test_each_host_has_a_dsn_of_its_own(dsn: str, expected: list[str]) -> None:
    assert [conninfo_to_dict(one) for one in each_host(dsn)] == [conninfo_to_dict(one) for one in expected]


def test_hosts_of_the_environment_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "a,b")
    monkeypatch.setenv("PGPORT", "5433")
    assert [conninfo_to_dict(one) for one in each_host("dbname=x")] == [
        {"dbname": "x", "host": host, "port": "5433", "target_session_attrs": "read-write"} for host in ("a", "b")
    ]
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "standby")
    assert each_host("dbname=x") == ["dbname=x"]


@CLIENTS
def test_a_silent_host_does_not_block_the_next(push: Push, queue: Queue, direct_dsn: str, relay: Relay) -> None:
    relay.silence()
    in_time(lambda: push(through(direct_dsn, relay.port, port_of(direct_dsn))))
    assert queue.status().pending == 1


@CLIENTS
def test_the_hosts_of_a_service_file_are_tried_too(
    push: Push,
    queue: Queue,
    direct_dsn: str,
    relay: Relay,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    relay.silence()
    hosts = conninfo_to_dict(through(direct_dsn, relay.port, port_of(direct_dsn)))
    (tmp_path / "services").write_text("[shop]\n" + "".join(f"{name}={value}\n" for name, value in hosts.items()))
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    in_time(lambda: push("service=shop"))
    assert queue.status().pending == 1


def test_a_mistake_is_an_error_at_once_only_if_no_host_may_come_back(direct_dsn: str) -> None:
    port = port_of(direct_dsn)
    wrong = {"user": "penstock", "password": "wrong", "passfile": "/dev/null"}
    with pytest.raises(AuthError), Penstock(through(direct_dsn, port, port, **wrong)) as app:
        app.status()
    with pytest.raises(Unavailable) as down, Penstock(through(direct_dsn, closed_port(), port, **wrong)) as app:
        app.status()
    assert "Connection refused" in down.value.message
    with pytest.raises(Unavailable) as both, Penstock(through(direct_dsn, closed_port(), closed_port())) as app:
        app.status()
    assert both.value.message.count("Connection refused") == 2


# --- a pool whose server goes away ----------------------------------------------------------------------------------


@CLIENTS
def test_a_push_that_waits_is_done_as_soon_as_postgresql_is_back(
    push: Push, queue: Queue, direct_dsn: str, relay: Relay
) -> None:
    """The pool soon gives up connecting, but the push that waits for a connection does not."""

    def away_for_a_while() -> None:
        relay.close()
        threading.Timer(3.0, relay.open).start()

    in_time(lambda: push(through(direct_dsn, relay.port), away_for_a_while))
    assert queue.status().pending == 2


def test_a_call_that_waited_in_vain_reports_the_reason(queue: Queue, direct_dsn: str, relay: Relay) -> None:
    with Penstock(through(direct_dsn, relay.port), timeout=2) as app:
        app.status()
        relay.close()
        with pytest.raises(Unavailable) as error:
            app.queue("work").push()
        assert error.value.reason == "unreachable"
        assert "Connection refused" in error.value.message


@pytest.mark.parametrize("verb", ["transaction", "once"])
def test_a_connection_that_cannot_write_is_not_used_again(
    verb: str, queue: Queue, direct_dsn: str, sql: psycopg.Connection
) -> None:
    database = conninfo_to_dict(direct_dsn)["dbname"]
    queue.push()
    with Penstock(direct_dsn) as app:
        app.status()  # so that one of its connections is open
        sql.execute(f"alter database {database} set default_transaction_read_only = on")
        used = app.queue("work")
        with Penstock(direct_dsn) as other:
            act: Callable[[], object]
            act = other.queue("work").push if verb == "transaction" else other.queue("work").claim
            for _ in range(2):
                with pytest.raises(Unavailable) as error:
                    act()
                assert error.value.reason == "read_only"
            sql.execute(f"alter database {database} reset default_transaction_read_only")
            with suppress(Unavailable):
                act()  # on a connection that replaced the last one earlier
            act()
        used.push()


# --- a host that falls silent ---------------------------------------------------------------------------------------


@CLIENTS
def test_a_statement_without_an_answer_goes_on_elsewhere(
    push: Push, queue: Queue, direct_dsn: str, relay: Relay
) -> None:
    """The silent host accepts everything and answers nothing, and another host is the primary. The second push has not
    begun its transaction yet, so it is done there."""
    in_time(lambda: push(through(direct_dsn, relay.port, port_of(direct_dsn)), relay.silence))
    assert queue.status().pending == 2


def test_a_claim_on_a_silent_host_may_have_happened(queue: Queue, direct_dsn: str, relay: Relay) -> None:
    """A claim is one statement, and its end is not known. The next claim works."""
    queue.push()
    with Penstock(through(direct_dsn, relay.port, port_of(direct_dsn)), timeout=60) as app:
        used = app.queue("work")
        used.release(used.claim())
        relay.silence()
        with pytest.raises(Unavailable):
            in_time(used.claim)
        in_time(used.claim)


def test_a_long_statement_is_left_alone(direct_dsn: str, relay: Relay) -> None:
    """Both ports lead to a server that can write, as two poolers do: a slow one is no reason to change."""
    database = Database(through(direct_dsn, relay.port, port_of(direct_dsn)))
    try:
        with database.transaction() as connection:
            row = connection.execute("select 1, pg_sleep(3)").fetchone()
    finally:
        database.close()
    assert row is not None
    assert row[0] == 1
