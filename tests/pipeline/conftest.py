"""One Spark session for all tests of the pipeline, and a story of queues in which everything happens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from conftest import Clock
from local_spark import start_session
from made_lake import World, make_lake, usual
from penstock import LeaseLost, NewTask, Outcome, Penstock, Queue
from penstock.pipeline.lake import Lake
from penstock.retry import Exponential

ROME = "Europe/Rome"  # clocks go back on 25 October 2026 at 01:00 UTC, an hour and more after UTC's midnight
START = datetime(2026, 10, 24, 23, 20, tzinfo=UTC)
ERRORS = (
    ("ValueError", "order 4711 of 'Müller' is not there: 12.50 EUR"),
    ("ValueError", "order 815 of 'Rossi' is not there: 3,99 EUR"),
    ("TimeoutError", "no answer from 0xDEADBEEF since 2026-10-25T01:02:03.456Z"),
    ("KeyError", "'0b9d1c3e-7f60-4b4e-9d0e-0c2f8a4b6c7d'"),
    (None, 'cut "off" at\n  line 12 of deadbeef0123456789'),
    ("KeyError", "'k'\nTraceback (most recent call last):\n  File \"a.py\", line 3, in f\n    {}['k']"),
)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = start_session()
    yield session
    session.stop()


class Story:
    """Queues that live through a night. Events are random, but always the same for a seed."""

    def __init__(self, app: Penstock, sql: psycopg.Connection, clock: Clock, seed: int = 7) -> None:
        self.app, self.sql, self.clock = app, sql, clock
        self.dice = random.Random(seed)
        self.queues = [
            app.create_queue("mail", max_attempts=3, lease="60s", sla="30s", retry=RETRY),
            app.create_queue("image", max_attempts=2, lease="60s", sla="2m", keep_done="1d", retry=RETRY),
            app.create_queue("plain", lease="60s", retry=RETRY),
        ]
        self.pushed = 0

    def at(self, moment: datetime) -> None:
        self.sql.execute("update penstock_test.clock set fixed = %s, shift = '0'", (moment,))

    def live(self, steps: int) -> None:
        for _ in range(steps):
            self.clock.advance(self.dice.choice((3, 10, 20, 47)) + self.dice.random())
            self.step()
            self.sql.execute("select penstock._take_samples()")

    def step(self) -> None:
        queue = self.dice.choice(self.queues)
        self.push(queue)
        for _ in range(2):
            self.work(self.dice.choice(self.queues))
        if self.dice.random() < 0.15:
            waiting = queue.tasks(limit=3)
            queue.cancel([task.id for task in waiting if task.state != "done"][:2])
        if self.dice.random() < 0.1:
            queue.redrive(kind=self.dice.choice("abc"))
        if self.dice.random() < 0.08 and queue.name != "plain":
            queue.set(sla=self.dice.choice(("10s", "30s", "5m")))
        if self.dice.random() < 0.2:
            self.app.upkeep()

    def push(self, queue: Queue) -> None:
        items = []
        for _ in range(self.dice.randrange(6)):
            self.pushed += 1
            subject = f"s{self.dice.randrange(30)}" if self.dice.random() < 0.4 else None
            due = self.clock.now() + timedelta(seconds=60) if self.dice.random() < 0.1 else None
            items.append(NewTask({"n": self.pushed}, subject, kind=self.dice.choice("abc"), due=due))
        if items:
            queue.push_many(items, on_conflict="update")

    def work(self, queue: Queue) -> None:
        """Claims and gives each task an outcome, or now and then lets the lease end."""
        claim = queue.claim(self.dice.randrange(1, 6), worker=f"w{self.dice.randrange(3)}")
        if not claim:
            return
        subjects = [task.subject for task in claim.tasks if task.subject]
        if subjects and self.dice.random() < 0.3:  # renewed while it runs
            queue.push({"renewed": True}, subject=subjects[0], on_conflict="update")
        self.clock.advance(self.dice.random() * 8)
        if self.dice.random() < 0.12:
            self.clock.advance(70)
            self.app.upkeep()
            return
        if self.dice.random() < 0.1:
            queue.cancel(claim.ids[:1])
        with suppress(LeaseLost):  # tasks that were cancelled meanwhile
            queue.settle(claim, {id_: self.verdict() for id_ in claim.ids})

    def verdict(self) -> Outcome:
        chance = self.dice.random()
        if chance < 0.6:
            return Outcome.done()
        if chance < 0.65:
            return Outcome.again(delay="40s")
        if chance < 0.7:
            return Outcome.release(delay="15s") if chance < 0.67 else Outcome.release()
        kind, text = self.dice.choice(ERRORS)
        if chance < 0.73:
            return Outcome.dead(text, error_class=kind)
        return Outcome.failed(text, error_class=kind)


RETRY = Exponential(5, factor=2, cap=60, jitter=0.1)


@pytest.fixture
def story(app: Penstock, sql: psycopg.Connection, clock: Clock, direct_dsn: str) -> Story:
    """A story in a database whose sessions are all in Rome."""
    name = psycopg.conninfo.conninfo_to_dict(direct_dsn)["dbname"]
    sql.execute(f"alter database {name} set timezone = '{ROME}'".encode())
    sql.execute(f"set timezone = '{ROME}'".encode())
    found = Story(app, sql, clock)
    found.at(START)
    return found


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture(scope="session")
def world() -> World:
    """Thirteen simulated hours, over a midnight."""
    return World(13.0, usual())


@pytest.fixture(scope="session")
def made(spark: SparkSession, world: World, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A lake with the simulated world."""
    return make_lake(spark, tmp_path_factory.mktemp("made") / "lake", world)
