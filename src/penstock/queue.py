"""The seam: one method per SQL function. Everything else talks to PostgreSQL through here."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID, uuid4

import orjson

from penstock import validate
from penstock.database import Connection, Database, IdArray, TextArray, fetch_raw, translated
from penstock.errors import Conflict, LeaseLost, NotFound, PartialPush, Taken, Unavailable, ValidationError, shown
from penstock.model import (
    Claim,
    Duration,
    Extended,
    Finding,
    Json,
    NewTask,
    OnConflict,
    Outcome,
    Pushed,
    PushReport,
    QueueSettings,
    QueueStatus,
    Task,
    Verification,
    from_micros,
)
from penstock.retry import Strategy, parse
from penstock.spool import Chunk, Spool

Progress = Callable[[int], None]
T = TypeVar("T")
RETRIES = 6


class Queue:
    """One queue. Thread-safe; cheap to make, but keep it: it remembers where in the queue to look next."""

    def __init__(self, database: Database, name: str) -> None:
        self.name = validate.queue_name(name)
        self._database = database
        self._hint = Hint()

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    # --- push -------------------------------------------------------------------------------------------------------

    def push(
        self,
        payload: Json | None = None,
        *,
        subject: str | None = None,
        kind: str = "default",
        due: datetime | None = None,
        priority: int = 5,
        on_conflict: OnConflict = "skip",
    ) -> Pushed:
        """One task. When this returns, it survives a crash of anything."""
        task = validate.new_task(NewTask(payload, subject, due, priority, kind))
        raw = validate.payload(task.payload, validate.LARGEST_EVER)
        with self._database.transaction() as connection:
            row = connection.execute(
                PUSH, (self.name, raw.decode(), subject, kind, task.due, priority, conflict(on_conflict))
            ).fetchone()
        assert row is not None
        return Pushed(*row)

    def push_many(
        self,
        items: Iterable[Json | NewTask | None],
        *,
        on_conflict: OnConflict = "skip",
        batch_id: UUID | None = None,
        progress: Progress | None = None,
    ) -> PushReport:
        """Any number of tasks, in bounded memory, all or nothing: an item we do not accept refuses the whole call.

        Without subjects it is one transaction. With subjects it is one per chunk; if PostgreSQL fails between two,
        `PartialPush` carries the `batch_id` with which the same call completes it, doubling nothing.
        """
        batch = uuid4() if batch_id is None else validate.token(batch_id)
        conflict(on_conflict)
        with Spool(largest=validate.LARGEST_EVER) as spool:
            spool.fill(items)
            if not spool.rows:
                return PushReport(batch)
            queue_id = persistently(lambda: self._check_sizes(spool))
            if not spool.named:
                return persistently(lambda: self._push_plain(spool, queue_id, batch, progress))
            if on_conflict == "error":
                return self._push_strictly(spool, queue_id, batch, progress)
            return self._push_by_parts(spool, queue_id, batch, progress)

    def _check_sizes(self, spool: Spool) -> int:
        """The queue's id, if its limit allows everything in the spool."""
        with self._database.transaction() as connection:
            row = connection.execute(LIMIT, (self.name,)).fetchone()
        assert row is not None
        queue_id, largest = row
        spool.check_sizes(largest)
        return int(queue_id)

    def _push_plain(self, spool: Spool, queue_id: int, batch: UUID, progress: Progress | None) -> PushReport:
        """COPY into the documents; their trigger writes the agenda. Chunk by chunk, so that the trigger's view of what
        is new stays in memory; one transaction."""
        counts = {"created": spool.rows}
        with self._database.transaction() as connection:
            if self._enter(connection, (batch, 0, spool.rows, spool.checksum), counts) is None:
                for chunk in spool.chunks():
                    copy(connection, *copy_text(queue_id, chunk))
                    if progress:
                        progress(chunk.first + len(chunk.payloads))
        return PushReport(batch, created=spool.rows)

    def _push_by_parts(self, spool: Spool, queue_id: int, batch: UUID, progress: Progress | None) -> PushReport:
        """One transaction per chunk. As long as no subject was taken, by COPY; from the first one that was, by the
        function that knows what to do then, at twice the cost."""
        totals: Counter[str] = Counter()
        copying = True
        for chunk in spool.chunks():
            try:
                if copying:
                    try:
                        counts = self._alone(self._copy_part, chunk, queue_id, batch)
                    except Taken:
                        copying = False
                if not copying:
                    counts = self._alone(self._merge_part, chunk, "skip", batch)
            except Unavailable as error:
                if error.reason == "read_only":
                    raise
                raise PartialPush(
                    f"{chunk.first} of {spool.rows} tasks are written: {error.message}",
                    batch_id=batch,
                    written=chunk.first,
                    hint=f"Repeat the call with batch_id={batch}.",
                ) from error
            totals.update(counts)
            if progress:
                progress(chunk.first + len(chunk.payloads))
        return PushReport(batch, **totals)

    def _alone(self, write: Callable[..., dict[str, int]], *arguments: object) -> dict[str, int]:
        """One part in a transaction of its own."""

        def attempt() -> dict[str, int]:
            with self._database.transaction() as connection:
                return write(connection, *arguments)

        return persistently(attempt)

    def _push_strictly(self, spool: Spool, queue_id: int, batch: UUID, progress: Progress | None) -> PushReport:
        """`on_conflict="error"`: a taken subject undoes everything, so everything is one transaction. Subjects are in
        order only within a chunk: two such pushes may meet in a deadlock; PostgreSQL ends one, and it is repeated."""

        def attempt(write: Callable[..., dict[str, int]], target: object) -> Counter[str]:
            totals: Counter[str] = Counter()
            with self._database.transaction() as connection:
                for chunk in spool.chunks():
                    totals.update(write(connection, chunk, target, batch))
                    if progress:
                        progress(chunk.first + len(chunk.payloads))
            return totals

        try:
            return PushReport(batch, **persistently(lambda: attempt(self._copy_part, queue_id)))
        except Taken:
            return PushReport(batch, **persistently(lambda: attempt(self._merge_part, "error")))

    def _copy_part(self, connection: Connection, chunk: Chunk, queue_id: int, batch: UUID) -> dict[str, int]:
        """Raises Taken for a subject that is. In the order of subjects, as everybody writes them, so that two pushes
        never wait for each other in a circle; with ids in the order given, so that the first runs first."""
        if not distinct(chunk.subjects):
            raise Taken("a subject is given twice")
        counts = {"created": len(chunk.payloads)}
        known = self._enter(connection, (batch, chunk.part, len(chunk.payloads), chunk.checksum), counts)
        if known is None:
            ids = connection.execute(RESERVE, (len(chunk.payloads),)).fetchall()
            copy(connection, *copy_text(queue_id, chunk, [id_ for (id_,) in ids]))
        return counts if known is None else known

    def _merge_part(self, connection: Connection, chunk: Chunk, on_conflict: str, batch: UUID) -> dict[str, int]:
        known = self._enter(connection, (batch, chunk.part, len(chunk.payloads), chunk.checksum), {})
        if known is not None:
            return known
        columns = (
            TextArray(chunk.payloads),
            chunk.subjects and TextArray(chunk.subjects),
            chunk.kinds and TextArray(chunk.kinds),
            chunk.dues and TextArray(chunk.dues),
            chunk.priorities,
        )
        with counted_from(chunk.first), translated():
            rows = connection.execute(PUSH_MANY, (self.name, *columns, on_conflict)).fetchall()
        counts = {str(word): int(count) for word, count in rows}
        report = orjson.dumps(counts).decode()
        connection.execute("select penstock.note_report(%s, %s, %s::jsonb)", (batch, chunk.part, report))
        return counts

    def _enter(
        self, connection: Connection, entry: tuple[UUID, int, int, int], counts: Mapping[str, int]
    ) -> dict[str, int] | None:
        """Notes batch, part, rows and checksum in the ledger. Answers what was reported if it was there already."""
        row = connection.execute(
            "select penstock.enter_part(%s, %s, %s, %s, %s::text, %s::jsonb)::text",
            (self.name, *entry, orjson.dumps(counts).decode()),
        ).fetchone()
        assert row is not None
        return None if row[0] is None else orjson.loads(row[0])

    # --- claim, extend, settle, release -----------------------------------------------------------------------------

    def claim(
        self, limit: int = 1, *, lease: Duration | None = None, worker: str = "", may_alone: bool = True
    ) -> Claim:
        """Up to `limit` tasks, ours until the lease ends. An empty claim is not an empty queue: ask `status`.

        Say `may_alone=False` while other tasks of this worker are running: a task that once took a worker down with it
        is only given to one that has nothing else to lose.
        """
        limit = validate.whole(limit, "limit", 1, validate.LARGEST_CLAIM)
        length, worker = validate.lease(lease), validate.worker(worker)
        hint = self._hint.current()
        began = time.perf_counter()
        with self._database.transaction() as connection:
            rows = fetch_raw(connection, CLAIM, (self.name, limit, length, worker, *(hint or NO_PLACE), may_alone))
        self._hint.note(rows, limit, hint is None, time.perf_counter() - began)
        if not rows:
            return Claim(self.name, None, None, ())
        ids, kinds, subjects, payloads, priorities, attempts, iterations, dues, created, tokens, untils = zip(
            *rows, strict=True
        )
        decoded = validate.decode_payloads(payloads)
        columns = zip(ids, kinds, subjects, decoded, priorities, attempts, iterations, dues, created, strict=True)
        claim = Claim(self.name, UUID(bytes=tokens[0]), from_micros(untils[0]), tuple(map(Task._make, columns)))
        return self._bury_unreadable(claim) if None in decoded else claim

    def _bury_unreadable(self, claim: Claim) -> Claim:
        """One payload that Python can not read must not hold up the rest of the claim, again and again."""
        unreadable = [task.id for task in claim.tasks if task.payload is None]
        outcome = Outcome.dead("payload: it is nested too deep to be read", error_class="PayloadError")
        self.settle(claim, dict.fromkeys(unreadable, outcome))
        return replace(claim, tasks=tuple(task for task in claim.tasks if task.payload is not None))

    def extend(self, claim: Claim | UUID | str, *, lease: Duration | None = None) -> Extended:
        """The lease goes on from now. LeaseLost: it is somebody else's."""
        with self._database.transaction() as connection:
            row = connection.execute(
                "select until, revoked from penstock.extend(%s, %s)", (token_of(claim), validate.lease(lease))
            ).fetchone()
        if row is None:
            raise LeaseLost("the lease is lost: it expired, or everything in it is settled", refused=ids_of(claim))
        return Extended(row[0], tuple(row[1]))

    def settle(
        self, claim: Claim | UUID | str, outcomes: Mapping[int, Outcome] | Iterable[int] | None = None
    ) -> dict[int, str]:
        """Says what became of claimed tasks: a mapping of id to Outcome, or the ids that are done, or nothing: all of
        the claim is done. Answers the state each is in now: done, planned, pending or dead.

        What is no longer ours changes nothing and raises LeaseLost, after the rest is applied.
        """
        columns: Sequence[Any] = (None,) * 6
        if outcomes is None:
            if not isinstance(claim, Claim):
                raise ValidationError("outcomes: a token alone does not say which tasks", field="outcomes")
            ids = claim.ids
        else:
            ids = validate.ids(outcomes)
            if isinstance(outcomes, Mapping):
                columns = settle_columns(list(outcomes.values()))
        if not ids:
            return {}
        with self._database.transaction() as connection:
            rows = connection.execute(SETTLE, (token_of(claim), IdArray(ids), *columns), binary=True).fetchall()
        return settled(rows)

    def release(self, claim: Claim | UUID | str, *, delay: Duration | None = None) -> dict[int, str]:
        """Puts back what is still open of the claim, as it was: no attempt burned."""
        wait, ids = validate.delay(delay), ids_of(claim)
        if isinstance(claim, Claim) and not ids:
            return {}
        with self._database.transaction() as connection:
            rows = connection.execute(RELEASE, (token_of(claim), ids or None, wait)).fetchall()
        if not rows:
            raise LeaseLost("the lease is lost: it expired, or everything in it is settled")
        return settled(rows)

    # --- how it stands ----------------------------------------------------------------------------------------------

    def status(self) -> QueueStatus:
        return status(self._database, self.name)[0]

    def verify(self) -> Verification:
        return verify(self._database, self.name)


Place = tuple[int, datetime, int]

NO_PLACE = (None, None, None)

LIMIT = "select q.id, penstock.largest_payload(q) from penstock.the_queue(%s) as q"
PUSH = """
    select id, result, state
    from penstock.push_many(%s, array[%s::text], array[%s::text], array[%s::text], array[%s::timestamptz],
                            array[%s::smallint], %s)
"""
RESERVE = "select nextval('penstock.task_id_seq') from generate_series(1, %s)"
PUSH_MANY = """
    select result, count(*)
    from penstock.push_many(%s, %s, %s, %s, (%s::text[])::timestamptz[], %s::smallint[], %s)
    group by result
"""

# All rows of a claim share one token and one end: sent once.
CLAIM = """
    select id, kind, subject, payload, priority, attempt, iterations, due, created,
           case when row_number() over () = 1 then token end, case when row_number() over () = 1 then until end
    from penstock.claim(%s, %s, %s, %s, penstock.at_place(%s::smallint, %s::timestamptz, %s::bigint), %s, false)
"""
SETTLE = """
    select result, array_agg(id)
    from penstock.settle(%s, %s, %s::text[], %s::timestamptz[], %s::interval[], %s::text[], %s::text[], %s::text[])
    group by result
"""
RELEASE = "select result, array_agg(id) from penstock.release(%s, %s, %s) group by result"


class Hint:
    """Where the last claim ended. Under a held snapshot dead rows pile up in front of the queue, and a claim that
    starts behind them stays fast. Rows may appear before it (late commits, releases, higher priority), so every half
    second or so a claim looks from the start; that one also expires and promotes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._place: Place | None = None
        self._next_full = 0.0

    def current(self) -> Place | None:
        with self._lock:
            return self._place if time.monotonic() < self._next_full else None

    def note(self, rows: list[tuple[Any, ...]], limit: int, full: bool, cost: float) -> None:
        with self._lock:
            if len(rows) < limit:
                self._place = None
                return
            last = rows[-1]
            self._place = (last[4], from_micros(last[7]), last[0])
            if full:
                self._next_full = time.monotonic() + max(0.5, min(20 * cost, 0.8))


def conflict(value: object) -> str:
    if value not in ("skip", "error"):
        raise ValidationError(f"on_conflict: {shown(value)} is not skip or error", field="on_conflict")
    return str(value)


def token_of(claim: Claim | UUID | str) -> UUID:
    return validate.token(claim.token if isinstance(claim, Claim) else claim)


def ids_of(claim: Claim | UUID | str) -> list[int]:
    return claim.ids if isinstance(claim, Claim) else []


def settle_columns(outcomes: list[Outcome]) -> tuple[Any, ...]:
    words: list[str] = []
    delays: list[timedelta | None] = []
    payloads: list[str | None] = []
    for n, outcome in enumerate(outcomes):
        try:
            if not isinstance(outcome, Outcome):
                raise ValidationError(f"outcome: {shown(outcome)} is not an Outcome", field="outcome")  # noqa: TRY301
            if outcome.due is not None:
                validate.moment(outcome.due)
            delays.append(validate.delay(outcome.delay))
            payloads.append(None if outcome.payload is None else validate.payload(outcome.payload).decode())
        except ValidationError as error:
            raise error.at(n) from None
        words.append(outcome.word)
    return (
        words,
        [outcome.due for outcome in outcomes],
        delays,
        payloads,
        [storable(outcome.error) for outcome in outcomes],
        [storable(outcome.error_class) for outcome in outcomes],
    )


def storable(text: str | None) -> str | None:
    """An error text is never a reason to lose a settle: what PostgreSQL can not store is spelt out, what is too long is
    cut (it is cut again, exactly, in SQL)."""
    if text is None:
        return None
    cut = str(text)[:20_000]
    return cut.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def settled(rows: list[tuple[str, list[int]]]) -> dict[int, str]:
    """The answer of a settle, by id. Raises for those that were not ours to settle."""
    found = dict(rows)
    refused, revoked, unknown = (found.get(word, []) for word in ("refused", "revoked", "unknown"))
    if refused or revoked:
        raise LeaseLost(
            f"{len(refused)} refused, {len(revoked)} cancelled: they are no longer ours",
            refused=refused,
            revoked=revoked,
        )
    if unknown:
        raise NotFound(f"id: {unknown[0]} was never in this lease ({len(unknown)} in all)")
    return {id_: state for state, ids in rows for id_ in ids}


def copy(connection: Connection, columns: str, data: bytes) -> None:
    with connection.cursor().copy(f"copy penstock.task ({columns}) from stdin".encode()) as into:
        into.write(data)


@contextmanager
def counted_from(first: int) -> Iterator[None]:
    """SQL names an item by its position in the call; people count from the start of the push."""
    try:
        yield
    except Conflict as error:
        raise type(error)(ITEM.sub(lambda at: f"item {int(at[1]) + first}:", error.message), hint=error.hint) from None


ITEM = re.compile(r"^item (\d+):")


def copy_text(queue_id: int, chunk: Chunk, ids: list[int] | None = None) -> tuple[str, bytes]:
    """A chunk as COPY's text format, in the order of subjects. JSON has no raw tabs or newlines in it."""
    head = b"%d\t" % queue_id
    columns: dict[str, list[bytes]] = {}
    if ids is not None:
        columns["id"] = [b"%d" % one for one in ids]
    if chunk.subjects is not None:
        columns["subject"] = [b"\\N" if one is None else copy_escaped(one) for one in chunk.subjects]
    if chunk.kinds is not None:
        columns["kind"] = [copy_escaped(one) for one in chunk.kinds]
    if chunk.priorities is not None:
        columns["priority"] = [b"%d" % one for one in chunk.priorities]
    if chunk.dues is not None:
        columns["due"] = [b"\\N" if one is None else one for one in chunk.dues]
    if not columns:
        joined = (b"\n" + head).join(chunk.payloads)
        return "queue_id, payload", head + joined.replace(b"\\", b"\\\\") + b"\n"
    columns["payload"] = [one.replace(b"\\", b"\\\\") for one in chunk.payloads]
    lines = [head + b"\t".join(row) for row in zip(*columns.values(), strict=True)]
    if chunk.subjects is not None:
        # Byte by byte, as PostgreSQL's collation "C" does.
        order = sorted(range(len(lines)), key=[one or b"" for one in chunk.subjects].__getitem__)
        lines = [lines[n] for n in order]
    return ", ".join(("queue_id", *columns)), b"\n".join(lines) + b"\n"


def copy_escaped(value: bytes) -> bytes:
    return value.replace(b"\\", b"\\\\").replace(b"\t", b"\\t").replace(b"\n", b"\\n").replace(b"\r", b"\\r")


def distinct(subjects: list[bytes | None] | None) -> bool:
    named = [one for one in subjects or () if one is not None]
    return len({*named}) == len(named)


def persistently(attempt: Callable[[], T]) -> T:
    """Repeats what a ledger makes repeatable, while PostgreSQL restarts or a COMMIT's reply is lost."""
    for n in range(RETRIES):
        try:
            return attempt()
        except Unavailable as error:
            if n == RETRIES - 1 or error.reason == "read_only":
                raise
            time.sleep(min(0.1 * 2**n, 2.0))
    raise AssertionError


# --- queues and their books -----------------------------------------------------------------------------------------


def create(
    database: Database,
    name: str,
    *,
    lease: Duration = "30s",
    max_attempts: int | None = 20,
    retry: Strategy | str | None = None,
    sla: Duration | None = None,
    keep_done: Duration | None = None,
    exist_ok: bool = False,
) -> bool:
    """Creates a queue; False: it was there already (and was left as it is)."""
    if max_attempts is not None:
        validate.whole(max_attempts, "max_attempts", 1, 32767)
    values = {
        "p_name": validate.queue_name(name),
        "p_lease": validate.lease(lease),
        "p_max_attempts": max_attempts,
        "p_sla": None if sla is None else validate.positive(sla, "sla"),
        "p_keep_done": None if keep_done is None else validate.positive(keep_done, "keep_done"),
        "p_exist_ok": exist_ok,
    }
    if retry is not None:
        strategy = parse(retry) if isinstance(retry, str) else retry
        values["p_retry"] = orjson.dumps(strategy.to_json()).decode()
    arguments = ", ".join(f"{key} => %({key})s" + ("::jsonb" if key == "p_retry" else "") for key in values)
    with database.transaction() as connection:
        row = connection.execute(f"select penstock.create_queue({arguments})".encode(), values).fetchone()
    return bool(row and row[0])


def settings(database: Database) -> list[QueueSettings]:
    with database.transaction() as connection:
        rows = connection.execute(
            "select name, lease, max_attempts, retry::text, sla, keep_done, paused, created"
            " from penstock.queue order by name"
        ).fetchall()
    return [QueueSettings(*(*row[:3], orjson.loads(row[3]), *row[4:])) for row in rows]


STATUS = """
    select queue, planned, pending, active, done, dead, cancelled, extract(epoch from oldest_pending_age)::float8,
           extract(epoch from sla)::float8, paused, totals::text, at
    from penstock.status(%s)
"""


def status(database: Database, name: str | None = None) -> list[QueueStatus]:
    with database.transaction() as connection:
        rows = connection.execute(STATUS, (None if name is None else validate.queue_name(name),)).fetchall()
    return [QueueStatus(*(*row[:10], orjson.loads(row[10]), row[11])) for row in rows]


def verify(database: Database, name: str | None = None) -> Verification:
    with database.transaction() as connection:
        rows = connection.execute(
            "select area, queue, what, expected, found from penstock.verify(%s)", (name,)
        ).fetchall()
        dropped = connection.execute(
            "select coalesce(sum((totals->>'orphaned')::bigint), 0)::bigint from penstock.status(%s)", (name,)
        ).fetchone()
    assert dropped is not None
    areas = {area: [row for row in rows if row[0] == area] for area in ("drift", "orphans", "history", "balance")}
    return Verification(
        drift=len(areas["drift"]),
        orphans=sum(row[4] for row in areas["orphans"]),
        history=len(areas["history"]),
        balance=len(areas["balance"]),
        dropped=int(dropped[0]),
        findings=tuple(Finding(row[1], f"{row[0]}: {row[2]}", row[3], row[4]) for row in rows),
    )


def upkeep(database: Database) -> dict[str, int]:
    with database.transaction() as connection:
        rows = connection.execute("select part, rows from penstock.upkeep()").fetchall()
    return {str(part): int(count) for part, count in rows}
