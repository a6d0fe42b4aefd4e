"""The queue against a model of it: random verbs of two clients run on the real SQL and on a few pages of Python.

The model is written from the design, not from the SQL. After every step the documents, the agenda, the leases, history,
counters and the oldest age must equal the model, and `verify` must find nothing. The database's clock is fixed.

When it fails, Hypothesis prints the steps and a `@reproduce_failure(…)`: put that on `QueueMachine` to run them again.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import cycle
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple
from uuid import UUID, uuid4

import orjson
import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from psycopg.pq import TransactionStatus

from penstock import (
    Claim,
    Delays,
    Exponential,
    Fibonacci,
    Fixed,
    LeaseLost,
    NewTask,
    NotFound,
    Outcome,
    Penstock,
    Progressive,
    Queue,
    Task,
)
from penstock.retry import Strategy

MAX_CRASHES = 20
Place = tuple[int, datetime, int]

# -- The model of one queue, by the design ----------------------------------------------------------------------------


class Terms(NamedTuple):
    """The retry settings of a queue, or of a kind in it."""

    max_attempts: int | None
    retry: Strategy


@dataclass
class Doc:
    """A task, with the place where it waits (or waited, if it is leased)."""

    id: int
    kind: str
    subject: str | None
    version: int  # of its payload
    priority: int
    created: datetime
    since: datetime
    due: datetime
    state: str  # planned, pending, active, done, dead, cancelled
    attempts: int = 0
    quarantine: int = 0  # the size of the largest lease that it may be in; 0: any
    crashes: int = 0
    iterations: int = 0
    reason: str | None = None
    renew: datetime | None = None  # when it is to run again, if it was pushed again while it ran
    key: str | None = None
    expires: datetime | None = None

    @property
    def place(self) -> Place:
        return self.priority, self.due, self.id


@dataclass
class Lease:
    token: UUID
    worker: str
    claimed_at: datetime
    until: datetime
    alone: bool
    was: tuple[Doc, ...]  # the tasks as they were when claimed, in order
    open: set[int]
    revoked: set[int] = field(default_factory=set)

    @property
    def ids(self) -> list[int]:
        return [doc.id for doc in self.was]


class Said(NamedTuple):
    """An outcome, as the model receives it."""

    word: str
    due: datetime | None = None
    delay: timedelta | None = None
    version: int | None = None


class Noted(NamedTuple):
    """A row of history."""

    finished_at: datetime
    task_id: int
    outcome: str
    attempt: int
    iteration: int
    due: datetime
    claimed_at: datetime
    worker: str
    kind: str
    subject: str | None


@dataclass
class Model:
    """The model of one queue."""

    terms: Terms
    keeps_done: bool
    docs: dict[int, Doc] = field(default_factory=dict)
    leases: dict[UUID, Lease] = field(default_factory=dict)
    totals: Counter[str] = field(default_factory=Counter)
    history: list[Noted] = field(default_factory=list)

    # Push: a task with a due starts as planned, whatever the time is; a task without one starts as pending.

    def subject(self, subject: str | None) -> Doc | None:
        return next((doc for doc in self.docs.values() if subject is not None and doc.subject == subject), None)

    def push(self, id_: int, task: NewTask, now: datetime) -> None:
        self.docs[id_] = Doc(
            id_,
            task.kind,
            task.subject,
            version_of(task),
            task.priority,
            created=now,
            since=now,
            due=task.due or now,
            state="pending" if task.due is None else "planned",
            key=task.key,
            expires=moment_of(task),
        )
        self.totals["pushed"] += 1

    def upsert(self, id_: int, task: NewTask, now: datetime) -> str:
        """Updates a waiting task, lets a running task run again, and re-opens an ended one."""
        doc = self.subject(task.subject)
        if doc is None:
            self.push(id_, task, now)
            return "created"
        doc.version, doc.kind, doc.priority = version_of(task), task.kind, task.priority
        doc.key, doc.expires = task.key, moment_of(task)
        if doc.state == "active":
            doc.renew = task.due or now
            return "renewed"
        if doc.state in {"planned", "pending"}:
            if task.due is not None:
                doc.due, doc.state = task.due, "planned"
            return "updated"
        self.reopen(doc, task.due, now)
        return "reopened"

    def reopen(self, doc: Doc, due: datetime | None, now: datetime) -> None:
        doc.due, doc.state = due or now, "pending" if due is None else "planned"
        doc.attempts = doc.quarantine = doc.crashes = 0
        doc.since, doc.reason = now, None

    def cancel(self, ids: list[int], now: datetime) -> dict[int, str]:
        """Ends the tasks now; a worker that runs one of them is told later."""
        answer = {}
        for id_ in ids:
            doc = self.docs.get(id_)
            if doc is None:
                answer[id_] = "unknown"
                continue
            if doc.state in {"done", "dead", "cancelled"}:
                answer[id_] = "ended"
                continue
            answer[id_] = "revoked" if doc.state == "active" else "cancelled"
            if doc.state == "active":
                lease = next(lease for lease in self.leases.values() if id_ in lease.open)
                lease.open.discard(id_)
                lease.revoked.add(id_)
                self.note(doc, lease, "revoked", now)
            doc.state, doc.reason, doc.renew = "cancelled", "cancelled by a test", None
            self.totals["cancelled"] += 1
        return answer

    def redrive(self, ids: list[int], now: datetime) -> dict[int, str]:
        answer = {}
        for id_ in ids:
            doc = self.docs.get(id_)
            answer[id_] = "unknown" if doc is None else "live"
            if doc is not None and doc.state in {"dead", "cancelled"}:
                self.reopen(doc, None, now)
                doc.expires = None
                self.totals["redriven"] += 1
                answer[id_] = "redriven"
        return answer

    def foresee(self, tasks: list[NewTask]) -> list[str]:
        """Returns the results of a batch: the last of equal subjects wins, and is skipped if its subject is taken."""
        last = {task.subject: n for n, task in enumerate(tasks)}
        winners = [n for n, task in enumerate(tasks) if task.subject is None or last[task.subject] == n]
        taken = ["skipped" if self.subject(task.subject) else "created" for task in tasks]
        return [result if n in winners else "superseded" for n, result in enumerate(taken)]

    # Claim: by (priority, due, id), and never more tasks than the smallest limit (`quarantine`) among them. A worker
    # without other tasks first takes a task that must be alone.

    def eligible(self, quarantined: bool, hint: Place | None = None, held: Collection[int] = ()) -> list[Doc]:
        pending = (doc for doc in self.docs.values() if doc.state == "pending" and doc.id not in held)
        found = (doc for doc in pending if (quarantined or doc.quarantine != 1) and (hint is None or doc.place >= hint))
        return sorted(found, key=lambda doc: doc.place)

    def within_reach(self, limit: int, quarantined: bool, hint: Place | None, held: Collection[int] = ()) -> list[Doc]:
        found = self.eligible(quarantined, hint, held)
        alone = [doc for doc in found if doc.quarantine == 1] if hint is None else []
        return alone[:1] or found[:limit]

    def choose(
        self,
        now: datetime,
        limit: int,
        quarantined: bool,
        hint: Place | None = None,
        held: Collection[int] = (),
        settling: UUID | None = None,
    ) -> list[Doc]:
        """Chooses the tasks of a claim. A hinted claim that finds too few looks again from the start, and only then
        expires and promotes. Rows and leases that another transaction holds are skipped."""
        found = self.within_reach(limit, quarantined, hint, held)
        if hint is None or len(found) < limit:
            self.expire(now, [lease.token for lease in self.overdue(now) if lease.token != settling])
            self.end_unstarted(now)  # what was put back may have expired while it ran
            self.promote(now)
            found = self.within_reach(limit, quarantined, None, held)
        while found and len(found) > min((doc.quarantine for doc in found if doc.quarantine), default=len(found)):
            found.pop()
        return found

    def take(self, token: UUID, worker: str, now: datetime, until: datetime, docs: list[Doc], exclusive: bool) -> Lease:
        """Makes a lease. It counts as alone if it holds one task and the worker has and takes no other."""
        was = tuple(replace(doc) for doc in docs)
        for doc in docs:
            doc.state = "active"
        self.leases[token] = Lease(
            token, worker, now, until, exclusive and len(docs) == 1, was, {doc.id for doc in docs}
        )
        return self.leases[token]

    # Expiry and promotion, as time passes.

    def overdue(self, now: datetime) -> list[Lease]:
        return sorted((lease for lease in self.leases.values() if lease.until < now), key=lambda lease: lease.until)

    def expire(self, now: datetime, tokens: list[UUID] | None = None) -> int:
        """Expires these leases, or all that have ended."""
        count = 0
        for token in [lease.token for lease in self.overdue(now)] if tokens is None else tokens:
            count += len(self.leases[token].open)
            self.conclude(self.leases[token], dict.fromkeys(self.leases[token].open, Said("expired")), now)
            self.leases.pop(token, None)  # a lease whose tasks were all cancelled has nothing to conclude
        return count

    def ripe(self, now: datetime) -> list[Doc]:
        return sorted(
            (doc for doc in self.docs.values() if doc.state == "planned" and doc.due <= now), key=lambda d: d.due
        )

    def promote(self, now: datetime) -> int:
        ripe = self.ripe(now)
        for doc in ripe:
            doc.state = "pending"
        return len(ripe)

    def end_unstarted(self, now: datetime) -> int:
        """Cancels the tasks that have expired while they wait."""
        late = [doc for doc in self.docs.values() if doc.expires and doc.expires <= now]
        late = [doc for doc in late if doc.state in {"planned", "pending"}]
        for doc in late:
            about = (now, doc.id, "unstarted", doc.attempts + 1, doc.iterations, doc.due, now, "")
            self.history.append(Noted(*about, doc.kind, doc.subject))
            doc.state, doc.reason = "cancelled", "expired"
            self.totals.update(["unstarted", "cancelled"])
        return len(late)

    # Settle.

    def settle(self, token: UUID, said: Mapping[int, Said], now: datetime) -> dict[int, str]:
        """Returns per id its state now, or refused if the lease no longer has it, revoked if it was cancelled while it
        ran, and unknown if the lease never had it."""
        lease = self.leases.get(token)
        if lease is None:
            return dict.fromkeys(said, "refused")
        answer = {id_: "refused" if id_ in lease.ids else "unknown" for id_ in said}
        answer |= {id_: "revoked" for id_ in said if id_ in lease.revoked}
        return answer | self.conclude(lease, {id_: one for id_, one in said.items() if id_ in lease.open}, now)

    def conclude(self, lease: Lease, said: Mapping[int, Said], now: datetime) -> dict[int, str]:
        still_open, answer = len(lease.open), {}
        for id_, one in said.items():
            doc = self.docs[id_]
            was = replace(doc)
            self.judge(doc, lease, one, now, still_open)
            outcome = "released" if one.word == "release" else "dead" if doc.state == "dead" else one.word
            self.note(was, lease, outcome, now)
            answer[id_] = doc.state
            if doc.state == "done" and not self.keeps_done:
                del self.docs[id_]
                self.totals["removed"] += 1
        lease.open -= said.keys()
        if said and not lease.open:
            del self.leases[lease.token]
        return answer

    def note(self, doc: Doc, lease: Lease, outcome: str, now: datetime) -> None:
        """Adds a row of history for the attempt of this lease."""
        self.totals[outcome] += 1
        was = next(one for one in lease.was if one.id == doc.id)
        self.history.append(
            Noted(
                *(now, doc.id, outcome, was.attempts + 1, doc.iterations, was.due, lease.claimed_at, lease.worker),
                *(doc.kind, doc.subject),
            )
        )

    def judge(self, doc: Doc, lease: Lease, said: Said, now: datetime, still_open: int) -> None:
        """Applies an outcome to its task. A push that came meanwhile overrides every outcome."""
        if doc.renew is not None:
            due, doc.renew = doc.renew, None
            doc.iterations += said.word in {"done", "again"}
            doc.attempts = doc.quarantine = doc.crashes = 0
            doc.since = now
            self.wait(doc, due, now)
            return
        terms = KINDS.get(doc.kind, self.terms)
        most = self.terms.max_attempts if terms.max_attempts is None else terms.max_attempts
        strategy = terms.retry.delay(doc.attempts + 1, now - doc.since, doc.id)
        if said.word == "expired" and not lease.alone:  # given back, to be tried in a smaller lease
            doc.quarantine = max(1, max(still_open, doc.quarantine or 64) // 8)
            self.wait(doc, now, now)
        elif said.word == "expired":  # alone, so this task took its worker down
            again = doc.quarantine == 1  # it was alone because of an earlier crash
            doc.attempts, doc.crashes, doc.quarantine = doc.attempts + 1, doc.crashes + 1, 1
            if strategy is None or doc.crashes >= MAX_CRASHES or (most is not None and doc.attempts >= most):
                self.end(doc, "dead", "crashed")
            else:  # the first time, the strategy is only asked whether to stop
                self.wait(doc, now + strategy if again else now, now)
        elif said.word == "release":  # unchanged
            doc.state = "pending"
            if said.delay is not None:
                self.wait(doc, now + said.delay, now)
        else:
            doc.quarantine = doc.crashes = 0
            if said.word == "failed":
                doc.attempts += 1
                delay = strategy if said.delay is None else said.delay
                if most is not None and doc.attempts >= most:
                    self.end(doc, "dead", "attempts spent")
                elif delay is None:
                    self.end(doc, "dead", "the strategy ended")
                else:
                    self.wait(doc, now + delay, now)
            elif said.word == "dead":
                self.end(doc, "dead", "told so by a test")
            else:  # a success
                doc.attempts, doc.iterations, doc.since = 0, doc.iterations + 1, now
                if said.word == "again":
                    doc.expires = None
                if said.word == "done":
                    self.end(doc, "done", None)
                else:
                    doc.version = doc.version if said.version is None else said.version
                    self.wait(doc, said.due or now + (said.delay or timedelta()), now)

    def wait(self, doc: Doc, due: datetime, now: datetime) -> None:
        doc.due, doc.state = due, "pending" if due <= now else "planned"

    def end(self, doc: Doc, state: str, reason: str | None) -> None:
        doc.state, doc.reason = state, reason

    # The status.

    def gauges(self) -> dict[str, int]:
        states = Counter(doc.state for doc in self.docs.values())
        return {state: states[state] for state in ("planned", "pending", "active", "done", "dead", "cancelled")}

    def oldest_age(self, now: datetime) -> float | None:
        """Returns the age of the oldest waiting task; overdue planned tasks count, promoted or not."""
        waiting = [doc.due for doc in self.docs.values() if doc.state in {"planned", "pending"} and doc.due <= now]
        return (now - min(waiting)).total_seconds() if waiting else None


def moment_of(task: NewTask) -> datetime | None:
    assert task.expires is None or isinstance(task.expires, datetime)
    return task.expires


def version_of(task: NewTask) -> int:
    assert task.payload is not None
    return int(task.payload["v"])


def stored(doc: Doc) -> int:
    """Returns the quarantine and the crashes of a task as the agenda has them."""
    assert doc.quarantine == 1 or not doc.crashes
    return -1 - doc.crashes if doc.quarantine == 1 else doc.quarantine


# -- The world: one database, two clients and an observer -------------------------------------------------------------

START = datetime(2030, 1, 1, 23, 58, tzinfo=UTC)  # two minutes before history begins another day
LEASE = timedelta(seconds=10)
EMPTY = """
    set session_replication_role = replica;
    delete from penstock.task; delete from penstock.agenda; delete from penstock.lease; delete from penstock.history;
    delete from penstock.history_dropped; delete from penstock.counter; delete from penstock.counter_log;
    delete from penstock.sample; delete from penstock.ledger; delete from penstock.kind; delete from penstock.watermark;
    delete from penstock.early; delete from penstock.queue;
    set session_replication_role = origin;
    alter sequence penstock.task_id_seq restart;
"""
TASKS = """
    select t.queue_id, t.id,
           coalesce(t.ended, case when a.pending then 'pending' when not a.pending then 'planned' else 'active' end),
           t.kind, t.subject, (t.payload->>'v')::int, t.priority, t.created, coalesce(t.since, t.created), t.iterations,
           t.reason, t.key, t.expires, a.due, a.attempts, a.quarantine, a.priority,
           (select k.key from penstock.key as k where k.id = a.key_id)
    from penstock.task as t left join penstock.agenda as a on a.task_id = t.id
"""
LEASES = """
    select queue_id, token, worker, claimed_at, until, open::text, ids, dues, attempts, quarantines,
           (select array_agg(k.key order by i.n) from unnest(key_ids) with ordinality as i(id, n)
            left join penstock.key as k on k.id = i.id)
    from penstock.lease
"""
HISTORY = """
    select queue_id, finished_at, task_id, outcome, attempt, iteration, due, claimed_at, worker, kind, subject
    from penstock.history where finished_at >= %s
"""
CLAIM = """
    select token, until, id
    from penstock.claim(%s, %s, p_worker => %s, p_hint => penstock.at_place(%s::smallint, %s, %s), p_quarantined => %s)
"""
PUSH = """
    select n, id, result, state
    from penstock.push_many(%s, %s::text[], %s::text[], %s::text[], %s::timestamptz[], %s::smallint[], %s, p_keys => %s,
                            p_expires => %s::timestamptz[])
"""
SETTLE = """
    select id, result
    from penstock.settle(%s, %s::bigint[], %s::text[], %s::timestamptz[], %s::interval[], %s::text[], %s::text[])
"""


class Told:
    """A hint that the test sets, in place of a client's own hint, which goes by the wall clock."""

    place: Place | None = None

    def current(self) -> Place | None:
        return self.place

    def note(self, *_: object) -> None: ...


class World:
    """Connections that are kept from one example to the next, so that statements stay prepared."""

    def __init__(self, dsn: str) -> None:
        patient = psycopg.conninfo.make_conninfo(dsn, options="-c lock_timeout=3s")  # no statement may wait for a lock
        self.apps = [Penstock(patient, max_connections=1) for _ in range(2)]
        self.raw = [psycopg.connect(patient, autocommit=True) for _ in range(3)]
        self.watcher = self.raw[2]
        self.set_clock(START)
        while any(self.apps[0].upkeep().get(part) for part in ("history days made", "history days dropped")):
            pass  # partitions for these days, and none for the real today

    def set_clock(self, now: datetime) -> None:
        self.watcher.execute("update penstock_test.clock set fixed = %s, shift = '0'", (now,))

    def close(self) -> None:
        for app in self.apps:
            app.close()
        for sql in self.raw:
            sql.close()


@pytest.fixture
def world(dsn: str) -> Iterator[World]:
    world = World(dsn)
    yield world
    world.close()


# -- Inputs ------------------------------------------------------------------------------------------------------------

QUEUES: Mapping[str, tuple[Terms, bool]] = {  # and whether done tasks are kept
    "spent": (Terms(3, Exponential("4s", factor=2, cap="30s", jitter=0.1)), False),
    "endless": (Terms(None, Fixed("5s")), False),
    "many": (Terms(30, Fibonacci("2s", cap="20s")), True),
    "listed": (Terms(20, Delays(["1s", "0.5s", "12s"])), False),
    "aging": (Terms(None, Progressive([("30s", "3s"), ("5m", "20s")])), True),
}
KINDS = {"brittle": Terms(2, Fixed("1s")), "patient": Terms(None, Delays([3, 3]))}


class Ask(NamedTuple):
    """A push, before its payload and time are known."""

    subject: str | None = None
    due: float | None = None
    priority: int = 5
    kind: str = "default"
    key: str | None = None
    expires: float | None = None  # seconds after the due


class Say(NamedTuple):
    """An outcome, before its payload and time are known."""

    word: str
    due: float | None = None
    delay: float | None = None
    payload: bool = False


NOW_OR_LATER = st.sampled_from([None, 0.0, 0.000001, 3.0, 20.0])
ASKS = st.builds(
    Ask,
    st.sampled_from([None, None, "a", "b", "B", "ä"]),
    st.sampled_from([None, None, -7.0, 0.0, 2.0, 15.0]),
    st.sampled_from([5, 5, 0, 1, 9]),
    st.sampled_from(["default", "default", *KINDS]),
    st.sampled_from([None, None, "k", "K"]),
    st.sampled_from([None, None, None, 0.000001, 4.0, 16.0]),
)
OUTCOMES = {  # due, delay, whether with a payload
    "done": (st.none(), st.none(), st.just(False)),
    "dead": (st.none(), st.none(), st.just(False)),
    "failed": (st.none(), NOW_OR_LATER, st.just(False)),
    "release": (st.none(), NOW_OR_LATER, st.just(False)),
    "again": (st.sampled_from([None, None, -5.0, 0.0, 8.0]), NOW_OR_LATER, st.booleans()),
}
SAYINGS = st.one_of([st.tuples(st.just(word), *rest).map(Say._make) for word, rest in OUTCOMES.items()])
GIVEN = attrgetter("kind", "subject", "priority", "due", "iterations", "created")  # equal in a task and its document
LIMITS = st.integers(1, 5) | st.sampled_from([16, 40])
EITHER = st.integers(0, 1)
MOSTLY_FIRST = st.sampled_from([0, 0, 0, 1])


class QueueMachine(RuleBasedStateMachine):
    """Two queues and two clients. Each rule calls the queue and the model, and compares their answers."""

    world: ClassVar[World]

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.checked = START
        self.version = 0
        self.haunted = False
        self.names: list[str] = []
        self.models: list[Model] = []
        self.queue_ids: list[int] = []
        self.claims: list[tuple[int, Claim]] = []  # all claims so far, with the number of their queue
        self.last: dict[tuple[int, int], Place] = {}  # where the last claim of a client in a queue ended

    @initialize(
        names=st.lists(st.sampled_from(sorted(QUEUES)), min_size=2, max_size=2, unique=True),
        asks=st.lists(ASKS, max_size=12),
    )
    def begin(self, names: list[str], asks: list[Ask]) -> None:
        self.world.watcher.execute(EMPTY)
        self.world.set_clock(self.now)
        self.names = names
        for name in names:
            self.create(name, *QUEUES[name])
        self.push(0, 0, asks, "in bulk")

    def create(self, name: str, terms: Terms, keeps_done: bool) -> None:
        keep_done = "7d" if keeps_done else None
        self.world.apps[0].create_queue(
            name, lease=LEASE, max_attempts=terms.max_attempts, retry=terms.retry, keep_done=keep_done
        )
        sql = self.world.watcher
        (queue_id,) = one(sql.execute("select id from penstock.queue where name = %s", (name,)).fetchone())
        for kind, known in KINDS.items():
            sql.execute(
                "insert into penstock.kind (queue_id, kind, retry, max_attempts) values (%s, %s, %s, %s)",
                (queue_id, kind, orjson.dumps(known.retry.to_json()).decode(), known.max_attempts),
            )
        self.queue_ids.append(queue_id)
        self.models.append(Model(terms, keeps_done))

    def queue(self, client: int, at: int) -> Queue:
        queue = self.world.apps[client].queue(self.names[at])
        if not isinstance(queue._claimer._hint, Told):
            queue._claimer._hint = Told()  # type: ignore[assignment]
        return queue

    # -- Push

    def asked(self, ask: Ask) -> NewTask:
        self.version += 1
        due = None if ask.due is None else self.now + timedelta(seconds=ask.due)
        expires = None if ask.expires is None else (due or self.now) + timedelta(seconds=ask.expires)
        return NewTask({"v": self.version}, ask.subject, due, ask.priority, ask.kind, None, ask.key, None, expires)

    @rule(
        client=EITHER,
        at=MOSTLY_FIRST,
        asks=st.lists(ASKS, min_size=1, max_size=6),
        how=st.sampled_from(["one by one", "in bulk", "in SQL"]),
    )
    def push(self, client: int, at: int, asks: list[Ask], how: str) -> None:
        tasks = [self.asked(ask) for ask in asks]
        if how == "in bulk":
            self.push_in_bulk(client, at, tasks)
        elif how == "in SQL":
            self.push_in_sql(client, at, tasks)
        else:
            for task in tasks:
                self.push_one(client, at, task)

    def push_one(self, client: int, at: int, task: NewTask) -> None:
        model = self.models[at]
        taken = model.subject(task.subject)
        pushed = self.queue(client, at).push(
            task.payload,
            subject=task.subject,
            kind=task.kind,
            due=task.due,
            priority=task.priority,
            key=task.key,
            expires=task.expires,
        )
        if taken:
            assert (pushed.id, pushed.result, pushed.state) == (taken.id, "skipped", taken.state)
        else:
            assert pushed.id not in model.docs
            assert (pushed.result, pushed.state) == ("created", "pending" if task.due is None else "planned")
            model.push(pushed.id, task, self.now)

    def push_in_bulk(self, client: int, at: int, tasks: list[NewTask]) -> None:
        model = self.models[at]
        foreseen = model.foresee(tasks)
        report = self.queue(client, at).push_many(tasks)
        assert {word: count for word, count in report.counts.items() if count} == Counter(foreseen)
        created = [task for task, result in zip(tasks, foreseen, strict=True) if result == "created"]
        ids: dict[int, int] = dict(
            self.world.watcher.execute(
                "select (payload->>'v')::int, id from penstock.task where (payload->>'v')::int = any(%s)",
                ([version_of(task) for task in created],),
            ).fetchall()
        )
        for task in created:
            model.push(ids[version_of(task)], task, self.now)

    def push_in_sql(self, client: int, at: int, tasks: list[NewTask]) -> None:
        """Pushes in SQL and compares each row's id, result and state."""
        model = self.models[at]
        foreseen = model.foresee(tasks)
        rows = self.pushed_in_sql(client, at, tasks)
        assert [row[2] for row in rows] == foreseen
        for task, (_, id_, result, _) in zip(tasks, rows, strict=True):
            if result == "created":
                assert id_ not in model.docs
                model.push(id_, task, self.now)
        for task, (_, id_, _, state) in zip(tasks, rows, strict=True):
            doc = model.subject(task.subject) or model.docs[id_]
            assert (id_, state) == (doc.id, doc.state)

    @rule(client=EITHER, at=MOSTLY_FIRST, count=st.integers(16, 40), priority=st.sampled_from([5, 5, 0]))
    def push_many_alike(self, client: int, at: int, count: int, priority: int) -> None:
        """Pushes enough tasks for a lease of more than one."""
        self.push_in_bulk(client, at, [self.asked(Ask(priority=priority)) for _ in range(count)])

    @rule(client=EITHER, at=MOSTLY_FIRST, asks=st.lists(ASKS, min_size=1, max_size=6))
    def upsert(self, client: int, at: int, asks: list[Ask]) -> None:
        tasks, model = [self.asked(ask) for ask in asks], self.models[at]
        rows = self.pushed_in_sql(client, at, tasks, "update")
        last = {task.subject: n for n, task in enumerate(tasks)}
        for n, (task, (_, id_, result, _)) in enumerate(zip(tasks, rows, strict=True)):
            if task.subject is None or last[task.subject] == n:
                assert result == model.upsert(id_, task, self.now)
            else:
                assert result == "superseded"
        for task, (_, id_, _, state) in zip(tasks, rows, strict=True):
            doc = model.subject(task.subject) or model.docs[id_]
            assert (id_, state) == (doc.id, doc.state)

    # -- Verbs on existing tasks

    def draw_ids(self, data: st.DataObject, at: int, *but: str) -> list[int]:
        known = [doc.id for doc in self.models[at].docs.values() if doc.state not in but]
        return data.draw(st.lists(st.sampled_from([*known, 10**12]), min_size=1, max_size=5, unique=True), label="ids")

    @rule(client=EITHER, at=MOSTLY_FIRST, data=st.data())
    def cancel(self, client: int, at: int, data: st.DataObject) -> None:
        ids = self.draw_ids(data, at)
        expected = self.models[at].cancel(ids, self.now)
        assert self.queue(client, at).cancel(ids, reason="cancelled by a test") == expected

    @rule(client=EITHER, at=MOSTLY_FIRST, data=st.data())
    def redrive(self, client: int, at: int, data: st.DataObject) -> None:
        ids = self.draw_ids(data, at, "done")
        expected = self.models[at].redrive(ids, self.now)
        assert self.queue(client, at).redrive(ids) == expected

    @rule(client=EITHER, at=MOSTLY_FIRST, priority=st.integers(0, 9), data=st.data())
    def reprioritise(self, client: int, at: int, priority: int, data: st.DataObject) -> None:
        ids, docs = self.draw_ids(data, at, "done", "dead", "cancelled"), self.models[at].docs
        expected = {id_: "reprioritised" if id_ in docs else "unknown" for id_ in ids}
        assert self.queue(client, at).reprioritise(priority, ids) == expected
        for id_ in docs.keys() & set(ids):
            docs[id_].priority = priority

    @rule(client=EITHER, at=MOSTLY_FIRST, seconds=st.sampled_from([-5.0, 0.0, 4.0]), data=st.data())
    def reschedule(self, client: int, at: int, seconds: float, data: st.DataObject) -> None:
        ids, docs = self.draw_ids(data, at, "done", "dead", "cancelled"), self.models[at].docs
        due = self.now + timedelta(seconds=seconds)
        words = {"active": "active", "planned": "rescheduled", "pending": "rescheduled"}
        expected = {id_: words[docs[id_].state] if id_ in docs else "unknown" for id_ in ids}
        assert self.queue(client, at).reschedule(due, ids) == expected
        for id_ in [id_ for id_, word in expected.items() if word == "rescheduled"]:
            docs[id_].due, docs[id_].state = due, "planned"

    def pushed_in_sql(
        self, client: int, at: int, tasks: list[NewTask], on_conflict: str = "skip"
    ) -> list[tuple[Any, ...]]:
        payloads = [orjson.dumps(task.payload).decode() for task in tasks]
        subjects, dues, priorities, kinds = ([task[n] for task in tasks] for n in range(1, 5))
        keys, expires = [task.key for task in tasks], [task.expires for task in tasks]
        arguments = (self.names[at], payloads, subjects, kinds, dues, priorities, on_conflict, keys, expires)
        rows = sorted(self.world.raw[client].execute(PUSH, arguments).fetchall())
        assert [row[0] for row in rows] == list(range(1, len(tasks) + 1))
        return rows

    # -- Claim, extend

    def place(self, data: st.DataObject, client: int, at: int) -> Place | None:
        """Draws no place, the place where this client's last claim ended, or that of a waiting task."""
        choices: list[Place | None] = [None]
        if (client, at) in self.last:
            choices += [self.last[client, at]] * 2
        choices += [doc.place for doc in self.models[at].eligible(quarantined=True)]
        n = data.draw(st.integers(0, len(choices) - 1), label="hint")
        return choices[n]

    @rule(
        client=EITHER,
        at=MOSTLY_FIRST,
        limit=LIMITS,
        quarantined=st.booleans(),
        lease=st.sampled_from([None, None, 0.1, 45]),
        data=st.data(),
    )
    def claim(
        self, client: int, at: int, limit: int, quarantined: bool, lease: float | None, data: st.DataObject
    ) -> None:
        self.do_claim(client, at, limit, quarantined, lease, self.place(data, client, at))

    def do_claim(
        self,
        client: int,
        at: int,
        limit: int,
        quarantined: bool,
        lease: float | None = None,
        hint: Place | None = None,
        held: Collection[int] = (),
        settling: UUID | None = None,
    ) -> list[int]:
        model, queue = self.models[at], self.queue(client, at)
        chosen = model.choose(self.now, limit, quarantined, hint, held, settling)
        queue._claimer._hint.place = hint  # type: ignore[attr-defined]
        worker = f"w{client}"
        claim = queue.claim(limit, lease=lease, worker=worker, quarantined=quarantined)
        assert claim.ids == [doc.id for doc in chosen]
        if not claim:
            return []
        until = self.now + (LEASE if lease is None else timedelta(seconds=lease))
        assert claim.until == until
        assert [(GIVEN(task), task.payload, task.attempt) for task in claim.tasks] == [
            (GIVEN(doc), {"v": doc.version}, doc.attempts + 1) for doc in chosen
        ]
        assert_companions(chosen, limit, quarantined)
        self.last[client, at] = chosen[-1].place
        assert token(claim) not in model.leases
        exclusive = quarantined and (limit == 1 or chosen[0].quarantine == 1)
        assert claim.alone == (exclusive and len(chosen) == 1)
        model.take(token(claim), worker, self.now, until, chosen, exclusive)
        self.claims.append((at, claim))
        return claim.ids

    def draw_claim(self, data: st.DataObject, wanted: Callable[[int, Claim], bool]) -> tuple[int, Claim]:
        """Draws a claim, the newest first, because examples shrink to the first."""
        found = [(at, claim) for at, claim in reversed(self.claims) if wanted(at, claim)]
        n = data.draw(st.integers(0, len(found) - 1), label="claim")
        return found[n]

    def is_live(self, at: int, claim: Claim) -> bool:
        """Whether the lease is there and not all of its tasks were cancelled."""
        lease = self.models[at].leases.get(token(claim))
        return lease is not None and bool(lease.open)

    def is_lost(self, at: int, claim: Claim) -> bool:
        return claim.token not in self.models[at].leases

    def any_live(self) -> bool:
        return any(lease.open for model in self.models for lease in model.leases.values())

    def any_lost(self) -> bool:
        return any(self.is_lost(at, claim) for at, claim in self.claims)

    @precondition(lambda self: self.claims)
    @rule(client=EITHER, lease=st.sampled_from([None, 0.1, 30]), data=st.data())
    def extend(self, client: int, lease: float | None, data: st.DataObject) -> None:
        """Extends a lease, which is lost if it was expired, not if its end has passed."""
        at, claim = self.draw_claim(data, lambda *_: True)
        until = self.now + (LEASE if lease is None else timedelta(seconds=lease))
        held = self.models[at].leases.get(token(claim))
        if held is None:
            with pytest.raises(LeaseLost):
                self.queue(client, at).extend(claim, lease=lease)
        else:
            held.until = until
            if held.open:
                extended = self.queue(client, at).extend(claim, lease=lease)
                assert (extended.until, set(extended.revoked)) == (until, held.revoked)
            else:
                with pytest.raises(LeaseLost, match="every task of the lease was cancelled"):
                    self.queue(client, at).extend(claim, lease=lease)

    # -- Settle

    def said(self, say: Say) -> tuple[Outcome, Said]:
        """Returns the same outcome for the queue and for the model."""
        version = None
        if say.payload:
            version = self.version = self.version + 1
        due = None if say.due is None else self.now + timedelta(seconds=say.due)
        delay = None if say.delay is None else timedelta(seconds=say.delay)
        payload = None if version is None else {"v": version}
        error = {"dead": "told so by a test", "failed": "boom"}.get(say.word)
        return Outcome(say.word, due, delay, payload, error), Said(say.word, due, delay, version)

    def do_settle(self, client: int, at: int, claim: Claim, says: Mapping[int, Say]) -> None:
        outcomes, said = {}, {}
        for id_, say in says.items():
            outcomes[id_], said[id_] = self.said(say)
        expected = self.models[at].settle(token(claim), said, self.now)
        self.compare_settled(expected, lambda: self.queue(client, at).settle(claim, outcomes))

    def compare_settled(self, expected: dict[int, str], settle: Callable[[], Any]) -> None:
        refused = {id_ for id_, state in expected.items() if state == "refused"}
        revoked = {id_ for id_, state in expected.items() if state == "revoked"}
        if refused or revoked:
            with pytest.raises(LeaseLost) as lost:
                settle()
            assert (set(lost.value.refused), set(lost.value.revoked)) == (refused, revoked)
        elif "unknown" in expected.values():
            with pytest.raises(NotFound, match="never in this lease"):
                settle()
        else:
            assert dict(settle()) == expected

    @precondition(any_live)
    @rule(client=EITHER, data=st.data(), extra=st.sampled_from([None, None, None, "waiting", "unknown"]))
    def settle_some(self, client: int, data: st.DataObject, extra: str | None) -> None:
        """Settles tasks with an outcome each. Those settled before are refused, those not in the lease unknown."""
        at, claim = self.draw_claim(data, self.is_live)
        ids = data.draw(st.lists(st.sampled_from(claim.ids), min_size=1, max_size=6, unique=True), label="ids")
        if extra == "unknown":
            ids.insert(0, 10**12)
        elif extra == "waiting":
            ids += [doc.id for doc in self.models[at].docs.values() if doc.id not in claim.ids][:1]
        self.do_settle(client, at, claim, {id_: data.draw(SAYINGS, label="outcome") for id_ in ids})

    @precondition(any_live)
    @rule(client=EITHER, data=st.data(), say=SAYINGS, reverse=st.booleans())
    def settle_rest(self, client: int, data: st.DataObject, say: Say, reverse: bool) -> None:
        """Settles all open tasks at once. In the order of the claim this is the fast path."""
        at, claim = self.draw_claim(data, self.is_live)
        opened = self.models[at].leases[token(claim)].open
        ids = [id_ for id_ in claim.ids if id_ in opened]
        self.do_settle(client, at, claim, dict.fromkeys(reversed(ids) if reverse else ids, say))

    @precondition(lambda self: self.claims)
    @rule(client=EITHER, data=st.data())
    def settle_claim_done(self, client: int, data: st.DataObject) -> None:
        at, claim = self.draw_claim(data, lambda *_: True)
        expected = self.models[at].settle(token(claim), dict.fromkeys(claim.ids, Said("done")), self.now)
        self.compare_settled(expected, lambda: self.queue(client, at).settle(claim))

    @precondition(any_live)
    @rule(client=EITHER, data=st.data(), delay=NOW_OR_LATER)
    def release(self, client: int, data: st.DataObject, delay: float | None) -> None:
        at, claim = self.draw_claim(data, self.is_live)
        wait = None if delay is None else timedelta(seconds=delay)
        opened = self.models[at].leases[token(claim)].open
        said = {id_: Said("release", delay=wait) for id_ in claim.ids if id_ in opened}
        expected = self.models[at].settle(token(claim), said, self.now)
        assert dict(self.queue(client, at).release(token(claim), delay=delay)) == expected

    @precondition(any_lost)
    @rule(client=EITHER, data=st.data(), say=SAYINGS)
    def settle_what_was_lost(self, client: int, data: st.DataObject, say: Say) -> None:
        """Settles a lost claim. The model does not change, and the check after this step sees that nothing else did."""
        at, claim = self.draw_claim(data, self.is_lost)
        outcome, _ = self.said(say)
        with pytest.raises(LeaseLost) as lost:
            self.queue(client, at).settle(claim, dict.fromkeys(claim.ids, outcome))
        assert set(lost.value.refused) == set(claim.ids)
        with pytest.raises(LeaseLost):
            self.queue(client, at).settle(uuid4(), dict.fromkeys(claim.ids, outcome))

    # -- Time and upkeep

    @rule(seconds=st.sampled_from([0.000001, 0.1, 0.9, 2.0, 5.0, 10.0, 10.000001, 13.5, 70.0, 400.0, 7200.0]))
    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.world.set_clock(self.now)
        self.end_unstarted()

    def end_unstarted(self) -> None:
        """Ends the tasks that have expired, after each rule: whether a claim meets one depends on what it finds first.
        tests/test_expires.py tests claims that meet them."""
        for queue_id, model in zip(self.queue_ids, self.models, strict=True):
            self.world.watcher.execute("select penstock._end_unstarted(%s)", (queue_id,))
            model.end_unstarted(self.now)  # a claim may have ended some of them before; `check` compares the result

    @rule(
        client=EITHER,
        at=MOSTLY_FIRST,
        part=st.sampled_from(["expire", "promote", "squeeze", "everything"]),
        limit=st.sampled_from([None, None, 1, 2]),
    )
    def upkeep(self, client: int, at: int, part: str, limit: int | None) -> None:
        if part == "expire":
            self.expire(client, at, limit)
        elif part == "promote":
            self.promote(client, at, limit)
        elif part == "squeeze":
            self.world.raw[client].execute("select penstock._squeeze(%s)", (self.queue_ids[at],))
        else:
            parts = self.world.apps[client].upkeep()
            assert parts["expired"] == sum(model.expire(self.now) for model in self.models)
            assert parts["promoted"] == sum(model.promote(self.now) for model in self.models)

    def expire(self, client: int, at: int, limit: int | None) -> None:
        """Expires whole leases, the longest overdue first, until `limit` tasks are back."""
        model, sql = self.models[at], self.world.raw[client]
        overdue = model.overdue(self.now)
        most = 10_000 if limit is None else limit
        (count,) = one(sql.execute("select penstock._expire(%s, %s)", (self.queue_ids[at], most)).fetchone())
        left = {row[0] for row in sql.execute("select token from penstock.lease").fetchall()}
        gone = [lease for lease in overdue if lease.token not in left]
        assert [lease.until for lease in gone] == [lease.until for lease in overdue[: len(gone)]]
        assert sum(len(lease.open) for lease in gone[:-1]) < most
        assert sum(len(lease.open) for lease in gone) >= min(most, sum(len(lease.open) for lease in overdue))
        assert count == model.expire(self.now, [lease.token for lease in gone])

    def promote(self, client: int, at: int, limit: int | None) -> None:
        """Promotes up to `limit` tasks, the longest overdue first."""
        model, sql = self.models[at], self.world.raw[client]
        ripe = model.ripe(self.now)
        most = 10_000 if limit is None else limit
        (count,) = one(sql.execute("select penstock._promote(%s, %s)", (self.queue_ids[at], most)).fetchone())
        pending = {row[0] for row in sql.execute("select task_id from penstock.agenda where pending").fetchall()}
        moved = [doc for doc in ripe if doc.id in pending]
        assert [doc.due for doc in moved] == [doc.due for doc in ripe[:most]]
        assert count == len(moved)
        for doc in moved:
            doc.state = "pending"

    # -- Many steps in one

    @rule(client=EITHER, at=MOSTLY_FIRST, limit=LIMITS, quarantined=st.booleans(), times=st.integers(1, 5))
    def crash(self, client: int, at: int, limit: int, quarantined: bool, times: int) -> None:
        """Lets one worker after another claim some tasks and die."""
        for _ in range(times):
            if not self.do_claim(client, at, limit, quarantined):
                return
            self.advance(11)

    @precondition(lambda self: not self.haunted)
    @rule(client=EITHER, at=MOSTLY_FIRST, kind=st.sampled_from(["default", "default", *KINDS]))
    def crash_to_the_end(self, client: int, at: int, kind: str) -> None:
        """Lets a task kill each worker that claims it alone, until it is dead. It runs once, because it is slow."""
        self.haunted = True
        self.push(client, at, [Ask(due=-(10.0**6), priority=0, kind=kind)], "in SQL")
        dead = self.models[at].totals["dead"]
        for _ in range(3 * MAX_CRASHES):
            claimed = self.do_claim(client, at, 1, quarantined=True)
            if self.models[at].totals["dead"] > dead:
                return
            self.advance(11 if claimed else 3600)  # its retry delay

    @rule(
        client=EITHER,
        at=MOSTLY_FIRST,
        limit=LIMITS,
        says=st.just([Say("failed")]) | st.lists(SAYINGS, min_size=1, max_size=4),
        seconds=st.sampled_from([0.5, 4.0, 40.0]),
        times=st.integers(1, 4),
    )
    def work(self, client: int, at: int, limit: int, says: list[Say], seconds: float, times: int) -> None:
        """Lets a worker claim and settle as it should, with any outcomes."""
        for _ in range(times):
            if not self.do_claim(client, at, limit, quarantined=True):
                return
            claim = self.claims[-1][1]
            self.do_settle(client, at, claim, dict(zip(claim.ids, cycle(says), strict=False)))
            self.advance(seconds)

    # -- Transactions that other sessions do not see yet

    @rule(client=EITHER, at=MOSTLY_FIRST, verb=st.sampled_from(["push", "claim", "settle"]), data=st.data())
    def roll_back(self, client: int, at: int, verb: str, data: st.DataObject) -> None:
        """Rolls a verb back: it answers as usual, no other session sees it, and afterwards nothing has changed."""
        with self.world.raw[client].transaction(force_rollback=True):
            if verb == "push":
                tasks = [self.asked(ask) for ask in data.draw(st.lists(ASKS, min_size=1, max_size=3), label="asks")]
                answer = [row[2] for row in self.pushed_in_sql(client, at, tasks)]
                assert answer == self.models[at].foresee(tasks)
            elif verb == "claim":
                limit, quarantined = data.draw(LIMITS, label="limit"), data.draw(st.booleans(), label="quarantined")
                hint = self.place(data, client, at)
                foreseen = copy.deepcopy(self.models[at]).choose(self.now, limit, quarantined, hint)
                rows = self.claimed_in_sql(client, at, limit, quarantined, hint)
                assert [row[2] for row in rows] == [doc.id for doc in foreseen]
            elif self.claims:
                at, claim = self.draw_claim(data, lambda *_: True)
                outcome, said = self.said(data.draw(SAYINGS, label="outcome"))
                settled = copy.deepcopy(self.models[at]).settle(token(claim), dict.fromkeys(claim.ids, said), self.now)
                assert self.settled_in_sql(client, token(claim), dict.fromkeys(claim.ids, outcome)) == settled
            self.check()

    @rule(at=MOSTLY_FIRST, first=LIMITS, second=LIMITS, quarantined=st.booleans(), commits=st.booleans())
    def claim_beside_a_claim(self, at: int, first: int, second: int, quarantined: bool, commits: bool) -> None:
        """Makes two claims at once: each skips the tasks of the other, and neither waits."""
        model, sql = self.models[at], self.world.raw[0]
        self.expire(1, at, None)
        self.promote(1, at, None)
        held = {doc.id for doc in model.within_reach(first, quarantined, None)}
        chosen = model.choose(self.now, first, quarantined)
        sql.execute("begin")
        rows = self.claimed_in_sql(0, at, first, quarantined, None)
        assert [row[2] for row in rows] == [doc.id for doc in chosen]
        self.do_claim(1, at, second, quarantined, held=held)
        self.check()
        sql.execute("commit" if commits else "rollback")
        if commits and rows:
            exclusive = quarantined and (first == 1 or chosen[0].quarantine == 1)
            model.take(rows[0][0], "w0", self.now, rows[0][1], chosen, exclusive)
            unread = [None] * (len(Task._fields) - 1)  # only ids are needed
            tasks = tuple(Task._make((row[2], *unread)) for row in rows)
            self.claims.append((at, Claim(self.names[at], rows[0][0], rows[0][1], tasks)))

    @precondition(any_live)
    @rule(limit=LIMITS, quarantined=st.booleans(), say=SAYINGS, commits=st.booleans(), data=st.data())
    def claim_beside_a_settle(
        self, limit: int, quarantined: bool, say: Say, commits: bool, data: st.DataObject
    ) -> None:
        """A settle that is under way keeps the lease: expiry leaves it alone, even if it has ended."""
        at, claim = self.draw_claim(data, self.is_live)
        model, sql = self.models[at], self.world.raw[0]
        sql.execute("select penstock._make_history((penstock.clock() at time zone 'UTC')::date)")
        outcome, said = self.said(say)
        ids = claim.ids[: data.draw(st.integers(1, len(claim)), label="how many")]
        foreseen = copy.deepcopy(model).settle(token(claim), dict.fromkeys(ids, said), self.now)
        sql.execute("begin")
        assert self.settled_in_sql(0, token(claim), dict.fromkeys(ids, outcome)) == foreseen
        self.do_claim(1, at, limit, quarantined, settling=token(claim))
        self.check()
        sql.execute("commit" if commits else "rollback")
        if commits:
            assert model.settle(token(claim), dict.fromkeys(ids, said), self.now) == foreseen

    def claimed_in_sql(
        self, client: int, at: int, limit: int, quarantined: bool, hint: Place | None
    ) -> list[tuple[Any, ...]]:
        priority, due, id_ = hint or (None, None, None)
        arguments = (self.names[at], limit, f"w{client}", priority, due, id_, quarantined)
        return self.world.raw[client].execute(CLAIM, arguments).fetchall()

    def settled_in_sql(self, client: int, token: UUID, outcomes: Mapping[int, Outcome]) -> dict[int, str]:
        words, dues, delays, payloads, errors, _ = zip(*outcomes.values(), strict=True)
        texts = [None if payload is None else orjson.dumps(payload).decode() for payload in payloads]
        arguments = (token, list(outcomes), list(words), list(dues), list(delays), texts, list(errors))
        rows = self.world.raw[client].execute(SETTLE, arguments).fetchall()
        assert len(rows) == len(outcomes)
        return dict(rows)

    # -- Checks

    @invariant()
    def check(self) -> None:
        if self.models:
            self.end_unstarted()
            self.check_counters()
            self.check_tasks()
            self.check_leases()
            self.check_history()

    def check_counters(self) -> None:
        app = self.world.apps[self.version % 2]
        found = app.verify()
        assert found.ok, found.findings
        assert found.dropped == 0
        seen = {status.queue: status for status in app.status()}
        for name, model in zip(self.names, self.models, strict=True):
            status = seen[name]
            assert {state: getattr(status, state) for state in model.gauges()} == model.gauges()
            assert {word: count for word, count in status.totals.items() if count} == +model.totals
            assert status.oldest_pending_age == model.oldest_age(self.now)
            assert status.at == self.now

    def check_tasks(self) -> None:
        """Compares every document and the place where it waits."""
        expected = {}
        for queue_id, model in zip(self.queue_ids, self.models, strict=True):
            for doc in model.docs.values():
                waits = doc.state in {"planned", "pending"}
                expected[doc.id] = (
                    *(queue_id, doc.id, doc.state, doc.kind, doc.subject, doc.version, doc.priority),
                    *(doc.created, doc.since, doc.iterations, doc.reason, doc.key, doc.expires),
                    *((doc.due, doc.attempts, stored(doc), doc.priority, doc.key) if waits else (None,) * 5),
                )
        assert {row[1]: row for row in self.world.watcher.execute(TASKS).fetchall()} == expected

    def check_leases(self) -> None:
        """Compares every lease, and checks that no task is in two leases."""
        expected = {}
        for queue_id, model in zip(self.queue_ids, self.models, strict=True):
            for lease in model.leases.values():
                opened = "".join("1" if id_ in lease.open else "0" for id_ in lease.ids)
                head = (queue_id, lease.token, lease.worker, lease.claimed_at, lease.until, opened, lease.ids)
                expected[lease.token] = (
                    *head,
                    [doc.due for doc in lease.was],
                    [doc.attempts for doc in lease.was],
                    [stored(doc) for doc in lease.was],
                    [doc.key for doc in lease.was],
                )
        found, given = {}, []
        for row in self.world.watcher.execute(LEASES).fetchall():
            zeros, no_keys = [0] * len(row[6]), [None] * len(row[6])
            found[row[1]] = (*row[:8], row[8] or zeros, row[9] or zeros, row[10] or no_keys)
            given += [id_ for id_, bit in zip(row[6], row[5], strict=True) if bit == "1"]
        assert found == expected
        assert len(given) == len(set(given))

    def check_history(self) -> None:
        """Compares the rows since the last check, found by time, which the test controls. Ids are not in order."""
        expected = [
            (queue_id, *row)
            for queue_id, model in zip(self.queue_ids, self.models, strict=True)
            for row in model.history
            if row.finished_at >= self.checked
        ]
        assert Counter(self.world.watcher.execute(HISTORY, (self.checked,)).fetchall()) == Counter(expected)
        self.checked = self.now

    def teardown(self) -> None:
        for sql in self.world.raw:
            if sql.info.transaction_status != TransactionStatus.IDLE:
                sql.execute("rollback")


def token(claim: Claim) -> UUID:
    assert claim.token is not None
    return claim.token


def one(row: tuple[Any, ...] | None) -> tuple[Any, ...]:
    assert row is not None
    return row


def assert_companions(chosen: list[Doc], limit: int, quarantined: bool) -> None:
    """Checks the rule for tasks that share a lease once more, as the design states it."""
    assert len(chosen) <= limit
    assert [doc.place for doc in chosen] == sorted(doc.place for doc in chosen)
    quarantines = [doc.quarantine for doc in chosen if doc.quarantine]
    assert all(len(chosen) <= quarantine for quarantine in quarantines)
    assert quarantined or 1 not in quarantines


@pytest.fixture
def machine(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[QueueMachine]:
    monkeypatch.setattr(QueueMachine, "world", world, raising=False)
    machine = QueueMachine()
    yield machine
    machine.teardown()


# -- The search, and some paths that random examples seldom take -----------------------------------------------------


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("examples", [12, pytest.param(30, marks=pytest.mark.unsampled)])
def test_the_queue_does_what_the_model_does(examples: int) -> None:
    run_state_machine_as_test(
        QueueMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize(("name", "crashes"), [("endless", 20), ("many", 20), ("spent", 3), ("listed", 4)])
def test_a_task_that_crashes_alone_is_dead_in_the_end(machine: QueueMachine, name: str, crashes: int) -> None:
    """It is dead after max_attempts, when its strategy stops, and in any case after 20 crashes."""
    machine.begin([name, "aging"], [])
    machine.crash_to_the_end(0, 0, "default")
    machine.check()
    (doc,) = machine.models[0].docs.values()
    assert (doc.state, doc.reason, doc.crashes) == ("dead", "crashed", crashes)


def after_its_delay(machine: QueueMachine) -> list[int]:
    """Returns what can be claimed after the retry delay of a task that crashed alone."""
    machine.advance(3600)
    return machine.do_claim(0, 0, 40, quarantined=True)


def test_a_task_that_kills_its_worker_is_found_and_the_others_live(machine: QueueMachine) -> None:
    """Leases have 40 tasks, then 8, then 1: the other tasks lose no attempt."""
    machine.begin(["endless", "spent"], [])
    machine.push_many_alike(0, 0, 40, 5)
    docs = machine.models[0].docs
    killer = sorted(docs)[17]
    sizes: list[int] = []
    while ids := machine.do_claim(len(sizes) % 2, 0, 40, quarantined=True) or after_its_delay(machine):
        assert all(docs[id_].attempts == 0 for id_ in ids if id_ != killer)
        if killer in ids:
            sizes.append(len(ids))
            machine.advance(11)
        else:
            machine.do_settle(0, 0, machine.claims[-1][1], dict.fromkeys(ids, Say("done")))
        machine.check()
    assert sizes == [40, 8] + [1] * MAX_CRASHES
    assert [(doc.id, doc.reason) for doc in docs.values()] == [(killer, "crashed")]


@pytest.mark.parametrize(
    ("name", "kind", "attempts", "reason"),
    [
        ("spent", "default", 3, "attempts spent"),
        ("endless", "brittle", 2, "attempts spent"),
        ("listed", "default", 4, "the strategy ended"),
        ("endless", "patient", 3, "the strategy ended"),
        ("spent", "patient", 3, "attempts spent"),
    ],
)
def test_a_task_that_fails_is_dead_in_the_end(
    machine: QueueMachine, name: str, kind: str, attempts: int, reason: str
) -> None:
    """The retry settings of the kind count if there are any, otherwise those of the queue."""
    machine.begin([name, "aging"], [Ask(kind=kind)])
    for _ in range(attempts):
        machine.work(0, 0, 1, [Say("failed")], 40.0, 1)
        machine.check()
    (doc,) = machine.models[0].docs.values()
    assert (doc.state, doc.reason, doc.attempts) == ("dead", reason, attempts)


def test_a_task_that_is_too_old_is_dead_after_the_next_failure(machine: QueueMachine) -> None:
    """A success makes a task young again."""
    machine.begin(["aging", "spent"], [Ask()])
    (doc,) = machine.models[0].docs.values()
    for say, seconds in (("failed", 290.0), ("again", 290.0), ("failed", 20.0), ("failed", 0.0)):
        assert doc.state != "dead"
        machine.work(1, 0, 1, [Say(say)], seconds, 1)
        machine.check()
    assert (doc.state, doc.reason, doc.iterations) == ("dead", "the strategy ended", 1)
