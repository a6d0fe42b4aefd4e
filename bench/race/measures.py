"""The measurements of one peer, each in a new database."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from bench.race.contestants import Peer
from bench.race.lane import STILL, Lane, Marks, PeerFailed, family, lane, signalled
from bench.race.variants import Chosen
from bench.support.harness import Bench, Footprint
from bench.support.latency import percentiles

STEP = 0.005
IDLE = 3.0  # seconds after which a worker that finds nothing rests
PATIENCE = 3.0  # as a multiple of the expected time
GIVEN_AWAY = 60.0  # seconds, with leases of five


@dataclass(frozen=True, slots=True)
class Phase:
    """A push or a drain: tasks a second, and the WAL and commits of each task."""

    rate: float
    wal: float
    commits: float


@dataclass(frozen=True, slots=True)
class Lap:
    push: Phase
    drain: Phase | None


# --- push and drain ---------------------------------------------------------------------------------------------------


def lap(server: Bench, peer: Peer, chosen: Chosen, tasks: int, processes: int) -> Lap:
    """Measures a bulk push and then a drain by `processes` processes, or the push alone if it is 0."""
    with lane(server, peer, chosen) as mine:
        pushed = push(mine, tasks)
        if not processes:
            return Lap(pushed, None)
        wait_until_settled(mine)
        before = mine.footprint()
        polls = mine.polls
        began, _, ended = drain(mine, tasks, processes)
        return Lap(pushed, phase(mine, before, tasks, ended - began, mine.polls - polls))


def push(mine: Lane, tasks: int) -> Phase:
    process = mine.start("push", tasks)
    mine.until(lambda: bool(mine.told("ready-*")), "is not ready to push", timeout=300)
    before = mine.footprint()
    mine.go()
    mine.ends(process)
    seconds = float(mine.lines("seconds")[0])
    after = phase(mine, before, tasks, seconds, 0)
    mine.dismiss()
    if (found := mine.open()) != tasks:
        raise PeerFailed(f"{tasks} tasks were pushed, {found} are there")
    return after


def phase(mine: Lane, before: Footprint, tasks: int, seconds: float, polls: int) -> Phase:
    spent = mine.footprint().since(before)
    return Phase(tasks / seconds, spent.wal / tasks, (spent.commits - polls) / tasks)


def wait_until_settled(mine: Lane) -> None:
    """Vacuums and checkpoints, so that a drain does not pay for the push before it."""
    mine.sql.execute("vacuum analyze")
    mine.sql.execute("checkpoint")


def drain(mine: Lane, tasks: int, processes: int) -> tuple[float, Marks, float]:
    """Returns when the first task began, how many had begun at each time, and when the end of all was recorded."""
    mine.workers(processes)
    mine.go()
    marks: Marks = [(time.time(), 0)]
    while marks[-1][1] < tasks:
        time.sleep(STEP)
        if any(process.poll() for process in mine.processes):
            raise PeerFailed(f"a worker ended: {mine.errors()}")
        if (done := mine.tally()[0]) != marks[-1][1]:
            marks.append((time.time(), done))
        elif time.time() - marks[-1][0] > STILL:
            raise PeerFailed(f"stands at {done} of {tasks} tasks: {mine.errors()}")
    ended = mine.until(lambda: mine.open() == 0, "has tasks whose end is not recorded", timeout=STILL, step=STEP)
    time.sleep(0.2)  # time for tasks that run twice
    done, began = mine.tally()
    if done != tasks:
        raise PeerFailed(f"{tasks} tasks ran {done} times")
    return began, marks, ended


# --- drain under a held snapshot --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    first: float
    last: float


def snapshot(server: Bench, peer: Peer, chosen: Chosen, tasks: int) -> Held:
    """Compares the first sixth of a drain by two processes with the last, while no dead row can be removed."""
    part = tasks // 6
    with lane(server, peer, chosen) as mine:
        push(mine, tasks)
        wait_until_settled(mine)
        with holding(mine.dsn):
            began, marks, ended = drain(mine, tasks, 2)
    at = {share: next(moment for moment, done in marks if done >= share) for share in (part, tasks - part)}
    return Held(part / (at[part] - began), part / (ended - at[tasks - part]))


@contextmanager
def holding(dsn: str) -> Iterator[None]:
    with psycopg.connect(dsn) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("select count(*) from pg_class")
        yield


# --- latency ----------------------------------------------------------------------------------------------------------


def latency(server: Bench, peer: Peer, chosen: Chosen, pushes: int, rate: int) -> dict[str, float]:
    """Returns milliseconds from push to the start of the handler, with one idle worker."""
    with lane(server, peer, chosen) as mine:
        mine.workers()
        mine.go()
        time.sleep(IDLE)
        mine.call("trickle", pushes, rate)
        mine.until(lambda: len(mine.lines("waits")) >= pushes, "did not run what was pushed", timeout=30)
        return percentiles([float(one) for one in mine.lines("waits")])


# --- batches ----------------------------------------------------------------------------------------------------------

STATEMENT = re.compile(r"^[^\n]*LOG:  (?:statement|execute [^\n:]*): ", re.MULTILINE)
SILENT = re.compile(r"(?i)\s*(begin|commit|rollback|start transaction|set |listen |select 1\b|select pg_notify)")


@dataclass(frozen=True, slots=True)
class Batches:
    """Tasks per statement that PostgreSQL gets, without statements such as BEGIN and COMMIT."""

    push: float
    drain: float


def batches(server: Bench, peer: Peer, chosen: Chosen, tasks: int) -> Batches:
    """Counts statements in PostgreSQL's log, in a run of its own, because writing the log takes time."""
    with lane(server, peer, chosen) as mine:
        database = psycopg.conninfo.conninfo_to_dict(mine.dsn)["dbname"]
        mine.sql.execute(f"alter database {database} set log_statement = 'all'")
        pushing = logged(server)
        push(mine, tasks)
        draining = logged(server)
        drain(mine, tasks, 2)
        return Batches(tasks / max(1, draining - pushing), tasks / max(1, logged(server) - draining))


def logged(server: Bench) -> int:
    """Counts the logged statements. Our own connection logs none, because it is older than the setting."""
    text = server.server.log.read_text(errors="replace")
    return sum(not SILENT.match(text, found.end()) for found in STATEMENT.finditer(text))


# --- when a worker dies -----------------------------------------------------------------------------------------------


def kill(server: Bench, peer: Peer, chosen: Chosen) -> float:
    """Returns the seconds from kill -9 of a whole worker until another one has begun its task, at defaults."""
    assert peer.returns is not None
    with lane(server, peer, chosen) as mine:
        busy = hold(mine)
        mine.workers()
        time.sleep(IDLE)
        began = time.time()
        signalled(family(busy), signal.SIGKILL)
        mine.processes = [process for process in mine.processes if process.pid != busy]
        return mine.until(lambda: times_begun(mine) == 2, "is not run again", PATIENCE * peer.returns) - began


def hold(mine: Lane) -> int:
    """Starts a worker with a task that does not end, and returns the pid of its first process."""
    mine.call("hold")
    (worker,) = mine.workers()
    mine.go()
    mine.until(lambda: times_begun(mine) == 1, "does not begin")
    return worker.pid


def times_begun(mine: Lane) -> int:
    return sum(line.startswith("begun") for line in mine.lines("told"))


# --- when a worker freezes --------------------------------------------------------------------------------------------


def frozen(server: Bench, peer: Peer, chosen: Chosen) -> str:
    """Stops a worker past its (short) lease until another one has the task, continues it, and returns whether its late
    completion is accepted."""
    with lane(server, peer, chosen, hasty=True) as mine:
        busy = hold(mine)
        late = mine.lines("told")[0].split()[1]
        pids = family(busy)
        signalled(pids, signal.SIGSTOP)
        try:
            mine.workers()
            time.sleep(6.0)
            if peer.rescue:
                mine.call("rescue")
            if not given_away(mine):
                return f"not late: no other worker got the task in {GIVEN_AWAY:g} s"
            assert mine.lines("told")[1] != f"begun {late}"
            (mine.home / f"release-{late}").touch()
        finally:
            signalled(pids, signal.SIGCONT)
        verdict = "accepted" if ends_early(mine, f"ended {late}") else "refused"
        (mine.home / "release").touch()
        mine.until(lambda: mine.open() == 0, "does not end at all", timeout=60, step=0.1)
        return verdict


def given_away(mine: Lane) -> bool:
    """Waits until another worker has the task. In some peers only a leader gives tasks away, which may be frozen."""
    limit = time.monotonic() + GIVEN_AWAY
    while times_begun(mine) < 2 and time.monotonic() < limit:
        time.sleep(0.05)
    return times_begun(mine) == 2


def ends_early(mine: Lane, line: str) -> bool:
    """Returns whether the end of the task is recorded while the other worker still runs it."""
    limit = time.monotonic() + 8
    while time.monotonic() < limit:
        if mine.open() == 0:
            return True
        if line in mine.lines("told"):
            limit = min(limit, time.monotonic() + 4)
            line = "\n"
        time.sleep(0.1)
    return False
