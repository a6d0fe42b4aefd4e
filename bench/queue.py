"""The queue's bars, as ratios side by side in one run: python bench/queue.py push|drain|upsert|…|all"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

if __name__ in ("__main__", "__mp_main__"):
    # If this runs as a script, it would hide the standard library's `queue`.
    sys.path[0] = str(Path(__file__).parent.parent)

import orjson
import psycopg

from bench.support import upserters
from bench.support.drainers import bare, drained, through_async_penstock, through_penstock
from bench.support.harness import Bench, Footprint, alternate, bench, judged, ratio, report, spread
from penstock import NewTask, Penstock, Queue
from penstock.app_async import AsyncPenstock
from penstock.model import Claim, Json

ROUNDS = 5


def payloads(count: int) -> list[Json]:
    """Makes payloads of about 100 bytes of JSON each."""
    return [{"invoice": n, "to": f"customer-{n}@example.com", "note": "x" * 50} for n in range(count)]


def subjects(count: int) -> list[str]:
    names = [f"customer-{n:09d}" for n in range(count)]
    random.Random(1).shuffle(names)
    return names


# --- push -----------------------------------------------------------------------------------------------------------


def push(server: Bench, tasks: int = 1_000_000, rounds: int = ROUNDS) -> bool:
    """push_many against a raw COPY of the documents and an insert of the agenda for the same ids, triggers off."""
    rows, names = payloads(tasks), subjects(tasks)
    found = alternate(
        rounds,
        {
            "penstock": lambda: pushed(server, rows, None),
            "raw": lambda: copied(server, rows, None),
            "penstock, subjects": lambda: pushed(server, rows, names),
            "raw, subjects": lambda: copied(server, rows, names),
        },
    )
    plain, named = ratio(found["penstock"], found["raw"]), ratio(found["penstock, subjects"], found["raw, subjects"])
    for name, rates in found.items():
        print(f"{name:<24} {spread(rates)} tasks/s")
    report("push", {"tasks": tasks, "rates": found, "ratio": plain, "ratio_subjects": named})
    return all(
        [
            judged("push / raw COPY", plain, 0.7, at_least=True),
            judged("push with subjects / raw COPY", named, 0.4, at_least=True),
        ]
    )


def pushed(server: Bench, rows: list[Json], names: list[str] | None) -> float:
    with server.database() as dsn, Penstock(dsn) as penstock:
        queue = penstock.queue("bench")
        queue.status()
        began = time.perf_counter()
        if names is None:
            report_ = queue.push_many(rows)
        else:
            report_ = queue.push_many(NewTask(row, name) for row, name in zip(rows, names, strict=True))
        seconds = time.perf_counter() - began
        assert report_.created == len(rows) == queue.status().pending
        return len(rows) / seconds


def copied(server: Bench, rows: list[Json], names: list[str] | None) -> float:
    with server.database(triggers=False) as dsn, psycopg.connect(dsn) as connection:
        connection.execute("select 1")
        connection.commit()
        began = time.perf_counter()
        if names is None:
            with connection.cursor().copy("copy penstock.task (id, queue_id, payload) from stdin") as copy:
                for n, row in enumerate(rows, 1):
                    copy.write_row((n, 1, orjson.dumps(row).decode()))
        else:
            with connection.cursor().copy("copy penstock.task (id, queue_id, subject, payload) from stdin") as copy:
                for n, (row, name) in enumerate(zip(rows, names, strict=True), 1):
                    copy.write_row((n, 1, name, orjson.dumps(row).decode()))
        connection.execute(
            "insert into penstock.agenda (task_id, due, queue_id, priority, pending, named)"
            " select n, now(), 1, 5, true, %s from generate_series(1, %s) as n",
            (names is not None, len(rows)),
        )
        connection.commit()
        return len(rows) / (time.perf_counter() - began)


# --- drain ----------------------------------------------------------------------------------------------------------


def drain(server: Bench, tasks: int = 300_000, rounds: int = ROUNDS) -> bool:
    """Claim and settle in batches of 500, with one and two processes, against the bare loop on the same layout."""
    rows = payloads(tasks)
    seen: dict[str, Any] = {}

    def run(side: Callable[[str, int], Any], processes: int, *, triggers: bool) -> float:
        with server.database() as dsn:
            with Penstock(dsn) as penstock:
                penstock.queue("bench").push_many(rows)
            with server.sql(dsn) as connection:
                if not triggers:
                    for table in ("task", "agenda", "lease"):
                        connection.execute(f"alter table penstock.{table} disable trigger all")
                connection.execute("vacuum analyze penstock.task, penstock.agenda")
                connection.execute("checkpoint")
                before = Footprint.take(connection)
                began, marks = drained(side, dsn, processes)
                after = Footprint.take(connection).since(before)
            assert sum(size for _, size in marks) == tasks
            leases = after.inserted["lease"]
            seen[f"{side.__name__} {processes}"] = {
                "wal_per_task": after.wal / tasks,
                "commits_per_task": after.commits / tasks,
                "tasks_per_lease": tasks / leases,
            }
            return tasks / (marks[-1][0] - began)

    found = alternate(
        rounds,
        {
            "penstock, 1 process": lambda: run(through_penstock, 1, triggers=True),
            "bare, 1 process": lambda: run(bare, 1, triggers=False),
            "penstock, 2 processes": lambda: run(through_penstock, 2, triggers=True),
            "bare, 2 processes": lambda: run(bare, 2, triggers=False),
        },
    )
    one = ratio(found["penstock, 1 process"], found["bare, 1 process"])
    two = ratio(found["penstock, 2 processes"], found["bare, 2 processes"])
    for name, rates in found.items():
        print(f"{name:<24} {spread(rates)} tasks/s")
    for name, figures in seen.items():
        print(f"{name:<24} " + ", ".join(f"{word} {value:.3f}" for word, value in figures.items()))
    report("drain", {"tasks": tasks, "rates": found, "ratio_1": one, "ratio_2": two, "postgresql_saw": seen})
    return all(
        [
            judged("drain / bare loop, 1 process", one, 0.75, at_least=True),
            judged("drain / bare loop, 2 processes", two, 0.75, at_least=True),
        ]
    )


# --- upsert ---------------------------------------------------------------------------------------------------------


def upsert(server: Bench, tasks: int = 100_000, rounds: int = ROUNDS) -> bool:
    """upsert_many of subjects, half of them existing, against a bare sorted insert … on conflict do update."""
    rows, names = payloads(tasks), subjects(tasks)
    found = alternate(
        rounds,
        {
            "penstock": lambda: upserters.through_penstock(server, rows, names),
            "bare": lambda: upserters.bare(server, rows, names),
        },
    )
    share = ratio(found["penstock"], found["bare"])
    for name, rates in found.items():
        print(f"{name:<24} {spread(rates)} tasks/s")
    report("upsert", {"tasks": tasks, "rates": found, "ratio": share})
    return judged("upsert / bare insert on conflict", share, 0.5, at_least=True)


# --- clients --------------------------------------------------------------------------------------------------------


def clients(server: Bench, tasks: int = 300_000, rounds: int = ROUNDS) -> bool:
    """The async client against the sync one: bulk push, and drain in batches of 500 by one process."""
    rows = payloads(tasks)

    async def async_pushed(dsn: str) -> float:
        async with AsyncPenstock(dsn) as penstock:
            queue = penstock.queue("bench")
            await queue.status()
            began = time.perf_counter()
            await queue.push_many(rows)
            return tasks / (time.perf_counter() - began)

    def push_async() -> float:
        with server.database() as dsn:
            return asyncio.run(async_pushed(dsn))

    def drain_by(side: Callable[[str, int], Any]) -> float:
        with server.database() as dsn:
            with Penstock(dsn) as penstock:
                penstock.queue("bench").push_many(rows)
            with server.sql(dsn) as connection:
                connection.execute("vacuum analyze penstock.task, penstock.agenda")
                connection.execute("checkpoint")
            began, marks = drained(side, dsn, 1)
            return tasks / (marks[-1][0] - began)

    found = alternate(
        rounds,
        {
            "push, sync": lambda: pushed(server, rows, None),
            "push, async": push_async,
            "drain, sync": lambda: drain_by(through_penstock),
            "drain, async": lambda: drain_by(through_async_penstock),
        },
    )
    pushing = ratio(found["push, async"], found["push, sync"])
    draining = ratio(found["drain, async"], found["drain, sync"])
    for name, rates in found.items():
        print(f"{name:<24} {spread(rates)} tasks/s")
    report("clients", {"tasks": tasks, "rates": found, "ratio_push": pushing, "ratio_drain": draining})
    return all(
        [
            judged("async push / sync push", pushing, 0.9, at_least=True),
            judged("async drain / sync drain", draining, 0.9, at_least=True),
        ]
    )


# --- depth ----------------------------------------------------------------------------------------------------------


def depth(server: Bench, rounds: int = ROUNDS, sizes: tuple[int, ...] = (10_000, 1_000_000, 10_000_000)) -> bool:
    """A claim and a status cost the same at ten million as at ten thousand."""
    dsns: dict[int, str] = {}
    stack = []
    for size in sizes:
        context = server.database()
        dsn = context.__enter__()
        stack.append(context)
        dsns[size] = dsn
        print(f"  loading {size:,}", flush=True)
        with Penstock(dsn) as penstock:
            penstock.queue("bench").push_many({"invoice": n, "note": "x" * 60} for n in range(size))
            penstock.upkeep()
        with server.sql(dsn) as connection:
            connection.execute("vacuum analyze")
    with server.sql(server.server.dsn) as connection:
        connection.execute("checkpoint")

    def measured(dsn: str, limit: int) -> float:
        """Returns the median milliseconds of a claim, and leaves as many tasks as before, and no dead rows."""
        with Penstock(dsn) as penstock:
            queue = penstock.queue("bench")
            claims = [queue.claim(1)]
            found = middle(lambda: claims.append(queue.claim(limit)), 50)
            assert all(len(claim) == limit for claim in claims[1:])
            for claim in claims:
                queue.settle(claim)
            queue.push_many({"invoice": n, "note": "x" * 60} for n in range(sum(map(len, claims))))
            penstock.upkeep()
        with server.sql(dsn) as connection:
            connection.execute("vacuum")
        return found

    def status(dsn: str) -> float:
        with Penstock(dsn) as penstock:
            penstock.upkeep()
            queue = penstock.queue("bench")
            queue.status()
            return middle(queue.status, 100)

    def select_one(dsn: str) -> float:
        with psycopg.connect(dsn, autocommit=True) as connection:
            return middle(lambda: connection.execute("select 1").fetchone(), 500)

    sides: dict[str, Callable[[], float]] = {}
    for size, dsn in dsns.items():
        sides[f"claim 1 at {size:,}"] = partial(measured, dsn, 1)
        sides[f"claim 100 at {size:,}"] = partial(measured, dsn, 100)
        sides[f"status at {size:,}"] = partial(status, dsn)
    sides["select 1"] = lambda: select_one(dsns[sizes[0]])
    found = alternate(rounds, sides)
    for name, times in found.items():
        print(f"{name:<28} {statistics.median(times):.3f} ms ({min(times):.3f} – {max(times):.3f})")
    small, large = f"{sizes[0]:,}", f"{sizes[-1]:,}"
    figures = {
        "claim_1": ratio(found[f"claim 1 at {large}"], found[f"claim 1 at {small}"]),
        "claim_100": ratio(found[f"claim 100 at {large}"], found[f"claim 100 at {small}"]),
        "status": ratio(found[f"status at {large}"], found[f"status at {small}"]),
        "status_select_1": ratio(found[f"status at {large}"], found["select 1"]),
    }
    report("depth", {"sizes": sizes, "milliseconds": found, **figures})
    for context in stack:
        context.__exit__(None, None, None)
    return all(
        [
            judged(f"claim 1 at {large} / at {small}", figures["claim_1"], 1.5, at_least=False),
            judged(f"claim 100 at {large} / at {small}", figures["claim_100"], 1.5, at_least=False),
            judged(f"status at {large} / at {small}", figures["status"], 2, at_least=False),
            judged(f"status at {large} / select 1", figures["status_select_1"], 10, at_least=False),
        ]
    )


def middle(call: Callable[[], object], times: int) -> float:
    """Returns the median milliseconds of `times` calls."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append((time.perf_counter() - began) * 1e3)
    return statistics.median(found)


# --- snapshot -------------------------------------------------------------------------------------------------------


def snapshot(server: Bench, tasks: int = 300_000, rounds: int = ROUNDS, part: int = 50_000) -> bool:
    """While a snapshot is held no dead row can be removed, and the last tasks must drain as fast as the first."""
    rows = payloads(tasks)
    found: dict[str, list[float]] = {"first": [], "last": []}
    for n in range(rounds):
        with server.database() as dsn:
            with Penstock(dsn) as penstock:
                penstock.queue("bench").push_many(rows)
            with psycopg.connect(dsn) as holder:
                holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                holder.execute("select count(*) from penstock.queue")
                began, marks = drained(through_penstock, dsn, 2)
                holder.rollback()
        first, last = rates(began, marks, part)
        found["first"].append(first)
        found["last"].append(last)
        print(f"  round {n + 1}  first {first:,.0f}/s  last {last:,.0f}/s", flush=True)
    kept = ratio(found["last"], found["first"])
    for name, values in found.items():
        print(f"{name:<24} {spread(values)} tasks/s")
    report("snapshot", {"tasks": tasks, "rates": found, "ratio": kept})
    return judged(f"last {part:,} / first {part:,} under a held snapshot", kept, 0.85, at_least=True)


def rates(began: float, marks: list[tuple[float, int]], part: int) -> tuple[float, float]:
    """Returns the rates of the first and of the last `part` tasks."""
    done, first_end, last_start = 0, marks[-1][0], began
    total = sum(size for _, size in marks)
    for at, size in marks:
        if done < part <= done + size:
            first_end = at
        if done <= total - part < done + size:
            last_start = at
        done += size
    # From the first completion on, because starting two interpreters is not the queue's work.
    return part / (first_end - marks[0][0]), part / (marks[-1][0] - last_start)


# --- size -----------------------------------------------------------------------------------------------------------


def size(server: Bench, tasks: int = 200_000) -> bool:
    """Bytes per waiting task, and what PostgreSQL writes per task: WAL, commits, dead rows. There is no bar."""
    figures: dict[str, Any] = {}
    with server.database() as dsn, Penstock(dsn) as penstock, server.sql(dsn) as connection:
        queue = penstock.queue("bench")
        claims: list[Claim] = []
        steps: dict[str, Callable[[], object]] = {
            "push": lambda: queue.push_many(payloads(tasks)),
            "claim": lambda: claim_all(queue, claims),
            "settle": lambda: [queue.settle(claim) for claim in claims],
        }
        for name, step in steps.items():
            before = Footprint.take(connection)
            step()
            after = Footprint.take(connection).since(before)
            figures[name] = {
                "wal_bytes": after.wal / tasks,
                "commits": after.commits / tasks,
                "dead_rows": sum(value for value in after.dead.values() if value > 0) / tasks,
            }
            if name == "push":
                figures["bytes_per_waiting_task"] = sizes_of(connection, tasks)
    waiting = figures["bytes_per_waiting_task"]
    parts = " + ".join(f"{share:.0f} {relation}" for relation, share in waiting.items())
    print(f"bytes per waiting task: {sum(waiting.values()):.0f} = {parts}")
    print("the seed says 116 for its one table, before indexes and with an empty payload")
    for name in ("push", "claim", "settle"):
        print(f"{name:<8} " + ", ".join(f"{word} {value:.3f}" for word, value in figures[name].items()))
    report("size", {"tasks": tasks, **figures})
    return True


def claim_all(queue: Queue, claims: list[Claim]) -> None:
    while claim := queue.claim(500, lease="1h"):
        claims.append(claim)


def sizes_of(connection: psycopg.Connection, tasks: int) -> dict[str, float]:
    rows = connection.execute(
        "select c.relname, pg_relation_size(c.oid) from pg_class as c join pg_namespace as n on n.oid = c.relnamespace"
        " where n.nspname = 'penstock' and c.relname in ('task', 'task_pkey', 'agenda', 'agenda_pkey', 'agenda_pick')"
    ).fetchall()
    return {name: size / tasks for name, size in rows}


# --- attempts -------------------------------------------------------------------------------------------------------

# One row for each attempt of tasks that end in the order of their ids, spread over the last days, as a drain in batches
# of 500 leaves them. Each day is written by itself, so that its index is summarized as the days of a real queue are.
HISTORY = """
    insert into penstock.history (task_id, created, due, claimed_at, finished_at, queue_id, iteration, attempt, outcome,
                                  kind, worker)
    select n, m.at, m.at, m.at, m.at, 1, 0, 1, 'done', 'default', 'bench'
    from generate_series(%(first)s::bigint, %(last)s::bigint) as n
    cross join lateral (select %(day)s::timestamptz + n %% 500 * interval '1 ms' as at) as m
"""
DAYS = 10


def attempts(server: Bench, tasks: int = 5_000_000, looks: int = 40) -> bool:
    """The attempts of one task among those of `tasks` others in ten days, and why it does not run. There is no bar."""
    found: dict[str, list[float]] = {}
    with server.database() as dsn, Penstock(dsn) as penstock, server.sql(dsn) as connection:
        queue = penstock.queue("bench")
        write_history(connection, tasks)
        some = random.Random(1).sample(range(1, tasks + 1), looks)
        connection.execute("select setval('penstock.task_id_seq', %s)", (tasks,))
        live = [queue.push(delay="1h").id for _ in range(looks)]
        sides: dict[str, tuple[list[int], Callable[[int], object]]] = {
            "attempts, removed": (some, queue.attempts),
            "attempts, live": (live, queue.attempts),
            "why, removed": (some, queue.why),
            "why, live": (live, queue.why),
        }
        queue.status()  # connects
        for name, (ids, ask) in sides.items():
            found[name] = sorted(timed(partial(ask, id_)) for id_ in ids)
            print(f"{name:<20} {statistics.median(found[name]):.2f} ms, at most {found[name][-1]:.2f} ms")
        assert {len(queue.attempts(id_)) for id_ in some} == {1}
    report("attempts", {"tasks": tasks, "looks": looks, "milliseconds": found})
    return True


def write_history(connection: psycopg.Connection, tasks: int) -> None:
    """Writes an attempt of each of these tasks, in days before today, and summarizes their indexes."""
    for n in range(DAYS):
        at = {"day": f"{datetime.now(UTC).date() - timedelta(days=DAYS - n)} 12:00Z"}
        connection.execute("select penstock._make_history(%(day)s::timestamptz::date)", at)
        connection.execute(HISTORY, at | {"first": n * tasks // DAYS + 1, "last": (n + 1) * tasks // DAYS})
    connection.execute("vacuum analyze penstock.history")


def timed(call: Callable[[], object]) -> float:
    """Returns the milliseconds of one call."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


BENCHES: dict[str, Callable[..., bool]] = {
    "push": push,
    "drain": drain,
    "upsert": upsert,
    "clients": clients,
    "depth": depth,
    "snapshot": snapshot,
    "size": size,
    "attempts": attempts,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=[*BENCHES, "all"])
    parser.add_argument("--tasks", type=int, help="fewer tasks, for a quick look; the bars are meant for the default")
    parser.add_argument("--rounds", type=int)
    given = parser.parse_args()
    options = {name: value for name, value in (("tasks", given.tasks), ("rounds", given.rounds)) if value}
    kept = []
    with bench() as server:
        for name in BENCHES if given.which == "all" else [given.which]:
            print(f"\n== {name}: {(BENCHES[name].__doc__ or '').strip()}", flush=True)
            kept.append(BENCHES[name](server, **options))
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
