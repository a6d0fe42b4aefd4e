"""The long tier of faults: python tests/faults/campaign.py, or `make faults`.

Four stages, each with a PostgreSQL of its own, producers and workers on it, and the same checker at the end:

    storm    workers killed and frozen, PostgreSQL crashed and frozen, the network cut in every way; most of the tasks
    standby  a synchronous standby is away and comes back; two failovers to it, one of them while commits wait for it
    async    a failover to an asynchronous standby, which loses what PostgreSQL may lose, and nothing else
    disk     the disk of PostgreSQL is full, again and again

A seed is printed; PENSTOCK_FAULT_SEED=… runs the same plan again. PENSTOCK_FAULT_SCALE=0.05 is a twentieth of all.
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
SHARES = {"storm": 0.88, "standby": 0.06, "async": 0.03, "disk": 0.03}
SECONDS = {"storm": 2400.0, "standby": 240.0, "async": 120.0, "disk": 120.0}
LEAST_SECONDS = {"storm": 15.0, "standby": 30.0, "async": 15.0, "disk": 15.0}
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
    "deaf_worker": 3,
    "reset": 20,
    "commits": 60,
}
BESIDE = {"kill": 20, "freeze": 20, "zombie": 10, "terminate": 5}  # of workers, in each of the other stages
LEASE = 2.0
WORKERS, PROCESSES, CONCURRENCY, PRODUCERS = 3, 2, 4, 2
SETTINGS = {"shared_buffers": "256MB", "fsync": "off"}  # processes are killed here, never the machine
DISK_BYTES = 500 * 1024 * 1024
SMALL = {**SETTINGS, "shared_buffers": "64MB", "max_wal_size": "64MB", "min_wal_size": "32MB"}
SLOWEST_DRAIN = 100  # tasks a second, when nobody does harm any more


class Skipped(Exception):
    """A stage cannot be run here; the message says why."""


@dataclass(frozen=True)
class Options:
    """How much of everything, and where."""

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
    """What a stage did and what the checker says of it."""

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


def start(place: Arena, options: Options, stage: str, *, workers: int = WORKERS) -> None:
    """Workers, and producers that push all tasks of the stage in most of its time."""
    tasks, seconds = options.tasks(stage), options.seconds(stage)
    place.push("quick", 1)
    place.keep(workers, "--processes", str(PROCESSES), "--concurrency", str(CONCURRENCY))
    place.wait_for_claims()
    place.produce(PRODUCERS, tasks, tasks / (0.9 * seconds), options.seed, longest=0.2)


def storm(
    place: Arena, options: Options, stage: str, counts: Mapping[str, int], host: OwnServer | None = None
) -> Storm:
    """Harm by a plan of its own for each stage."""
    seconds = options.seconds(stage)
    plan = make_plan(options.counts(counts), options.seed + len(stage))
    return Storm(place, plan, seconds, host, partial(say_of, options, stage), every=10.0 if seconds > 60 else 3.0)


def say_of(options: Options, stage: str, text: str) -> None:
    options.say(f"{stage:<8} {text}")


def finish(place: Arena, options: Options, result: Result) -> None:
    """No more harm: producers push what is left, the queue drains, and the checker looks."""
    say = partial(say_of, options, result.stage)
    calm = time.monotonic()
    while place.producers and time.monotonic() < calm + 120:
        place.look_after()
        time.sleep(0.1)
    place.end_producers()
    left = place.left()
    say(f"no more harm; {left:,} tasks are left")
    if place.drain(60 + 1.5 * left / SLOWEST_DRAIN):
        result.drained = round(time.monotonic() - calm, 1)
    say("the checker reads the notes")
    result.tasks = place.tasks_pushed
    result.verdict = place.judge()
    result.recoveries = measure_recovery(place.dsn, place.lease)
    result.completed = place.completed()
    say(f"{result.tasks:,} tasks: {result.verdict}")


# --- the stages -------------------------------------------------------------------------------------------------------


def run_storm(options: Options, home: Path, result: Result) -> None:
    """Everything that can befall processes, the server and the network, at once."""
    host = OwnServer(home / "pg", SETTINGS)
    host.start()
    server = host.server()
    assert server is not None
    try:
        prepare(server.dsn, f"{LEASE}s")
        with Proxy(server.port) as proxy:
            lanes = [proxy.add_lane() for _ in range(2 * (WORKERS + PRODUCERS))]
            place = Arena(server.dsn_tcp, home, random.Random(options.seed), LEASE, lanes, [server.log])
            with arena_on(place):
                start(place, options, "storm")
                harm = storm(place, options, "storm", STORM, host)
                harm.run()
                result.harm = harm.done
                finish(place, options, result)
    finally:
        end(host)


def end(host: OwnServer) -> None:
    server = host.server()
    if server is not None:
        server.stop("immediate")


def run_standby(options: Options, home: Path, result: Result) -> None:
    """A synchronous standby: away for a while; promoted when the primary dies; and again while commits wait for it."""
    with replicated_pair(home, synchronous=True) as pair:
        prepare(pair.dsn, f"{LEASE}s")
        place = pair_arena(pair, home, options)
        with arena_on(place):
            start(place, options, "standby", workers=2)
            harm = storm(place, options, "standby", BESIDE)
            steps = Steps(harm, options.seconds("standby"))
            steps.at(0.15, "the standby is away", lambda: leave(pair, place, 2.5 * LEASE))
            steps.at(0.40, "the primary dies", lambda: fail_over(pair, place))
            steps.at(0.60, "the old primary comes back as standby", lambda: rejoin(pair))
            steps.at(0.75, "the standby is away, then the primary dies", lambda: fail_over_while_away(pair, place))
            steps.run()
            result.harm = harm.done + steps.done
            finish(place, options, result)


def run_async(options: Options, home: Path, result: Result) -> None:
    """An asynchronous standby stops following; some time later the primary dies, and the standby is promoted."""
    with replicated_pair(home) as pair:
        prepare(pair.dsn, f"{LEASE}s")
        place = pair_arena(pair, home, options)
        with arena_on(place):
            start(place, options, "async", workers=2)
            harm = storm(place, options, "async", BESIDE)
            steps = Steps(harm, options.seconds("async"))
            steps.at(0.5, "the standby falls behind, the primary dies", lambda: fail_over_behind(pair, place))
            steps.run()
            result.harm = harm.done + steps.done
            finish(place, options, result)


def run_disk(options: Options, home: Path, result: Result) -> None:
    """The file system of PostgreSQL, WAL included, has no space left for a few seconds, three times."""
    with small_disk(home / "disk") as disk:
        host = OwnServer(disk / "pg", SMALL)
        host.start()
        server = host.server()
        assert server is not None
        try:
            prepare(server.dsn, f"{LEASE}s")
            place = Arena(server.dsn, home, random.Random(options.seed), LEASE, log=[server.log])
            with arena_on(place):
                start(place, options, "disk", workers=2)
                harm = storm(place, options, "disk", BESIDE, host)
                steps = Steps(harm, options.seconds("disk"))
                for share in (0.2, 0.45, 0.7):
                    steps.at(share, "the disk is full", lambda: fill(disk, host, place))
                steps.run()
                result.harm = harm.done + steps.done
                finish(place, options, result)
        finally:
            end(host)


STAGES: dict[str, Callable[[Options, Path, Result], None]] = {
    "storm": run_storm,
    "standby": run_standby,
    "async": run_async,
    "disk": run_disk,
}


# --- steps between blows ----------------------------------------------------------------------------------------------


class Steps:
    """Named events at set moments of a storm."""

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
def outage(place: Arena) -> Iterator[None]:
    """A time in which PostgreSQL cannot be expected to do anything."""
    since = time.time()
    try:
        yield
    finally:
        place.notes.write(op="outage", since=since, until=time.time() + 3.0)


def leave(pair: ReplicatedPair, place: Arena, seconds: float) -> None:
    """Commits that wait for the standby do not return; those that do not wait go on."""
    with outage(place):
        pair.standby.kill()
        time.sleep(seconds)
        pair.standby.start()


def fail_over(pair: ReplicatedPair, place: Arena) -> None:
    with outage(place):
        pair.primary.kill()
        promote(pair, place)


def promote(pair: ReplicatedPair, place: Arena) -> None:
    pair.promote()
    pair.make_asynchronous()  # else the new primary waits for a standby that is not there
    place.notes.write(op="back", what="promotion")
    time.sleep(3.0)  # without harm, so that nothing else delays the first claim


def rejoin(pair: ReplicatedPair) -> None:
    pair.rejoin()
    pair.make_synchronous()


def fail_over_while_away(pair: ReplicatedPair, place: Arena) -> None:
    """What waits for the standby was never reported, and may be lost; all that was reported is there."""
    with outage(place):
        pair.standby.kill()
        time.sleep(2 * LEASE)
        pair.primary.kill()
        pair.standby.start()
        promote(pair, place)


def fail_over_behind(pair: ReplicatedPair, place: Arena) -> None:
    """What was reported after the standby stopped following is lost with the primary: the checker excuses it."""
    since = time.time()
    pair.wait_for_replay()
    pair.cut_off_standby()
    time.sleep(2 * LEASE)
    with outage(place):
        pair.primary.kill()
        pair.standby.query("alter system reset primary_conninfo")
        pair.promote()
        place.excused.append((since, time.time()))
        place.notes.write(op="back", what="promotion")
        time.sleep(3.0)


@contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """A file system of its own in memory. Only root can mount it."""
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


def fill(disk: Path, host: OwnServer, place: Arena) -> None:
    """Leave no byte free for a few seconds. PostgreSQL refuses writes, or stops, and is started again afterwards."""
    ballast = disk / "ballast"
    with outage(place):
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1024 * 1024))
        with ballast.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        assert refuses_writes(place.dsn), "the disk is full, and PostgreSQL writes on"
        time.sleep(1.5 * LEASE)
        ballast.unlink()
        host.start()
    place.notes.write(op="back", what="restart")
    time.sleep(3.0)


def refuses_writes(dsn: str) -> bool:
    """Whether PostgreSQL cannot write 16 MB, and a new segment of WAL."""
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


# --- the whole --------------------------------------------------------------------------------------------------------


def run_campaign(options: Options, stages: Sequence[str]) -> list[Result]:
    return [run_stage(options, stage) for stage in stages]


def run_stage(options: Options, stage: str) -> Result:
    """One stage in a directory of its own, which stays only if something was found."""
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
        say_of(options, stage, f"what everybody noted is in {home}")
    return result


def merged(results: Sequence[Result]) -> list[Recovery]:
    """The recovery times of all stages together."""
    found: dict[str, Recovery] = {}
    for one in (recovery for result in results for recovery in result.recoveries):
        before = found.get(one.name)
        found[one.name] = one if before is None else Recovery(one.name, one.bar, before.seconds + one.seconds)
    return [one for one in found.values() if one.seconds]


def table(results: Sequence[Result]) -> str:
    """The verdict, a column for each stage."""
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
    row("other harm", others)
    for name in Verdict().counts:
        row(name.replace("_", " "), {one.stage: one.verdict.counts[name] for one in ran})
    widths = [max(len(line[n]) for line in rows) for n in range(len(rows[0]))]
    lines = []
    for name, *cells in rows:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *aligned]))
    for one in merged(results):
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
    sys.exit(0 if all(one.ok for one in results) and all(one.kept for one in merged(results)) else 1)


if __name__ == "__main__":
    main()
