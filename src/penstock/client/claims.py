# Made from src/penstock/client/claims_async.py by scripts/make_sync.py (`make generate`): edit that, never this.
"""Claims tasks of a queue, and settles, extends and releases what was claimed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID, uuid4

from penstock import validate
from penstock.client.connections import Connection, check_still_lent
from penstock.client.database import IMPATIENT, Database, Once
from penstock.client.session import BEGIN
from penstock.client.sqlstate import translate_errors
from penstock.client.statements import claims as sql
from penstock.errors import LeaseLost
from penstock.model import Claim, Duration, Extended, Outcome


class Claimer:
    """Claims tasks of one queue. It is thread-safe, and remembers where in the queue the next claim starts."""

    def __init__(self, database: Database, queue: str) -> None:
        self._database = database
        self._queue = validate.queue_name(queue)
        self._hint = sql.Hint()

    def claim(self, limit: int, *, lease: Duration | None = None, worker: str = "", quarantined: bool = True) -> Claim:
        """Claims up to `limit` tasks; see `Queue.claim`."""
        hint = self._hint.current()
        return self._claim(self._database.once, sql.Wanted(self._queue, limit, lease, worker, hint, quarantined))

    def claim_notified(
        self, once: Once, limit: int, *, lease: Duration | None = None, worker: str = "", quarantined: bool = True
    ) -> Claim:
        """Claims tasks on the connection that has just received the notification of a push. It expires leases and
        promotes due tasks twice a second, not in every call."""
        hint = self._hint.after_notification()
        return self._claim(once, sql.Wanted(self._queue, limit, lease, worker, hint, quarantined))

    def _claim(self, once: Once, wanted: sql.Wanted) -> Claim:
        parameters = wanted.parameters()
        began = time.perf_counter()
        rows = once(sql.CLAIM, parameters)  # a claim whose reply is lost expires
        self._hint.note(rows, wanted.limit, wanted.hint is None, time.perf_counter() - began)
        claim = sql.read_claim(self._queue, rows)
        unreadable = sql.find_unreadable(claim)
        if unreadable:
            settle(self._database, self._queue, claim, unreadable)
            claim = replace(claim, tasks=tuple(task for task in claim.tasks if task.id not in unreadable))
        return claim

    def start_over(self) -> None:
        """Makes the next claim start at the beginning of the queue, where it also expires leases and promotes due
        tasks."""
        self._hint.forget()


def settle(
    database: Database,
    queue: str,
    claim: Claim | UUID | str,
    outcomes: Mapping[int, Outcome] | Iterable[int] | None = None,
    *,
    wait: bool = True,
) -> dict[int, str]:
    """Records the outcomes of claimed tasks; see `Queue.settle`."""
    parameters = sql.settle_parameters(claim, outcomes, queue)
    if parameters is None:
        return {}
    with database.transaction(BEGIN if wait else IMPATIENT) as connection:
        rows = connection.execute(sql.SETTLE, (*parameters, wait), binary=True, prepare=True).fetchall()
    return sql.read_settled(rows)


@contextmanager
def settling(
    database: Database, queue: str, claim: Claim, id_: int, outcome: Callable[[], Outcome]
) -> Iterator[Connection]:
    """Opens a transaction for a handler's writes and settles a task with its last statement (see `Queue`)."""
    mark = uuid4().hex
    with database.lent(mark) as connection:
        yield connection
        with database.answering(connection), translate_errors():
            check_still_lent(connection, mark)
            parameters = sql.settle_parameters(claim, {id_: outcome()}, queue)
            assert parameters is not None
            rows = connection.execute(sql.SETTLE, (*parameters, True), binary=True).fetchall()
            sql.read_settled(rows)


def release(
    database: Database, queue: str, claim: Claim | UUID | str, *, delay: Duration | None = None, wait: bool = True
) -> dict[int, str]:
    """Puts the open tasks of a claim back as they were; see `Queue.release`."""
    later = validate.delay(delay)
    if isinstance(claim, Claim) and not claim:
        return {}
    parameters = (sql.token_of(claim, queue), later, wait)
    rows = database.rows(sql.RELEASE, parameters, begin=BEGIN if wait else IMPATIENT)
    if not rows:
        raise LeaseLost(sql.LOST, refused=sql.ids_of(claim))
    return sql.read_settled(rows)


def extend(database: Database, queue: str, claim: Claim | UUID | str, *, lease: Duration | None = None) -> Extended:
    """Extends a lease from now on; see `Queue.extend`."""
    rows = database.rows(sql.EXTEND, (sql.token_of(claim, queue), validate.lease(lease)))
    return sql.read_extended(rows, claim)
