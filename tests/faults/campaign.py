"""The long tier of faults: python tests/faults/campaign.py, or `make faults`.

Five stages, each with a PostgreSQL of its own, producers and workers on it, and the same checker at the end:

    storm    workers are killed and frozen, PostgreSQL crashes and freezes, the network is cut in every way; most tasks
    standby  a synchronous standby is away and comes back; two failovers to it, one of them while commits wait for it
    frozen   two failovers from a primary that does not die: it freezes, is fenced later, and comes back as standby
    async    a failover to an asynchronous standby, which loses what PostgreSQL may lose, and nothing else
    disk     the disk of PostgreSQL is full, again and again

A seed is printed; PENSTOCK_FAULT_SEED=… runs the same plan again. PENSTOCK_FAULT_SCALE=0.05 is a twentieth of all.
The exit code is 1 if the checker found something or a recovery took longer than promised; in a whole campaign (scale 1,
all stages) also if a recovery was never measured.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    here = Path(__file__).parent
    sys.path[0:1] = map(str, (here, here.parent, here.parent / "support", here.parent / "cli", here.parent.parent))

import psycopg

from arena import Arena, arena_on, prepare
from bench.support.harness import report
from checker import Recovery, Verdict, measure_recovery
from proxy import Proxy
from standby import ReplicatedPair, replicated_pair
from storm import OwnServer, Storm, make_plan

TASKS = 1_000_000
SHARES = {"storm": 0.85, "standby": 0.06, "frozen": 0.03, "async": 0.03, "disk": 0.03}
SECONDS = {"storm": 2400.0, "standby": 240.0, "frozen": 120.0, "async": 120.0, "disk": 120.0}
LEAST_SECONDS = {"storm": 15.0, "standby": 30.0, "frozen": 20.0, "async": 15.0, "disk": 15.0}
STORM = {
    "kill": 200,
    "freeze": 300,
    "zombie": 100,
    "crash": 20,
    "stop_postgres": 10,
    "terminate": 40,
    "term": 30,
    "crowd": 5,
    "lock": 10,
    "snapshot": 10,
    "latency": 20,
    "silent": 20,
    "hung": 20,
    "unanswered_worker": 3,
    "reset": 20,
    "commits": 60,
}
BESIDE = {"kill": 20, "freeze": 20, "zombie": 10, "terminate": 5}  # of workers, in each of the other stages
LEASE = 2.0
WORKERS, PROCESSES, CONCURRENCY, PRODUCERS = 3, 2, 4, 2
# Without `plain`, whose handler has a connection of its own: psycopg waits for a frozen server without limit, and
# handlers that wait take all slots of a worker.
THROUGH_PENSTOCK = {"kinds": {"quick": 8, "exact": 1}, "singles": {"quick": 1, "exact": 1, "shaky": 2}}
SETTINGS = {"shared_buffers": "256MB", "fsync": "off"}  # processes are killed here, never the machine
DISK_BYTES = 500 * 1024 * 1024
SMALL = {**SETTINGS, "shared_buffers": "64MB", "max_wal_size": "64MB", "min_wal_size": "32MB"}
SLOWEST_DRAIN = 100  # tasks a second, when there is no more harm


class Skipped(Exception):
    """Raised when a stage cannot run on this machine; the message says why."""


@dataclass(frozen=True)
class Options:
    """The size of the campaign, and its directory."""

    seed: int
    scale: float
    home: Path
    say: Callable[[str], None] = print

    def tasks(self, stage: str) -> int:
        return max(500, round(TASKS * SHARES[stage] * self.scale))

    def seconds(self, stage: str) -> float:
        return max(LEAST_SECONDS[stage], SECONDS[stage] * self.scale)

    def counts(self, whole: Mapping[str, int]) -> dict[str, int]:
        return {what: max(1, round(count * self.scale)) for what, count in whole.items()}


@dataclass
class Result:
    """What a stage did, and the checker's verdict."""

    stage: str
    seconds: float = 0.0
    tasks: int = 0
    completed: int = 0
    drained: float | None = None  # seconds from the last harm to an empty queue; None: it never was empty
    harm: Counter[str] = field(default_factory=Counter)
    verdict: Verdict = field(default_factory=Verdict)
    recoveries: list[Recovery] = field(default_factory=list)
    skipped: str = ""

    @property
    def ok(self) -> bool:
        return bool(self.skipped) or self.verdict.ok

    def as_json(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "skipped": self.skipped,
            "seconds": round(self.seconds, 1),
            "tasks": self.tasks,
            "completed": self.completed,
            "drained_seconds": self.drained,
            "harm": dict(self.harm),
            "verdict": self.verdict.counts,
            "findings": self.verdict.findings,
            "recovery": {one.name: list(one.seconds) for one in self.recoveries},
        }


# --- what every stage does --------------------------------------------------------------------------------------------


def start(arena: Arena, options: Options, stage: str, *, workers: int = WORKERS, **orders: Any) -> None:
    """Start workers, and producers that push all tasks of the stage in most of its time."""
    tasks, seconds = options.tasks(stage), options.seconds(stage)
    arena.push("quick", 1)
    arena.keep(workers, "--processes", str(PROCESSES), "--concurrency", str(CONCURRENCY))
    arena.wait_for_claims()
    arena.produce(PRODUCERS, tasks, tasks / (0.9 * seconds), options.seed, longest=0.2, **orders)


def storm(
    arena: Arena, options: Options, stage: str, counts: Mapping[str, int], host: OwnServer | None = None
) -> Storm:
    """Make the plan of harm for a stage."""
    seconds = options.seconds(stage)
    plan = make_plan(options.counts(counts), options.seed + len(stage))
    every, grace = (10.0, 30.0) if seconds > 60 else (3.0, 5.0)
    return Storm(arena, plan, seconds, host, partial(say_of, options, stage), every=every, grace=grace)


def say_of(options: Options, stage: str, text: str) -> None:
    options.say(f"{stage:<8} {text}")


def finish(arena: Arena, options: Options, result: Result) -> None:
    """End the harm: producers push the rest, the queue drains, and the checker looks."""
    say = partial(say_of, options, result.stage)
    calm = time.monotonic()
    while arena.producers and time.monotonic() < calm + 120:
        arena.look_after()
        time.sleep(0.1)
    arena.end_producers()
    left = arena.left()
    say(f"no more harm; {left:,} tasks are left")
    if arena.drain(60 + 1.5 * left / SLOWEST_DRAIN):
        result.drained = round(time.monotonic() - calm, 1)
    say("the checker reads the notes")
    result.tasks = arena.tasks_pushed
    result.verdict = arena.judge()
    result.recoveries = measure_recovery(arena.dsn, arena.lease)
    result.completed = arena.completed()
    say(f"{result.tasks:,} tasks: {result.verdict}")


# --- the stages -------------------------------------------------------------------------------------------------------


def run_storm(options: Options, home: Path, result: Result) -> None:
    """Run all faults of processes, the server and the network at once."""
    host = OwnServer(home / "pg", SETTINGS)
    host.start()
    server = host.server()
    assert server is not None
    try:
        prepare(server.dsn, f"{LEASE}s")
        with Proxy(server.port) as proxy:
            lanes = [proxy.add_lane() for _ in range(2 * (WORKERS + PRODUCERS))]
            arena = Arena(server.dsn_tcp, home, random.Random(options.seed), LEASE, lanes, [server.log])
            with arena_on(arena):
                start(arena, options, "storm")
                harm = storm(arena, options, "storm", STORM, host)
                harm.run()
                result.harm = harm.done
                finish(arena, options, result)
    finally:
        end(host)


def end(host: OwnServer) -> None:
    server = host.server()
    if server is not None:
        server.stop("immediate")


def run_standby(options: Options, home: Path, result: Result) -> None:
    """Run with a synchronous standby: it is away for a while, is promoted when the primary dies, and again while
    commits wait for it."""
    with replicated_pair(home, synchronous=True) as pair:
        prepare(pair.dsn, f"{LEASE}s")
        arena = pair_arena(pair, home, options)
        with arena_on(arena):
            start(arena, options, "standby", workers=2)
            harm = storm(arena, options, "standby", BESIDE)
            steps = Steps(harm, options.seconds("standby"))
            away = max(2.5 * LEASE, 0.12 * options.seconds("standby"))  # in a whole campaign longer than any deadline
            steps.at(0.15, "the standby is away", lambda: leave(pair, arena, away))
            steps.at(0.40, "the primary dies", lambda: fail_over(pair, arena))
            steps.at(0.60, "the old primary comes back as standby", lambda: rejoin(pair))
            steps.at(0.75, "the standby is away, then the primary dies", lambda: fail_over_while_away(pair, arena))
            steps.run()
            result.harm = harm.done + steps.done
            finish(arena, options, result)


def run_frozen(options: Options, home: Path, result: Result) -> None:
    """Run with a synchronous standby that is promoted while the primary is frozen: once at once, once after a while in
    which no statement is answered. The frozen server is fenced before it can wake, as a failover manager does."""
    with replicated_pair(home, synchronous=True) as pair:
        prepare(pair.dsn, f"{LEASE}s")
        arena = pair_arena(pair, home, options)
        with arena_on(arena):
            start(arena, options, "frozen", workers=2, **THROUGH_PENSTOCK)
            harm = storm(arena, options, "frozen", BESIDE)
            steps = Steps(harm, options.seconds("frozen"))
            steps.at(0.10, "the primary freezes", lambda: fail_over_frozen(pair, arena, 0.0))
            steps.at(0.30, "the frozen primary is fenced", lambda: fence(pair, arena))
            steps.at(0.45, "the primary freezes for a while", lambda: fail_over_frozen(pair, arena, 2 * LEASE))
            steps.at(0.75, "the frozen primary is fenced", lambda: fence(pair, arena))
            steps.run()
            result.harm = harm.done + steps.done
            finish(arena, options, result)


def run_async(options: Options, home: Path, result: Result) -> None:
    """Run with an asynchronous standby: it stops following, later the primary dies, and the standby is promoted."""
    with replicated_pair(home) as pair:
        prepare(pair.dsn, f"{LEASE}s")
        arena = pair_arena(pair, home, options)
        with arena_on(arena):
            start(arena, options, "async", workers=2)
            harm = storm(arena, options, "async", BESIDE)
            steps = Steps(harm, options.seconds("async"))
            steps.at(0.5, "the standby falls behind, the primary dies", lambda: fail_over_behind(pair, arena))
            steps.run()
            result.harm = harm.done + steps.done
            finish(arena, options, result)


def run_disk(options: Options, home: Path, result: Result) -> None:
    """Fill the file system of PostgreSQL, WAL included, three times for a few seconds."""
    with small_disk(home / "disk") as disk:
        host = OwnServer(disk / "pg", SMALL)
        host.start()
        server = host.server()
        assert server is not None
        try:
            prepare(server.dsn, f"{LEASE}s")
            arena = Arena(server.dsn, home, random.Random(options.seed), LEASE, log=[server.log])
            with arena_on(arena):
                start(arena, options, "disk", workers=2)
                harm = storm(arena, options, "disk", BESIDE, host)
                steps = Steps(harm, options.seconds("disk"))
                for share in (0.2, 0.45, 0.7):
                    steps.at(share, "the disk is full", lambda: fill(disk, host, arena))
                steps.run()
                result.harm = harm.done + steps.done
                finish(arena, options, result)
        finally:
            end(host)


STAGES: dict[str, Callable[[Options, Path, Result], None]] = {
    "storm": run_storm,
    "standby": run_standby,
    "frozen": run_frozen,
    "async": run_async,
    "disk": run_disk,
}


# --- steps between blows ----------------------------------------------------------------------------------------------


class Steps:
    """Runs named events at set times of a storm."""

    def __init__(self, harm: Storm, seconds: float) -> None:
        self._harm = harm
        self._seconds = seconds
        self._steps: list[tuple[float, str, Callable[[], None]]] = []
        self.done: Counter[str] = Counter()

    def at(self, share: float, name: str, act: Callable[[], None]) -> None:
        self._steps.append((share, name, act))

    def run(self) -> None:
        for share, name, act in self._steps:
            self._harm.schedule(share, partial(self._take, name, act))
        self._harm.run()

    def _take(self, name: str, act: Callable[[], None]) -> None:
        self._harm.last = name
        self._harm.say(name)
        act()
        self.done[name] += 1


def pair_arena(pair: ReplicatedPair, home: Path, options: Options) -> Arena:
    return Arena(pair.dsn, home, random.Random(options.seed), LEASE, log=[node.server.log for node in pair.nodes])


@contextmanager
def outage(arena: Arena) -> Iterator[None]:
    """Note the block as a time in which PostgreSQL cannot be expected to answer."""
    since = time.time()
    try:
        yield
    finally:
        arena.notes.write(op="outage", since=since, until=time.time() + 3.0)


def leave(pair: ReplicatedPair, arena: Arena, seconds: float) -> None:
    """Stop the standby for a while: commits that wait for it do not return, and all others go on."""
    with outage(arena):
        pair.standby.kill()
        time.sleep(seconds)
        pair.standby.start()


def fail_over(pair: ReplicatedPair, arena: Arena) -> None:
    with outage(arena):
        pair.primary.kill()
        promote(pair, arena)


def promote(pair: ReplicatedPair, arena: Arena) -> None:
    pair.promote()
    pair.make_asynchronous()  # otherwise the new primary waits for a standby that is not there
    arena.notes.write(op="back", what="promotion")
    time.sleep(3.0)  # without harm, so that nothing else delays the first claim


def rejoin(pair: ReplicatedPair) -> None:
    pair.rejoin()
    pair.make_synchronous()


def fail_over_while_away(pair: ReplicatedPair, arena: Arena) -> None:
    """Fail over while commits wait for the standby: these were never reported and may be lost, reported ones may
    not."""
    with outage(arena):
        pair.standby.kill()
        time.sleep(2 * LEASE)
        pair.primary.kill()
        pair.standby.start()
        promote(pair, arena)


def fail_over_frozen(pair: ReplicatedPair, arena: Arena, silence: float) -> None:
    """Freeze the primary and promote the standby: connections to the frozen server stay open and are never answered."""
    with outage(arena):
        pair.primary.freeze()
        time.sleep(silence)
        promote(pair, arena)


def fence(pair: ReplicatedPair, arena: Arena) -> None:
    """End the frozen server and make it a standby. Two servers that accept writes are a finding."""
    rejoin(pair)
    pair.wait_for_replay()
    writable = [node.name for node in pair.nodes if node.accepts_writes()]
    if writable != [pair.primary.name]:
        arena.findings.append(f"unexpected: {' and '.join(writable) or 'no server'} accepts writes after a failover")


def fail_over_behind(pair: ReplicatedPair, arena: Arena) -> None:
    """Fail over to a standby that stopped following: what was reported since then is lost, and the checker excuses
    it."""
    since = time.time()
    pair.wait_for_replay()
    pair.cut_off_standby()
    time.sleep(2 * LEASE)
    with outage(arena):
        pair.primary.kill()
        pair.standby.query("alter system reset primary_conninfo")
        pair.promote()
        arena.excused.append((since, time.time()))
        arena.notes.write(op="back", what="promotion")
        time.sleep(3.0)


@contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """Mount a small file system in memory, which only root can do."""
    if os.geteuid() != 0:
        raise Skipped("only root can mount a small file system")
    path.mkdir()
    options = f"size={DISK_BYTES},mode=0755"
    mounted = run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path))
    if mounted.returncode:
        raise Skipped(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        for _ in range(50):
            if run("umount", str(path)).returncode == 0:
                break
            time.sleep(0.2)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def fill(disk: Path, host: OwnServer, arena: Arena) -> None:
    """Leave no byte free for a few seconds. PostgreSQL refuses writes or stops, and is started again afterwards."""
    ballast = disk / "ballast"
    with outage(arena):
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1024 * 1024))
        with ballast.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        assert refuses_writes(arena.dsn), "the disk is full, and PostgreSQL still writes"
        time.sleep(1.5 * LEASE)
        ballast.unlink()
        host.start()
    arena.notes.write(op="back", what="restart")
    time.sleep(3.0)


def refuses_writes(dsn: str) -> bool:
    """Return whether PostgreSQL cannot write 16 MB and a new segment of WAL."""
    try:
        with psycopg.connect(dsn, autocommit=True, connect_timeout=2) as sql:
            sql.execute(
                "create table probe as select repeat(n::text, 4000) as text from generate_series(1000, 5000) as n"
            )
            sql.execute("select pg_switch_wal()")
            sql.execute("drop table probe")
    except psycopg.Error:
        return True
    return False


# --- the whole campaign -----------------------------------------------------------------------------------------------


def run_campaign(options: Options, stages: Sequence[str]) -> list[Result]:
    return [run_stage(options, stage) for stage in stages]


def run_stage(options: Options, stage: str) -> Result:
    """Run one stage in a directory of its own, which is kept only if the checker found something."""
    result = Result(stage)
    home = options.home / stage
    home.mkdir(parents=True)
    tasks, seconds = options.tasks(stage), options.seconds(stage)
    say_of(options, stage, f"{tasks:,} tasks, harm for {seconds:.0f} s")
    began = time.monotonic()
    try:
        STAGES[stage](options, home, result)
    except Skipped as reason:
        result.skipped = str(reason)
        say_of(options, stage, f"skipped: {reason}")
    result.seconds = time.monotonic() - began
    if result.ok:
        shutil.rmtree(home, ignore_errors=True)
    else:
        say_of(options, stage, f"the notes of all processes are in {home}")
    return result


def merged(results: Sequence[Result]) -> list[Recovery]:
    """Return the recovery times of all stages together."""
    found: dict[str, Recovery] = {}
    for one in (recovery for result in results for recovery in result.recoveries):
        before = found.get(one.name)
        found[one.name] = one if before is None else Recovery(one.name, one.bar, before.seconds + one.seconds)
    return [*found.values()]


def find_unmeasured(results: Sequence[Result]) -> list[str]:
    """Return the names of the recovery times that no stage measured."""
    return [one.name for one in merged(results) if not one.seconds]


def has_passed(results: Sequence[Result], *, whole: bool) -> bool:
    """Return whether the checker found nothing and every recovery was as quick as promised. A whole campaign must have
    measured each of them; a part of it may be too short for that."""
    quick = all(one.kept or not (one.seconds or whole) for one in merged(results))
    return quick and all(one.ok for one in results)


def table(results: Sequence[Result]) -> str:
    """Return the verdict as a table with a column for each stage."""
    ran = [one for one in results if not one.skipped]
    rows = [["", *(one.stage for one in results), "all"]]

    def row(name: str, values: Mapping[str, int]) -> None:
        cells = [f"{values[one.stage]:,}" if one in ran else "skipped" for one in results]
        rows.append([name, *cells, f"{sum(values.values()):,}"])

    row("tasks pushed", {one.stage: one.tasks for one in ran})
    row("attempts completed", {one.stage: one.completed for one in ran})
    for name in ("kill", "freeze", "crash"):
        row(f"{name}s" if name != "crash" else "crashes", {one.stage: one.harm[name] for one in ran})
    others = {one.stage: sum(one.harm.values()) - sum(one.harm[n] for n in ("kill", "freeze", "crash")) for one in ran}
    row("other faults", others)
    for name in Verdict().counts:
        row(name.replace("_", " "), {one.stage: one.verdict.counts[name] for one in ran})
    widths = [max(len(line[n]) for line in rows) for n in range(len(rows[0]))]
    lines = []
    for name, *cells in rows:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *aligned]))
    for one in merged(results):
        if not one.seconds:
            lines.append(f"        {one.name}: not measured (≤ {one.bar:g} s)")
            continue
        figures = f"worst {one.worst:.2f} s, median {one.median:.2f} s of {len(one.seconds)}"
        lines.append(f"{'kept  ' if one.kept else 'MISSED'}  {one.name}: {figures} (≤ {one.bar:g} s)")
    lines += [f"skipped {one.stage}: {one.skipped}" for one in results if one.skipped]
    return "\n".join(lines)


def write_report(options: Options, results: Sequence[Result], seconds: float) -> None:
    counts: Counter[str] = Counter()
    harm: Counter[str] = Counter()
    for one in results:
        counts.update(one.verdict.counts)
        harm.update(one.harm)
    report(
        "faults",
        {
            "seed": options.seed,
            "scale": options.scale,
            "seconds": round(seconds, 1),
            "tasks": sum(one.tasks for one in results),
            "harm": dict(harm),
            "verdict": {name: counts[name] for name in Verdict().counts},
            "recovery": {
                one.name: {"bar": one.bar, "worst": one.worst, "median": one.median, "count": len(one.seconds)}
                for one in merged(results)
            },
            "stages": [one.as_json() for one in results],
        },
    )


def main() -> None:
    chosen = os.environ.get("PENSTOCK_FAULT_SEED")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(chosen) if chosen else random.SystemRandom().randrange(2**32))
    parser.add_argument("--scale", type=float, default=float(os.environ.get("PENSTOCK_FAULT_SCALE", "1")))
    parser.add_argument("--stages", default=",".join(STAGES), help="which of them, with commas")
    asked = parser.parse_args()
    stages = asked.stages.split(",")
    if unknown := [one for one in stages if one not in STAGES]:
        parser.error(f"--stages: {', '.join(unknown)} is not one of {', '.join(STAGES)}")
    home = Path(tempfile.mkdtemp(prefix="penstock-faults-"))
    options = Options(asked.seed, asked.scale, home, partial(print, flush=True))
    print(f"seed {asked.seed} (PENSTOCK_FAULT_SEED={asked.seed} runs it again), scale {asked.scale:g}", flush=True)
    began = time.monotonic()
    results = run_campaign(options, stages)
    seconds = time.monotonic() - began
    print(f"\nseed {asked.seed}, {seconds / 60:.1f} minutes\n{table(results)}", flush=True)
    for one in results:
        for finding in one.verdict.findings:
            print(f"{one.stage}: {finding}", flush=True)
    write_report(options, results, seconds)
    with suppress(OSError):
        home.rmdir()
    whole = asked.scale >= 1 and set(stages) == set(STAGES)
    if whole:
        for name in find_unmeasured(results):
            print(f"not measured: {name}: the campaign proves nothing about it", flush=True)
    sys.exit(0 if has_passed(results, whole=whole) else 1)


if __name__ == "__main__":
    main()
