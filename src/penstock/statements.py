"""The statements that the seam sends to PostgreSQL, and the code that reads the answers. The sync and the async seam
share this module; it does no I/O."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from penstock import validate
from penstock.errors import Conflict, LeaseLost, NotFound, PenstockError, ValidationError, shown
from penstock.model import (
    GAUGES,
    Asked,
    Board,
    BoardWorker,
    Claim,
    Duration,
    Extended,
    Finding,
    Firing,
    Horizon,
    NewSchedule,
    Outcome,
    Pushed,
    QueueSettings,
    QueueStatus,
    Sampled,
    Scaled,
    ScalerSnapshot,
    ScalingHold,
    Schedule,
    SeenQueue,
    SeenWorker,
    StoredDecision,
    StoredProfile,
    Task,
    TaskDetails,
    TaskInfo,
    Verification,
    Window,
    from_micros,
)
from penstock.retry import Strategy, parse
from penstock.spool import Chunk
from penstock.wire import IdArray, TextArray

Place = tuple[int, datetime | str, int]
NO_PLACE = (None, None, None)
START: Place = (0, "-infinity", 0)  # the start of a queue: no task can be before it

# --- push -------------------------------------------------------------------------------------------------------------

LIMIT = "select q.id, penstock.largest_payload(q) from penstock.the_queue(%s) as q"
PUSH = """
    select id, result, state
    from penstock.push_many(%s, array[%s::text], array[%s::text], array[%s::text], array[%s::timestamptz],
                            array[%s::smallint], %s)
"""
PUSH_MANY = """
    select result, pg_catalog.count(*),
           pg_catalog.count(*) filter (where result = 'skipped' and state = 'dead')
    from penstock.push_many(%s, %s, %s, %s, (%s::text[])::timestamptz[], %s::smallint[], %s)
    group by result
"""
RESERVE = "select pg_catalog.nextval('penstock.task_id_seq') from pg_catalog.generate_series(1, %s)"
ENTER_PART = "select penstock.enter_part(%s, %s, %s, %s, %s::text, %s::jsonb)::text"
NOTE_REPORT = "select penstock.note_report(%s, %s, %s::jsonb)"
ENTER_PARTITION = "select penstock.enter_partition(%s, %s, %s, %s, %s, %s::text, %s::uuid)::text"
TAKE_PLACE = "select penstock.take_place(%s, %s)"
SEAL_JOB = "select penstock.seal_job(%s, %s, %s, %s, %s::text, %s::jsonb)::text"
JOB_REPORT = "select penstock.job_report(%s)::text"
JUDGE = "select n, reason from penstock.judge_payloads(%s)"

# This statement runs in the caller's transaction, with any driver and any settings: every parameter is text, and arrays
# are array literals. A missing value is an empty text there, which no subject, due or kind can be: under array_nulls =
# off, NULL would be read as a word. Names resolve to PostgreSQL's own, whatever the caller's search_path contains.
PUSH_AS_TEXT = """
    select n, id, result, state
    from penstock.push_many(
        cast($1 as pg_catalog.text),
        cast(cast($2 as pg_catalog.text) as pg_catalog.text[]),
        pg_catalog.array_replace(cast(cast($3 as pg_catalog.text) as pg_catalog.text[]), '', null),
        cast(cast($4 as pg_catalog.text) as pg_catalog.text[]),
        cast(pg_catalog.array_replace(cast(cast($5 as pg_catalog.text) as pg_catalog.text[]), '', null)
             as pg_catalog.timestamptz[]),
        cast(cast($6 as pg_catalog.text) as pg_catalog.int2[]),
        cast($7 as pg_catalog.text))
    order by n
"""
LIMIT_AS_TEXT = "select q.id, penstock.largest_payload(q) from penstock.the_queue(cast($1 as pg_catalog.text)) as q"
ENTER_AS_TEXT = """
    select cast(penstock.enter_part(
        cast($1 as pg_catalog.text), cast(cast($2 as pg_catalog.text) as pg_catalog.uuid),
        cast(cast($3 as pg_catalog.text) as pg_catalog.int4), cast(cast($4 as pg_catalog.text) as pg_catalog.int8),
        cast($5 as pg_catalog.text), '{}') as pg_catalog.text)
"""
NOTE_AS_TEXT = """
    select cast(penstock.note_report(
        cast(cast($1 as pg_catalog.text) as pg_catalog.uuid), cast(cast($2 as pg_catalog.text) as pg_catalog.int4),
        cast(cast($3 as pg_catalog.text) as pg_catalog.jsonb)) as pg_catalog.text)
"""


def conflict(value: object) -> str:
    """Checks `on_conflict`."""
    if value not in ("skip", "update", "error"):
        raise ValidationError(f"on_conflict: {shown(value)} is not skip, update or error", field="on_conflict")
    return str(value)


def merge_columns(chunk: Chunk) -> tuple[Any, ...]:
    """Returns the columns of a chunk as parameters of PUSH_MANY."""
    return (
        TextArray(chunk.payloads),
        chunk.subjects and TextArray(chunk.subjects),
        chunk.kinds and TextArray(chunk.kinds),
        chunk.dues and TextArray(chunk.dues),
        chunk.priorities,
    )


def text_columns(queue: str, chunk: Chunk, on_conflict: str) -> list[str | None]:
    """Returns the parameters of PUSH_AS_TEXT."""
    return [
        queue,
        array_literal(chunk.payloads),
        array_literal(chunk.subjects),
        array_literal(chunk.kinds),
        array_literal(chunk.dues),
        None if chunk.priorities is None else "{" + ",".join(map(str, chunk.priorities)) + "}",
        on_conflict,
    ]


def array_literal(values: Sequence[bytes | None] | None) -> str | None:
    """Returns an array as PostgreSQL reads it; None becomes an empty text in it (see PUSH_AS_TEXT)."""
    if values is None:
        return None
    quoted = ('"' + escaped_element((one or b"").decode()) + '"' for one in values)
    return "{" + ",".join(quoted) + "}"


def pushed(rows: Sequence[tuple[Any, ...]]) -> list[Pushed]:
    """Reads the answer of PUSH_AS_TEXT. Under client_encoding = SQL_ASCII psycopg returns texts as bytes."""
    return [Pushed(id_, *(one.decode() if isinstance(one, bytes) else one for one in words)) for _, id_, *words in rows]


def escaped_element(text: str) -> str:
    """Escapes a text for an array literal."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def copy_text(queue_id: int, chunk: Chunk, ids: list[int] | None = None) -> tuple[str, bytes]:
    """Returns the columns and the rows of a chunk in COPY's text format, in the order of subjects. JSON contains no raw
    tabs or newlines."""
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
        # Subjects are compared byte by byte, as PostgreSQL's collation "C" does.
        order = sorted(range(len(lines)), key=[one or b"" for one in chunk.subjects].__getitem__)
        lines = [lines[n] for n in order]
    return ", ".join(("queue_id", *columns)), b"\n".join(lines) + b"\n"


def copy_escaped(value: bytes) -> bytes:
    """Escapes a text for COPY."""
    return value.replace(b"\\", b"\\\\").replace(b"\t", b"\\t").replace(b"\n", b"\\n").replace(b"\r", b"\\r")


def distinct(subjects: list[bytes | None] | None) -> bool:
    """Returns whether no subject is given twice."""
    named = [one for one in subjects or () if one is not None]
    return len({*named}) == len(named)


@contextmanager
def counted_from(first: int) -> Iterator[None]:
    """Renumbers items in errors: SQL counts an item from the start of a statement, and the error counts it from the
    start of the push."""
    try:
        yield
    except (Conflict, ValidationError) as error:
        message = ITEM.sub(lambda at: f"item {int(at[1]) + first}:", error.message)
        raise type(error)(message, hint=error.hint) from error.__cause__


ITEM = re.compile(r"^item (\d+):")


# --- rejects ----------------------------------------------------------------------------------------------------------

REJECTED = ("reason", "payload", "subject", "kind", "due", "priority")
NOTE_REJECTS = (
    "select penstock.note_rejects(%s, %s, %s, %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[])"
)
# A function writes to Penstock's own table; a table of the user is written with the rights of the connected role.
REJECT_COLUMNS = """
    select a.attname from pg_catalog.pg_attribute as a
    where a.attrelid = pg_catalog.to_regclass(%s) and a.attnum > 0 and not a.attisdropped
"""
MAKE_REJECTS = """
    create table if not exists {} (
        id bigint generated always as identity primary key,
        at timestamptz not null default pg_catalog.clock_timestamp(),
        job uuid not null, partition int not null, queue text not null, reason text not null,
        payload text, subject text, kind text, due text, priority text)
"""
INSERT_REJECTS = """
    insert into {} (queue, job, partition, reason, payload, subject, kind, due, priority)
    select %s, %s, %s, r.* from unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[]) as r
"""
TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}(\.[A-Za-z_][A-Za-z0-9_$]{0,62})?")


class Reject(NamedTuple):
    """A row that cannot be a task, and the reason."""

    reason: str
    payload: str | None = None
    subject: str | None = None
    kind: str | None = None
    due: str | None = None
    priority: str | None = None


class Entry(NamedTuple):
    """The key of a part of a bulk write in the ledger. The first part of a partition stands for all of it."""

    job: UUID
    partition: int
    batch: UUID
    part: int
    rows: int
    checksum: str
    series: UUID | None = None  # the jobs of a series follow one another; upkeep keeps the newest


class NoPlace(Exception):
    """As many parts are being written at once as are allowed. Only the caller that set the limit sees this error."""


def table_name(value: object, field: str = "rejectTable") -> str:
    """Checks a table's name, with or without its schema, so that it cannot be anything else in a statement."""
    if isinstance(value, str) and TABLE.fullmatch(value):
        return value
    raise ValidationError(
        f"{field}: {shown(value)} is not the name of a table",
        hint="Write table or schema.table: letters, digits, _ and $, at most 63 each.",
        field=field,
    )


def quoted(table: str) -> str:
    """Quotes a table's name."""
    return ".".join(f'"{part}"' for part in table_name(table).split("."))


def enter(queue: str, entry: Entry) -> tuple[str, tuple[Any, ...]]:
    """Returns the statement that notes a part in the ledger, and its parameters."""
    if entry.part == 0:
        named = (entry.job, entry.partition, entry.batch)
        return ENTER_PARTITION, (queue, *named, entry.rows, entry.checksum, entry.series)
    return ENTER_PART, (queue, entry.batch, entry.part, entry.rows, entry.checksum, "{}")


def note_rejects(queue: str, entry: Entry, rejects: Sequence[Reject], table: str | None) -> tuple[str, tuple[Any, ...]]:
    """Returns the statement that stores rejects, and its parameters."""
    columns = [
        TextArray([encoded(None if one is None else storable(one, LONGEST_REJECT)) for one in column])
        for column in zip(*rejects, strict=True)
    ]
    statement = NOTE_REJECTS if table is None else INSERT_REJECTS.format(quoted(table))
    return statement, (queue, entry.job, entry.partition, *columns)


LONGEST_REJECT = 1 << 20


# --- claim, extend, settle, release -----------------------------------------------------------------------------------

# All rows of a claim share the token, the end of the lease and the flag `alone`, so these are sent once.
CLAIM = """
    select id, kind, subject, payload, priority, attempt, iterations, due, created, since,
           case when pg_catalog.row_number() over () = 1 then token end,
           case when pg_catalog.row_number() over () = 1 then until end,
           case when pg_catalog.row_number() over () = 1 then alone end
    from penstock.claim(%s, %s, %s, %s, penstock.at_place(%s::smallint, %s::timestamptz, %s::bigint), %s, false)
"""
LEASE = "select extract(epoch from lease)::float8 from penstock.the_queue(%s)"
EXTEND = "select until, revoked, open from penstock.extend(%s, %s)"
EXTEND_MANY = "select token::text, until, revoked from penstock.extend_many(%s::text[]::uuid[], %s)"
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

    def heard(self) -> Place | None:
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
    may_alone: bool

    def checked(self) -> tuple[Any, ...]:
        """Checks the arguments and returns the parameters of CLAIM."""
        limit = validate.whole(self.limit, "limit", 1, validate.LARGEST_CLAIM)
        length, worker = validate.lease(self.lease), validate.worker(self.worker)
        return (self.queue, limit, length, worker, *(self.hint or NO_PLACE), self.may_alone)


def claimed(queue: str, rows: list[tuple[Any, ...]]) -> Claim:
    """Reads the answer of CLAIM."""
    if not rows:
        return Claim(queue, None, None, ())
    columns = [*zip(*rows, strict=True)]
    *_, tokens, untils, alone = columns
    columns[3] = validate.decode_payloads(columns[3])  # type: ignore[call-overload]
    tasks = tuple(map(Task._make, zip(*columns[:-3], strict=True)))
    return Claim(queue, UUID(bytes=tokens[0]), from_micros(untils[0]), tasks, os.getpid(), alone[0])


UNREADABLE = Outcome.dead("payload: it is nested too deep to be read", error_class="PayloadError")


def unreadable(claim: Claim) -> dict[int, Outcome]:
    """Returns outcomes for tasks whose payload Python cannot read, so that they do not hold up the rest of the claim
    again and again."""
    return {task.id: UNREADABLE for task in claim.tasks if task.payload is None}


def extended(row: tuple[Any, ...] | None, claim: Claim | UUID | str) -> Extended:
    """Reads the answer of EXTEND."""
    if row is None:
        raise LeaseLost(LOST, refused=ids_of(claim))
    until, revoked, left = row
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
    return tuple(texts(column) for column in zip(*rows, strict=True))


def settle_row(outcome: object) -> tuple[bytes | None, ...]:
    """Returns one outcome, checked and encoded, in the order of SETTLE's columns."""
    if not isinstance(outcome, Outcome):
        raise ValidationError(f"outcome: {shown(outcome)} is not an Outcome", field="outcome")
    delay = validate.delay(outcome.delay)
    return (
        str(outcome.word).encode("utf-8", "backslashreplace"),
        None if outcome.due is None else validate.moment(outcome.due).astimezone(UTC).isoformat().encode(),
        None if delay is None else b"%d seconds %d microseconds" % (delay // SECOND, delay.microseconds),
        None if outcome.payload is None else validate.payload(outcome.payload, validate.LARGEST_EVER),
        encoded(storable(outcome.error)),
        encoded(storable(outcome.error_class)),
    )


SECOND = timedelta(seconds=1)


def encoded(text: str | None) -> bytes | None:
    """Encodes a text that may be None."""
    return None if text is None else text.encode()


def texts(column: Sequence[bytes | None]) -> TextArray | None:
    """Returns texts for PostgreSQL in binary, or None if all of them are None."""
    return None if column.count(None) == len(column) else TextArray(column)


def storable(text: str | None, longest: int = 20_000) -> str | None:
    """Makes an error text storable, so that it never prevents a settle: characters that PostgreSQL cannot store are
    escaped, and a text that is too long is cut (SQL cuts it again, exactly)."""
    if text is None:
        return None
    cut = str(text)[:longest]
    return cut.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def settled(rows: list[tuple[str, list[int]]]) -> dict[int, str]:
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


# --- the other verbs --------------------------------------------------------------------------------------------------

VERBS = {
    "cancel": "select id, result from penstock.cancel(%(queue)s, %(ids)s, %(subjects)s, %(reason)s)",
    "redrive": """
        select id, result
        from penstock.redrive(%(queue)s, %(ids)s, %(subjects)s, %(kind)s, %(error)s, %(since)s, %(limit)s)
    """,
    "reschedule": "select id, result from penstock.reschedule(%(queue)s, %(due)s, %(ids)s, %(subjects)s)",
    "reprioritise": """
        select id, result from penstock.reprioritise(%(queue)s, %(priority)s::smallint, %(ids)s, %(subjects)s)
    """,
    "purge": """
        select penstock.purge(%(queue)s, %(states)s, %(ids)s, %(kind)s, %(error)s, %(before)s, %(limit)s)
    """,
}
MOST = 10_000  # tasks in one call of a SQL function


def chosen(queue: str, ids: Iterable[int] | None, subjects: Iterable[str] | None) -> dict[str, Any]:
    """Returns the parameters that say which tasks a verb is about."""
    found = None if ids is None else IdArray(validate.ids(ids))
    named = None
    if subjects is not None:
        if isinstance(subjects, str):
            subjects = [subjects]
        named = [validate.text(one, "subject", validate.LARGEST_SUBJECT) for one in subjects]
    return {"queue": queue, "ids": found, "subjects": named}


def filters(**given: str | None) -> dict[str, str | None]:
    """Checks the texts that select tasks; each may be None. An empty text is refused, because it would select all
    tasks."""
    most = {"kind": validate.LARGEST_KIND, "subject": validate.LARGEST_SUBJECT}
    return {
        name: None if value is None else validate.text(value, name, most.get(name, 8192))
        for name, value in given.items()
    }


def known_state(value: object) -> str | None:
    """Checks the name of a state."""
    if value is not None and value not in GAUGES:
        raise ValidationError(f"state: {shown(value)} is not one of {', '.join(GAUGES)}", field="state")
    return None if value is None else str(value)


# These subqueries find the tasks in a state by an index: a hundred dead tasks among ten million waiting ones are a few
# pages. A small queue is read by its own indexes. The first tasks of a large queue are soon found in the order of ids.
FEW_TASKS = 20_000
SIZE = "select planned + pending + active + done + dead + cancelled from penstock.status(%s)"
PLACES = (
    "select p.id from penstock.queue as q cross join lateral penstock.places_of(q.id) as p where q.name = %(queue)s"
)
FOUND_BY = {
    "planned": "select a.task_id from penstock.agenda as a join penstock.queue as q on q.id = a.queue_id"
    " where q.name = %(queue)s and not a.pending",
    "active": "select h.id from penstock.lease as l join penstock.queue as q on q.id = l.queue_id"
    " cross join lateral pg_catalog.unnest(l.ids) as h(id) where q.name = %(queue)s",
    **dict.fromkeys(
        ("done", "dead", "cancelled"),
        "select t.id from penstock.task as t join penstock.queue as q on q.id = t.queue_id"
        " where q.name = %(queue)s and t.ended = %(state)s",
    ),
}
LIST = """
    select id, queue, kind, subject, state, priority, due, attempts, iterations, created, last_iteration, ended_at,
           reason, error_class, error, payload::text
    from penstock.tasks
    where queue = %(queue)s
      and (%(id)s::bigint is null or id = %(id)s)
      and (%(state)s::text is null or state = %(state)s)
      and (%(kind)s::text is null or kind = %(kind)s)
      and (%(subject)s::text is null or subject = %(subject)s)
      and (%(error)s::text is null or penstock.mentions(error_class, error, reason, %(error)s))
      and (%(after)s::bigint is null or id > %(after)s)
      and {found}
    order by id
    limit %(limit)s
"""


def list_tasks(state: str | None, tasks: int, *, named: bool) -> bytes:
    """Returns the statement that lists tasks of a queue with so many tasks. `named` means that an id or a subject is
    given, which have indexes."""
    if state in FOUND_BY:
        found = f"id in ({FOUND_BY[state]})"
    elif named or tasks > FEW_TASKS:
        found = "true"
    else:
        found = f"id = any(array({PLACES}))"
    return LIST.format(found=found).encode()


FIND = """
    select t.id, t.queue, t.kind, t.subject, t.state, t.priority, t.due, coalesce(t.attempts, l.attempts), t.iterations,
           t.created, t.last_iteration, t.ended_at, t.reason, t.error_class, t.error,
           t.payload::text, l.worker, l.claimed_at, l.until
    from penstock.tasks as t
    left join lateral (
        select h.worker, h.claimed_at, h.until, coalesce(h.attempts[o.n], 0) as attempts
        from penstock.lease as h cross join lateral pg_catalog.unnest(h.ids) with ordinality as o(id, n)
        where t.state = 'active' and o.id = t.id and pg_catalog.get_bit(h.open, o.n::int - 1) = 1
    ) as l on true
    where t.id = %s
"""


FIND_REMOVED = """
    select task_id, queue, kind, subject, state, null, null, attempts, iterations, created, last_iteration, ended_at,
           null, error_class, error, null, worker, claimed_at, null
    from penstock.find_removed(%s)
"""


def found_task(row: tuple[Any, ...] | None, id_: int, *, removed: bool) -> TaskDetails:
    """Reads the answer of FIND or FIND_REMOVED, and raises NotFound if there is none."""
    if row is None:
        raise NotFound(
            f"id: there is no task {id_}",
            hint="Nor does history know it; `penstock retention` tells how long history is kept.",
        )
    *task, payload, worker, claimed_at, until = row
    known = None if payload is None else validate.decode_text(payload)
    return TaskDetails(TaskInfo._make([*task, known]), worker, claimed_at, until, removed)


def counted(written: Sequence[Pushed]) -> dict[str, int]:
    """Counts the results of pushed tasks, in the same form as `merged`."""
    dead = sum(one.result == "skipped" and one.state == "dead" for one in written)
    return {**Counter(one.result for one in written)} | ({"skipped_dead": dead} if dead else {})


def merged(rows: Iterable[tuple[str, int, int]]) -> dict[str, int]:
    """Reads the answer of PUSH_MANY, by result; `skipped_dead` counts the skipped ones whose task is dead."""
    found = [*rows]
    dead = sum(dead for _, _, dead in found)
    return {str(word): int(count) for word, count, _ in found} | ({"skipped_dead": dead} if dead else {})


def listed(rows: list[tuple[Any, ...]]) -> list[TaskInfo]:
    """Reads the answer of LIST."""
    return [TaskInfo(*(*row[:-1], validate.decode_text(row[-1]))) for row in rows]


# --- queues and their counters ----------------------------------------------------------------------------------------

SETTINGS_OF = """
    select name, lease, max_attempts, retry::text, sla, keep_done, keep_dead, keep_cancelled, paused, created,
           penstock.largest_payload(q), settings->'notify' is distinct from 'false'
    from penstock.queue as q
    where %s::text is null or name = %s
    order by name
"""
KINDS_OF = """
    select q.name, k.kind, k.retry::text, k.max_attempts
    from penstock.kind as k join penstock.queue as q on q.id = k.queue_id
    order by 1, 2
"""
SET_QUEUE = "select penstock.set_queue(%s, %s::jsonb)"
STATUS = """
    select queue, planned, pending, active, done, dead, cancelled, extract(epoch from oldest_pending_age)::float8,
           extract(epoch from sla)::float8, paused, totals::text, at
    from penstock.status(%s)
"""
STATUS_OF = STATUS.replace("%s", "null") + "where queue = any(%s::text[])"
VERIFY = "select area, queue, what, expected, found from penstock.verify(%s)"
DROPPED = "select coalesce(pg_catalog.sum((totals->>'orphaned')::bigint), 0)::bigint from penstock.status(%s)"
REPAIR = "select queue, what, rows from penstock.repair(%s)"
UPKEEP_PARTS = "select penstock.upkeep_parts(%s)"
# A part that a crash undoes is done again, so it waits neither for the disk nor for a synchronous standby that is away.
UPKEEP_PART = """
    select u.rows, u.more
    from penstock.upkeep_part(%s, %s) as u, pg_catalog.set_config('synchronous_commit', 'off', true)
"""
UPKEEP_SECONDS = 5.0  # for which a round of upkeep repeats parts that have more to do
SET_RETENTION = "select penstock.set_retention(%s, %s)"
RETENTIONS = "select what, keep from penstock.retention order by what"
BEAT = """
    select queue, channel, alone, dismissed from penstock.beat(%s, %s::text[], %s, %s, %s, %s, %s, %s, %s)
"""
BEAT_ALL = """
    select b.channels::text, b.alone, b.dismissed, b.known, b.leases::text,
           w.waiting, w.next_due, w.next_schedule, w.upkeep
    from penstock.beat_all(%s::jsonb, %s::text[], %s, %s, %s, %s, %s) as b, penstock.find_work(%s::text[]) as w
"""
FIND_WORK = "select waiting, next_due, next_schedule, upkeep from penstock.find_work(%s::text[])"
PREPARE_WORK = "select queue, lease, paused from penstock.prepare_work(%s::text[], %s::jsonb)"
# If a crash undoes the wake-up, a task only waits a moment longer.
WAKE_ANOTHER = "select penstock.pass_on(%s, %s) from pg_catalog.set_config('synchronous_commit', 'off', true)"
LEAVE = "select penstock.leave(%s)"
TAKE_QUARANTINE = "select penstock.take_quarantine(%s, %s)"
EXPIRE_LEASES = "select penstock.expire_leases(%s::text[])"
END_LEASES = "select failed, dead from penstock.end_leases(%s::uuid[])"
SET_KINDS = "select penstock.set_kinds(%s, %s::jsonb)"

SCHEDULES = """
    select name, queue, kind, payload, priority, cron, tz, backfill, paused, mark, next_at, last_tick, created, updated,
           who, size, at
    from penstock.schedules(%s)
"""
DUE_SCHEDULES = "select s.* from penstock.due_schedules() as d(name), penstock.schedules(d.name) as s"
NEXT_SCHEDULE = "select penstock.next_schedule()"
SET_SCHEDULE = "select penstock.set_schedule(%s, %s, %s, %s, %s, %s::jsonb, %s::smallint, %s)"
DROP_SCHEDULE = "select penstock.drop_schedule(%s)"
PAUSE_SCHEDULE = "select penstock.pause_schedule(%s)"
RESUME_SCHEDULE = "select penstock.resume_schedule(%s)"
FIRE = "select penstock.fire(%s, %s, %s::timestamptz[], %s, %s)"

STREAM = 0x50454E47  # "PENG": the advisory locks of the drivers of consumer groups
LOCK_EPOCH = "select pg_catalog.pg_try_advisory_xact_lock(%s, %s)"
NEXT_EPOCH = "select penstock.next_epoch()"
HOLD_STREAM = "select stream, identity::text, batch from penstock.hold_stream(%s, %s, %s, %s, %s)"
KEEP_STREAM = "select penstock.keep_stream(%s, %s, %s)"
LEAVE_STREAM = "select penstock.leave_stream(%s, %s)"
NEXT_BATCH = "select batch, tasks, early from penstock.next_batch(%s, %s, %s, %s, %s, %s, %s)"
BATCH_LEASES = "select token::text, tasks from penstock.batch_leases(%s, %s, %s, %s)"
READ_LEASE = """
    select id, kind, subject, payload, priority, due, attempt, iterations, created, since
    from penstock.read_lease(%s, %s, %s)
"""
WAITING_NOW = "select at, tasks from penstock.waiting_now(%s)"

HOLD_SCALING = (
    "select queue, epoch, memory::text, target from penstock.hold_scaling(%s::text[], %s, %s, %s, %s::text[])"
)
SCALERS = "select queue, holder, policy, until, target, decided_at from penstock.scalers(%s::text[])"
DECIDE = "select penstock.decide(%s, %s, %s::jsonb)"
LEAVE_SCALING = "select penstock.leave_scaling(%s)"
DECISIONS = """
    select id, queue, at, epoch, policy, workers, actual, wanted, urgency, bound_by, reason, time_to_breach,
           predicted_breach, inputs::text, rules::text
    from penstock.decisions(%s, %s, %s)
"""
TARGET_WORKERS = "select penstock.target_workers(%s), extract(epoch from penstock.target_age(%s))::float8"
DISMISS = "select penstock.dismiss(%s::text[])"
BOARD = "select penstock.board(%s, %s, %s)::text"
SCALER_SNAPSHOT = "select penstock.scaler_snapshot(%s::text[], %s::float8[], %s::int[], %s::float8[])::text"


class Upkeep(dict[str, int]):
    """The result of a round of upkeep: the rows of each part. `failed` contains the parts that failed, and why."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: dict[str, PenstockError] = {}


class FailureLog:
    """Counts consecutive failures of each part of upkeep, and selects those that are worth a line in the log: the
    first, the second, the fourth, the eighth and so on."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def note(self, done: Upkeep) -> list[dict[str, Any]]:
        """Returns the facts of each failure that should be logged now."""
        self._times = {part: self._times.get(part, 0) + 1 for part in done.failed} | {
            part: times for part, times in self._times.items() if part not in done and part not in done.failed
        }
        return [
            {"part": part, "code": error.code, "times": self._times[part]}
            for part, error in done.failed.items()
            if self._times[part].bit_count() == 1
        ]


class FoundWork(NamedTuple):
    """What a supervisor finds when it looks for work: the queues from which a claim would return tasks, the seconds
    until a task is due or a lease ends in the others, the seconds until a schedule is due, and whether upkeep is
    due."""

    waiting: list[str]
    next_due: float | None
    next_schedule: float | None
    upkeep: bool


class Beaten(NamedTuple):
    """The answer to a beat for several workers: the channel of each worker, the queues in which a task waits that must
    run alone, the workers that should stop, and the leases of queues in seconds if they differ from those that `known`
    stands for."""

    channels: dict[str, str]
    alone: list[str]
    dismissed: list[str]
    known: int
    leases: dict[str, float] | None


class ScheduleRun(NamedTuple):
    """The result of running the schedules: how many tasks were pushed, and which schedules could not be fired, and
    why."""

    pushed: int
    failed: Mapping[str, PenstockError]


def beaten(row: tuple[Any, ...]) -> tuple[Beaten, FoundWork]:
    """Reads the answer of BEAT_ALL."""
    channels, alone, dismissed, known, leases, *found = row
    told = Beaten(orjson.loads(channels), alone, dismissed, known, leases and orjson.loads(leases))
    return told, FoundWork(*found)


def held(rows: list[tuple[Any, ...]]) -> list[ScalingHold]:
    """Reads the answer of HOLD_SCALING."""
    return [ScalingHold(queue, epoch, memory and orjson.loads(memory), target) for queue, epoch, memory, target in rows]


def decisions(rows: list[tuple[Any, ...]]) -> list[StoredDecision]:
    """Reads the answer of DECISIONS."""
    return [StoredDecision(*(*row[:-2], orjson.loads(row[-2]), orjson.loads(row[-1]))) for row in rows]


def asked(about: Sequence[Asked]) -> tuple[Any, ...]:
    """Returns the parameters of SCALER_SNAPSHOT."""
    return (
        TextArray([one.queue.encode() for one in about]),
        numbers([one.horizon for one in about]),
        numbers([one.rows for one in about]),
        numbers([one.bin for one in about]),
    )


def numbers(values: Sequence[float]) -> str:
    """Returns an array as PostgreSQL reads it: psycopg's own conversion, number by number, costs as much as a tenth of
    a look."""
    return f"{{{','.join(map(repr, values))}}}"


def read_scaler_snapshot(raw: str) -> ScalerSnapshot:
    """Reads the answer of SCALER_SNAPSHOT."""
    found = orjson.loads(raw)
    return ScalerSnapshot(
        at=found["at"],
        queues=tuple(SeenQueue(**{**one, **pairs_of(one)}) for one in found["queues"]),
        workers=tuple(SeenWorker(**{**one, "queues": tuple(one["queues"])}) for one in found["workers"]),
        connections=int(found["connections"][0] or 0),
        most_connections=int(found["connections"][1]),
        schedule=found["schedule"],
    )


def board(raw: str) -> Board:
    """Reads the answer of BOARD."""
    found = orjson.loads(raw)
    at = datetime.fromtimestamp(found["at"], UTC)
    samples = {one["queue"]: tuple(Sampled(*row) for row in one.pop("samples") or ()) for one in found["queues"]}
    return Board(
        at=found["at"],
        queues=tuple(QueueStatus(**one, at=at) for one in found["queues"]),
        scaling={one["queue"]: Scaled(**one) for one in found["scaling"]},
        workers=tuple(BoardWorker(**{**one, "queues": tuple(one["queues"])}) for one in found["workers"]),
        decisions=tuple(map(noted, found["decisions"])),
        latest={one["queue"]: noted(one) for one in found["latest"]},
        samples=samples,
    )


def noted(one: dict[str, Any]) -> StoredDecision:
    """Reads one decision of a board."""
    return StoredDecision(**{**one, "at": datetime.fromtimestamp(one["at"], UTC)})


def pairs_of(one: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the lists of pairs of a queue in a look as tuples."""
    return {name: tuple(map(tuple, one[name])) if one[name] else () for name in ("waiting", "ahead", "running")}


def set_schedule(new: NewSchedule) -> tuple[Any, ...]:
    """Returns the parameters of SET_SCHEDULE."""
    payload = validate.payload(new.payload, validate.LARGEST_EVER).decode()
    return (new.name, new.queue, new.cron, new.tz, new.kind, payload, new.priority, new.backfill)


def schedules(rows: list[tuple[Any, ...]]) -> list[Schedule]:
    """Reads the answer of SCHEDULES."""
    return [Schedule(*(*row[:3], validate.decode_text(row[3]), *row[4:])) for row in rows]


def firing(schedule: Schedule, told: Firing) -> tuple[Any, ...]:
    """Returns the parameters of FIRE."""
    return (schedule.name, schedule.mark, told.ticks, told.decided, told.next_at)


def create_queue(name: str, exist_ok: bool, options: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """Returns the statement that creates a queue, and its parameters."""
    values = {f"p_{key}": value for key, value in queue_options(options).items()}
    if "p_max_payload" in values:
        values["p_settings"] = orjson.dumps({"max_payload": values.pop("p_max_payload")}).decode()
    values |= {"p_name": validate.queue_name(name), "p_exist_ok": exist_ok}
    casts = {"p_retry": "::jsonb", "p_settings": "::jsonb"}
    arguments = ", ".join(f"{key} => %({key})s{casts.get(key, '')}" for key in values)
    return f"select penstock.create_queue({arguments})".encode(), values


def queue_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Checks settings of a queue and returns them as PostgreSQL takes them."""
    return {key: CHECKS[key](value, key) for key, value in options.items()}


def retention(value: Duration | None, field: str) -> timedelta | None:
    """Checks a length of time that may be None."""
    return None if value is None else validate.positive(value, field)


def strategy(value: Strategy | str, _: str) -> str:
    """Checks a retry strategy and returns it as JSON."""
    found = parse(value) if isinstance(value, str) else value
    if not callable(getattr(found, "to_json", None)):
        raise ValidationError(f"retry: {shown(value)} is not a strategy", field="retry")
    return orjson.dumps(found.to_json()).decode()


def checked_lease(value: Duration, field: str) -> timedelta:
    """Checks the lease of a queue, which may not be None."""
    found = validate.lease(value)
    if found is None:
        raise ValidationError(f"{field}: None is not between 100ms and 24h", field=field)
    return found


CHECKS: Mapping[str, Any] = {
    "lease": checked_lease,
    "max_attempts": lambda value, key: None if value is None else validate.whole(value, key, 1, 32767),
    "retry": strategy,
    "sla": retention,
    "keep_done": retention,
    "keep_dead": retention,
    "keep_cancelled": retention,
    "max_payload": lambda value, key: validate.whole(value, key, 2, validate.LARGEST_EVER),
    "notify": lambda value, _: bool(value),
    "paused": lambda value, _: bool(value),
}


def queue_changes(options: Mapping[str, Any]) -> str:
    """Returns the changes for SET_QUEUE as JSON."""
    if not options:
        raise ValidationError("changes: no setting is given", hint=f"Settings are {', '.join(CHECKS)}.")
    unknown = [key for key in options if key not in CHECKS]
    if unknown:
        raise ValidationError(
            f"changes: {shown(unknown[0])} is not a setting", hint=f"Settings are {', '.join(CHECKS)}."
        )
    found = queue_options(options)
    values = {
        key: f"{value.total_seconds()} seconds" if isinstance(value, timedelta) else value
        for key, value in found.items()
    }
    if "retry" in values:
        values["retry"] = orjson.Fragment(values["retry"])
    return orjson.dumps(values).decode()


def settings_of(rows: list[tuple[Any, ...]]) -> list[QueueSettings]:
    """Reads the answer of SETTINGS_OF."""
    return [QueueSettings(*(*row[:3], orjson.loads(row[3]), *row[4:])) for row in rows]


def statuses(rows: list[tuple[Any, ...]]) -> list[QueueStatus]:
    """Reads the answer of STATUS."""
    return [QueueStatus(*(*row[:10], orjson.loads(row[10]), row[11])) for row in rows]


def verification(rows: list[tuple[Any, ...]], dropped: tuple[Any, ...] | None) -> Verification:
    """Reads the answers of VERIFY and DROPPED."""
    areas = {area: [row for row in rows if row[0] == area] for area in ("drift", "orphans", "history", "balance")}
    return Verification(
        drift=len(areas["drift"]),
        orphans=sum(row[4] for row in areas["orphans"]),
        history=len(areas["history"]),
        balance=len(areas["balance"]),
        dropped=int(dropped[0]) if dropped else 0,
        findings=tuple(Finding(row[1], f"{row[0]}: {row[2]}", row[3], row[4]) for row in rows),
    )


# --- history ----------------------------------------------------------------------------------------------------------

HORIZON = "select system, database, branch, xid, dropped from penstock.history_horizon()"
NOTE_HORIZON = "select system, database, branch, xid, dropped from penstock.note_horizon()"
CHECK_MARK = "select penstock.check_mark(%s, %s, %s, %s)"
CHECK_WINDOW = "select penstock.check_window(%s, %s, %s, %s, %s, %s)"
BETWEEN = "select penstock.history_between(%s, %s)"
SPANS = "select day, relation, first_page, pages from penstock.history_spans(%s, %s, %s, %s, %s)"
QUEUE_NAMES = "select id, name from penstock.queue union all select id, name from penstock.queue_gone"
QUEUES_NAMED = "select penstock.queues_named(%s)"
SET_PROFILES = "select penstock.set_profiles(%s::jsonb)"
PROFILES = "select queue, version, made, age, covers_from, covers_to, data::text from penstock.profiles(%s)"
RUNNING_TIMES = "select queue, kind, bucket, tasks, seconds from penstock.running_times()"
START_LATENCIES = "select queue, workers, p50, p90 from penstock.start_latencies()"
NOTE_READER = "select penstock.note_reader(%s, %s, %s, %s, %s)"
FIND_READER = "select passed, seen from penstock.history_reader where name = %s"
FORGET_READER = "select penstock.forget_reader(%s)"
HISTORY_SUMS = "select queue_id, outcome, rows, checksum from penstock.history_sums(%s, %s, %s, %s, %s)"
HISTORY_GONE = (
    "select day, queue_id, pg_catalog.sum(rows)::bigint from penstock.history_gone where n > %s group by day, queue_id"
)
RELEASE_DAY = "select penstock.release_day(%s, %s, %s)"
SAMPLE_DAYS = "select day from penstock.sample_days(%s, %s)"
TODAY = "select (penstock.clock() at time zone 'UTC')::date"
REBASE_HISTORY = "select penstock.rebase_history()"
# A snapshot that is held for long keeps vacuum from the queue's dead rows, so statements that read history are ended
# before that. Names resolve to PostgreSQL's own, whatever the session has set.
SHORTLY = """
    select pg_catalog.set_config('statement_timeout', '4s', true),
           pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)
"""


def check_window(window: Window) -> tuple[Any, ...]:
    """Returns the parameters of CHECK_WINDOW. If the two ends of a window know different drops, the earlier one counts:
    a start that is made anew must not hide what was dropped since the end was noted."""
    known = min(window.start.dropped, window.end.dropped)
    return (window.start.xid, window.end.xid, known, window.queue, window.since, window.until)


def horizon(row: tuple[Any, ...] | None) -> Horizon:
    """Reads the answer of HORIZON or NOTE_HORIZON."""
    assert row is not None
    return Horizon(*row)


def profiles(rows: Sequence[tuple[Any, ...]]) -> list[StoredProfile]:
    """Reads the answer of PROFILES."""
    found = [StoredProfile(*row) for row in rows]
    return [one if one.data is None else one._replace(data=orjson.loads(str(one.data))) for one in found]


# This statement reads a day's rows with any driver. Only numbers and moments are inserted into it, and Penstock formats
# them itself.
HISTORY = """
    select id, xid, queue_id, task_id, created, due, claimed_at, finished_at, iteration, attempt, outcome, kind, worker,
           subject, error_class, error
    from penstock.history
    where finished_at >= '{since}' and finished_at < '{until}' and xid >= {start} and xid < {end}
      and ctid >= '({first},0)'::pg_catalog.tid and ctid < '({last},0)'::pg_catalog.tid
"""
OF_QUEUES = "and queue_id = any('{{{ids}}}'::int[])"
# A row means that the day's table still exists. Its value says whether workers are active: claims become leases.
STILL_THERE = """
    select exists (select from penstock.lease where claimed_at > pg_catalog.clock_timestamp() - interval '1 s')
    from pg_catalog.pg_inherits
    where inhrelid = {relation} and inhparent = 'penstock.history'::pg_catalog.regclass
"""


# This statement reads a day's samples of a window in the same way. It goes by queue in order to use the primary key.
SAMPLES = """
    select s.queue_id, s.xid, s.at, s.planned, s.pending, s.active, s.done, s.dead, s.cancelled,
           extract(epoch from s.oldest_age)::float8 as oldest_age, extract(epoch from s.sla)::float8 as sla, s.workers,
           {totals}
    from pg_catalog.unnest('{{{queues}}}'::int[]) as q(id)
    join penstock.sample as s on s.queue_id = q.id
    where s.at >= '{since}' and s.at < '{until}' and s.xid >= {start} and s.xid < {end}
"""


def sample_rows(window: Window, queues: Sequence[int], day: date, totals: Sequence[str]) -> str:
    """Returns the statement that reads a day's samples of a window. `totals` are names of Penstock's own counters,
    which become columns."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return SAMPLES.format(
        totals=", ".join(f"coalesce((s.totals->>'{name}')::bigint, 0) as {name}_total" for name in totals),
        queues=",".join(map(str, map(int, queues))),
        since=midnight.isoformat(),
        until=(midnight + DAY).isoformat(),
        start=int(window.start.xid),
        end=int(window.end.xid),
    )


def history_rows(window: Window, queues: Sequence[int] | None, day: date, pages: range) -> str:
    """Returns the statement that reads some pages of a day of history."""
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    bounds = (max(midnight, window.since or midnight), min(midnight + DAY, window.until or midnight + DAY))
    statement = HISTORY.format(
        since=bounds[0].astimezone(UTC).isoformat(),
        until=bounds[1].astimezone(UTC).isoformat(),
        start=int(window.start.xid),
        end=int(window.end.xid),
        first=pages.start,
        last=pages.stop,
    )
    return statement if queues is None else statement + OF_QUEUES.format(ids=",".join(map(str, map(int, queues))))


DAY = timedelta(days=1)
