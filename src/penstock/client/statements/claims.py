"""Claim, extend, settle and release: the statements, their parameters and their answers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from penstock import validate
from penstock.client.binary import IdArray, TextArray
from penstock.client.statements.texts import encode, text_array, to_storable
from penstock.errors import Conflict, LeaseLost, NotFound, PenstockError, ValidationError, shown
from penstock.model import Claim, Duration, Extended, Json, Outcome, Task, from_micros

Place = tuple[int, datetime | str, int]
NO_PLACE = (None, None, None)
START: Place = (0, "-infinity", 0)  # the start of a queue: no task can be before it
# All rows of a claim share the token, the end of the lease and the flag `alone`, so these are sent once. The row of a
# task with a key or meta has them, and the flag, in an object.
CLAIM = """
    select id, kind, subject, payload, priority, attempt, iterations, due, created, since,
           case when pg_catalog.row_number() over () = 1 then token end,
           case when pg_catalog.row_number() over () = 1 then until end,
           case when key is not null or meta is not null
                then pg_catalog.jsonb_build_object('alone', alone, 'key', key, 'meta', meta)
                when pg_catalog.row_number() over () = 1 then pg_catalog.to_jsonb(alone) end
    from penstock.claim(%s, %s, %s, %s, penstock.at_place(%s::smallint, %s::timestamptz, %s::bigint), %s, false)
"""
EXTEND = "select until, revoked, open from penstock.extend(%s, %s)"
# This is the last statement in the transaction of a handler, which may have set anything: names are qualified.
SETTLE = """
    select result, pg_catalog.array_agg(id)
    from penstock.settle(%s, %s, %s::pg_catalog.text[], (%s::pg_catalog.text[])::pg_catalog.timestamptz[],
                         (%s::pg_catalog.text[])::pg_catalog.interval[], %s::pg_catalog.text[], %s::pg_catalog.text[],
                         %s::pg_catalog.text[], %s)
    group by result
"""
RELEASE = (
    "select result, pg_catalog.array_agg(id) from penstock.release(%s, p_delay => %s, p_wait => %s) group by result"
)
LOST = "the lease is lost: it expired, or everything in it is settled"


class Hint:
    """The position where the last claim ended. Under a held snapshot dead rows pile up at the front of the queue, and a
    claim that starts behind them stays fast. Rows may appear before the position (late commits, releases, higher
    priority), so about every half second a claim starts at the beginning; that claim also expires leases and promotes
    due tasks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._place: Place | None = None
        self._next_full = 0.0
        self._full_at = float("-inf")

    def current(self) -> Place | None:
        """Returns the position to start from, or None for the beginning."""
        with self._lock:
            return self._place if time.monotonic() < self._next_full else None

    def after_notification(self) -> Place | None:
        """Returns the position for a claim after a notification: the start of the queue without expiry and promotion,
        if these were done lately, else None."""
        with self._lock:
            return START if time.monotonic() < self._full_at + 0.5 else None

    def forget(self) -> None:
        """Forgets the position, so that the next claim starts at the beginning."""
        with self._lock:
            self._place = None
            self._full_at = float("-inf")

    def note(self, rows: list[tuple[Any, ...]], limit: int, full: bool, cost: float) -> None:
        """Notes where a claim ended and what it cost."""
        with self._lock:
            if full:
                self._full_at = time.monotonic()
            if len(rows) < limit:
                self._place = None
                return
            last = rows[-1]
            self._place = (last[4], from_micros(last[7]), last[0])
            if full:
                self._next_full = time.monotonic() + max(0.5, min(20 * cost, 0.8))


class Wanted(NamedTuple):
    """The arguments of a claim."""

    queue: str
    limit: int
    lease: Duration | None
    worker: str
    hint: Place | None
    quarantined: bool

    def parameters(self) -> tuple[Any, ...]:
        """Checks the arguments and returns the parameters of CLAIM."""
        limit = validate.whole(self.limit, "limit", 1, validate.MAX_CLAIM)
        length, worker = validate.lease(self.lease), validate.worker(self.worker)
        return (self.queue, limit, length, worker, *(self.hint or NO_PLACE), self.quarantined)


def read_claim(queue: str, rows: list[tuple[Any, ...]]) -> Claim:
    """Reads the answer of CLAIM."""
    if not rows:
        return Claim(queue, None, None, ())
    columns = [*zip(*rows, strict=True)]
    *_, tokens, untils, extras = columns
    columns[3] = validate.decode_payloads(columns[3])  # type: ignore[call-overload]
    others: Sequence[Iterable[Any]] = (repeat(None), repeat(None))
    if extras[0] in FLAGS and extras.count(None) == len(extras) - 1:
        alone = FLAGS[extras[0]]
    else:
        alone, *others = read_extras(extras)
    tasks = tuple(map(Task._make, zip(*columns[:-3], *others)))  # noqa: B905 - `repeat` has no end
    return Claim(queue, UUID(bytes=tokens[0]), from_micros(untils[0]), tasks, os.getpid(), alone)


FLAGS = {b"\x01true": True, b"\x01false": False}  # as PostgreSQL sends them


def read_extras(extras: Sequence[bytes | None]) -> tuple[bool, list[str | None], list[Json | None]]:
    """Returns the flag `alone` of a claim, and the keys and metas of its tasks."""
    found = [{} if one is None or one in FLAGS else orjson.loads(one[1:]) for one in extras]
    alone = FLAGS[extras[0]] if extras[0] in FLAGS else found[0]["alone"]
    return alone, [one.get("key") for one in found], [one.get("meta") for one in found]


UNREADABLE = Outcome.dead("payload: it is nested too deep to be read", error_class="PayloadError")


def find_unreadable(claim: Claim) -> dict[int, Outcome]:
    """Returns outcomes for tasks whose payload Python cannot read, so that they do not hold up the rest of the claim
    again and again."""
    return {task.id: UNREADABLE for task in claim.tasks if task.payload is None}


def read_extended(rows: list[tuple[Any, ...]], claim: Claim | UUID | str) -> Extended:
    """Reads the answer of EXTEND."""
    if not rows:
        raise LeaseLost(LOST, refused=ids_of(claim))
    ((until, revoked, left),) = rows
    if not left:
        raise LeaseLost("every task of the lease was cancelled", revoked=revoked)
    return Extended(until, tuple(revoked))


def token_of(claim: Claim | UUID | str, queue: str) -> UUID:
    """Returns the token of a claim, and refuses a claim of another queue or process."""
    if isinstance(claim, Claim) and claim.queue != queue:
        raise ValidationError(f"claim: it is of queue {claim.queue!r}, not {queue!r}", field="claim")
    if isinstance(claim, Claim) and claim.pid not in (None, os.getpid()):
        raise Conflict(
            f"claim: it was made by process {claim.pid}, this is {os.getpid()}",
            hint="A forked child has its parent's claims, and may not settle them.",
        )
    return validate.token(claim.token if isinstance(claim, Claim) else claim)


def ids_of(claim: Claim | UUID | str) -> list[int]:
    """Returns the ids of a claim; a token alone has none."""
    return claim.ids if isinstance(claim, Claim) else []


def settle_parameters(
    claim: Claim | UUID | str, outcomes: Mapping[int, Outcome] | Iterable[int] | None, queue: str
) -> tuple[Any, ...] | None:
    """Returns the parameters of SETTLE, or None if there is nothing to settle."""
    columns: Sequence[Any] = (None,) * 6
    if outcomes is None:
        if not isinstance(claim, Claim):
            raise ValidationError("outcomes: a token alone does not say which tasks", field="outcomes")
        ids = claim.ids
    else:
        ids = validate.ids(outcomes)
        if isinstance(outcomes, Mapping) and outcomes:
            columns = settle_columns(list(outcomes.values()))
    return (token_of(claim, queue), IdArray(ids), *columns) if ids else None


def settle_columns(outcomes: list[Outcome]) -> tuple[TextArray | None, ...]:
    """Returns outcomes as columns of SETTLE."""
    rows = [validate.at(n, settle_row, outcome) for n, outcome in enumerate(outcomes)]
    return tuple(text_array(column) for column in zip(*rows, strict=True))


def settle_row(outcome: object) -> tuple[bytes | None, ...]:
    """Returns one outcome, checked and encoded, in the order of SETTLE's columns."""
    if not isinstance(outcome, Outcome):
        raise ValidationError(f"outcome: {shown(outcome)} is not an Outcome", field="outcome")
    delay = validate.delay(outcome.delay)
    return (
        str(outcome.word).encode("utf-8", "backslashreplace"),
        None if outcome.due is None else validate.moment(outcome.due).astimezone(UTC).isoformat().encode(),
        None if delay is None else b"%d seconds %d microseconds" % (delay // SECOND, delay.microseconds),
        None if outcome.payload is None else validate.payload(outcome.payload, validate.MAX_PAYLOAD),
        encode(to_storable(outcome.error)),
        encode(to_storable(outcome.error_class)),
    )


SECOND = timedelta(seconds=1)


def failure_of_settle(error: PenstockError) -> Outcome:
    """Returns the outcome of a task whose own outcome PostgreSQL refused: it failed for that reason."""
    return Outcome.failed(f"the outcome was refused: {error.message}", error_class=type(error).__name__)


def read_settled(rows: list[tuple[str, list[int]]]) -> dict[int, str]:
    """Reads the answer of a settle, by id. Raises LeaseLost or NotFound for tasks that the claim does not hold."""
    found = dict(rows)
    refused, revoked, unknown = (found.get(word, []) for word in ("refused", "revoked", "unknown"))
    if refused or revoked:
        raise LeaseLost(
            f"{len(refused)} refused, {len(revoked)} cancelled: they are no longer ours",
            refused=refused,
            revoked=revoked,
            busy=found.get("busy", []),
        )
    if unknown:
        raise NotFound(f"id: {unknown[0]} was never in this lease ({len(unknown)} in all)")
    return {id_: state for state, ids in rows for id_ in ids}
