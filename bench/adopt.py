"""The bars of adopted tables: python bench/adopt.py pass|rate|all

pass: one pass with 1,000 records due among 10 k, 100 k and 1 M. rate: records a second, against a bare loop."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent.parent)

import psycopg

from bench.support.harness import Bench, alternate, bench, judged, ratio, report, spread
from penstock import Backlog, Penstock
from penstock.backlog.propose import inspect

ROUNDS = 5
SIZES = (10_000, 100_000, 1_000_000)
TERMS: dict[str, Any] = {
    "key": "id",
    "status": "status",
    "inserted": "date_inserted",
    "ready": ["NEW"],
    "retry": ["ERROR"],
    "done": "SUCCESS",
    "failed": "ERROR",
    "dead": "DEAD",
}
MODES: dict[str, dict[str, Any]] = {
    "progressive": {"strategy": "progressive", "mode": "sidecar"},
    "columns": {"strategy": "fibonacci:1m", "failures": "failures", "last_failure": "last_failure"},
    "sidecar": {"strategy": "fibonacci:1m", "mode": "sidecar"},
}
TABLE = """
    create table public.backlog (
        id bigint primary key, status text not null, date_inserted timestamptz not null,
        failures int not null default 0, last_failure timestamptz, note text not null
    )
"""
# Of the first thousand records half are new, and half failed and are due. Of the others a tenth failed and is not due.
FILL = """
    insert into public.backlog
    select n, case when n <= 500 then 'NEW' when n <= 1000 or n % 10 = 0 then 'ERROR' else 'SUCCESS' end,
           now() - interval '6 days' + n * (interval '5 days' / {rows}), case when n > 1000 then 12 else 1 end,
           now() - interval '10 minutes', repeat('x', 100)
    from generate_series(1, {rows}) as n
"""
REMEMBER = """
    insert into penstock.adopted_record (adopted_id, key, failures, last_failure, due)
    select a.id, array[b.id::text], b.failures, b.last_failure,
           case when b.id <= 1000 then now() - interval '9 minutes' else now() + interval '1 hour' end
    from public.backlog as b cross join penstock.adopted as a where b.status = 'ERROR'
    on conflict (adopted_id, key) do update set due = excluded.due, failures = excluded.failures
"""
AGAIN = """
    update public.backlog set status = case when id <= 500 then 'NEW' else 'ERROR' end, failures = 1,
           last_failure = now() - interval '10 minutes' where id <= 1000
"""


def nothing(record: dict[str, Any]) -> None:
    pass


def adopted(dsn: str, mode: str, *, index: bool = True) -> Backlog:
    with Penstock(dsn) as app:
        _, backlog = inspect(app.dsn, app.dsn_source, "public.backlog", TERMS | MODES[mode], apply=True, index=index)
    assert backlog is not None
    return backlog


def passes(server: Bench, rounds: int = ROUNDS) -> bool:
    kept, figures = True, {}
    for mode in MODES:
        timed: dict[str, list[float]] = {}
        for rows in SIZES:
            with server.database() as dsn, server.sql(dsn) as sql:
                sql.execute(TABLE)
                sql.execute(FILL.format(rows=rows).encode())
                backlog = adopted(dsn, mode)
                sql.execute("vacuum analyze public.backlog")
                timed[str(rows)] = [one_pass(sql, backlog, mode) for _ in range(rounds + 1)][1:]
            print(f"  {mode:<12} {rows:>10,} rows  ms {spread(timed[str(rows)])}", flush=True)
        grown = statistics.median(timed[str(SIZES[-1])]) / statistics.median(timed[str(SIZES[0])])
        kept &= judged(f"a pass with 1,000 due among 1 M, against 10 k, {mode}", grown, 1.5, at_least=False)
        figures[mode] = {"ms": timed, "ratio": grown}
    report("adopt-pass", {"figures": figures})
    return kept


def one_pass(sql: psycopg.Connection, backlog: Backlog, mode: str) -> float:
    """Returns the milliseconds of a pass for a thousand records. By ticks, some hundred more are due in a million."""
    sql.execute(AGAIN)
    if mode == "sidecar":
        sql.execute(REMEMBER)
        sql.execute("vacuum analyze penstock.adopted_record")
    if mode == "progressive":
        # All of the 500 have a tick in the last ten seconds, but few of the others, which are spread evenly.
        sql.execute(
            "update public.backlog set date_inserted = now() - interval '60 hours' - random() * interval '5 seconds'"
            " where id <= 1000"
        )
        sql.execute("update penstock.adopted set tick = now() - interval '10 seconds', key = null")
    sql.execute("vacuum public.backlog")
    began = time.perf_counter()
    told = backlog.process(nothing)
    took = (time.perf_counter() - began) * 1000
    assert told.done >= 1000, told
    return took * 1000 / told.done


# --- records a second -------------------------------------------------------------------------------------------------


def bare(dsn: str, size: int = 500) -> int:
    """A good handwritten loop."""
    handled = 0
    with psycopg.connect(dsn) as connection:
        while True:
            rows = connection.execute(
                "select * from public.backlog where status = 'NEW' order by date_inserted, id limit %s"
                " for update skip locked",
                (size,),
            ).fetchall()
            if not rows:
                return handled
            for row in rows:
                nothing({"id": row[0]})
            connection.execute(
                "update public.backlog set status = 'SUCCESS' where id = any(%s)", ([r[0] for r in rows],)
            )
            connection.commit()
            handled += len(rows)


def rates(server: Bench, records: int = 60_000, rounds: int = ROUNDS) -> bool:
    def run(drain: Callable[[str], int], mode: str) -> float:
        with server.database() as dsn, server.sql(dsn) as sql:
            sql.execute(TABLE)
            sql.execute(FILL.format(rows=records).encode())
            sql.execute("update public.backlog set status = 'NEW'")
            adopted(dsn, mode)
            sql.execute("vacuum full public.backlog")
            sql.execute("vacuum analyze public.backlog")
            sql.execute("checkpoint")
            began = time.perf_counter()
            assert drain(dsn) == records
            return records / (time.perf_counter() - began)

    def ours(dsn: str) -> int:
        with Penstock(dsn) as app:
            return app.backlog("backlog").process(nothing).done

    sides: dict[str, Callable[[], float]] = {"bare": partial(run, bare, "progressive")}
    sides |= {mode: partial(run, ours, mode) for mode in MODES}
    found = alternate(rounds, sides)
    kept = True
    for mode in MODES:
        print(f"  {mode}: {spread(found[mode])} records/s; bare {spread(found['bare'])}")
        kept &= judged(f"records/s against a bare loop, {mode}", ratio(found[mode], found["bare"]), 0.6, at_least=True)
    report("adopt-rate", {"records_per_second": found})
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["pass", "rate", "all"], nargs="?", default="all")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    told = parser.parse_args()
    kept = True
    with bench() as server:
        if told.what in ("pass", "all"):
            kept &= passes(server, told.rounds)
        if told.what in ("rate", "all"):
            kept &= rates(server, rounds=told.rounds)
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
