"""The checker finds each mutant of the SQL within a minute, and finds nothing without one."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from arena import Arena, arena_on, prepare
from checker import Verdict
from mutants import MUTANTS, Mutant
from proxy import Proxy
from storm import Storm, make_plan

SEED = int(os.environ.get("PENSTOCK_FAULT_SEED", random.SystemRandom().randrange(2**32)))
MINUTE = 60.0
ROUND = 4.0  # seconds of harm
RATE = 300.0  # tasks a second
LEASE = 0.5
PATIENCE = 10.0  # seconds without any progress until tasks count as stuck: a worker that was ended may be starting
EVERYTHING = Mutant("none", (), blows=(("freeze", 2), ("zombie", 2), ("kill", 2), ("commits", 2), ("lock", 1)))


def find(dsn: str, home: Path, mutant: Mutant, *, limit: float, patience: float = PATIENCE) -> Verdict:
    """Runs short campaigns, one after the other, until the checker finds something or the time is over. Later findings
    do not count."""
    print(f"\nseed {SEED} (PENSTOCK_FAULT_SEED={SEED} runs it again)")
    prepare(dsn, f"{LEASE}s")
    with psycopg.connect(dsn, autocommit=True) as sql:
        if mutant.function or mutant.statement:
            mutant.apply(sql)
    port = int(str(psycopg.conninfo.conninfo_to_dict(dsn)["port"]))
    with Proxy(port) as proxy:
        lanes = [proxy.add_lane() for _ in range(8)]
        arena = Arena(dsn, home, random.Random(SEED), LEASE, lanes)
        with arena_on(arena):
            began = time.monotonic()
            n = 0
            while True:
                verdict = campaign(arena, mutant, SEED + n, patience)
                n += 1
                seconds = time.monotonic() - began
                if not verdict.ok or seconds > limit:
                    print(f"{n} rounds, {seconds:.1f} s")
                    assert verdict.ok or not limit or seconds <= limit, f"found only after {seconds:.0f} s: {verdict}"
                    return verdict


def campaign(arena: Arena, mutant: Mutant, seed: int, patience: float) -> Verdict:
    """Runs one round: producers and workers, the mutant's blows, then rest and a verdict."""
    arena.push("quick", 1)
    arena.keep(2, "--processes", "1", "--concurrency", "4")
    arena.wait_for_claims()
    rate = RATE * min(1.0, 0.1 / mutant.longest)
    orders = {"mix": dict(mutant.mix) or None, "kinds": dict(mutant.kinds) or None, "longest": mutant.longest}
    arena.produce(1, round(ROUND * rate), rate, seed, subjects=5, **orders)
    storm = Storm(arena, make_plan(dict(mutant.blows), seed), ROUND, grace=2.0)
    storm.run()
    arena.end_producers()
    arena.drain(MINUTE, patience)
    return arena.judge()


def test_every_mutant_still_fits_the_code(dsn: str) -> None:
    """Most mutants run in the slow tier only; this fails at once when a function has changed."""
    with psycopg.connect(dsn) as sql:
        for mutant in MUTANTS:
            mutant.apply(sql)
            sql.rollback()


@pytest.mark.unbalanced
@pytest.mark.parametrize(
    "mutant",
    [pytest.param(one, id=one.name, marks=[] if one.quick else [pytest.mark.slow]) for one in MUTANTS],
)
def test_a_mutant_is_found(make_database: Callable[..., str], tmp_path: Path, mutant: Mutant) -> None:
    verdict = find(make_database(), tmp_path, mutant, limit=MINUTE)
    assert any(verdict.counts[name] for name in mutant.caught_by), f"{mutant.name}: not found: {verdict}"


@pytest.mark.slow
def test_without_a_mutant_nothing_is_found(make_database: Callable[..., str], tmp_path: Path) -> None:
    verdict = find(make_database(), tmp_path, EVERYTHING, limit=0, patience=MINUTE)
    assert verdict.ok, verdict
