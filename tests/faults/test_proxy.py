"""The proxy breaks the network as it says: connections hang and are dropped, delayed, reset and cut, and they heal."""

from __future__ import annotations

import fcntl
import struct
import termios
import time
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from proxy import Lane, Proxy
from workers import eventually

SHORT = 1.0  # seconds in which nothing may arrive


@pytest.fixture
def lane(direct_dsn: str) -> Iterator[Lane]:
    with Proxy(int(str(psycopg.conninfo.conninfo_to_dict(direct_dsn)["port"]))) as proxy:
        yield proxy.add_lane()


@pytest.fixture
def through(lane: Lane, direct_dsn: str) -> Iterator[psycopg.Connection]:
    connection = psycopg.connect(lane.dsn(direct_dsn), autocommit=True)
    yield connection
    connection.close()


def ask(connection: psycopg.Connection) -> None:
    assert connection.execute("select 1").fetchone() == (1,)


def begin_to_ask(connection: psycopg.Connection) -> None:
    connection.pgconn.send_query(b"select 1")
    connection.pgconn.flush()


def answered(connection: psycopg.Connection, within: float) -> bool:
    until = time.monotonic() + within
    while time.monotonic() < until:
        connection.pgconn.consume_input()
        if not connection.pgconn.is_busy():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("harm", [Lane.hang, Lane.drop], ids=["hung", "dropped"])
def test_nothing_arrives_until_the_lane_heals(lane: Lane, through: psycopg.Connection, harm: object) -> None:
    ask(through)
    assert callable(harm)
    harm(lane)
    begin_to_ask(through)
    assert not answered(through, SHORT)
    lane.heal()
    assert answered(through, 30)


def unacknowledged(connection: psycopg.Connection) -> bool:
    """Returns whether this side has sent bytes that the other has not acknowledged, as the kernel counts them."""
    queued = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0" * 4)
    return bool(struct.unpack("i", queued)[0])


def test_a_hung_lane_acknowledges_and_a_dropped_one_does_not(lane: Lane, through: psycopg.Connection) -> None:
    ask(through)
    lane.hang()
    begin_to_ask(through)
    time.sleep(0.2)
    assert not unacknowledged(through)
    lane.heal()
    assert answered(through, 30)
    while through.pgconn.get_result() is not None:
        pass
    lane.drop()
    begin_to_ask(through)
    time.sleep(0.2)
    assert unacknowledged(through)
    lane.heal()
    assert answered(through, 30)


@pytest.mark.parametrize("harm", [Lane.hang, Lane.drop], ids=["hung", "dropped"])
def test_a_new_connection_gets_no_answer(lane: Lane, direct_dsn: str, harm: object) -> None:
    assert callable(harm)
    harm(lane)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(lane.dsn(direct_dsn), connect_timeout=2)
    lane.heal()
    with psycopg.connect(lane.dsn(direct_dsn)) as connection:
        ask(connection)


def test_a_reset_ends_what_is_there_and_not_what_comes(
    lane: Lane, through: psycopg.Connection, direct_dsn: str
) -> None:
    ask(through)
    lane.reset()
    with pytest.raises(psycopg.OperationalError):
        ask(through)
    with psycopg.connect(lane.dsn(direct_dsn)) as connection:
        ask(connection)


def test_a_delay_is_felt(lane: Lane, through: psycopg.Connection) -> None:
    lane.delay(0.2)
    began = time.monotonic()
    ask(through)
    assert time.monotonic() - began >= 0.4, "the delay applies in both directions"


@pytest.mark.parametrize("arrive", [True, False], ids=["arrives", "does not arrive"])
def test_a_commit_is_cut_before_or_after_it_happened(
    lane: Lane, through: psycopg.Connection, sql: psycopg.Connection, arrive: bool
) -> None:
    sql.execute("create table written (n int)")
    lane.cut_commits(1, skip=1, arrive=arrive)
    for n in range(2):
        through.execute("begin")
        through.execute("insert into written values (%s)", (n,))
        if n == 0:
            through.execute("commit")
        else:
            with pytest.raises(psycopg.OperationalError):
                through.execute("commit")
    rows = sql.execute("select n from written order by n").fetchall()
    assert rows == ([(0,), (1,)] if arrive else [(0,)])


def test_a_lane_knows_which_hung_connections_were_given_up(
    lane: Lane, through: psycopg.Connection, direct_dsn: str
) -> None:
    with closing(psycopg.connect(lane.dsn(direct_dsn), autocommit=True)) as patient:
        lane.hang_present()
        begin_to_ask(through)
        begin_to_ask(patient)
        assert lane.given_up() == 0
        through.close()
        eventually(lambda: lane.given_up() == 1)
        with psycopg.connect(lane.dsn(direct_dsn), autocommit=True) as later:
            ask(later)
            lane.heal()
            ask(later)
        assert lane.given_up() == 0
