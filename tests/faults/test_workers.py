"""Workers are killed, frozen, cut off and told to stop, PostgreSQL too: nothing lost, nothing settled twice, nothing
stuck, counters true, transactional effects exactly once. A seed is printed; PENSTOCK_FAULT_SEED runs it again."""

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

from arena import Arena, arena, refusals, send
from penstock import Penstock
from penstock.embedded import Server
from workers import eventually

SEED = int(os.environ.get("PENSTOCK_FAULT_SEED", random.SystemRandom().randrange(2**32)))


@dataclass(frozen=True)
class Tier:
    tasks: int
    seconds: float


QUICK, LONG = Tier(3000, 8.0), Tier(30_000, 90.0)
TIERS = pytest.mark.parametrize(
    "tier",
    [
        pytest.param(QUICK, id="quick"),
        pytest.param(LONG, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)


def load(place: Arena, tasks: int) -> None:
    """A third of each: an effect at once, one in the settling transaction, and no-ops."""

    def short() -> dict[str, Any]:
        return {"seconds": round(place.dice.uniform(0, 0.1), 4)}

    place.push("plain", tasks // 3, short)
    place.push("exact", tasks // 3, short)
    place.push("quick", tasks - 2 * (tasks // 3))


def run(tmp_path: Path, tier: Tier, every: float, blow: Callable[[Arena], None], lease: str = "1s") -> Arena:
    """Two workers of two processes each, harmed while they drain, then left in peace."""
    with arena(tmp_path, SEED, lease=lease) as place:
        load(place, tier.tasks)
        place.keep(2, "--processes", "2", "--concurrency", "4")
        place.harm(tier.seconds, every, lambda: blow(place))
        place.rest(60 + 2 * tier.seconds)
        verdict = place.judge()
        assert verdict.ok, f"{verdict}\n{place.tail()}"
        return place


@TIERS
def test_kill_9_of_random_workers(tmp_path: Path, tier: Tier) -> None:
    def blow(place: Arena) -> None:
        victims = [worker.pid for worker in place.workers] + 2 * place.runners()
        if victims:
            send(place.dice.choice(victims), signal.SIGKILL)

    run(tmp_path, tier, 0.4, blow)


POINTS = (
    "before_claim_is_known",
    "after_claim",
    "mid_handler",
    "mid_batch",
    "before_settle",
    "after_settle_commit",
)


@TIERS
def test_exit_at_each_named_point(tmp_path: Path, tier: Tier) -> None:
    reached: set[str] = set()

    def blow(place: Arena) -> None:
        point = place.dice.choice([one for one in POINTS if one not in reached] or POINTS)
        (place.points / f"{point}.{time.monotonic_ns()}").touch()
        reached.update(one["point"] for one in place.operations() if one["op"] == "exit")

    with arena(tmp_path, SEED) as place:
        load(place, tier.tasks)
        place.keep(2, "--processes", "2", "--concurrency", "4")
        place.harm(tier.seconds, 0.15, lambda: blow(place))
        for file in place.points.iterdir():
            file.unlink(missing_ok=True)
        place.rest(60 + 2 * tier.seconds)
        verdict = place.judge()
        assert verdict.ok, f"{verdict}\n{place.tail()}"
        found = {one["point"] for one in place.operations() if one["op"] == "exit"}
    assert len(found) >= 4, found


@TIERS
def test_frozen_past_its_lease_then_a_zombie(tmp_path: Path, tier: Tier) -> None:
    """Frozen with its supervisor for one and a half to three leases, then let go: whatever it says is refused."""

    def blow(place: Arena) -> None:
        pids = place.frozen_in_the_act()
        time.sleep(place.dice.uniform(1.5, 3.0))
        for pid in pids:
            send(pid, signal.SIGCONT)
        if pids and place.dice.random() < 0.3:  # it releases what it thinks it has
            send(pids[-1], signal.SIGTERM)

    place = run(tmp_path, tier, 0.3, blow)
    assert refusals(place, "settle") + refusals(place, "extend") + refusals(place, "release") > 0


@TIERS
def test_only_the_process_with_the_handlers_is_frozen(tmp_path: Path, tier: Tier) -> None:
    """Its supervisor lives, sees it, and lets its leases end."""

    def blow(place: Arena) -> None:
        runners = place.runners()
        if not runners:
            return
        victim = place.dice.choice(runners)
        send(victim, signal.SIGSTOP)
        time.sleep(place.dice.uniform(1.5, 2.5))
        send(victim, signal.SIGCONT)

    run(tmp_path, Tier(tier.tasks // 2, tier.seconds / 2), 0.3, blow)


@TIERS
def test_connections_are_ended_several_times_a_second(tmp_path: Path, tier: Tier) -> None:
    def blow(place: Arena) -> None:
        with psycopg.connect(place.dsn, autocommit=True) as sql:
            others = sql.execute(
                "select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
            ).fetchall()
            for (pid,) in place.dice.sample(others, min(len(others), 2)):
                sql.execute("select pg_terminate_backend(%s)", (pid,))

    run(tmp_path, tier, 0.2, blow)


@TIERS
def test_postgresql_is_stopped_at_once_and_killed(tmp_path: Path, tier: Tier) -> None:
    def blow(place: Arena) -> None:
        server = Server.running(place.home / "pg")
        assert server is not None
        if place.dice.random() < 0.5:
            server.stop("immediate")
        else:
            server.kill()
        time.sleep(place.dice.uniform(0, 0.5))
        Server.start(place.home / "pg", environ=os.environ)

    run(tmp_path, tier, 2.0, blow, lease="2s")


@TIERS
def test_a_storm_of_sigterm(tmp_path: Path, tier: Tier) -> None:
    def blow(place: Arena) -> None:
        victims = [worker.pid for worker in place.workers] + place.runners()
        if victims:
            send(place.dice.choice(victims), signal.SIGTERM)

    run(tmp_path, tier, 0.3, blow)


def test_a_handler_that_holds_the_interpreter_past_the_lease(tmp_path: Path) -> None:
    """The supervisor keeps its lease. When that is gone too, the lease is lost cleanly, and the late settle refused."""
    with arena(tmp_path, SEED, lease="2s") as place:
        place.push("greedy", 2, lambda: {"seconds": 6})
        place.push("quick", 200)
        place.keep(1, "--processes", "2", "--concurrency", "1")
        place.rest()
        starts = [one for one in place.operations() if one["op"] == "greedy" and one["phase"] == "invoke"]
        assert len(starts) == 2, "once each: nobody thought that their worker had died"
        assert place.judge().ok

        # So long that another worker has started, and expired its lease, before it comes back.
        place.push("greedy", 1, lambda: {"seconds": 12})
        place.keep(1, "--processes", "1", "--concurrency", "1")
        until = time.monotonic() + 20
        last = place.pushed["greedy"][-1]
        while not any(one["op"] == "greedy" and one["key"] == last for one in place.operations()):
            assert time.monotonic() < until
            time.sleep(0.05)
        send(place.workers[0].pid, signal.SIGKILL)
        place.rest()
        # The orphan comes back from its handler.
        eventually(lambda: refusals(place, "settle") + refusals(place, "release"))
        verdict = place.judge()
        assert verdict.ok, f"{verdict}\n{place.tail()}"


def test_a_poison_task_is_found_and_its_mates_live(tmp_path: Path) -> None:
    with arena(tmp_path, SEED) as place:
        place.push("quick", 50)
        place.push("poison", 1)
        place.push("quick", 49)
        place.keep(1, "--processes", "1", "--concurrency", "100")
        place.rest()
        with psycopg.connect(place.dsn) as sql:
            rows = sql.execute("select kind, reason from penstock.task where ended = 'dead'").fetchall()
            attempts = sql.execute("select max(attempt) from penstock.history where kind = 'quick'").fetchone()
        assert rows == [("poison", "crashed")]
        assert attempts == (1,), "no mate burned an attempt"
        verdict = place.judge()
        assert verdict.ok, verdict


END_ALL = (
    "select pg_terminate_backend(pid) from pg_stat_activity"
    " where backend_type = 'client backend' and pid <> pg_backend_pid()"
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_everything_at_once(tmp_path: Path) -> None:
    """All of it, by chance, with a frozen PostgreSQL and no connections left thrown in."""

    def blow(place: Arena) -> None:
        victims = [worker.pid for worker in place.workers] + place.runners()
        server = Server.running(place.home / "pg")
        what = place.dice.choice(("kill", "term", "freeze", "postgres", "terminate", "stop postgres", "connections"))
        if what in ("kill", "term") and victims:
            send(place.dice.choice(victims), signal.SIGKILL if what == "kill" else signal.SIGTERM)
        elif what == "freeze" and victims:
            victim = place.dice.choice(victims)
            send(victim, signal.SIGSTOP)
            time.sleep(place.dice.uniform(0.5, 3))
            send(victim, signal.SIGCONT)
        elif what == "postgres" and server is not None:
            server.kill()
            Server.start(place.home / "pg", environ=os.environ)
        elif what == "stop postgres" and server is not None:
            send(server.pid, signal.SIGSTOP)
            time.sleep(place.dice.uniform(0.5, 3))
            send(server.pid, signal.SIGCONT)
        elif what == "terminate":
            with psycopg.connect(place.dsn, autocommit=True) as sql:
                sql.execute(END_ALL)
        elif what == "connections":
            crowd: list[psycopg.Connection] = []
            try:
                while len(crowd) < 200:
                    crowd.append(psycopg.connect(place.dsn))
            except psycopg.OperationalError:
                time.sleep(1)
            finally:
                for one in crowd:
                    one.close()

    run(tmp_path, LONG, 0.7, blow, lease="2s")


def test_the_books_of_a_quiet_arena(tmp_path: Path) -> None:
    """The checker itself: without harm all is well, and what is wrong is seen."""
    with arena(tmp_path, SEED) as place:
        load(place, 300)
        place.keep(1, "--processes", "1")
        place.rest()
        assert place.judge().ok
        place.notes.write(op="push", phase="ok", batch="never", kind="quick", first=10**9, count=1)
        assert place.judge().lost == 1
        with Penstock(place.dsn) as app, psycopg.connect(place.dsn, autocommit=True) as sql:
            sql.execute("insert into exact select * from exact limit 1")
            sql.execute("insert into penstock.history select * from penstock.history where outcome = 'done' limit 1")
            assert not app.verify().ok
        verdict = place.judge()
        assert (verdict.inexact, verdict.completed_twice) == (1, 2), "by its iteration, and by its key"
        assert verdict.drift
