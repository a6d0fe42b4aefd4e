"""What the seam says to PostgreSQL, and how it reads the answers. Both colours share it; no I/O."""

from __future__ import annotations

import os
import re
import threading
import time
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
    CronSchedule,
    Duration,
    Extended,
    Finding,
    Firing,
    Horizon,
    Listed,
    Look,
    NewSchedule,
    NotedDecision,
    Outcome,
    QueueSettings,
    QueueStatus,
    Sampled,
    Scaled,
    ScalingHold,
    SeenQueue,
    SeenWorker,
    StoredProfile,
    Task,
    Verification,
    Window,
    from_micros,
)
from penstock.retry import Strategy, parse
from penstock.spool import Chunk
from penstock.wire import IdArray, TextArray

Place = tuple[int, datetime | str, int]
NO_PLACE = (None, None, None)
START: Place = (0, "-infinity", 0)  # of a queue: nothing can be before it

# --- push -------------------------------------------------------------------------------------------------------------

LIMIT = "select q.id, penstock.largest_payload(q) from penstock.the_queue(%s) as q"
PUSH = """
    select id, result, state
    from penstock.push_many(%s, array[%s::text], array[%s::text], array[%s::text], array[%s::timestamptz],
                            array[%s::smallint], %s)
"""
PUSH_MANY = """
    select result, count(*)
    from penstock.push_many(%s, %s, %s, %s, (%s::text[])::timestamptz[], %s::smallint[], %s)
    group by result
"""
RESERVE = "select nextval('penstock.task_id_seq') from generate_series(1, %s)"
ENTER_PART = "select penstock.enter_part(%s, %s, %s, %s, %s::text, %s::jsonb)::text"
NOTE_REPORT = "select penstock.note_report(%s, %s, %s::jsonb)"
ENTER_PARTITION = "select penstock.enter_partition(%s, %s, %s, %s, %s, %s::text)::text"
TAKE_PLACE = "select penstock.take_place(%s, %s)"
SEAL_JOB = "select penstock.seal_job(%s, %s, %s, %s, %s::text, %s::jsonb)::text"
JOB_REPORT = "select penstock.job_report(%s)::text"
JUDGE = "select n, reason from penstock.judge_payloads(%s)"

# Into the caller's transaction, through whatever driver it has: every parameter is text, arrays are array literals.
PUSH_AS_TEXT = """
    select n, id, result, state
    from penstock.push_many(cast($1 as text), cast(cast($2 as text) as text[]), cast(cast($3 as text) as text[]),
                            cast(cast($4 as text) as text[]), cast(cast($5 as text) as timestamptz[]),
                            cast(cast($6 as text) as smallint[]), cast($7 as text))
    order by n
"""
LIMIT_AS_TEXT = "select q.id, penstock.largest_payload(q) from penstock.the_queue(cast($1 as text)) as q"
ENTER_AS_TEXT = """
    select cast(penstock.enter_part(cast($1 as text), cast(cast($2 as text) as uuid), cast(cast($3 as text) as int),
                                    cast(cast($4 as text) as bigint), cast($5 as text), '{}') as text)
"""
NOTE_AS_TEXT = """
    select cast(penstock.note_report(cast(cast($1 as text) as uuid), cast(cast($2 as text) as int),
                                     cast(cast($3 as text) as jsonb)) as text)
"""


def conflict(value: object) -> str:
    if value not in ("skip", "update", "error"):
        raise ValidationError(f"on_conflict: {shown(value)} is not skip, update or error", field="on_conflict")
    return str(value)


def merge_columns(chunk: Chunk) -> tuple[Any, ...]:
    return (
        TextArray(chunk.payloads),
        chunk.subjects and TextArray(chunk.subjects),
        chunk.kinds and TextArray(chunk.kinds),
        chunk.dues and TextArray(chunk.dues),
        chunk.priorities,
    )


def text_columns(queue: str, chunk: Chunk, on_conflict: str) -> list[str | None]:
    """The parameters of PUSH_AS_TEXT."""
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
    if values is None:
        return None
    quoted = ("NULL" if one is None else '"' + escaped_element(one.decode()) + '"' for one in values)
    return "{" + ",".join(quoted) + "}"


def escaped_element(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


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


@contextmanager
def counted_from(first: int) -> Iterator[None]:
    """SQL names an item by its position in the call; people count from the start of the push."""
    try:
        yield
    except (Conflict, ValidationError) as error:
        message = ITEM.sub(lambda at: f"item {int(at[1]) + first}:", error.message)
        raise type(error)(message, hint=error.hint) from error.__cause__


ITEM = re.compile(r"^item (\d+):")


# --- what can not be a task ------------------------------------------------------------------------------------------

REJECTED = ("reason", "payload", "subject", "kind", "due", "priority")
NOTE_REJECTS = (
    "select penstock.note_rejects(%s, %s, %s, %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[])"
)
# Our own is written by a function; somebody's own, with the rights of whoever connects.
REJECT_COLUMNS = """
    select a.attname from pg_catalog.pg_attribute as a
    where a.attrelid = pg_catalog.to_regclass(%s) and a.attnum > 0 and not a.attisdropped
"""
MAKE_REJECTS = """
    create table if not exists {} (
        id bigint generated always as identity primary key, at timestamptz not null default clock_timestamp(),
        job uuid not null, partition int not null, queue text not null, reason text not null,
        payload text, subject text, kind text, due text, priority text)
"""
INSERT_REJECTS = """
    insert into {} (queue, job, partition, reason, payload, subject, kind, due, priority)
    select %s, %s, %s, r.* from unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[]) as r
"""
TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,62}(\.[A-Za-z_][A-Za-z0-9_$]{0,62})?")


class Reject(NamedTuple):
    """A row that can not be a task, and why."""

    reason: str
    payload: str | None = None
    subject: str | None = None
    kind: str | None = None
    due: str | None = None
    priority: str | None = None


class Entry(NamedTuple):
    """How a part of a bulk write is known in the ledger. The first part of a partition stands for all of it."""

    job: UUID
    partition: int
    batch: UUID
    part: int
    rows: int
    checksum: str


class NoPlace(Exception):
    """As many write at once as were allowed to. Between the seam and whoever set that limit: nobody else sees it."""


def table_name(value: object, field: str = "rejectTable") -> str:
    """A table's name, with or without its schema: nothing that could be anything else in a statement."""
    if isinstance(value, str) and TABLE.fullmatch(value):
        return value
    raise ValidationError(
        f"{field}: {shown(value)} is not the name of a table",
        hint="Write table or schema.table: letters, digits, _ and $, at most 63 each.",
        field=field,
    )


def quoted(table: str) -> str:
    return ".".join(f'"{part}"' for part in table_name(table).split("."))


def enter(queue: str, entry: Entry) -> tuple[str, tuple[Any, ...]]:
    """The statement that notes a part, and its parameters."""
    if entry.part == 0:
        return ENTER_PARTITION, (queue, entry.job, entry.partition, entry.batch, entry.rows, entry.checksum)
    return ENTER_PART, (queue, entry.batch, entry.part, entry.rows, entry.checksum, "{}")


def note_rejects(queue: str, entry: Entry, rejects: Sequence[Reject], table: str | None) -> tuple[str, tuple[Any, ...]]:
    columns = [
        [None if one is None else storable(one, LONGEST_REJECT) for one in column]
        for column in zip(*rejects, strict=True)
    ]
    statement = NOTE_REJECTS if table is None else INSERT_REJECTS.format(quoted(table))
    return statement, (queue, entry.job, entry.partition, *columns)


LONGEST_REJECT = 1 << 20


# --- claim, extend, settle, release -----------------------------------------------------------------------------------

# All rows of a claim share one token, one end, and whether it is alone: sent once.
CLAIM = """
    select id, kind, subject, payload, priority, attempt, iterations, due, created, since,
           case when row_number() over () = 1 then token end, case when row_number() over () = 1 then until end,
           case when row_number() over () = 1 then alone end
    from penstock.claim(%s, %s, %s, %s, penstock.at_place(%s::smallint, %s::timestamptz, %s::bigint), %s, false)
"""
LEASE = "select extract(epoch from lease)::float8 from penstock.the_queue(%s)"
EXTEND = "select until, revoked, open from penstock.extend(%s, %s)"
EXTEND_MANY = "select token::text, until, revoked from penstock.extend_many(%s::text[]::uuid[], %s)"
SETTLE = """
    select result, array_agg(id)
    from penstock.settle(%s, %s, %s::text[], %s::timestamptz[], %s::interval[], %s::text[], %s::text[], %s::text[])
    group by result
"""
RELEASE = "select result, array_agg(id) from penstock.release(%s, p_delay => %s) group by result"
LOST = "the lease is lost: it expired, or everything in it is settled"


class Hint:
    """Where the last claim ended. Under a held snapshot dead rows pile up in front of the queue, and a claim that
    starts behind them stays fast. Rows may appear before it (late commits, releases, higher priority), so every half
    second or so a claim looks from the start; that one also expires and promotes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._place: Place | None = None
        self._next_full = 0.0
        self._full_at = float("-inf")

    def current(self) -> Place | None:
        with self._lock:
            return self._place if time.monotonic() < self._next_full else None

    def heard(self) -> Place | None:
        """For who knows that something came: from the start, and nothing else, if the rest was done lately."""
        with self._lock:
            return START if time.monotonic() < self._full_at + 0.5 else None

    def forget(self) -> None:
        with self._lock:
            self._place = None
            self._full_at = float("-inf")

    def note(self, rows: list[tuple[Any, ...]], limit: int, full: bool, cost: float) -> None:
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
    """What a claim asks for."""

    queue: str
    limit: int
    lease: Duration | None
    worker: str
    hint: Place | None
    may_alone: bool

    def checked(self) -> tuple[Any, ...]:
        limit = validate.whole(self.limit, "limit", 1, validate.LARGEST_CLAIM)
        length, worker = validate.lease(self.lease), validate.worker(self.worker)
        return (self.queue, limit, length, worker, *(self.hint or NO_PLACE), self.may_alone)


def claimed(queue: str, rows: list[tuple[Any, ...]]) -> Claim:
    if not rows:
        return Claim(queue, None, None, ())
    columns = [*zip(*rows, strict=True)]
    *_, tokens, untils, alone = columns
    columns[3] = validate.decode_payloads(columns[3])  # type: ignore[call-overload]
    tasks = tuple(map(Task._make, zip(*columns[:-3], strict=True)))
    return Claim(queue, UUID(bytes=tokens[0]), from_micros(untils[0]), tasks, os.getpid(), alone[0])


UNREADABLE = Outcome.dead("payload: it is nested too deep to be read", error_class="PayloadError")


def unreadable(claim: Claim) -> dict[int, Outcome]:
    """Tasks whose payload Python can not read: they must not hold up the rest of the claim, again and again."""
    return {task.id: UNREADABLE for task in claim.tasks if task.payload is None}


def extended(row: tuple[Any, ...] | None, claim: Claim | UUID | str) -> Extended:
    if row is None:
        raise LeaseLost(LOST, refused=ids_of(claim))
    until, revoked, left = row
    if not left:
        raise LeaseLost("every task of the lease was cancelled", revoked=revoked)
    return Extended(until, tuple(revoked))


def token_of(claim: Claim | UUID | str, queue: str) -> UUID:
    if isinstance(claim, Claim) and claim.queue != queue:
        raise ValidationError(f"claim: it is of queue {claim.queue!r}, not {queue!r}", field="claim")
    if isinstance(claim, Claim) and claim.pid not in (None, os.getpid()):
        raise Conflict(
            f"claim: it was made by process {claim.pid}, this is {os.getpid()}",
            hint="A forked child has its parent's claims, and may not settle them.",
        )
    return validate.token(claim.token if isinstance(claim, Claim) else claim)


def ids_of(claim: Claim | UUID | str) -> list[int]:
    return claim.ids if isinstance(claim, Claim) else []


def settle_parameters(
    claim: Claim | UUID | str, outcomes: Mapping[int, Outcome] | Iterable[int] | None, queue: str
) -> tuple[Any, ...] | None:
    """Those of SETTLE; None: there is nothing to settle."""
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


def settle_columns(outcomes: list[Outcome]) -> tuple[Any, ...]:
    rows = [validate.at(n, settle_row, outcome) for n, outcome in enumerate(outcomes)]
    return tuple(map(list, zip(*rows, strict=True)))


def settle_row(outcome: object) -> tuple[Any, ...]:
    """One outcome, checked, in the order of SETTLE's columns."""
    if not isinstance(outcome, Outcome):
        raise ValidationError(f"outcome: {shown(outcome)} is not an Outcome", field="outcome")
    raw = None if outcome.payload is None else validate.payload(outcome.payload, validate.LARGEST_EVER)
    return (
        outcome.word,
        None if outcome.due is None else validate.moment(outcome.due),
        validate.delay(outcome.delay),
        None if raw is None else raw.decode(),
        storable(outcome.error),
        storable(outcome.error_class),
    )


def storable(text: str | None, longest: int = 20_000) -> str | None:
    """An error text is never a reason to lose a settle: what PostgreSQL can not store is spelt out, what is too long is
    cut (it is cut again, exactly, in SQL)."""
    if text is None:
        return None
    cut = str(text)[:longest]
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
MOST = 10_000  # tasks in one call of SQL


def chosen(queue: str, ids: Iterable[int] | None, subjects: Iterable[str] | None) -> dict[str, Any]:
    """The parameters that say which tasks a verb is about."""
    found = None if ids is None else IdArray(validate.ids(ids))
    named = None
    if subjects is not None:
        if isinstance(subjects, str):
            subjects = [subjects]
        named = [validate.text(one, "subject", validate.LARGEST_SUBJECT) for one in subjects]
    return {"queue": queue, "ids": found, "subjects": named}


def filters(**given: str | None) -> dict[str, str | None]:
    """Texts that choose tasks: given, or None. An empty one would choose all."""
    most = {"kind": validate.LARGEST_KIND, "subject": validate.LARGEST_SUBJECT}
    return {
        name: None if value is None else validate.text(value, name, most.get(name, 8192))
        for name, value in given.items()
    }


def known_state(value: object) -> str | None:
    if value is not None and value not in GAUGES:
        raise ValidationError(f"state: {shown(value)} is not one of {', '.join(GAUGES)}", field="state")
    return None if value is None else str(value)


# Where tasks in a state are found by an index: a hundred dead ones among ten million that wait are a few pages. Pending
# ones are mostly many, and the first of them are soon found in the order of ids.
FOUND_BY = {
    "planned": "select a.task_id from penstock.agenda as a join penstock.queue as q on q.id = a.queue_id"
    " where q.name = %(queue)s and not a.pending",
    "active": "select h.id from penstock.lease as l, unnest(l.ids) as h(id)",
    **dict.fromkeys(
        ("done", "dead", "cancelled"),
        "select t.id from penstock.task as t join penstock.queue as q on q.id = t.queue_id"
        " where q.name = %(queue)s and t.ended = %(state)s",
    ),
}
LIST = """
    select id, queue, kind, subject, state, priority, due, attempts, iterations, created, last_iteration, ended_at,
           reason, error, payload::text
    from penstock.tasks
    where queue = %(queue)s
      and (%(id)s::bigint is null or id = %(id)s)
      and (%(state)s::text is null or state = %(state)s)
      and (%(kind)s::text is null or kind = %(kind)s)
      and (%(subject)s::text is null or subject = %(subject)s)
      and (%(error)s::text is null or penstock.mentions(error, reason, %(error)s))
      and (%(after)s::bigint is null or id > %(after)s)
      and {found}
    order by id
    limit %(limit)s
"""


def list_tasks(state: str | None) -> bytes:
    return LIST.format(found=f"id in ({FOUND_BY[state]})" if state in FOUND_BY else "true").encode()


def listed(rows: list[tuple[Any, ...]]) -> list[Listed]:
    return [Listed(*(*row[:-1], validate.decode_text(row[-1]))) for row in rows]


# --- queues and their books -------------------------------------------------------------------------------------------

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
VERIFY = "select area, queue, what, expected, found from penstock.verify(%s)"
DROPPED = "select coalesce(sum((totals->>'orphaned')::bigint), 0)::bigint from penstock.status(%s)"
REPAIR = "select queue, what, rows from penstock.repair(%s)"
UPKEEP = "select part, rows from penstock.upkeep()"
BEAT = """
    select queue, channel, alone, dismissed from penstock.beat(%s, %s::text[], %s, %s, %s, %s, %s, %s, %s)
"""
LEAVE = "select penstock.leave(%s)"
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

STREAM = 0x50454E47  # "PENG": the advisory locks of those who drive a consumer group
LOCK_EPOCH = "select pg_advisory_xact_lock(%s, %s)"
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
LOOK = "select penstock.look(%s::text[], %s::float8[], %s::int[], %s::float8[])::text"


class Round(NamedTuple):
    """What a look at the schedules did: how many tasks it pushed, and which could not be fired, and why."""

    pushed: int
    failed: Mapping[str, PenstockError]


def held(rows: list[tuple[Any, ...]]) -> list[ScalingHold]:
    return [ScalingHold(queue, epoch, memory and orjson.loads(memory), target) for queue, epoch, memory, target in rows]


def decisions(rows: list[tuple[Any, ...]]) -> list[NotedDecision]:
    return [NotedDecision(*(*row[:-2], orjson.loads(row[-2]), orjson.loads(row[-1]))) for row in rows]


def asked(about: Sequence[Asked]) -> tuple[Any, ...]:
    """The parameters of LOOK."""
    return (
        TextArray([one.queue.encode() for one in about]),
        numbers([one.horizon for one in about]),
        numbers([one.rows for one in about]),
        numbers([one.bin for one in about]),
    )


def numbers(values: Sequence[float]) -> str:
    """An array as PostgreSQL reads it: psycopg's own, number by number, costs as much as a tenth of a look."""
    return f"{{{','.join(map(repr, values))}}}"


def look(raw: str) -> Look:
    """What LOOK answers."""
    found = orjson.loads(raw)
    return Look(
        at=found["at"],
        queues=tuple(SeenQueue(**{**one, **pairs_of(one)}) for one in found["queues"]),
        workers=tuple(SeenWorker(**{**one, "queues": tuple(one["queues"])}) for one in found["workers"]),
        connections=int(found["connections"][0] or 0),
        most_connections=int(found["connections"][1]),
        schedule=found["schedule"],
    )


def board(raw: str) -> Board:
    """What BOARD answers."""
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


def noted(one: dict[str, Any]) -> NotedDecision:
    return NotedDecision(**{**one, "at": datetime.fromtimestamp(one["at"], UTC)})


def pairs_of(one: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(map(tuple, one[name])) if one[name] else () for name in ("waiting", "ahead", "running")}


def set_schedule(new: NewSchedule) -> tuple[Any, ...]:
    """The parameters of SET_SCHEDULE."""
    payload = validate.payload(new.payload, validate.LARGEST_EVER).decode()
    return (new.name, new.queue, new.cron, new.tz, new.kind, payload, new.priority, new.backfill)


def schedules(rows: list[tuple[Any, ...]]) -> list[CronSchedule]:
    return [CronSchedule(*(*row[:3], validate.decode_text(row[3]), *row[4:])) for row in rows]


def firing(schedule: CronSchedule, told: Firing) -> tuple[Any, ...]:
    """The parameters of FIRE."""
    return (schedule.name, schedule.mark, told.ticks, told.decided, told.next_at)


def create_queue(name: str, exist_ok: bool, options: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """The statement that creates a queue, and its parameters."""
    values = {f"p_{key}": value for key, value in queue_options(options).items()}
    if "p_max_payload" in values:
        values["p_settings"] = orjson.dumps({"max_payload": values.pop("p_max_payload")}).decode()
    values |= {"p_name": validate.queue_name(name), "p_exist_ok": exist_ok}
    casts = {"p_retry": "::jsonb", "p_settings": "::jsonb"}
    arguments = ", ".join(f"{key} => %({key})s{casts.get(key, '')}" for key in values)
    return f"select penstock.create_queue({arguments})".encode(), values


def queue_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a queue, checked, as PostgreSQL takes them."""
    return {key: CHECKS[key](value, key) for key, value in options.items()}


def retention(value: Duration | None, field: str) -> timedelta | None:
    return None if value is None else validate.positive(value, field)


def strategy(value: Strategy | str, _: str) -> str:
    found = parse(value) if isinstance(value, str) else value
    if not callable(getattr(found, "to_json", None)):
        raise ValidationError(f"retry: {shown(value)} is not a strategy", field="retry")
    return orjson.dumps(found.to_json()).decode()


def checked_lease(value: Duration, field: str) -> timedelta:
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
    """The changes for SET_QUEUE."""
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
    return [QueueSettings(*(*row[:3], orjson.loads(row[3]), *row[4:])) for row in rows]


def statuses(rows: list[tuple[Any, ...]]) -> list[QueueStatus]:
    return [QueueStatus(*(*row[:10], orjson.loads(row[10]), row[11])) for row in rows]


def verification(rows: list[tuple[Any, ...]], dropped: tuple[Any, ...] | None) -> Verification:
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

HORIZON = "select system, database, xid, dropped from penstock.history_horizon()"
CHECK_WINDOW = "select penstock.check_window(%s, %s, %s, %s, %s, %s, %s, %s)"
BETWEEN = "select penstock.history_between(%s, %s)"
SPANS = "select day, relation, first_page, pages from penstock.history_spans(%s, %s, %s, %s, %s)"
QUEUE_NAMES = "select id, name from penstock.queue union all select id, name from penstock.queue_gone"
QUEUES_NAMED = "select penstock.queues_named(%s)"
SET_PROFILES = "select penstock.set_profiles(%s::jsonb)"
PROFILES = "select queue, version, made, age, covers_from, covers_to, data::text from penstock.profiles(%s)"
RUNNING_TIMES = "select queue, kind, bucket, tasks, seconds from penstock.running_times()"
START_LATENCIES = "select queue, workers, p50, p90 from penstock.start_latencies()"
NOTE_READER = "select penstock.note_reader(%s, %s, %s)"
FORGET_READER = "select penstock.forget_reader(%s)"
HISTORY_SUMS = "select queue_id, outcome, rows, checksum from penstock.history_sums(%s, %s, %s, %s, %s)"
HISTORY_GONE = "select day, queue_id, sum(rows)::bigint from penstock.history_gone where n > %s group by day, queue_id"
RELEASE_DAY = "select penstock.release_day(%s, %s, %s)"
SAMPLE_DAYS = "select day from penstock.sample_days(%s, %s)"
TODAY = "select (penstock.clock() at time zone 'UTC')::date"
REBASE_HISTORY = "select penstock.rebase_history()"
# A snapshot that is held for long keeps vacuum from the queue's dead rows: what reads history is ended before that.
SHORTLY = "set local statement_timeout = '4s'"


def check_window(window: Window) -> list[tuple[Any, ...]]:
    """The parameters of CHECK_WINDOW, for each cluster that its ends are of. Of two drops that they know of the earlier
    one counts: a start that is made anew must not hide what was dropped since the end was noted."""
    start, end = window.start, window.end
    known = min(start.dropped, end.dropped)
    rest = (start.xid, end.xid, known, window.queue, window.since, window.until)
    return [(*place, *rest) for place in {start[:2]: 0, end[:2]: 0}]


def horizon(row: tuple[Any, ...] | None) -> Horizon:
    assert row is not None
    return Horizon(*row)


def profiles(rows: Sequence[tuple[Any, ...]]) -> list[StoredProfile]:
    found = [StoredProfile(*row) for row in rows]
    return [one if one.data is None else one._replace(data=orjson.loads(str(one.data))) for one in found]


# How a day's rows are read, by whatever driver: numbers and moments only, written by us.
HISTORY = """
    select id, xid, queue_id, task_id, created, due, claimed_at, finished_at, iteration, attempt, outcome, kind, worker,
           subject, error_class, error
    from penstock.history
    where finished_at >= '{since}' and finished_at < '{until}' and xid >= {start} and xid < {end}
      and ctid >= '({first},0)'::pg_catalog.tid and ctid < '({last},0)'::pg_catalog.tid
"""
OF_QUEUES = "and queue_id = any('{{{ids}}}'::int[])"
# And whether workers are at it: claims end up as leases.
STILL_THERE = """
    select exists (select from penstock.lease where claimed_at > pg_catalog.clock_timestamp() - interval '1 s')
    from pg_catalog.pg_inherits
    where inhrelid = {relation} and inhparent = 'penstock.history'::pg_catalog.regclass
"""


# A day's samples of a window, likewise. By queue: so the primary key finds them.
SAMPLES = """
    select s.queue_id, s.xid, s.at, s.planned, s.pending, s.active, s.done, s.dead, s.cancelled,
           extract(epoch from s.oldest_age)::float8 as oldest_age, extract(epoch from s.sla)::float8 as sla, s.workers,
           {totals}
    from unnest('{{{queues}}}'::int[]) as q(id)
    join penstock.sample as s on s.queue_id = q.id
    where s.at >= '{since}' and s.at < '{until}' and s.xid >= {start} and s.xid < {end}
"""


def sample_rows(window: Window, queues: Sequence[int], day: date, totals: Sequence[str]) -> str:
    """`totals` are words of ours: they become columns."""
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
