"""Workers and PostgreSQL are killed, frozen, cut off and told to stop: no task is lost, settled twice or stuck, the
counters are right, and transactional effects happen exactly once. A seed is printed; PENSTOCK_FAULT_SEED runs it
again."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from arena import Arena, refusals, send, start_arena
from penstock import Penstock
from penstock.embedded import Server
from workers import eventually

SEED = int(os.environ.get("PENSTOCK_FAULT_SEED", random.SystemRandom().randrange(2**32)))


@dataclass(frozen=True)
class Tier:
    tasks: int
    seconds: float


LONG = Tier(30_000, 90.0)
# In the quick tier the storm of test_campaign.py does such harm.
ONLY_LONG = pytest.mark.parametrize(
    "tier", [pytest.param(LONG, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)


def load(arena: Arena, tasks: int) -> None:
    """Pushes a third each of tasks with an effect at once, with an effect in the settling transaction, and no-ops."""

    def short() -> dict[str, Any]:
        return {"seconds": round(arena.dice.uniform(0, 0.1), 4)}

    arena.push("plain", tasks // 3, short)
    arena.push("exact", tasks // 3, short)
    arena.push("quick", tasks - 2 * (tasks // 3))


def run(tmp_path: Path, tier: Tier, every: float, blow: Callable[[Arena], None], lease: str = "1s") -> Arena:
    """Harms two workers of two processes each while they drain, and then lets them finish."""
    with start_arena(tmp_path, SEED, lease=lease) as arena:
        load(arena, tier.tasks)
        arena.keep(2, "--processes", "2", "--concurrency", "4")
        arena.harm(tier.seconds, every, lambda: blow(arena))
        arena.rest(60 + 2 * tier.seconds)
        verdict = arena.judge()
        assert verdict.ok, f"{verdict}\n{arena.tail()}"
        return arena


@ONLY_LONG
def test_kill_9_of_random_workers(tmp_path: Path, tier: Tier) -> None:
    def blow(arena: Arena) -> None:
        victims = [worker.pid for worker in arena.workers] + 2 * arena.runners()
        if victims:
            send(arena.dice.choice(victims), signal.SIGKILL)

    run(tmp_path, tier, 0.4, blow)


POINTS = (
    "before_claim_is_known",
    "after_claim",
    "mid_handler",
    "mid_batch",
    "before_settle",
    "after_settle_commit",
)


@ONLY_LONG
def test_exit_at_each_named_point(tmp_path: Path, tier: Tier) -> None:
    reached: set[str] = set()

    def blow(arena: Arena) -> None:
        point = arena.dice.choice([one for one in POINTS if one not in reached] or POINTS)
        (arena.points / f"{point}.{time.monotonic_ns()}").touch()
        reached.update(one["point"] for one in arena.operations() if one["op"] == "exit")

    with start_arena(tmp_path, SEED) as arena:
        load(arena, tier.tasks)
        arena.keep(2, "--processes", "2", "--concurrency", "4")
        arena.harm(tier.seconds, 0.15, lambda: blow(arena))
        for file in arena.points.iterdir():
            file.unlink(missing_ok=True)
        arena.rest(60 + 2 * tier.seconds)
        verdict = arena.judge()
        assert verdict.ok, f"{verdict}\n{arena.tail()}"
        found = {one["point"] for one in arena.operations() if one["op"] == "exit"}
    assert len(found) >= 4, found


@ONLY_LONG
def test_frozen_past_its_lease_then_a_zombie(tmp_path: Path, tier: Tier) -> None:
    """A worker is frozen with its supervisor for one and a half to three leases: all its settles are refused."""

    def blow(arena: Arena) -> None:
        pids = arena.freeze_while_it_holds()
        time.sleep(arena.dice.uniform(1.5, 3.0))
        for pid in pids:
            send(pid, signal.SIGCONT)
        if pids and arena.dice.random() < 0.3:  # it releases the tasks that it believes to hold
            send(pids[-1], signal.SIGTERM)

    arena = run(tmp_path, tier, 0.3, blow)
    assert refusals(arena, "settle") + refusals(arena, "extend") + refusals(arena, "release") > 0


@ONLY_LONG
def test_only_the_process_with_the_handlers_is_frozen(tmp_path: Path, tier: Tier) -> None:
    """Its supervisor lives, notices it, and lets its leases end."""

    def blow(arena: Arena) -> None:
        runners = arena.runners()
        if not runners:
            return
        victim = arena.dice.choice(runners)
        send(victim, signal.SIGSTOP)
        time.sleep(arena.dice.uniform(1.5, 2.5))
        send(victim, signal.SIGCONT)

    run(tmp_path, Tier(tier.tasks // 2, tier.seconds / 2), 0.3, blow)


@ONLY_LONG
def test_connections_are_ended_several_times_a_second(tmp_path: Path, tier: Tier) -> None:
    def blow(arena: Arena) -> None:
        with psycopg.connect(arena.dsn, autocommit=True) as sql:
            others = sql.execute(
                "select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
            ).fetchall()
            for (pid,) in arena.dice.sample(others, min(len(others), 2)):
                sql.execute("select pg_terminate_backend(%s)", (pid,))

    run(tmp_path, tier, 0.2, blow)


@ONLY_LONG
def test_postgresql_is_stopped_at_once_and_killed(tmp_path: Path, tier: Tier) -> None:
    def blow(arena: Arena) -> None:
        server = Server.running(arena.home / "pg")
        assert server is not None
        if arena.dice.random() < 0.5:
            server.stop("immediate")
        else:
            server.kill()
        time.sleep(arena.dice.uniform(0, 0.5))
        Server.start(arena.home / "pg", environ=os.environ)

    run(tmp_path, tier, 2.0, blow, lease="2s")


@ONLY_LONG
def test_a_storm_of_sigterm(tmp_path: Path, tier: Tier) -> None:
    def blow(arena: Arena) -> None:
        victims = [worker.pid for worker in arena.workers] + arena.runners()
        if victims:
            send(arena.dice.choice(victims), signal.SIGTERM)

    run(tmp_path, tier, 0.3, blow)


def test_a_handler_that_holds_the_interpreter_past_the_lease(tmp_path: Path) -> None:
    """The supervisor keeps the lease. Without the supervisor the lease is lost, and the late settle is refused."""
    with start_arena(tmp_path, SEED, lease="2s") as arena:
        arena.push("greedy", 2, lambda: {"seconds": 6})
        arena.push("quick", 200)
        arena.keep(1, "--processes", "2", "--concurrency", "1")
        arena.rest()
        starts = [one for one in arena.operations() if one["op"] == "greedy" and one["phase"] == "invoke"]
        assert len(starts) == 2, "once each: their worker was never taken for dead"
        assert arena.judge().ok

        # Long enough for another worker to start and expire its lease before it comes back.
        arena.push("greedy", 1, lambda: {"seconds": 12})
        arena.keep(1, "--processes", "1", "--concurrency", "1")
        until = time.monotonic() + 20
        last = arena.pushed["greedy"][-1]
        while not any(one["op"] == "greedy" and one["key"] == last for one in arena.operations()):
            assert time.monotonic() < until
            time.sleep(0.05)
        send(arena.workers[0].pid, signal.SIGKILL)
        arena.rest()
        # The orphan comes back from its handler.
        eventually(lambda: refusals(arena, "settle") + refusals(arena, "release"))
        verdict = arena.judge()
        assert verdict.ok, f"{verdict}\n{arena.tail()}"


@pytest.mark.slow  # tests/worker/test_crashes.py is a first look
def test_a_poison_task_is_found_and_the_others_live(tmp_path: Path) -> None:
    with start_arena(tmp_path, SEED) as arena:
        arena.push("quick", 50)
        arena.push("poison", 1)
        arena.push("quick", 49)
        arena.keep(1, "--processes", "1", "--concurrency", "100")
        arena.rest()
        with psycopg.connect(arena.dsn) as sql:
            rows = sql.execute("select kind, reason from penstock.task where ended = 'dead'").fetchall()
            attempts = sql.execute("select max(attempt) from penstock.history where kind = 'quick'").fetchone()
        assert rows == [("poison", "crashed")]
        assert attempts == (1,), "no other task lost an attempt"
        verdict = arena.judge()
        assert verdict.ok, verdict


END_ALL = (
    "select pg_terminate_backend(pid) from pg_stat_activity"
    " where backend_type = 'client backend' and pid <> pg_backend_pid()"
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_everything_at_once(tmp_path: Path) -> None:
    """All faults at random, and also a frozen PostgreSQL and no free connections."""

    def blow(arena: Arena) -> None:
        victims = [worker.pid for worker in arena.workers] + arena.runners()
        server = Server.running(arena.home / "pg")
        what = arena.dice.choice(("kill", "term", "freeze", "postgres", "terminate", "stop postgres", "connections"))
        if what in ("kill", "term") and victims:
            send(arena.dice.choice(victims), signal.SIGKILL if what == "kill" else signal.SIGTERM)
        elif what == "freeze" and victims:
            victim = arena.dice.choice(victims)
            send(victim, signal.SIGSTOP)
            time.sleep(arena.dice.uniform(0.5, 3))
            send(victim, signal.SIGCONT)
        elif what == "postgres" and server is not None:
            server.kill()
            Server.start(arena.home / "pg", environ=os.environ)
        elif what == "stop postgres" and server is not None:
            send(server.pid, signal.SIGSTOP)
            time.sleep(arena.dice.uniform(0.5, 3))
            send(server.pid, signal.SIGCONT)
        elif what == "terminate":
            with psycopg.connect(arena.dsn, autocommit=True) as sql:
                sql.execute(END_ALL)
        elif what == "connections":
            crowd: list[psycopg.Connection] = []
            try:
                while len(crowd) < 200:
                    crowd.append(psycopg.connect(arena.dsn))
            except psycopg.OperationalError:
                time.sleep(1)
            finally:
                for one in crowd:
                    one.close()

    run(tmp_path, LONG, 0.7, blow, lease="2s")


def test_the_checker_of_a_quiet_arena(tmp_path: Path) -> None:
    """The checker finds nothing without harm, and finds what is wrong."""
    with start_arena(tmp_path, SEED) as arena:
        load(arena, 300)
        arena.keep(1, "--processes", "1")
        arena.rest()
        assert arena.judge().ok
        arena.notes.write(op="push", phase="ok", batch="never", kind="quick", first=10**9, count=1)
        assert arena.judge().lost == 1
        with Penstock(arena.dsn) as app, psycopg.connect(arena.dsn, autocommit=True) as sql:
            sql.execute("insert into exact select * from exact limit 1")
            sql.execute("insert into penstock.history select * from penstock.history where outcome = 'done' limit 1")
            assert not app.verify().ok
        verdict = arena.judge()
        assert (verdict.inexact, verdict.completed_twice) == (1, 2), "one by its iteration, one by its key"
        assert verdict.drift
