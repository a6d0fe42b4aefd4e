"""Many clients at once: no task is doubled, lost or in two places, there is no deadlock, and counters are exact."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection as Pipe

import psycopg
import pytest

import hot_client
from penstock import Penstock, Queue

SPAWN = multiprocessing.get_context("spawn")


def test_two_hundred_claimers_share_a_queue(queue: Queue, dsn: str) -> None:
    tasks, claimers = 6_000, 200
    queue.push_many({"n": n} for n in range(tasks))
    start = threading.Barrier(claimers, timeout=60)

    def claim(n: int) -> list[int]:
        with psycopg.connect(dsn, autocommit=True) as connection:
            start.wait()
            seen: list[int] = []
            misses = 0
            while misses < 3:
                rows = connection.execute(
                    "select token, id from penstock.claim('work', %s, interval '10 min')", (1 + n % 9,)
                ).fetchall()
                misses = 0 if rows else misses + 1
                seen.extend(row[1] for row in rows)
                if rows:
                    connection.execute("select from penstock.settle(%s, %s)", (rows[0][0], [row[1] for row in rows]))
            return seen

    with ThreadPoolExecutor(claimers) as pool:
        given = Counter(id_ for seen in pool.map(claim, range(claimers)) for id_ in seen)
    assert len(given) == tasks, "some were skipped"
    assert max(given.values()) == 1, "some were given twice"


# --- the hot mix ------------------------------------------------------------------------------------------------------


def watch(dsn: str, stop: threading.Event, wrong: list[object]) -> None:
    """Verifies the counters in REPEATABLE READ snapshots until `stop` is set."""
    with psycopg.connect(dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        while not stop.is_set():
            found = connection.execute("select * from penstock.verify()").fetchall()
            connection.rollback()
            wrong.extend(found)
            stop.wait(0.05)


def disturb(dsn: str, clients: list[multiprocessing.process.BaseProcess], dice: random.Random) -> int:
    """Sometimes terminates a backend, sometimes kills a client. Returns the pid of a killed client."""
    if dice.random() < 0.2:
        victim = dice.choice(clients)
        if victim.pid is not None and victim.is_alive():
            os.kill(victim.pid, signal.SIGKILL)
            return victim.pid
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
            " and application_name = 'penstock' and pid <> pg_backend_pid() order by random() limit 1"
        )
    return 0


DEADLOCKS = "select deadlocks from pg_stat_database where datname = current_database()"


@pytest.mark.parametrize("seconds", [6, pytest.param(60, marks=pytest.mark.slow)], ids=["quick", "minute"])
def test_the_lock_rule_over_hot_subjects(app: Penstock, dsn: str, direct_dsn: str, seconds: float) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    app.create_queue("hot", lease="1s", max_attempts=None)
    dice = random.Random(seed)
    stop, wrong = threading.Event(), list[object]()
    watcher = threading.Thread(target=watch, args=(direct_dsn, stop, wrong))
    watcher.start()

    def start_client(n: int) -> tuple[multiprocessing.process.BaseProcess, Pipe]:
        ours, theirs = SPAWN.Pipe(duplex=False)
        client = SPAWN.Process(target=hot_client.run, args=(dsn, seed + n, seconds, theirs))
        client.start()
        theirs.close()
        return client, ours

    started = [start_client(n) for n in range(12)]
    for _, report in started:
        assert report.recv() == "ready"
    until = time.monotonic() + seconds
    total: Counter[str] = Counter()
    n = len(started)
    while time.monotonic() < until:
        time.sleep(0.5)
        killed = disturb(direct_dsn, [client for client, _ in started], dice)
        for index, (client, _) in enumerate(started):
            if killed and client.pid == killed and time.monotonic() < until - 2:
                client.join()
                started[index] = start_client(n := n + 1)
                total["killed"] += 1
    for client, report in started:
        total.update(read_counts(report))
        client.join(60)
    stop.set()
    watcher.join()
    print(dict(total))
    assert not wrong, wrong[:5]
    assert total["deadlock"] == 0
    assert not [word for word in total if word.startswith("unexpected")], total
    assert min(total[verb] for verb in hot_client.WEIGHTS) > 0, total
    with psycopg.connect(dsn) as connection:
        # A push that meets a deadlock is repeated silently, but the server counts it.
        (deadlocks,) = connection.execute(DEADLOCKS).fetchone() or (None,)
    assert deadlocks == 0
    drained(app)


MOVES = {
    "cancel": "select from penstock.cancel('hot', p_subjects => %s)",
    "reprioritise": "select from penstock.reprioritise('hot', 5::smallint, p_subjects => %s)",
    "reschedule": "select from penstock.reschedule('hot', now(), p_subjects => %s)",
    "redrive": "select from penstock.redrive('hot', p_subjects => %s)",
    "purge": "select penstock.purge('hot', array['cancelled', 'planned'], p_limit => cardinality(%s::text[]))",
    "claim": "select from penstock.claim('hot', cardinality(%s::text[]), '100 ms')",
    "retire": "select penstock._retire(cardinality(%s::text[]))",
}


def test_verbs_that_skip_locked_rows_still_lock_in_order(app: Penstock, dsn: str) -> None:
    """SKIP LOCKED can wait if a row is updated and at once locked by the next session (decision 38). So every verb must
    lock documents in the order in which pushes lock them."""
    app.create_queue("hot", lease="100ms", keep_cancelled="100ms")
    subjects = [f"s{n:02}" for n in range(24)]
    until = time.monotonic() + 6
    push = "select from penstock.push_many('hot', %s, %s, p_on_conflict => 'update')"

    def work(n: int) -> Counter[str]:
        seen, dice = Counter[str](), random.Random(n)
        with psycopg.connect(dsn, autocommit=True) as connection:
            while time.monotonic() < until:
                some = dice.sample(subjects, 12)
                verb = "push" if n % 2 else dice.choice((*MOVES,))
                try:
                    if verb == "push":
                        connection.execute(push, (["{}"] * 12, some))
                    else:
                        connection.execute(MOVES[verb].encode(), (some,))
                    seen[verb] += 1
                except psycopg.errors.DeadlockDetected as error:
                    seen[f"deadlock {verb} {error.diag.message_detail} {error.diag.context}"] += 1
        return seen

    with ThreadPoolExecutor(10) as pool:
        total = sum(pool.map(work, range(10)), Counter[str]())
    assert not [seen for seen in total if seen.startswith("deadlock")], total
    assert total.keys() == {"push", *MOVES}


def read_counts(report: Pipe) -> dict[str, int]:
    """Returns the counts of a client, or none if it was killed."""
    try:
        while report.poll(120):
            said = report.recv()
            if isinstance(said, dict):
                return said
    except EOFError:
        pass
    return {}


def drained(app: Penstock) -> None:
    """Checks liveness: when all clients have ended, every waiting task can be done."""
    queue = app.queue("hot")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        claim = queue.claim(100)
        if claim:
            queue.settle(claim)
            continue
        status = queue.status()
        if status.pending + status.active == 0:
            break
        time.sleep(0.1)
    status = queue.status()
    assert (status.pending, status.active) == (0, 0)
    assert app.verify().ok
