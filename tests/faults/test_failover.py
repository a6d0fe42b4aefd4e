"""The primary dies, freezes or stops, and its standby is promoted: clients, workers and the scaler go on there.

With a synchronous standby nothing that was reported is lost. With an asynchronous one only what was not replicated is
lost, and the rest is consistent. Recovery is promised within three seconds of the promotion: `make faults` runs these
tests with that bar (PENSTOCK_RECOVERY_BAR=3). Otherwise they share a machine with others, and assert no speed.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from penstock import AsyncPenstock, LeaseLost, NewTask, Penstock, Unavailable
from penstock.client import database
from scalers import scaling
from standby import ReplicatedPair, replicated_pair
from workers import eventually, working

SEED = int(os.environ.get("PENSTOCK_FAULT_SEED", random.SystemRandom().randrange(2**32)))
GENEROUS = 20.0  # seconds to wait before a test gives up
BAR = os.environ.get("PENSTOCK_RECOVERY_BAR")  # seconds after a promotion; without it, only GENEROUS holds
NUMBER = count()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedPair]:
    with replicated_pair(tmp_path_factory.mktemp("pair")) as pair:
        yield pair


@pytest.fixture
def pair(servers: ReplicatedPair) -> ReplicatedPair:
    """A primary with a streaming standby, whatever the previous test did."""
    attached = servers.primary.value("exists (select from pg_stat_replication where state = 'streaming')")
    if not servers.standby.processes() or servers.standby.frozen or not attached:
        servers.rejoin()
    servers.make_asynchronous()
    return servers


@pytest.fixture
def dsn(pair: ReplicatedPair) -> str:
    """The DSN of a new database with the schema, which names both hosts."""
    name = f"failover_{next(NUMBER)}"
    pair.primary.query(f"create database {name}")
    dsn = make_conninfo(pair.dsn, dbname=name)
    with Penstock(dsn) as app:
        app.init()
    pair.wait_for_replay()
    return dsn


def assert_recovered(what: str, moment: float, promoted_at: float) -> None:
    said = f"{what} {moment - promoted_at:.2f} s after the promotion"
    print(said)
    assert BAR is None or moment - promoted_at <= float(BAR), said


# --- clients --------------------------------------------------------------------------------------------------------


@dataclass
class Caller:
    """Makes one call after another until it is stopped, and records when each ended and with which error."""

    name: str
    ends: list[tuple[float, Unavailable | None]] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def succeeded_after(self, moment: float) -> float:
        """Returns when the first call that succeeded after the moment ended, or 0 if none has."""
        return next((at for at, error in [*self.ends] if error is None and at > moment), 0.0)

    def errors(self) -> list[Unavailable]:
        return [error for _, error in [*self.ends] if error is not None]

    def note(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Unavailable as error:
            self.ends.append((time.time(), error))
        else:
            self.ends.append((time.time(), None))


def call_again_and_again(caller: Caller, dsn: str, verb: str) -> None:
    with Penstock(dsn) as app:
        call = getattr(app.queue("work"), verb)
        while not caller.stopped.wait(0.02):
            caller.note(call)


def await_again_and_again(caller: Caller, dsn: str, verb: str) -> None:
    async def run() -> None:
        async with AsyncPenstock(dsn) as app:
            call = getattr(app.queue("work"), verb)
            while not caller.stopped.is_set():
                try:
                    await call()
                except Unavailable as error:
                    caller.ends.append((time.time(), error))
                else:
                    caller.ends.append((time.time(), None))
                await asyncio.sleep(0.02)

    asyncio.run(run())


@contextmanager
def calling(dsn: str) -> Iterator[list[Caller]]:
    """Callers of both clients push, claim and read the status. Yields when each has succeeded once."""
    callers, threads = [], []
    for style, loop in (("sync", call_again_and_again), ("async", await_again_and_again)):
        for verb in ("push", "claim", "status"):
            callers.append(Caller(f"{style} {verb}"))
            threads.append(threading.Thread(target=loop, args=(callers[-1], dsn, verb), daemon=True))
            threads[-1].start()
    try:
        eventually(lambda: all(caller.succeeded_after(0.0) for caller in callers))
        yield callers
    finally:
        for caller in callers:
            caller.stopped.set()
        for thread in threads:
            thread.join(30)


HARM = ("killed", "stopped", "frozen", "frozen a moment before", "back as a standby")


@pytest.mark.sample(3)
@pytest.mark.parametrize("harm", HARM)
def test_clients_go_on_at_the_new_primary(harm: str, pair: ReplicatedPair, dsn: str) -> None:
    with Penstock(dsn) as app:
        app.create_queue("work", lease="1h")
    pair.wait_for_replay()
    with calling(dsn) as callers:
        old = pair.primary
        if harm == "stopped":
            old.stop()
        elif harm.startswith("frozen"):
            old.freeze()
        else:
            old.kill()
        if harm != "frozen a moment before":
            time.sleep(3)  # longer than the pool of a client tries to connect by itself
        pair.promote()
        promoted_at = time.time()
        if harm == "back as a standby":
            pair.rejoin()
        eventually(lambda: all(caller.succeeded_after(promoted_at) for caller in callers), within=GENEROUS)
        for caller in callers:
            assert_recovered(f"{harm}: {caller.name}", caller.succeeded_after(promoted_at), promoted_at)
    for caller in callers:
        # No caller that waited for a connection is told that the pool was busy, because it was not.
        assert not [error for error in caller.errors() if error.reason == "pool"], caller.name
    with Penstock(dsn) as app:
        assert app.verify().ok


def test_an_idle_client_is_told_of_the_new_primary(
    pair: ReplicatedPair, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor tells its runners, so that they do not wait for a frozen host. Without the watch of the client, and
    without being told, this call would wait for ever."""
    monkeypatch.setattr(database, "WATCH_EVERY", 3600.0)
    idle = database.Database(dsn)
    try:
        port = "select pg_catalog.inet_server_port()"
        assert idle.value(port) == pair.primary.port
        old = pair.primary
        old.freeze()
        pair.promote()
        idle.hosts.follow(pair.nodes.index(pair.primary))
        assert idle.value(port) == pair.primary.port != old.port
    finally:
        idle.close()


# --- workers --------------------------------------------------------------------------------------------------------


def test_a_lease_that_was_not_replicated_is_refused(pair: ReplicatedPair, dsn: str) -> None:
    """The promoted asynchronous standby has neither the claim nor the last push. The rest is consistent.
    (Workers under failovers, with a checker, are a stage of the campaign: `make faults`.)"""
    with Penstock(dsn) as app:
        queue = app.create_queue("held", lease="1h")
        queue.push_many([NewTask({}, f"held{n}") for n in range(3)])
        pair.wait_for_replay()
        pair.cut_off_standby()
        held = queue.claim(2)
        queue.push(subject="lost")
        pair.primary.kill()
        pair.promote()
        eventually(lambda: readable(app), within=GENEROUS)
        for act in (queue.settle, queue.extend, queue.release):
            with pytest.raises(LeaseLost):
                act(held)
        assert queue.status().pending == 3, "the push that was not replicated is gone"
        queue.settle(queue.claim(3))
        verified = app.verify()
        assert verified.ok, verified.findings


def readable(app: Penstock) -> bool:
    try:
        app.queue("held").status()
    except Unavailable:
        return False
    return True


JOBS = """
@app.task(queue="work")
def job(name: str) -> None:
    note(name)
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("at_once", [False, True], ids=["a while before", "a moment before"])
def test_workers_leave_a_frozen_primary(at_once: bool, pair: ReplicatedPair, dsn: str, tmp_path: Path) -> None:
    """Their last claims, beats and extensions of leases are never answered."""
    with Penstock(dsn) as app:
        queue = app.create_queue("work", lease="2s")
        with working(tmp_path, dsn, JOBS) as worker:
            queue.push({"name": "before"}, kind="job")
            eventually(lambda: worker.noted == ["before"])
            eventually(lambda: queue.status().totals["done"] == 1)
            pair.wait_for_replay()
            pair.primary.freeze()
            if not at_once:
                time.sleep(4)
            pair.promote()
            promoted_at = time.time()
            eventually(lambda: pushed(app, "after"), within=GENEROUS)
            assert_recovered("a push", time.time(), promoted_at)
            eventually(lambda: worker.noted == ["before", "after"], within=GENEROUS)
            assert_recovered("the worker ran a task", time.time(), promoted_at)
            assert worker.stop() == 0
        assert app.verify().ok
        assert queue.status().totals["done"] == 2


def pushed(app: Penstock, name: str) -> bool:
    """Pushes with a subject, because a push to a frozen server may have happened."""
    try:
        app.queue("work").push({"name": name}, kind="job", subject=name)
    except Unavailable:
        return False
    return True


# --- the scaler -----------------------------------------------------------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.parametrize("harm", ["killed", "frozen"])
def test_the_scaler_decides_again(harm: str, pair: ReplicatedPair, dsn: str, tmp_path: Path) -> None:
    with Penstock(dsn) as app:
        app.create_queue("work", sla="30s")
    pair.wait_for_replay()
    with scaling(tmp_path, dsn, "--advise", "--max-workers", "4") as scaler:
        eventually(lambda: decided_at(pair, dsn) > 0)
        pair.wait_for_replay()
        if harm == "killed":
            pair.primary.kill()
        else:
            pair.primary.freeze()
        eventually(lambda: any("held" in event for event in scaler.events))
        pair.promote()
        promoted_at = time.time()
        eventually(lambda: decided_at(pair, dsn) > promoted_at, within=GENEROUS)
        assert_recovered(f"{harm}: the scaler decided", decided_at(pair, dsn), promoted_at)
        assert scaler.process.poll() is None


def decided_at(pair: ReplicatedPair, dsn: str) -> float:
    """Returns when the scaler last decided, by the primary's clock, or 0 if it has not."""
    with psycopg.connect(pair.primary.dsn, dbname=conninfo_to_dict(dsn)["dbname"]) as sql:
        row = sql.execute("select extract(epoch from decided_at)::float from penstock.scaling").fetchone()
    return row[0] or 0.0 if row else 0.0
