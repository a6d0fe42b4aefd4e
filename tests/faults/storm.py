"""Harm by plan: producers push, workers drain, and blows fall at moments that a seed decides.

The plan is the same for the same seed: which blows, when, and how hard. Whom they hit depends on who lives then.
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
DEAF = (25.5, 28.0)  # seconds: a worker waits for an answer for 20
CALM = 3.0  # seconds without a blow after PostgreSQL is back, so that nothing else delays the first claim
END_ALL = (
    "select pg_terminate_backend(pid) from (select pid from pg_stat_activity"
    " where backend_type = 'client backend' and pid <> pg_backend_pid() order by random() limit 3) as a"
)


class Blow(NamedTuple):
    """When, as a share of the time there is; what; and a seed for how hard."""

    at: float
    what: str
    seed: int


def make_plan(counts: Mapping[str, int], seed: int) -> list[Blow]:
    """Every blow as often as asked, in an order and at moments that the seed decides."""
    dice = random.Random(seed)
    blows = [what for what, count in counts.items() for _ in range(count)]
    dice.shuffle(blows)
    moments = sorted(dice.random() for _ in blows)
    # What lasts long falls at even distances, the first at the start: a short storm is not much longer for it.
    longest = sorted(n for n, what in enumerate(blows) if what == "deaf_worker")
    for n, index in enumerate(longest):
        moments[index] = n / len(longest)
    return [Blow(at, what, dice.getrandbits(32)) for at, what in zip(moments, blows, strict=True)]


class Host(Protocol):
    """Where PostgreSQL runs, for whoever ends it."""

    def crash(self, dice: random.Random) -> None: ...
    def start(self) -> None: ...
    def processes(self) -> list[int]: ...


@dataclass
class OwnServer:
    """A PostgreSQL that belongs to one stage alone."""

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
    """Blows that fall on an arena. Those that last (a frozen worker, a cut lane) end while others fall."""

    place: Arena
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
    _deaf: set[int] = field(default_factory=set)  # those of them that must live until their deadline
    _endings: dict[int, Callable[[], None]] = field(default_factory=dict)
    _began: float = 0.0

    # --- from start to end ------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Let the plan's blows fall, until all have fallen and the time is over, or `until` says that it is enough."""
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
            self.place.look_after()
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
        for lane in self.place.lanes:
            lane.heal()
        if self.host is not None:
            self.host.start()

    def schedule(self, share: float, act: Callable[[], None]) -> None:
        """Call it at this share of the time; before `run`."""
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
        """Call `end` after so many seconds, or at the end of the storm if that is earlier."""
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
        """No victim was there, or PostgreSQL was down: the blow falls a moment later."""
        if time.monotonic() < self._began + self.seconds + self.grace:
            self._at(time.monotonic() + 0.5, partial(self._strike, blow))

    @property
    def _severed(self) -> int:
        """How many blows have fallen that end connections, also those that hang."""
        return sum(self.done[what] for what in ("crash", "crowd", "reset", "stop_postgres", "terminate"))

    # --- progress ---------------------------------------------------------------------------------------------------

    def progress(self) -> str:
        gone = time.monotonic() - self._began
        harm = ", ".join(f"{what} {count}" for what, count in sorted(self.done.items()))
        left = max(0.0, self.seconds - gone)
        return f"{gone:5.0f} s  {harm or 'no harm yet'}  |  {self.tasks()}  |  last: {self.last}  |  ETA {left:.0f} s"

    def tasks(self) -> str:
        with suppress(Exception), Penstock(self.place.dsn, timeout=1) as app:
            status = app.queue("faults").status()
            return f"done {status.totals['done']:,}, left {status.waiting + status.active:,}"
        return "PostgreSQL is away"

    # --- processes --------------------------------------------------------------------------------------------------

    def _kill(self, dice: random.Random) -> str:
        what = dice.choices(("runner", "supervisor", "worker", "producer"), (50, 20, 20, 10))[0]
        if what == "producer" and self.place.producers:
            victim = dice.choice(self.place.producers)
            self.place.kill([victim.pid])
            return "killed a producer"
        workers = [one for one in self.place.workers if one.pid not in self._deaf]
        if not workers:
            return ""
        worker = dice.choice(workers)
        runners = self.place.runners(worker)
        victims = {"supervisor": [worker.pid], "worker": [worker.pid, *runners]}.get(what, dice_some(dice, runners))
        if not victims:
            return ""
        self.place.kill(victims)
        return f"killed a {what}"

    def _freeze(self, dice: random.Random) -> str:
        """All of a worker, or one of its runners, stopped for longer than its lease: it comes back as a zombie."""
        seconds = self.place.lease * dice.uniform(1.5, 3.0)
        whole, told_to_stop = dice.random() < 0.7, dice.random() < 0.3
        worker = self._healthy(dice)
        if worker is None:
            return ""
        runners = self.place.runners(worker)
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
        """A worker that is neither frozen nor cut off, and is not the last one."""
        found = [worker for worker in self.place.workers if worker.pid not in self._down]
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
        with psycopg.connect(self.place.dsn, autocommit=True, connect_timeout=2) as sql:
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
        """A client claims tasks, is silent until another worker has one of them, and settles them: it waits for locks,
        or does not, as workers do."""
        app = Penstock(self.place.dsn, timeout=2)
        queue = app.queue("faults")
        claim = queue.claim(dice.randint(1, 3), lease=self.place.lease, worker="zombie", may_alone=False)
        if not claim:
            app.close()
            return ""
        self.place.notes.write(**describe_claim(claim, self.place.lease))
        wait = dice.random() < 0.5

        def settle() -> None:
            with suppress(PenstockError), app:
                if not self._wait_until_taken(claim):
                    return  # while its lease is there, what it says is right
                facts = {"op": "settle", "token": str(claim.token), "ids": claim.ids}
                self.place.notes.write(**facts, phase="invoke")
                try:
                    states = queue.settle(claim, wait=wait)
                except LeaseLost as error:
                    lost = {*error.refused, *error.revoked, *error.busy}
                    self.place.notes.write(**{**facts, "ids": [*lost]}, phase="fail")
                    states = {id_: "done" for id_ in claim.ids if id_ not in lost}
                states = {id_: state for id_, state in states.items() if state != "busy"}
                self.place.notes.write(**{**facts, "ids": [*states]}, phase="ok", states=states)

        self._lasting(self.place.lease * dice.uniform(1.1, 2.0), settle)
        return f"a zombie claimed {len(claim)}"

    def _wait_until_taken(self, claim: Claim) -> bool:
        """Until a task of it is in the lease of another worker, for two seconds at most. Whether its lease is gone."""
        until = time.monotonic() + 2
        query = """
            select count(*) filter (where token = %s), count(*) from penstock.lease
            where token = %s or ids && %s::bigint[]
        """
        kept, leases = 1, 0
        with (
            suppress(psycopg.OperationalError),
            psycopg.connect(self.place.dsn, autocommit=True, connect_timeout=2) as sql,
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
        self.place.notes.write(op="back", what="restart")
        self._quiet_until = time.monotonic() + CALM
        return f"PostgreSQL crashed, away {away:.1f} s"

    def _stop_postgres(self, dice: random.Random) -> str:
        """All processes of the server stopped: connections stay open, and nothing answers."""
        if self.host is None:
            return ""
        seconds = dice.uniform(0.5, 1.5 * self.place.lease)
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
            self.place.notes.write(op="outage", since=since, until=time.time() + CALM)

    def _terminate(self, dice: random.Random) -> str:
        with psycopg.connect(self.place.dsn, autocommit=True, connect_timeout=2) as sql:
            count = len(sql.execute(END_ALL).fetchall())
        return f"ended {count} connections"

    def _crowd(self, dice: random.Random) -> str:
        """No connection is left for anybody else."""
        crowd: list[psycopg.Connection] = []
        with self._outage():
            try:
                while len(crowd) < 500:
                    crowd.append(psycopg.connect(self.place.dsn, connect_timeout=2))
            except psycopg.OperationalError:
                time.sleep(dice.uniform(0.5, 1.5))
            finally:
                for one in crowd:
                    one.close()
        return f"took {len(crowd)} connections, all there were"

    def _snapshot(self, dice: random.Random) -> str:
        """A transaction that holds back vacuum."""
        sql = psycopg.connect(self.place.dsn, connect_timeout=2)
        sql.execute("set transaction isolation level repeatable read")
        sql.execute("select count(*) from penstock.agenda")
        seconds = dice.uniform(5, 15)
        self._lasting(seconds, sql.close)
        return f"held a snapshot for {seconds:.0f} s"

    def _lock(self, dice: random.Random) -> str:
        """A foreign transaction pushes to subjects that wait or run, and stays open."""
        subjects = [f"lock-{uuid4().hex[:8]}-{n}" for n in range(3)]
        with Penstock(self.place.dsn, timeout=2) as app:
            queue = app.queue("faults")
            self._upsert(subjects, 1, lambda task: queue.push_many([task]))
        time.sleep(0.2)
        sql = psycopg.connect(self.place.dsn, connect_timeout=2)
        for subject in subjects:
            payload = {"version": 2, "seconds": 0.0}
            facts = {"op": "upsert", "items": [[subject, 2]], "batch": subject}
            self.place.notes.write(**facts, phase="invoke")
            queue.push(payload, subject=subject, kind="hot", on_conflict="update", connection=sql)
        seconds = dice.uniform(1.0, 3 * self.place.lease)

        def commit() -> None:
            with suppress(psycopg.OperationalError):
                sql.commit()
                for subject in subjects:
                    facts = {"op": "upsert", "items": [[subject, 2]], "batch": subject}
                    self.place.notes.write(**facts, phase="ok")
            sql.close()

        self._lasting(seconds, commit)
        return f"held three documents for {seconds:.1f} s"

    def _upsert(self, subjects: list[str], version: int, push: Callable[[NewTask], object]) -> None:
        for subject in subjects:
            facts = {"op": "upsert", "items": [[subject, version]], "batch": subject}
            self.place.notes.write(**facts, phase="invoke")
            push(NewTask({"version": version, "seconds": 0.3}, subject, kind="hot"))
            self.place.notes.write(**facts, phase="ok")

    # --- the network ------------------------------------------------------------------------------------------------

    def _latency(self, dice: random.Random) -> str:
        seconds, delay = dice.uniform(2, 6), dice.uniform(0.01, 0.1)
        found = self._cut_off(dice, seconds, lambda lane: lane.delay(delay), down=False)
        return found and f"{found}: {1000 * delay:.0f} ms more for {seconds:.0f} s"

    def _hung(self, dice: random.Random) -> str:
        seconds = self.place.lease * dice.uniform(1.0, 4.0)
        found = self._cut_off(dice, seconds, Lane.hang, reset=dice.random() < 0.5)
        return found and f"{found}: hung for {seconds:.1f} s"

    def _deaf_worker(self, dice: random.Random) -> str:
        """The connections that a worker has get no answer for longer than its deadline; new ones work. It must give up
        those that it waits for, and go on with others."""
        seconds = dice.uniform(*DEAF)
        worker = self._healthy(dice)
        lane = None if worker is None else self.place.lane_of(worker)
        if worker is None or lane is None or not {*self.place.runners(worker)} & self._holders():
            return ""  # one that starts has only connections of its supervisor, which waits for longer
        since, began, severed = time.time(), time.monotonic(), self._severed
        if not lane.hang_present():
            return ""  # it has just started, or PostgreSQL is down
        self._down.add(worker.pid)
        self._deaf.add(worker.pid)

        def heal() -> None:
            self._down.discard(worker.pid)
            self._deaf.discard(worker.pid)
            count, lasted = lane.given_up(), time.monotonic() - began
            if not count and severed == self._severed and lasted > DEAF[0] and worker.poll() is None:
                self.place.findings.append(f"a worker waited for {lasted:.0f} s for answers, and gave up no connection")
            lane.heal()
            self.place.notes.write(op="outage", since=since, until=time.time() + CALM)
            self.say(f"a deaf worker gave up {count} connections in {lasted:.0f} s")

        self._lasting(seconds, heal)
        return f"a worker gets no answers for {seconds:.0f} s"

    def _silent(self, dice: random.Random) -> str:
        seconds = self.place.lease * dice.uniform(1.0, 4.0)
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
        """Harm the lane of one worker or producer for so long; at the end it is healed, or all it has is reset. `down`:
        nothing gets through meanwhile."""
        producer = dice.random() < 0.4
        process = dice.choice(self.place.producers) if producer and self.place.producers else self._healthy(dice)
        lane = None if process is None else self.place.lane_of(process)
        if process is None or lane is None or any(lane is self.place._lane_of.get(pid) for pid in self._down):
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
            self.place.notes.write(op="outage", since=since, until=time.time() + CALM)

        self._lasting(seconds, heal)
        return "a producer's lane" if process in self.place.producers else "a worker's lane"


def dice_some(dice: random.Random, pids: list[int]) -> list[int]:
    return [dice.choice(pids)] if pids else []
