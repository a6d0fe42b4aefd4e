"""A small model of the lease protocol, searched completely: one task, two workers, and everything that can go wrong.

Time is left out: a lease may expire at any moment. A frozen worker is one that holds an old claim and settles it later.
The real protocol has no counter-example. For each shortcut the shortest one is kept here; the push is its first step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pytest

MAX_ATTEMPTS = 2

# -- The state --------------------------------------------------------------------------------------------------------


class Lease(NamedTuple):
    """A row of `lease`. The worker keeps a copy of the lease that it was given."""

    token: int
    worker: str
    attempt: int
    version: int  # of the payload that its claim read
    claim: int  # the number of its claim, which a fence cannot see
    revoked: bool = False


class Database(NamedTuple):
    """The state that a crash may undo. `attempts` is the agenda row: the task waits while it is there."""

    ended: str = ""
    version: int = 1
    renew: bool = False
    attempts: int | None = 0
    leases: tuple[Lease, ...] = ()
    last_token: int = 0

    def open(self) -> tuple[Lease, ...]:
        return tuple(lease for lease in self.leases if not lease.revoked)

    def places(self) -> int:
        return (self.attempts is not None) + len(self.open())

    def without(self, gone: Lease) -> Database:
        kept = (lease for lease in self.leases if (lease.token, lease.revoked) != (gone.token, gone.revoked))
        return self._replace(leases=tuple(kept))

    def __str__(self) -> str:
        places = [] if self.attempts is None else [f"waits after {self.attempts} attempts"]
        for lease in self.leases:
            gone = "revoked " * lease.revoked
            places.append(f"{gone}lease {lease.token} of {lease.worker}: attempt {lease.attempt}, v{lease.version}")
        return f"{self.ended or 'live'} v{self.version}{' renew' * self.renew} ({'; '.join(places)})"


class Worker(NamedTuple):
    name: str
    held: Lease | None = None
    snapshot: int = 0  # the payload version that its claim saw before it locked anything; 0: no claim is under way
    checked: bool = False  # only if settle takes no lock: it has passed the fence and not written yet


class Seen(NamedTuple):
    """The observations that the promises are about. No verb reads them."""

    acknowledged: int = 1  # the newest payload version that a push reported as taken
    ran: int = 0  # the payload version of the attempt that ended the task
    completed: bool = False  # the present run has its accepted completion
    completed_twice: bool = False
    stale_accepted: bool = False


class Left(NamedTuple):
    """How often each event may still happen, which bounds the search."""

    claims: int = 3
    upserts: int = 0
    database_crashes: int = 0
    cancels: int = 0
    redrives: int = 0
    lost_replies: int = 0


EVERYTHING = Left(claims=3, upserts=2, database_crashes=1, cancels=1, redrives=1, lost_replies=1)


class State(NamedTuple):
    left: Left
    workers: tuple[Worker, Worker]
    db: Database = Database()
    disk: Database = Database()  # the state after a crash of PostgreSQL
    seen: Seen = Seen()
    upsert_under_way: bool = False  # only if it leaves the agenda row alone: the document is locked and not written yet

    def write(self, db: Database) -> State:
        """Commits without a flush."""
        return self._replace(db=db)

    def flush(self) -> State:
        """Makes all commits durable: there is one WAL, so a synchronous commit flushes those before it too."""
        return self._replace(disk=self.db)

    def put(self, at: int, worker: Worker) -> State:
        return self._replace(workers=(worker, self.workers[1]) if at == 0 else (self.workers[0], worker))

    def spend(self, what: str) -> State:
        return self._replace(left=self.left._replace(**{what: getattr(self.left, what) - 1}))

    def forget_snapshots(self) -> State:
        """Ends claims under way, because the agenda row that they have seen is gone."""
        first, second = (worker._replace(snapshot=0) for worker in self.workers)
        return self._replace(workers=(first, second))


# May this worker settle? From no fence at all to the real one.
FENCES: Mapping[str, Callable[[Database, Lease], bool]] = {
    "id": lambda _db, _held: True,
    "state": lambda db, _held: bool(db.open()),
    "owner": lambda db, held: any(lease.worker == held.worker for lease in db.open()),
    "attempt": lambda db, held: any(lease.attempt == held.attempt for lease in db.open()),
    "last token": lambda db, held: db.last_token == held.token,
    "token": lambda db, held: any(lease.token == held.token for lease in db.open()),
}


class Protocol(NamedTuple):
    """The defaults are the real protocol; every other value is a shortcut (`most` only bounds the search)."""

    fence: str = "token"
    token_from_sequence: bool = False
    claim_is_asynchronous: bool = True
    claim_in_one_statement: bool = False
    settle_locks_lease: bool = True
    expiry_may_give_back: bool = True
    upsert_writes_agenda: bool = True
    upsert_renews: bool = True
    cancel_revokes: bool = True
    names_are_reused: bool = True
    most: Left = EVERYTHING


# -- The verbs, then the faults: each yields what happened and the state after it -------------------------------------

Steps = Iterator[tuple[str, State]]


def begin_claim(state: State, protocol: Protocol) -> Steps:
    """Takes the snapshot of a claim in one statement; others may commit before it locks the agenda row.

    The real claim has that moment too, but never uses what its first statement saw, so the model leaves it out.
    """
    for at, worker in enumerate(state.workers):
        if protocol.claim_in_one_statement and state.db.attempts is not None and not (worker.held or worker.snapshot):
            yield f"{'AB'[at]} begins to claim", state.put(at, worker._replace(snapshot=state.db.version))


def claim(state: State, protocol: Protocol) -> Steps:
    """Deletes the agenda row and writes the lease, then reads the document in a new snapshot.

    Nothing comes between: upsert writes the agenda row too, so it waits for the claim or the claim skips the row. The
    workers are alike, so the first claim may be that of A.
    """
    db, number = state.db, protocol.most.claims - state.left.claims + 1
    for at, worker in enumerate(state.workers[:number]):
        if db.attempts is not None and state.left.claims and not worker.held:
            token = db.last_token + 1 if protocol.token_from_sequence else number
            lease = Lease(token, worker.name, db.attempts + 1, worker.snapshot or db.version, claim=number)
            after = state.write(db._replace(attempts=None, leases=(*db.leases, lease), last_token=token))
            after = after.forget_snapshots().put(at, Worker(worker.name, held=lease)).spend("claims")
            yield f"{'AB'[at]} claims", after if protocol.claim_is_asynchronous else after.flush()


def expire(state: State, protocol: Protocol) -> Steps:
    """Expires a lease within a claim, so that it may be lost with it. Only a lease of a lone task costs an attempt."""
    for lease in state.db.leases:
        if lease.revoked or state.db.ended:
            yield "an empty lease expires", state.write(state.db.without(lease))
            continue
        yield "a lease expires, attempt burnt", attempt_over(state, lease, "failed")
        if protocol.expiry_may_give_back:
            yield "a lease expires, attempt given back", attempt_over(state, lease, "release")


def check(state: State, protocol: Protocol) -> Steps:
    """Without the lock, one step checks the lease and another one acts."""
    for at, worker in enumerate(state.workers):
        if not protocol.settle_locks_lease and worker.held and FENCES[protocol.fence](state.db, worker.held):
            yield f"{'AB'[at]} checks its lease", state.put(at, worker._replace(checked=True))


def settle(state: State, protocol: Protocol) -> Steps:
    for at, worker in enumerate(state.workers):
        if not worker.held:
            continue
        told, passed = state.put(at, Worker(worker.name)), FENCES[protocol.fence](state.db, worker.held)
        if worker.checked or (passed and protocol.settle_locks_lease):
            for outcome in ("done", "failed", "release"):
                yield f"{'AB'[at]} settles {outcome}", accept(told, worker.held, outcome)
                if state.left.lost_replies:
                    untold = state.spend("lost_replies")
                    yield f"{'AB'[at]} settles {outcome}, unanswered", accept(untold, worker.held, outcome)
        elif not passed:  # nothing changes, except that a lease whose task was revoked is now empty and is removed
            yield f"{'AB'[at]} is refused", told.write(state.db.without(worker.held._replace(revoked=True)))


def accept(state: State, held: Lease, outcome: str) -> State:
    done, seen = outcome == "done", state.seen
    seen = seen._replace(
        stale_accepted=held.claim not in {lease.claim for lease in state.db.open()},
        completed_twice=done and seen.completed,
        completed=done or seen.completed,
    )
    return attempt_over(state._replace(seen=seen), held, outcome).flush()


def attempt_over(state: State, lease: Lease, outcome: str) -> State:
    """Decides where the task goes: a renewal overrides every outcome, and a release gives the attempt back."""
    db = state.db.without(lease)
    if db.renew:
        return state.write(db._replace(renew=False, attempts=0))._replace(seen=state.seen._replace(completed=False))
    if outcome == "release" or (outcome == "failed" and lease.attempt < MAX_ATTEMPTS):
        return state.write(db._replace(attempts=lease.attempt - (outcome == "release")))
    ended = db._replace(ended="done" if outcome == "done" else "dead", attempts=None)
    return state.write(ended)._replace(seen=state.seen._replace(ran=lease.version))


def upsert(state: State, protocol: Protocol) -> Steps:
    """Is one step, because it holds the document and then writes the agenda row. Without that it is two steps."""
    if not state.left.upserts:
        return
    if not protocol.upsert_writes_agenda and state.db.attempts is not None and not state.upsert_under_way:
        yield "a push sees the task wait", state._replace(upsert_under_way=True)
        return
    new = state.db._replace(version=state.db.version + 1)
    after = state.spend("upserts")._replace(upsert_under_way=False)
    after = after._replace(seen=state.seen._replace(acknowledged=new.version))
    if new.attempts is not None or state.upsert_under_way:
        yield "a push is told updated", after.write(new).flush()
    elif new.ended:
        after = after._replace(seen=after.seen._replace(completed=False, ran=0))
        yield "a push is told reopened", after.write(new._replace(ended="", attempts=0)).flush()
    else:
        yield "a push is told renewed", after.write(new._replace(renew=protocol.upsert_renews)).flush()


def cancel(state: State, protocol: Protocol) -> Steps:
    if not state.db.ended and state.left.cancels:
        leases = tuple(lease._replace(revoked=protocol.cancel_revokes) for lease in state.db.leases)
        db = state.db._replace(ended="cancelled", renew=False, attempts=None, leases=leases)
        yield "the task is cancelled", state.write(db).flush().forget_snapshots().spend("cancels")


def redrive(state: State, protocol: Protocol) -> Steps:
    if state.db.ended == "dead" and state.left.redrives:
        after = state.write(state.db._replace(ended="", attempts=0)).flush().spend("redrives")
        yield "the dead task is redriven", after._replace(seen=state.seen._replace(ran=0))


def worker_crashes(state: State, protocol: Protocol) -> Steps:
    for at, worker in enumerate(state.workers):
        if worker.held:
            yield f"{'AB'[at]} crashes and starts again", state.put(at, Worker(worker.name))


def wal_is_written(state: State, protocol: Protocol) -> Steps:
    if state.disk != state.db:
        yield "the WAL is flushed", state.flush()


def database_crashes(state: State, protocol: Protocol) -> Steps:
    """Undoes claims that were not flushed, sequence numbers included, while the workers still hold them."""
    if state.disk != state.db and state.left.database_crashes:
        first, second = (Worker(worker.name, worker.held) for worker in state.workers)
        after = state.write(state.disk)._replace(workers=(first, second), upsert_under_way=False)
        yield "PostgreSQL crashes", after.spend("database_crashes")


NEED_THE_DOCUMENT = (expire, settle, cancel, redrive)
ACTIONS = (begin_claim, claim, check, upsert, worker_crashes, wal_is_written, database_crashes)

PROMISES: Mapping[str, Callable[[State], bool]] = {
    "no stale write is accepted": lambda state: not state.seen.stale_accepted,
    "a run has one completion": lambda state: not state.seen.completed_twice,
    "a live task is in one place": lambda state: bool(state.db.ended) or state.db.places() == 1,
    "an ended task is in none": lambda state: not state.db.ended or state.db.places() + state.db.renew == 0,
    "no push is lost": lambda state: (
        state.db.ended not in {"done", "dead"} or state.seen.ran >= state.seen.acknowledged
    ),
}

# -- The search is breadth first, so the first broken promise comes with a shortest trace -----------------------------


class Result(NamedTuple):
    broken: str | None
    trace: tuple[str, ...]
    states: int
    happened: frozenset[str]

    def __str__(self) -> str:
        steps = "".join(f"\n{number:3} {step}" for number, step in enumerate(self.trace, 1))
        return f"broken: {self.broken}, {self.states:,} states{steps}"


def search(protocol: Protocol, promises: Mapping[str, Callable[[State], bool]] = PROMISES) -> Result:
    # The worst case is a real one: A was taken for dead, and B replaced it under the same name.
    start = State(protocol.most, (Worker("w1"), Worker("w1" if protocol.names_are_reused else "w2")))
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    happened: set[str] = set()
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        actions = ACTIONS if state.upsert_under_way else NEED_THE_DOCUMENT + ACTIONS
        for what, reached in (step for action in actions for step in action(state, protocol)):
            happened.add(what)
            # If no crash can come, the disk no longer matters.
            after, step = reached if reached.left.database_crashes else reached.flush(), (state, what)
            if came_from.setdefault(after, step) is not step:
                continue
            waiting.append(after)
            for promise, kept in promises.items():
                if not kept(after):
                    return Result(promise, trace_to(after, came_from), len(came_from), frozenset(happened))
    return Result(None, (), len(came_from), frozenset(happened))


def trace_to(state: State, came_from: Mapping[State, tuple[State, str] | None]) -> tuple[str, ...]:
    step = came_from[state]
    if step is None:
        return (f"{'push':36} {state.db}",)
    return (*trace_to(step[0], came_from), f"{step[1]:36} {state.db}")


# -- The verdicts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "protocol",
    [
        pytest.param(Protocol(), id="random token, lease locked and there"),
        pytest.param(
            Protocol(token_from_sequence=True, claim_is_asynchronous=False, most=EVERYTHING._replace(upserts=1)),
            id="token from a sequence, were claims durable",
        ),
    ],
)
def test_a_safe_protocol_keeps_every_promise(protocol: Protocol) -> None:
    result = search(protocol)
    print(result)
    assert result.broken is None, str(result)
    by_both = {"claims", "is refused", "crashes and starts again"}
    by_both |= {
        f"settles {outcome}{answered}" for outcome in ("done", "failed", "release") for answered in ("", ", unanswered")
    }
    assert result.happened == {f"{worker} {what}" for worker in "AB" for what in by_both} | {
        *("a lease expires, attempt burnt", "a lease expires, attempt given back", "an empty lease expires"),
        *("a push is told updated", "a push is told renewed", "a push is told reopened"),
        *("the task is cancelled", "the dead task is redriven", "the WAL is flushed", "PostgreSQL crashes"),
    }, "a search that does not reach these states proves nothing"


STALE, TWICE, PLACE, ENDED, LOST = PROMISES
ATTEMPT = Protocol("attempt", expiry_may_give_back=False)


@pytest.mark.parametrize(
    ("protocol", "broken", "steps"),
    [
        pytest.param(Protocol("id"), STALE, 4, id="where id"),
        pytest.param(Protocol("state"), STALE, 5, id="where id and state"),
        pytest.param(Protocol("owner"), STALE, 5, id="owner name, which is reused"),
        pytest.param(
            Protocol("owner", names_are_reused=False), STALE, 8, id="owner name, when a crash undoes an expiry"
        ),
        pytest.param(Protocol("attempt"), STALE, 5, id="attempt number, given back"),
        pytest.param(ATTEMPT._replace(most=Left(lost_replies=1)), STALE, 5, id="attempt number, released"),
        pytest.param(ATTEMPT._replace(most=Left(database_crashes=1)), STALE, 5, id="attempt number, claim lost"),
        pytest.param(ATTEMPT._replace(most=Left(redrives=1)), STALE, 8, id="attempt number, redriven"),
        pytest.param(Protocol(token_from_sequence=True), STALE, 5, id="token from a sequence, which a crash rewinds"),
        pytest.param(Protocol("last token"), STALE, 4, id="random token, but the lease may be gone"),
        pytest.param(Protocol(settle_locks_lease=False), STALE, 5, id="random token, but the lease is not locked"),
        pytest.param(Protocol(cancel_revokes=False), ENDED, 3, id="cancel leaves the lease open"),
        pytest.param(Protocol(claim_in_one_statement=True), LOST, 5, id="claim in one statement"),
        pytest.param(Protocol(upsert_writes_agenda=False), LOST, 5, id="upsert does not write the agenda row"),
        pytest.param(Protocol(upsert_renews=False), LOST, 4, id="upsert does not renew an active task"),
    ],
)
def test_each_shortcut_has_its_counter_example(protocol: Protocol, broken: str, steps: int) -> None:
    result = search(protocol)
    print(result)
    assert (result.broken, len(result.trace)) == (broken, steps), str(result)


@pytest.mark.parametrize(
    ("promise", "protocol", "steps"),
    [
        (STALE, Protocol("id"), 4),
        (TWICE, Protocol("id", most=Left()), 6),
        (PLACE, Protocol("id", most=Left()), 5),
        (ENDED, Protocol(cancel_revokes=False), 3),
        (LOST, Protocol(upsert_renews=False), 4),
    ],
)
def test_each_promise_is_checked_by_itself(promise: str, protocol: Protocol, steps: int) -> None:
    result = search(protocol, {promise: PROMISES[promise]})
    assert (result.broken, len(result.trace)) == (promise, steps), str(result)


def test_a_shortcut_passes_if_its_promise_is_not_checked() -> None:
    shortcut = Protocol(upsert_renews=False, most=Left(claims=2, upserts=1))
    others = {promise: kept for promise, kept in PROMISES.items() if promise != LOST}
    assert search(shortcut).broken == LOST
    assert search(shortcut, others).broken is None
