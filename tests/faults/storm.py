"""Harm by plan: producers push, workers drain, and faults (blows) happen at times that a seed decides.

The same seed gives the same plan: which blows, when, and how hard. Their victims depend on which processes live then.
"""

from __future__ import annotations

import heapq
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol
from uuid import uuid4

import psycopg

from arena import Arena, Process, send
from notes import describe_claim
from penstock import LeaseLost, NewTask, Penstock, PenstockError, Unavailable
from penstock.embedded import Server
from penstock.model import Claim
from proxy import Lane

TICK = 0.1  # seconds between two looks
NO_ANSWER = (25.5, 28.0)  # seconds: a worker waits for an answer for 20
CALM = 3.0  # seconds without a blow after PostgreSQL is back, so that nothing else delays the first claim
END_ALL = (
    "select pg_terminate_backend(pid) from (select pid from pg_stat_activity"
    " where backend_type = 'client backend' and pid <> pg_backend_pid() order by random() limit 3) as a"
)


class Blow(NamedTuple):
    """One fault: when, as a share of the whole time; which; and a seed for how hard."""

    at: float
    what: str
    seed: int


def make_plan(counts: Mapping[str, int], seed: int) -> list[Blow]:
    """Return every blow as often as `counts` says, in an order and at times that the seed decides."""
    dice = random.Random(seed)
    blows = [what for what, count in counts.items() for _ in range(count)]
    dice.shuffle(blows)
    moments = sorted(dice.random() for _ in blows)
    # Blows that last long come at even distances, the first at the start, so that a short storm does not become long.
    longest = sorted(n for n, what in enumerate(blows) if what == "unanswered_worker")
    for n, index in enumerate(longest):
        moments[index] = n / len(longest)
    return [Blow(at, what, dice.getrandbits(32)) for at, what in zip(moments, blows, strict=True)]


class Host(Protocol):
    """Where PostgreSQL runs, so that the storm can crash and freeze it."""

    def crash(self, dice: random.Random) -> None: ...
    def start(self) -> None: ...
    def processes(self) -> list[int]: ...


@dataclass
class OwnServer:
    """A PostgreSQL that only one stage uses."""

    home: Path
    settings: dict[str, str]

    def server(self) -> Server | None:
        return Server.running(self.home)

    def crash(self, dice: random.Random) -> None:
        server = self.server()
        if server is None:
            return
        if dice.random() < 0.5:
            server.stop("immediate")
        else:
            server.kill()

    def start(self) -> None:
        Server.start(self.home, environ=os.environ, settings=self.settings)

    def processes(self) -> list[int]:
        """The postmaster, first, and its children."""
        server = self.server()
        if server is None:
            return []
        with suppress(OSError):
            children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text("ascii").split()
            return [server.pid, *map(int, children)]
        return [server.pid]


Event = tuple[float, int, Callable[[], None]]


@dataclass
class Storm:
    """Strikes an arena with the blows of a plan. Several that last, as a frozen worker does, may overlap."""

    arena: Arena
    plan: list[Blow]
    seconds: float
    host: Host | None = None
    say: Callable[[str], None] = print
    every: float = 10.0  # seconds between two lines of progress
    grace: float = 30.0  # seconds after the end in which a blow that found no victim is tried again
    done: Counter[str] = field(default_factory=Counter)
    last: str = ""
    _events: list[Event] = field(default_factory=list)
    _scheduled: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    _order: int = 0
    _quiet_until: float = 0.0
    _down: set[int] = field(default_factory=set)  # workers that are frozen or cut off
    _unanswered: set[int] = field(
        default_factory=set
    )  # those of them that must live until the deadline of their statements
    _endings: dict[int, Callable[[], None]] = field(default_factory=dict)
    _began: float = 0.0

    # --- from start to end ------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Strike until all blows of the plan are done and the time is over, or until `until` returns true."""
        self._began = time.monotonic()
        for blow in self.plan:
            self._at(self._began + blow.at * self.seconds, partial(self._strike, blow))
        for share, act in self._scheduled:
            self._at(self._began + share * self.seconds, act)
        told = self._began
        while not until():
            now = time.monotonic()
            if now > self._began + self.seconds and not self._events:
                break
            self._fire_due(now)
            self.arena.look_after()
            if now > told + self.every:
                told = now
                self.say(self.progress())
            time.sleep(TICK)
        self.calm()

    def calm(self) -> None:
        """End every harm that still lasts, and start PostgreSQL if it is down."""
        self._events.clear()
        for end in [*self._endings.values()]:
            end()
        self._endings.clear()
        for lane in self.arena.lanes:
            lane.heal()
        if self.host is not None:
            self.host.start()

    def schedule(self, share: float, act: Callable[[], None]) -> None:
        """Have `act` called at this share of the time. Call this before `run`."""
        self._scheduled.append((share, act))

    def _at(self, moment: float, act: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (moment, self._order, act))

    def _fire_due(self, now: float) -> None:
        while self._events and self._events[0][0] <= now:
            moment, _, act = heapq.heappop(self._events)
            if moment < self._quiet_until and act not in self._endings.values():
                self._at(self._quiet_until + (moment % 1.0), act)  # later, and not all at once
                return
            act()

    def _lasting(self, seconds: float, end: Callable[[], None]) -> None:
        """Have `end` called after `seconds` seconds, or at the end of the storm if that is earlier."""
        key = self._order + 1

        def finish() -> None:
            if self._endings.pop(key, None) is not None:
                end()

        self._endings[key] = finish
        self._at(time.monotonic() + seconds, finish)

    def _strike(self, blow: Blow) -> None:
        act = getattr(self, "_" + blow.what)
        with suppress(psycopg.OperationalError, Unavailable):  # it may hit while PostgreSQL is down
            said = act(random.Random(blow.seed))
            if said:
                self.done[blow.what] += 1
                self.last = said
                return
        self._again(blow)

    def _again(self, blow: Blow) -> None:
        """Strike a moment later, because there was no victim or PostgreSQL was down."""
        if time.monotonic() < self._began + self.seconds + self.grace:
            self._at(time.monotonic() + 0.5, partial(self._strike, blow))

    @property
    def _severed(self) -> int:
        """Return how many blows so far have ended connections, also hanging ones."""
        return sum(self.done[what] for what in ("crash", "crowd", "reset", "stop_postgres", "terminate"))

    # --- progress ---------------------------------------------------------------------------------------------------

    def progress(self) -> str:
        gone = time.monotonic() - self._began
        harm = ", ".join(f"{what} {count}" for what, count in sorted(self.done.items()))
        left = max(0.0, self.seconds - gone)
        return f"{gone:5.0f} s  {harm or 'no harm yet'}  |  {self.tasks()}  |  last: {self.last}  |  ETA {left:.0f} s"

    def tasks(self) -> str:
        with suppress(Exception), Penstock(self.arena.dsn, timeout=1) as app:
            status = app.queue("faults").status()
            return f"done {status.totals['done']:,}, left {status.queued + status.active:,}"
        return "PostgreSQL is away"

    # --- processes --------------------------------------------------------------------------------------------------

    def _kill(self, dice: random.Random) -> str:
        what = dice.choices(("runner", "supervisor", "worker", "producer"), (50, 20, 20, 10))[0]
        if what == "producer" and self.arena.producers:
            victim = dice.choice(self.arena.producers)
            self.arena.kill([victim.pid])
            return "killed a producer"
        workers = [one for one in self.arena.workers if one.pid not in self._unanswered]
        if not workers:
            return ""
        worker = dice.choice(workers)
        runners = self.arena.runners(worker)
        victims = {"supervisor": [worker.pid], "worker": [worker.pid, *runners]}.get(what, dice_some(dice, runners))
        if not victims:
            return ""
        self.arena.kill(victims)
        return f"killed a {what}"

    def _freeze(self, dice: random.Random) -> str:
        """Freeze a worker, or one of its runners, for longer than its lease: it comes back as a zombie."""
        seconds = self.arena.lease * dice.uniform(1.5, 3.0)
        whole, told_to_stop = dice.random() < 0.7, dice.random() < 0.3
        worker = self._healthy(dice)
        if worker is None:
            return ""
        runners = self.arena.runners(worker)
        pids = [*runners, worker.pid] if whole else dice_some(dice, runners)
        if not pids:
            return ""
        self._stop_while_it_holds(worker, pids, runners)
        self._down.add(worker.pid)

        def thaw() -> None:
            self._down.discard(worker.pid)
            for pid in pids:
                send(pid, signal.SIGCONT)
            if whole and told_to_stop:
                send(worker.pid, signal.SIGTERM)

        self._lasting(seconds, thaw)
        return f"froze a {'worker' if whole else 'runner'} for {seconds:.1f} s"

    def _healthy(self, dice: random.Random) -> Process | None:
        """Return a worker that is neither frozen nor cut off, unless it is the last one."""
        found = [worker for worker in self.arena.workers if worker.pid not in self._down]
        return dice.choice(found) if len(found) > 1 else None

    def _stop_while_it_holds(self, worker: Process, pids: list[int], runners: list[int]) -> None:
        """Stop these processes, if possible at a moment when they hold a lease."""
        for _ in range(5):
            for pid in pids:
                send(pid, signal.SIGSTOP)
            if {*runners} & self._holders():
                return
            for pid in pids:
                send(pid, signal.SIGCONT)
            time.sleep(0.02)
        for pid in pids:
            send(pid, signal.SIGSTOP)

    def _holders(self) -> set[int]:
        with psycopg.connect(self.arena.dsn, autocommit=True, connect_timeout=2) as sql:
            rows = sql.execute(
                "select w.pid from penstock.lease as l join penstock.worker as w on w.name = l.worker"
            ).fetchall()
        return {pid for (pid,) in rows}

    def _term(self, dice: random.Random) -> str:
        worker = self._healthy(dice)
        if worker is None:
            return ""
        send(worker.pid, signal.SIGTERM)
        return "SIGTERM to a worker"

    def _zombie(self, dice: random.Random) -> str:
        """Claim tasks, stay silent until another worker has one of them, and then settle them, waiting for locks or
        not, as workers do."""
        app = Penstock(self.arena.dsn, timeout=2)
        queue = app.queue("faults")
        claim = queue.claim(dice.randint(1, 3), lease=self.arena.lease, worker="zombie", quarantined=False)
        if not claim:
            app.close()
            return ""
        self.arena.notes.write(**describe_claim(claim, self.arena.lease))
        wait = dice.random() < 0.5

        def settle() -> None:
            with suppress(PenstockError), app:
                if not self._wait_until_taken(claim):
                    return  # while its lease is valid, so is its settle
                facts = {"op": "settle", "token": str(claim.token), "ids": claim.ids}
                self.arena.notes.write(**facts, phase="invoke")
                try:
                    states = queue.settle(claim, wait=wait)
                except LeaseLost as error:
                    lost = {*error.refused, *error.revoked, *error.busy}
                    self.arena.notes.write(**{**facts, "ids": [*lost]}, phase="fail")
                    states = {id_: "done" for id_ in claim.ids if id_ not in lost}
                states = {id_: state for id_, state in states.items() if state != "busy"}
                self.arena.notes.write(**{**facts, "ids": [*states]}, phase="ok", states=states)

        self._lasting(self.arena.lease * dice.uniform(1.1, 2.0), settle)
        return f"a zombie claimed {len(claim)}"

    def _wait_until_taken(self, claim: Claim) -> bool:
        """Wait up to 2 s until another worker has claimed one of its tasks. Return whether its lease is gone."""
        until = time.monotonic() + 2
        query = """
            select count(*) filter (where token = %s), count(*) from penstock.lease
            where token = %s or ids && %s::bigint[]
        """
        kept, leases = 1, 0
        with (
            suppress(psycopg.OperationalError),
            psycopg.connect(self.arena.dsn, autocommit=True, connect_timeout=2) as sql,
        ):
            while time.monotonic() < until and (kept or not leases):
                row = sql.execute(query, (claim.token, claim.token, claim.ids)).fetchone()
                kept, leases = row or (1, 0)
                time.sleep(0.002)
        return not kept

    # --- PostgreSQL -------------------------------------------------------------------------------------------------

    def _crash(self, dice: random.Random) -> str:
        if self.host is None:
            return ""
        away = dice.uniform(0, 1.0)
        with self._outage():
            self.host.crash(dice)
            time.sleep(away)
            self.host.start()
        self.arena.notes.write(op="back", what="restart")
        self._quiet_until = time.monotonic() + CALM
        return f"PostgreSQL crashed, away {away:.1f} s"

    def _stop_postgres(self, dice: random.Random) -> str:
        """Freeze all processes of the server: connections stay open, and nothing answers."""
        if self.host is None:
            return ""
        seconds = dice.uniform(0.5, 1.5 * self.arena.lease)
        with self._outage():
            pids = self.host.processes()
            for pid in pids:
                send(pid, signal.SIGSTOP)
            time.sleep(seconds)
            for pid in pids:
                send(pid, signal.SIGCONT)
        return f"froze PostgreSQL for {seconds:.1f} s"

    @contextmanager
    def _outage(self) -> Iterator[None]:
        since = time.time()
        try:
            yield
        finally:
            self.arena.notes.write(op="outage", since=since, until=time.time() + CALM)

    def _terminate(self, dice: random.Random) -> str:
        with psycopg.connect(self.arena.dsn, autocommit=True, connect_timeout=2) as sql:
            count = len(sql.execute(END_ALL).fetchall())
        return f"ended {count} connections"

    def _crowd(self, dice: random.Random) -> str:
        """Take all connections, so that none is left for other clients."""
        crowd: list[psycopg.Connection] = []
        with self._outage():
            try:
                while len(crowd) < 500:
                    crowd.append(psycopg.connect(self.arena.dsn, connect_timeout=2))
            except psycopg.OperationalError:
                time.sleep(dice.uniform(0.5, 1.5))
            finally:
                for one in crowd:
                    one.close()
        return f"took {len(crowd)} connections, all there were"

    def _snapshot(self, dice: random.Random) -> str:
        """Open a transaction that holds back vacuum."""
        sql = psycopg.connect(self.arena.dsn, connect_timeout=2)
        sql.execute("set transaction isolation level repeatable read")
        sql.execute("select count(*) from penstock.agenda")
        seconds = dice.uniform(5, 15)
        self._lasting(seconds, sql.close)
        return f"held a snapshot for {seconds:.0f} s"

    def _lock(self, dice: random.Random) -> str:
        """Push to subjects that wait or run in a transaction that stays open."""
        subjects = [f"lock-{uuid4().hex[:8]}-{n}" for n in range(3)]
        with Penstock(self.arena.dsn, timeout=2) as app:
            queue = app.queue("faults")
            self._upsert(subjects, 1, lambda task: queue.push_many([task]))
        time.sleep(0.2)
        sql = psycopg.connect(self.arena.dsn, connect_timeout=2)
        for subject in subjects:
            payload = {"version": 2, "seconds": 0.0}
            facts = {"op": "upsert", "items": [[subject, 2]], "batch": subject}
            self.arena.notes.write(**facts, phase="invoke")
            queue.push(payload, subject=subject, kind="hot", on_conflict="update", connection=sql)
        seconds = dice.uniform(1.0, 3 * self.arena.lease)

        def commit() -> None:
            with suppress(psycopg.OperationalError):
                sql.commit()
                for subject in subjects:
                    facts = {"op": "upsert", "items": [[subject, 2]], "batch": subject}
                    self.arena.notes.write(**facts, phase="ok")
            sql.close()

        self._lasting(seconds, commit)
        return f"held three documents for {seconds:.1f} s"

    def _upsert(self, subjects: list[str], version: int, push: Callable[[NewTask], object]) -> None:
        for subject in subjects:
            facts = {"op": "upsert", "items": [[subject, version]], "batch": subject}
            self.arena.notes.write(**facts, phase="invoke")
            push(NewTask({"version": version, "seconds": 0.3}, subject, kind="hot"))
            self.arena.notes.write(**facts, phase="ok")

    # --- the network ------------------------------------------------------------------------------------------------

    def _latency(self, dice: random.Random) -> str:
        seconds, delay = dice.uniform(2, 6), dice.uniform(0.01, 0.1)
        found = self._cut_off(dice, seconds, lambda lane: lane.delay(delay), down=False)
        return found and f"{found}: {1000 * delay:.0f} ms more for {seconds:.0f} s"

    def _hung(self, dice: random.Random) -> str:
        seconds = self.arena.lease * dice.uniform(1.0, 4.0)
        found = self._cut_off(dice, seconds, Lane.hang, reset=dice.random() < 0.5)
        return found and f"{found}: hung for {seconds:.1f} s"

    def _unanswered_worker(self, dice: random.Random) -> str:
        """Let the connections of a worker hang for longer than its deadline, while new ones work. The worker must give
        up those that it waits on, and go on with others."""
        seconds = dice.uniform(*NO_ANSWER)
        worker = self._healthy(dice)
        lane = None if worker is None else self.arena.lane_of(worker)
        if worker is None or lane is None or not {*self.arena.runners(worker)} & self._holders():
            return ""  # a worker that starts has only the supervisor's connections, which have a longer deadline
        since, began, severed = time.time(), time.monotonic(), self._severed
        if not lane.hang_present():
            return ""  # it has just started, or PostgreSQL is down
        self._down.add(worker.pid)
        self._unanswered.add(worker.pid)

        def heal() -> None:
            self._down.discard(worker.pid)
            self._unanswered.discard(worker.pid)
            count, lasted = lane.given_up(), time.monotonic() - began
            if not count and severed == self._severed and lasted > NO_ANSWER[0] and worker.poll() is None:
                self.arena.findings.append(f"a worker waited for {lasted:.0f} s for answers, and gave up no connection")
            lane.heal()
            self.arena.notes.write(op="outage", since=since, until=time.time() + CALM)
            self.say(f"an unanswered worker gave up {count} connections in {lasted:.0f} s")

        self._lasting(seconds, heal)
        return f"a worker gets no answers for {seconds:.0f} s"

    def _silent(self, dice: random.Random) -> str:
        seconds = self.arena.lease * dice.uniform(1.0, 4.0)
        found = self._cut_off(dice, seconds, Lane.drop, reset=dice.random() < 0.5)
        return found and f"{found}: silent for {seconds:.1f} s"

    def _reset(self, dice: random.Random) -> str:
        found = self._cut_off(dice, 0.0, Lane.reset, down=False)
        return found and f"{found}: reset"

    def _commits(self, dice: random.Random) -> str:
        count, skip, arrive = dice.randint(1, 3), dice.randint(0, 4), dice.random() < 0.6
        found = self._cut_off(dice, 2.0, lambda lane: lane.cut_commits(count, skip=skip, arrive=arrive), down=False)
        return found and f"{found}: reset at COMMIT, {'after' if arrive else 'before'} it arrived"

    def _cut_off(
        self,
        dice: random.Random,
        seconds: float,
        act: Callable[[Lane], None],
        *,
        reset: bool = False,
        down: bool = True,
    ) -> str:
        """Harm the lane of one worker or producer for `seconds`. At the end it is healed, or with `reset` its
        connections are reset. `down` means that nothing gets through meanwhile."""
        producer = dice.random() < 0.4
        process = dice.choice(self.arena.producers) if producer and self.arena.producers else self._healthy(dice)
        lane = None if process is None else self.arena.lane_of(process)
        if process is None or lane is None or any(lane is self.arena._lane_of.get(pid) for pid in self._down):
            return ""
        if down:
            self._down.add(process.pid)
        since = time.time()
        act(lane)

        def heal() -> None:
            self._down.discard(process.pid)
            if reset:
                lane.reset()
            lane.heal()
            self.arena.notes.write(op="outage", since=since, until=time.time() + CALM)

        self._lasting(seconds, heal)
        return "a producer's lane" if process in self.arena.producers else "a worker's lane"


def dice_some(dice: random.Random, pids: list[int]) -> list[int]:
    return [dice.choice(pids)] if pids else []
