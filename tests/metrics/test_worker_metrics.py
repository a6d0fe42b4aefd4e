"""Metrics of a worker: what its processes measured, added up and served beside the probe."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg
import pytest

from conftest import Clock
from penstock import NewTask, Penstock, Queue
from prometheus import Labels, fetch, labels, promtool, read
from proxy import Lane
from workers import Worker, eventually, free_port, probe, working

CANARY = "canary-in-a-mine"
JOBS = """
@app.task(queue="work")
def threaded(secret: str) -> None:
    time.sleep(0.03)

@app.task(queue="work", retry="fixed:1h")
def fails(secret: str) -> None:
    raise ValueError(secret)

@app.task(queue="work")
async def awaited(secret: str) -> None:
    await asyncio.sleep(0.03)

@app.task(queue="work", run="process")
def apart(secret: str) -> None:
    time.sleep(0.03)

@app.task(queue="work", batch=10)
def together(tasks: list[Task]) -> None:
    began = time.perf_counter()
    time.sleep(0.4)
    note(time.perf_counter() - began)

@app.task(queue="work")
def settled(secret: str, context: Context) -> None:
    with context.transaction() as connection:
        connection.execute("select 1")

@app.task(queue="work")
def tiny(n: int) -> None: ...

@app.task(queue="work")
def holds() -> None:
    note("holds")
    wait_for("go")

@app.task(queue="many", kind="*")
def any_kind() -> None:
    time.sleep(0.001)
"""
WORK = ("--queues", "work")
Samples = dict[str, dict[Labels, float]]


def metrics_at(port: int) -> Samples:
    text = fetch(f"http://127.0.0.1:{port}/metrics")
    assert CANARY not in text
    return read(text)


def counts(found: Samples, name: str) -> dict[tuple[str, ...], float]:
    """The counts of the histograms of a metric, by kind and outcome."""
    samples = [(dict(one), n) for one, n in found.get(f"{name}_count", {}).items()]
    return {tuple(one[word] for word in ("kind", "outcome") if word in one): n for one, n in samples}


def eventually_counted(port: int, is_expected: Callable[[dict[tuple[str, ...], float]], bool]) -> Samples:
    """Waits until the waits are counted as expected: a process reports once a second."""
    found: Samples = {}

    def counted() -> bool:
        found.clear()
        found.update(metrics_at(port))
        return is_expected(counts(found, "penstock_wait_seconds"))

    eventually(counted)
    return found


def bucket(found: Samples, name: str, le: str, **words: str) -> float:
    return found[f"{name}_bucket"][labels(le=le, **words)]


def is_replaced(worker: Worker, gone: list[int]) -> bool:
    return worker.runners not in ([], gone)


def all_settled(queue: Queue) -> Callable[[], bool]:
    return lambda: (queue.status().pending, queue.status().active) == (0, 0)


def test_every_way_to_run_is_measured(app: Penstock, dsn: str, sql: psycopg.Connection, tmp_path: Path) -> None:
    queue = app.create_queue("work", sla="42s", max_attempts=3)
    kinds = ("threaded", "fails", "awaited", "apart", "together", "settled")
    queue.push_many([NewTask({"secret": CANARY}, f"{CANARY}{kind}{n}", kind=kind) for kind in kinds for n in range(3)])
    queue.push({"secret": CANARY}, kind="unknown")
    sql.execute("update penstock.agenda set due = due - interval '40 seconds'")
    port = free_port()
    with working(tmp_path, dsn, JOBS, "--health", str(port), *WORK, processes=2) as worker:
        eventually(all_settled(queue))
        found = eventually_counted(port, {(kind,): 3 for kind in kinds}.__eq__)
        outcomes = {(kind, "failed" if kind == "fails" else "done"): 3 for kind in kinds}
        assert counts(found, "penstock_run_seconds") == outcomes, "the task of an unknown kind was not run"
        for kind in ("threaded", "awaited", "apart"):
            words = {"queue": "work", "kind": kind, "outcome": "done"}
            assert bucket(found, "penstock_run_seconds", "0.025", **words) == 0
            assert found["penstock_run_seconds_sum"][labels(**words)] >= 0.09
        together = labels(queue="work", kind="together", outcome="done")
        spent = sum(map(float, worker.noted))
        assert spent <= found["penstock_run_seconds_sum"][together] < spent + 0.39, "each task counts with its share"
        for kind in kinds:
            waited = found["penstock_wait_seconds_sum"][labels(queue="work", kind=kind)]
            assert 120 <= waited < 160, kind
            assert bucket(found, "penstock_wait_seconds", "30", queue="work", kind=kind) == 0
            assert bucket(found, "penstock_wait_seconds", "60", queue="work", kind=kind) == 3
        edges = {dict(one)["le"] for one in found["penstock_wait_seconds_bucket"]}
        assert "42" in edges, "the SLA is an edge"
        assert found["penstock_worker_healthy"] == {labels(): 1}
        assert found["penstock_worker_processes"] == {labels(): 2}
        assert found["penstock_lease_losses_total"] == {labels(queue="work"): 0}
        promtool("check", "metrics", stdin=fetch(f"http://127.0.0.1:{port}/metrics"))
        assert probe(port)[0] == 200
        assert worker.stop() == 0


@pytest.mark.parametrize("processes", [1, os.cpu_count() or 1])
def test_each_tiny_task_is_counted_once(queue: Queue, dsn: str, tmp_path: Path, processes: int) -> None:
    """With as many processes as cores, one thread claims, runs and settles them."""
    port = free_port()
    with working(tmp_path, dsn, JOBS, "--health", str(port), *WORK, processes=processes) as worker:
        queue.push_many(NewTask({"n": n}, kind="tiny") for n in range(20_000))
        eventually(lambda: queue.status().totals["done"] == 20_000)
        found = eventually_counted(port, {("tiny",): 20_000}.__eq__)
        assert counts(found, "penstock_run_seconds") == {("tiny", "done"): 20_000}
        assert 0 < found["penstock_run_seconds_sum"][labels(queue="work", kind="tiny", outcome="done")] < 60
        assert worker.stop() == 0


def test_what_a_process_measured_outlives_it(queue: Queue, dsn: str, tmp_path: Path) -> None:
    port = free_port()
    with working(tmp_path, dsn, JOBS, "--health", str(port), *WORK) as worker:
        for ran in (1, 2):
            queue.push({"secret": ""}, kind="threaded")
            eventually_counted(port, {("threaded",): ran}.__eq__)
            gone = worker.runners
            os.kill(gone[0], signal.SIGKILL)
            eventually(partial(is_replaced, worker, gone))
        assert counts(metrics_at(port), "penstock_run_seconds") == {("threaded", "done"): 2}


def test_too_many_kinds_share_one_series(app: Penstock, dsn: str, tmp_path: Path) -> None:
    app.create_queue("work")
    queue = app.create_queue("many")
    queue.push_many([NewTask(kind=f"kind{n}") for n in range(230)])
    port = free_port()
    with working(tmp_path, dsn, JOBS, "--health", str(port), processes=2) as worker:
        eventually(all_settled(queue))
        found = eventually_counted(port, lambda waits: sum(waits.values()) == 230)
        waits = counts(found, "penstock_wait_seconds")
        assert len(waits) == 201
        assert waits["other",] == 30
        assert worker.stop() == 0


def test_a_lost_lease_and_a_reconnection_are_counted(
    queue: Queue, dsn: str, sql: psycopg.Connection, clock: Clock, lane: Lane, tmp_path: Path
) -> None:
    queue.set(lease="2s")
    queue.push(kind="holds")
    port = free_port()
    with working(tmp_path, lane.dsn(dsn), JOBS, "--health", str(port), *WORK) as worker:
        eventually(lambda: "holds" in worker.noted)
        assert metrics_at(port)["penstock_reconnects_total"] == {labels(): 0}
        with sql.transaction():
            clock.advance(10)
            sql.execute("select penstock.expire_leases('{work}')")
        eventually(lambda: metrics_at(port)["penstock_lease_losses_total"] == {labels(queue="work"): 1})
        lane.hang_statements()
        lane.reset()
        eventually(lambda: not probe(port)[1]["database"])
        lane.heal()
        lane.reset()
        eventually(lambda: metrics_at(port)["penstock_reconnects_total"][labels()] >= 1)
        worker.allow()
        assert worker.stop() == 0


def test_a_probe_in_a_file_measures_nothing(queue: Queue, dsn: str, tmp_path: Path) -> None:
    """Nothing serves the sums, so nothing adds them up; the plan says so to each process."""
    from penstock.worker.plan import Plan

    assert Plan("jobs:app", dsn, {"work": 1}, health="8080").measures
    assert Plan("jobs:app", dsn, {"work": 1}, health="0.0.0.0:8080").measures
    for health in (None, "/run/penstock/health", "alive"):
        plan = Plan("jobs:app", dsn, {"work": 1}, health=health)
        assert not plan.measures
        assert plan.runner_config("name", {}, {"work": 1.0}).slas is None


def test_the_probe_still_answers_a_bare_request(queue: Queue, dsn: str, tmp_path: Path) -> None:
    port = free_port()
    with working(tmp_path, dsn, JOBS, "--health", str(port), *WORK) as worker:
        eventually(lambda: probe(port)[0] == 200)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metricsandmore", timeout=5) as answer:
            assert answer.headers["Content-Type"] == "application/json"
        assert worker.stop() == 0
