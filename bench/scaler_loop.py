"""The scaler at work, measured. python bench/scaler_loop.py [decision] [rest] [replay]

decision  one decision with its SQL (collect → decide → record) among 100 queues with a million waiting tasks, by
          `select 1` on the same kind of connection: of one queue, of all while no task has ever finished, of all when
          it is known how long tasks take, and the look alone
rest      processor time that PostgreSQL spends on a scaler of idle queues, of all there is
replay    a trace on real processes, against the simulation of it: breaches and worker-seconds
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent.parent)


from bench.support.harness import Bench, bench, report, spread
from penstock import NewTask, Penstock, Queue
from penstock.client import scaling
from penstock.client.database import Database
from penstock.scaler.judge.simulate import simulate
from penstock.scaler.judge.traces import Trace
from penstock.scaler.policy.policies import find
from penstock.scaler.policy.signals import Limits
from penstock.scaler.run.budget import Budget
from penstock.scaler.run.fleet import AdvisedWorkers, LocalWorkers, Recipe, Workers
from penstock.scaler.run.hold import new_holder
from penstock.scaler.run.loop import Scaler
from penstock.scaler.run.plan import ScalingPlan

HANDLER = """
import time
from penstock import Penstock

app = Penstock()

@app.task(queue="{queue}", kind="default")
def work(seconds: float) -> None:
    time.sleep(seconds)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=["decision", "rest", "replay", []], default=[])
    parser.add_argument("--queues", type=int, default=100)
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=60.0, help="of rest")
    parser.add_argument("--trace", type=float, default=180.0, help="seconds of the trace that is replayed")
    given = parser.parse_args()
    figures: dict[str, object] = {}
    with bench() as server:
        for part in given.parts or ["decision", "rest", "replay"]:
            print(part)
            if part == "decision":
                figures[part] = one_decision(server, given.queues, given.pending, given.rounds)
            elif part == "rest":
                figures[part] = at_rest(server, given.queues, given.seconds)
            else:
                figures[part] = replayed(server, given.trace)
    report("scaler_loop", figures)


def made(dsn: str, names: list[str]) -> None:
    with Penstock(dsn) as penstock:
        for name in names:
            penstock.create_queue(name, sla="30s", exist_ok=True)


def scaler_of(database: Database, workers: dict[str, Workers], limits: Limits) -> Scaler:
    plan = ScalingPlan(
        limits=dict.fromkeys(workers, limits),
        policy=find("deadline"),
        budget=Budget(max_workers=limits.max_workers),
        interval=limits.interval,
    )
    holder = new_holder()
    for one in workers.values():
        if isinstance(one, LocalWorkers):
            holder = one.holder
    return Scaler(plan, database, workers, holder=holder, say=lambda _: None, tell=print)


# --- one decision -----------------------------------------------------------------------------------------------------


def one_decision(server: Bench, queues: int, pending: int, rounds: int) -> dict[str, float]:
    names = [f"q{n}" for n in range(queues)]
    with server.database(queue="q0") as dsn:
        made(dsn, names)
        with Penstock(dsn) as penstock:
            for name in names:
                penstock.queue(name).push_many({} for _ in range(pending // queues))
            penstock.upkeep()
        database = Database(dsn)
        limits = Limits(sla=30.0, min_workers=0, max_workers=1000, slots=10, interval=1.0)
        workers: dict[str, Workers] = {name: AdvisedWorkers(name, 10) for name in names}
        scaler = scaler_of(database, workers, limits)
        scaler.take()
        asked = scaler.collector.requests()
        single = scaler_of(database, {"q0": AdvisedWorkers("q0", 10)}, limits)
        ones, looks, ticks, singles = [], [], [], []
        with server.sql(dsn) as sql:
            sql.execute("vacuum analyze")
            for _ in range(rounds):
                ones.append(timed(lambda: sql.execute("select 1").fetchone(), 200))
                ticks.append(timed(scaler.tick))
                looks.append(timed(lambda: scaling.scaler_snapshot(database, asked)))
            for track in scaler.collector.tracks.values():
                track.service.add(busy=1000.0, ended=10_000, seconds=0.0)
            knowing = [timed(scaler.tick) for _ in range(rounds)]
            scaler.stop()
            single.take()
            for _ in range(rounds):
                ones.append(timed(lambda: sql.execute("select 1").fetchone(), 200))
                singles.append(timed(single.tick))
        database.close()
    one = statistics.median(ones)
    measured = {"one_queue": singles, "all_queues": ticks, "all_queues_knowing": knowing, "look_at_all": looks}
    print(f"  {'select_1':<20} {spread([each * 1e6 for each in ones]):>28} us")
    for name, seconds in measured.items():
        print(f"  {name:<20} {spread([each * 1e3 for each in seconds]):>28} ms")
    found = {"select_1_us": one * 1e6}
    found |= {f"{name}_ms": statistics.median(seconds) * 1e3 for name, seconds in measured.items()}
    found |= {f"{name}_ratio": statistics.median(seconds) / one for name, seconds in measured.items()}
    for name, value in found.items():
        print(f"  {name:<26} {value:>12,.1f}")
    return found


def timed(call: Callable[[], object], times: int = 1) -> float:
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times


# --- at rest ----------------------------------------------------------------------------------------------------------


def at_rest(server: Bench, queues: int, seconds: float) -> dict[str, float]:
    """Measures the processor time of PostgreSQL with the loop, minus that without it, as a share of all cores."""
    names = [f"q{n}" for n in range(queues)]
    found = {}
    for count in (1, queues):
        with server.database(queue="q0") as dsn:
            made(dsn, names[:count])
            alone = spent(server.server.pid, seconds / 4, lambda: None) / (seconds / 4)
            database = Database(dsn)
            workers: dict[str, Workers] = {name: AdvisedWorkers(name, 10) for name in names[:count]}
            limits = Limits(sla=30.0, min_workers=0, max_workers=1000, slots=10, interval=1.0)
            scaler = scaler_of(database, workers, limits)
            scaler.take()
            with_loop = spent(server.server.pid, seconds, scaler.tick) / seconds
            database.close()
        share = 100 * max(0.0, with_loop - alone) / (os.cpu_count() or 1)
        found[f"percent_{count}_queues"] = share
        print(f"  {count:>4} queues {share:>12.2f} % of the machine's processor time")
    return found


def spent(postmaster: int, seconds: float, tick: Callable[[], object]) -> float:
    before, until = processor_seconds(postmaster), time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        tick()
        time.sleep(max(0.0, began + 1.0 - time.monotonic()))
    return processor_seconds(postmaster) - before


def processor_seconds(postmaster: int) -> float:
    """Returns the processor seconds of the server and its processes, ended ones included."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, rest = stat.read_text("ascii", "replace").rpartition(")")
        except OSError:
            continue
        words = rest.split()
        if int(words[1]) == postmaster:
            total += int(words[11]) + int(words[12])
        elif int(head.split()[0]) == postmaster:
            total += sum(map(int, words[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


# --- a trace on real processes, and simulated -----------------------------------------------------------------------


def trace_of(seconds: float, seed: int = 1) -> Trace:
    """Makes a trace that is calm, steps up and is calm again, with tasks of about half a second."""
    dice = random.Random(seed)
    due, now = [], 0.0
    while now < seconds:
        now += dice.expovariate(5.0 if seconds / 3 <= now < 2 * seconds / 3 else 1.0)
        due.append(now)
    due = [one for one in due if one < seconds]
    service = [min(2.0, max(0.1, dice.expovariate(2.0))) for _ in due]
    return Trace("replayed", due, service, [*due], seconds)


def replayed(server: Bench, seconds: float) -> dict[str, float]:
    trace = trace_of(seconds)
    sla = 5.0
    with server.database(queue="replay") as dsn, tempfile.TemporaryDirectory() as home:
        Path(home, "replayed_app.py").write_text(HANDLER.format(queue="replay"), "utf-8")
        with Penstock(dsn) as penstock:
            penstock.queue("replay").set(sla=f"{sla}s")
        limits = Limits(sla=sla, min_workers=1, max_workers=8, slots=1, interval=1.0, start_latency=2.0)
        latency, cost, before = on_processes(dsn, home, trace, limits)
        with server.sql(dsn) as sql:
            row = sql.execute(
                "select count(*), count(*) filter (where claimed_at - due > make_interval(secs => %s)) "
                "from penstock.history where outcome = 'done'",
                (sla,),
            ).fetchone()
            assert row is not None
    simulated = simulate(trace, find("deadline"), replace(limits, start_latency=latency))
    real = 100 * row[1] / max(1, row[0])
    found = {
        "tasks": float(row[0]),
        "start_latency_s": latency,
        "real_breach_percent": real,
        "simulated_breach_percent": 100 * simulated.breach_rate,
        "breach_difference_points": real - 100 * simulated.breach_rate,
        "real_worker_seconds": cost,
        "simulated_worker_seconds": simulated.worker_seconds,
        "cost_difference_percent": 100 * (cost / simulated.worker_seconds - 1),
        "before_s": before,
    }
    for name, value in found.items():
        print(f"  {name:<28} {value:>12,.2f}")
    return found


def on_processes(dsn: str, home: str, trace: Trace, limits: Limits) -> tuple[float, float, float]:
    """Returns the measured start latency, the worker-seconds from the first arrival on, and the seconds before it."""
    holder, database = new_holder(), Database(dsn)
    os.environ["PYTHONPATH"] = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    recipe = Recipe("replayed_app:app", dsn, limits.slots, quiet=True)
    local = LocalWorkers("replay", holder, recipe, lambda _: None)
    scaler = scaler_of(database, {"replay": local}, limits)
    scaler.take()
    began = time.monotonic()
    while not any(child.registered for child in local.children):
        scaler.tick()
        time.sleep(0.5)
    start = time.monotonic()
    pusher = threading.Thread(target=pushed, args=(dsn, trace, start), daemon=True)
    pusher.start()
    cost, last = 0.0, start
    with Penstock(dsn) as penstock:
        queue = penstock.queue("replay")
        while pusher.is_alive() or time.monotonic() < start + trace.duration or waits(queue):
            tick = time.monotonic()
            scaler.tick()
            time.sleep(max(0.0, tick + limits.interval - time.monotonic()))
            cost, last = cost + len(local.children) * (time.monotonic() - last), time.monotonic()
    latency = scaler.collector.latency or limits.start_latency
    scaler.stop()
    database.close()
    return latency, cost, start - began


def waits(queue: Queue) -> bool:
    status = queue.status()
    return bool(status.pending + status.active)


def pushed(dsn: str, trace: Trace, start: float) -> None:
    with Penstock(dsn) as penstock:
        queue, n = penstock.queue("replay"), 0
        while n < len(trace.due):
            some = []
            while n < len(trace.due) and trace.due[n] <= time.monotonic() - start:
                some.append(NewTask({"seconds": trace.service[n]}))
                n += 1
            queue.push_many(some)
            time.sleep(0.02)


if __name__ == "__main__":
    main()
