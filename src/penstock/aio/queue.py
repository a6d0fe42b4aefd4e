"""This module is the seam: it has one method per SQL function, and all other code talks to PostgreSQL through it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import date, datetime, timedelta
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID, uuid4

import orjson

from penstock import statements as say
from penstock import validate
from penstock.aio.borrowed import Run, borrow, refusals
from penstock.aio.colour import Items, batches, sleep
from penstock.aio.database import (
    IMPATIENT,
    RELAXED,
    AsyncConnection,
    AsyncDatabase,
    Once,
    fetch_raw,
    still_lent,
)
from penstock.errors import (
    LeaseLost,
    NotFound,
    PartialPush,
    PenstockError,
    Taken,
    Unavailable,
    ValidationError,
)
from penstock.model import (
    Asked,
    Batch,
    Board,
    Claim,
    Duration,
    Extended,
    Firing,
    Held,
    Horizon,
    Json,
    Kept,
    Latency,
    NewSchedule,
    NewTask,
    OnConflict,
    Outcome,
    Pushed,
    PushReport,
    QueueScaler,
    QueueSettings,
    QueueStatus,
    Repair,
    Running,
    ScalerSnapshot,
    ScalingHold,
    Schedule,
    Span,
    Standing,
    State,
    StoredDecision,
    StoredProfile,
    TaskDetails,
    TaskInfo,
    Verification,
    Window,
)
from penstock.spool import BATCH, Chunk, Spool, task_columns
from penstock.wire import BEGIN, TextArray, translated

Progress = Callable[[int], None]
Write = Callable[..., Awaitable[dict[str, int]]]
T = TypeVar("T")
RETRIES = 6


class AsyncQueue:
    """One queue. It is thread-safe. It is cheap to make, but keep it: it remembers where in the queue to look next."""

    def __init__(self, database: AsyncDatabase, name: str) -> None:
        self.name = validate.queue_name(name)
        self._database = database
        self._hint = say.Hint()

    def __repr__(self) -> str:
        return f"<AsyncQueue {self.name}>"

    @property
    def dsn(self) -> str:
        """The DSN of the database that the queue is in."""
        return self._database.dsn

    # --- push -------------------------------------------------------------------------------------------------------

    async def push(
        self,
        payload: Json | None = None,
        *,
        subject: str | None = None,
        kind: str = "default",
        due: datetime | None = None,
        delay: Duration | None = None,
        priority: int = 5,
        on_conflict: OnConflict = "skip",
        connection: object | None = None,
    ) -> Pushed:
        """Pushes one task. When the call returns, the task survives a crash of any process or server. The task may run
        at once, from `due` on, or after `delay`, counted by the clock of this machine.

        With `connection`, a connection of yours (psycopg, asyncpg, SQLAlchemy or a Django alias), the task is written
        in your transaction and exists once you commit. Penstock begins, commits and retries nothing on that connection.
        """
        if delay is not None:
            due = validate.due_after(delay, due)
        task = validate.new_task(NewTask(payload, subject, due, priority, kind))
        raw = validate.payload(task.payload, validate.LARGEST_EVER)
        if connection is not None:
            chunk = Chunk([raw], *task_columns([task]), checksum=0, part=0, first=0)
            return (await self._write_borrowed(borrow(connection), chunk, say.conflict(on_conflict)))[0]
        parameters = (self.name, raw.decode(), subject, kind, task.due, priority, say.conflict(on_conflict))
        async with self._database.transaction() as own:
            row = await (await own.execute(say.PUSH, parameters, prepare=True)).fetchone()
        assert row is not None
        return Pushed(*row)

    async def push_many(
        self,
        items: Items[Json | NewTask | None],
        *,
        on_conflict: OnConflict = "skip",
        batch_id: UUID | None = None,
        progress: Progress | None = None,
        connection: object | None = None,
    ) -> PushReport:
        """Pushes any number of tasks in bounded memory, all or nothing: one item that is not accepted refuses the whole
        call.

        Without subjects, or with `on_conflict="error"`, the push is one transaction. Otherwise each chunk is a
        transaction. If PostgreSQL fails between two chunks, the call raises `PartialPush`; repeat the call with its
        `batch_id` to complete the push without writing any task twice. With `connection`, everything happens in your
        transaction (see `push`).
        """
        batch = uuid4() if batch_id is None else validate.token(batch_id, "batch_id")
        say.conflict(on_conflict)
        if connection is not None:
            counts = await self._push_borrowed(borrow(connection), items, on_conflict, batch_id and batch, progress)
            return PushReport(batch, **counts)
        with Spool(largest=validate.LARGEST_EVER) as spool:
            await fill(spool, items)
            if not spool.rows:
                return PushReport(batch)
            queue_id = await persistently(lambda: self._check_sizes(spool))
            if not spool.named:
                return await persistently(lambda: self._push_plain(spool, queue_id, batch, progress))
            if on_conflict == "error":
                return await self._push_strictly(spool, queue_id, batch, progress)
            return await self._push_by_parts(spool, queue_id, batch, on_conflict, progress)

    async def upsert_many(
        self,
        items: Items[Json | NewTask | None],
        *,
        batch_id: UUID | None = None,
        progress: Progress | None = None,
        connection: object | None = None,
    ) -> PushReport:
        """Pushes tasks like `push_many` and updates the ones that exist: a waiting task gets the new payload, kind,
        priority and due; a running task runs again with them afterwards; an ended task starts anew."""
        return await self.push_many(
            items, on_conflict="update", batch_id=batch_id, progress=progress, connection=connection
        )

    async def _push_borrowed(
        self,
        run: Run,
        items: Items[Json | NewTask | None],
        on_conflict: str,
        batch: UUID | None,
        progress: Progress | None,
    ) -> Counter[str]:
        """Writes the items chunk by chunk in the caller's transaction. The ledger is used only if the caller gave a
        batch id: without one, that transaction is all or nothing already."""
        totals: Counter[str] = Counter()
        with Spool(largest=validate.LARGEST_EVER) as spool:
            await fill(spool, items)
            if spool.parts > 1:  # under autocommit, a refused chunk does not undo the chunks before it
                with refusals():
                    ((_, largest),) = await run(say.LIMIT_AS_TEXT, [self.name])
                spool.check_sizes(largest)
            for chunk in spool.chunks():
                totals.update(await self._merge_borrowed(run, chunk, on_conflict, batch))
                if progress:
                    progress(chunk.first + len(chunk.payloads))
        return totals

    async def _merge_borrowed(self, run: Run, chunk: Chunk, on_conflict: str, batch: UUID | None) -> dict[str, int]:
        if batch is None:
            return say.counted(await self._write_borrowed(run, chunk, on_conflict))
        with refusals():
            entry = [str(one) for one in (self.name, batch, chunk.part, len(chunk.payloads), chunk.checksum)]
            ((known,),) = await run(say.ENTER_AS_TEXT, entry)
        if known is not None:
            return dict(orjson.loads(known))
        counts = say.counted(await self._write_borrowed(run, chunk, on_conflict))
        await run(say.NOTE_AS_TEXT, [str(batch), str(chunk.part), orjson.dumps(dict(counts)).decode()])
        return counts

    async def _write_borrowed(self, run: Run, chunk: Chunk, on_conflict: str) -> list[Pushed]:
        with say.counted_from(chunk.first), refusals():
            rows = await run(say.PUSH_AS_TEXT, say.text_columns(self.name, chunk, on_conflict))
        return say.pushed(rows)

    async def _check_sizes(self, spool: Spool) -> int:
        """Returns the queue's id, if its limit allows every payload in the spool."""
        queue_id, largest = await self.limits()
        spool.check_sizes(largest)
        return queue_id

    async def _push_plain(self, spool: Spool, queue_id: int, batch: UUID, progress: Progress | None) -> PushReport:
        """Writes the tasks with COPY into the documents, whose trigger writes the agenda. It copies chunk by chunk, so
        that the trigger's view of the new rows stays in memory, and it uses one transaction."""
        counts = {"created": spool.rows}
        async with self._database.transaction() as connection:
            if await self._enter(connection, (batch, 0, spool.rows, spool.checksum), counts) is None:
                for chunk in spool.chunks():
                    await copy(connection, *say.copy_text(queue_id, chunk))
                    if progress:
                        progress(chunk.first + len(chunk.payloads))
        return PushReport(batch, created=spool.rows)

    async def _push_by_parts(
        self, spool: Spool, queue_id: int, batch: UUID, on_conflict: str, progress: Progress | None
    ) -> PushReport:
        """Writes each chunk in a transaction of its own. It uses COPY while no subject is taken. From the first taken
        subject on it uses the SQL function that resolves conflicts, which costs twice as much, until a chunk is all new
        again. An upsert expects taken subjects and starts with the function."""
        totals: Counter[str] = Counter()
        copying = on_conflict != "update"
        for chunk in spool.chunks():
            try:
                counts = await self._copy_or_merge(chunk, queue_id, batch, on_conflict, copying=copying)
            except Unavailable as error:
                if error.reason == "read_only":
                    raise
                raise PartialPush(
                    f"{chunk.first} of {spool.rows} tasks are written: {error.message}",
                    batch_id=batch,
                    written=chunk.first,
                    hint=f"Repeat the call with batch_id={batch}.",
                ) from error
            copying = counts.get("created") == len(chunk.payloads)
            totals.update(counts)
            if progress:
                progress(chunk.first + len(chunk.payloads))
        return PushReport(batch, **totals)

    async def _copy_or_merge(
        self, chunk: Chunk, queue_id: int, batch: UUID, on_conflict: str, *, copying: bool
    ) -> dict[str, int]:
        if copying:
            with suppress(Taken):
                return await self._alone(self._copy_part, chunk, queue_id, batch)
        return await self._alone(self._merge_part, chunk, on_conflict, batch)

    async def _alone(self, write: Write, *arguments: object) -> dict[str, int]:
        """Writes one part in a transaction of its own."""

        async def attempt() -> dict[str, int]:
            async with self._database.transaction() as connection:
                return await write(connection, *arguments)

        return await persistently(attempt)

    async def _push_strictly(self, spool: Spool, queue_id: int, batch: UUID, progress: Progress | None) -> PushReport:
        """Pushes with `on_conflict="error"`: a taken subject undoes everything, so everything is one transaction.
        Subjects are sorted only within a chunk, so two such pushes may deadlock; PostgreSQL ends one of them, and that
        one is repeated."""

        async def attempt(write: Write, target: object) -> Counter[str]:
            totals: Counter[str] = Counter()
            async with self._database.transaction() as connection:
                for chunk in spool.chunks():
                    totals.update(await write(connection, chunk, target, batch))
                    if progress:
                        progress(chunk.first + len(chunk.payloads))
            return totals

        try:
            return PushReport(batch, **await persistently(lambda: attempt(self._copy_part, queue_id)))
        except Taken:
            return PushReport(batch, **await persistently(lambda: attempt(self._merge_part, "error")))

    async def _copy_part(self, connection: AsyncConnection, chunk: Chunk, queue_id: int, batch: UUID) -> dict[str, int]:
        """Copies one chunk, and raises Taken if one of its subjects exists. Rows are in the order of subjects, the same
        in every writer, so that two pushes never wait for each other in a circle. Ids are in the order given, so that
        the first task runs first."""
        if not say.distinct(chunk.subjects):
            raise Taken("a subject is given twice")
        counts = {"created": len(chunk.payloads)}
        known = await self._enter(connection, (batch, chunk.part, len(chunk.payloads), chunk.checksum), counts)
        if known is None:
            await copy_named(connection, queue_id, chunk)
        return counts if known is None else known

    async def _merge_part(
        self, connection: AsyncConnection, chunk: Chunk, on_conflict: str, batch: UUID
    ) -> dict[str, int]:
        known = await self._enter(connection, (batch, chunk.part, len(chunk.payloads), chunk.checksum), {})
        if known is not None:
            return known
        counts = await self._merge(connection, chunk, on_conflict)
        await connection.execute(say.NOTE_REPORT, (batch, chunk.part, orjson.dumps(counts).decode()))
        return counts

    async def _merge(self, connection: AsyncConnection, chunk: Chunk, on_conflict: str) -> dict[str, int]:
        parameters = (self.name, *say.merge_columns(chunk), on_conflict)
        with say.counted_from(chunk.first), translated():
            rows = await (await connection.execute(say.PUSH_MANY, parameters)).fetchall()
        return say.merged(rows)

    async def _enter(
        self, connection: AsyncConnection, entry: tuple[UUID, int, int, int], counts: Mapping[str, int]
    ) -> dict[str, int] | None:
        """Notes batch, part, rows and checksum in the ledger. Returns the earlier report if the part is there
        already."""
        parameters = (self.name, *entry, orjson.dumps(counts).decode())
        row = await (await connection.execute(say.ENTER_PART, parameters)).fetchone()
        assert row is not None
        return None if row[0] is None else orjson.loads(row[0])

    # --- bulk writers that run in many processes at once ------------------------------------------------------------

    async def limits(self) -> tuple[int, int]:
        """Returns the queue's id and the size of the largest payload that it accepts."""
        async with self._database.transaction() as connection:
            row = await (await connection.execute(say.LIMIT, (self.name,))).fetchone()
        assert row is not None
        return int(row[0]), int(row[1])

    async def write_part(
        self,
        entry: say.Entry,
        chunks: Callable[[], Iterable[Chunk]],
        rejects: Sequence[say.Reject] = (),
        *,
        queue_id: int,
        on_conflict: OnConflict = "skip",
        copying: bool = True,
        counted: Mapping[str, int] = MappingProxyType({}),
        reject_table: str | None = None,
        places: int | None = None,
    ) -> dict[str, int]:
        """Writes one part of a job in one transaction: its ledger entry, its tasks and its rejects. A part that is in
        the ledger already is left as it is, and its report is returned.

        Chunks with subjects contain no subject twice; `counted` says what happened to the duplicates. The part is
        written with COPY while no subject is taken, unless `copying` is false. At most `places` parts of a job are
        written at once; NoPlace is raised when that many are being written.
        """

        async def attempt(*, copying: bool) -> dict[str, int]:
            counts = Counter(counted)
            async with self._database.transaction() as connection:
                if places is not None:
                    await self._take_place(connection, entry.job, places)
                row = await (await connection.execute(*say.enter(self.name, entry))).fetchone()
                if row is not None and row[0] is not None:
                    return dict(orjson.loads(row[0]))
                for chunk in chunks():
                    if chunk.subjects is not None and not copying:
                        counts.update(await self._merge(connection, chunk, on_conflict))
                        del counts["skipped_dead"]
                        continue
                    await copy_named(connection, queue_id, chunk)
                    counts["created"] += len(chunk.payloads)
                if rejects:
                    await connection.execute(*say.note_rejects(self.name, entry, rejects, reject_table))
                    counts["rejected"] += len(rejects)
                await connection.execute(say.NOTE_REPORT, (entry.batch, entry.part, orjson.dumps(counts).decode()))
            return dict(counts)

        try:
            return await persistently(lambda: attempt(copying=copying and on_conflict != "update"))
        except Taken:
            return await persistently(lambda: attempt(copying=False))

    async def _take_place(self, connection: AsyncConnection, job: UUID, places: int) -> None:
        row = await (await connection.execute(say.TAKE_PLACE, (job, places))).fetchone()
        if row is None or not row[0]:
            raise say.NoPlace

    async def seal_job(
        self, job: UUID, partitions: int, rows: int, checksum: str, counts: Mapping[str, int]
    ) -> dict[str, int]:
        """Ends a job whose parts are all written. A repeat that differs raises Conflict, which names the difference."""
        parameters = (self.name, job, partitions, rows, checksum, orjson.dumps(dict(counts)).decode())

        async def attempt() -> dict[str, int]:
            async with self._database.transaction() as connection:
                row = await (await connection.execute(say.SEAL_JOB, parameters)).fetchone()
            assert row is not None
            return dict(orjson.loads(row[0]))

        return await persistently(attempt)

    async def job_report(self, job: UUID) -> dict[str, int] | None:
        """Returns the counts of a sealed job, or None if the job is not sealed."""
        async with self._database.transaction() as connection:
            row = await (await connection.execute(say.JOB_REPORT, (job,))).fetchone()
        return None if row is None or row[0] is None else dict(orjson.loads(row[0]))

    async def judge(self, payloads: list[bytes]) -> dict[int, str]:
        """Returns why PostgreSQL refuses payloads, by their position."""
        async with self._database.transaction() as connection:
            rows = await (await connection.execute(say.JUDGE, (TextArray(payloads),))).fetchall()
        return {int(n): str(reason) for n, reason in rows}

    async def prepare_rejects(self, table: str) -> None:
        """Creates a reject table of the given name, or checks that the existing one has the columns that Penstock
        needs."""
        needed = {"queue", "job", "partition", *say.REJECTED}
        named = say.quoted(table)

        async def attempt() -> None:
            async with self._database.transaction() as connection:
                found = {name for (name,) in await (await connection.execute(say.REJECT_COLUMNS, (named,))).fetchall()}
                if not found:
                    await connection.execute(say.MAKE_REJECTS.format(named).encode())
                elif not needed <= found:
                    raise ValidationError(
                        f"rejectTable: {table} has no {', '.join(sorted(needed - found))}",
                        hint="Name a table that is not there yet: it is made.",
                        field="rejectTable",
                    )

        await persistently(attempt)

    # --- claim, extend, settle, release -----------------------------------------------------------------------------

    async def claim(
        self, limit: int = 1, *, lease: Duration | None = None, worker: str = "", may_alone: bool = True
    ) -> Claim:
        """Claims up to `limit` tasks and leases them to the caller. An empty claim does not mean that the queue is
        empty: use `status` for that.

        Pass `may_alone=False` while other tasks of this worker are running: a task that once crashed its worker is
        given only to a worker that runs nothing else.
        """
        hint = self._hint.current()
        return await self._claim(self._database.once, say.Wanted(self.name, limit, lease, worker, hint, may_alone))

    async def claim_heard(
        self, once: Once, limit: int, *, lease: Duration | None, worker: str, may_alone: bool
    ) -> Claim:
        """Claims tasks like `claim`, on the connection that has just received the notification of a push. It expires
        leases and promotes due tasks twice a second, not in every call."""
        hint = self._hint.heard()
        return await self._claim(once, say.Wanted(self.name, limit, lease, worker, hint, may_alone))

    async def _claim(self, once: Once, wanted: say.Wanted) -> Claim:
        parameters = wanted.checked()
        began = time.perf_counter()
        rows = await once(say.CLAIM, parameters)  # a claim whose reply is lost expires
        self._hint.note(rows, wanted.limit, wanted.hint is None, time.perf_counter() - began)
        claim = say.claimed(self.name, rows)
        unreadable = say.unreadable(claim)
        if unreadable:
            await self.settle(claim, unreadable)
            claim = replace(claim, tasks=tuple(task for task in claim.tasks if task.id not in unreadable))
        return claim

    def look_afresh(self) -> None:
        """Makes the next claim start at the beginning of the queue, where it also expires leases and promotes due
        tasks."""
        self._hint.forget()

    async def extend(self, claim: Claim | UUID | str, *, lease: Duration | None = None) -> Extended:
        """Extends the lease from now on. Raises LeaseLost if another worker has the tasks, or if all of them were
        cancelled."""
        parameters = (say.token_of(claim, self.name), validate.lease(lease))
        async with self._database.transaction() as connection:
            row = await (await connection.execute(say.EXTEND, parameters)).fetchone()
        return say.extended(row, claim)

    async def extend_many(
        self, tokens: Iterable[UUID | str], *, lease: Duration | None = None, deadline: float | None = None
    ) -> dict[str, Kept]:
        """Extends many leases of the queue from now on; the answer leaves out those that are lost. It does not wait for
        the disk, because an extension that a crash of PostgreSQL undoes only ends the lease earlier."""
        asked = [str(validate.token(token)) for token in tokens]
        async with self._database.transaction(RELAXED, deadline) as connection:
            rows = await (await connection.execute(say.EXTEND_MANY, (asked, validate.lease(lease)))).fetchall()
        return {str(token): Kept(until, tuple(revoked)) for token, until, revoked in rows}

    async def settle(
        self,
        claim: Claim | UUID | str,
        outcomes: Mapping[int, Outcome] | Iterable[int] | None = None,
        *,
        wait: bool = True,
    ) -> dict[int, str]:
        """Records the outcomes of claimed tasks: pass a mapping of id to Outcome, or the ids that are done, or nothing
        if the whole claim is done. Returns the new state of each task: done, planned, pending or dead.

        Tasks that the claim no longer holds are not changed, and LeaseLost is raised after the others are settled. If
        another transaction holds a task's document, the call waits for it. With `wait=False` such a task is answered as
        `busy`, stays in the claim, and can be settled later.
        """
        parameters = say.settle_parameters(claim, outcomes, self.name)
        if parameters is None:
            return {}
        async with self._database.transaction(BEGIN if wait else IMPATIENT) as connection:
            rows = await (
                await connection.execute(say.SETTLE, (*parameters, wait), binary=True, prepare=True)
            ).fetchall()
        return say.settled(rows)

    async def release(
        self, claim: Claim | UUID | str, *, delay: Duration | None = None, wait: bool = True
    ) -> dict[int, str]:
        """Puts the open tasks of the claim back as they were, without counting an attempt. For `wait` see `settle`."""
        later = validate.delay(delay)
        if isinstance(claim, Claim) and not claim:
            return {}
        token = say.token_of(claim, self.name)
        async with self._database.transaction(BEGIN if wait else IMPATIENT) as connection:
            rows = await (await connection.execute(say.RELEASE, (token, later, wait))).fetchall()
        if not rows:
            raise LeaseLost(say.LOST, refused=say.ids_of(claim))
        return say.settled(rows)

    @asynccontextmanager
    async def settling(
        self, claim: Claim, id_: int, outcome: Callable[[], Outcome] = Outcome.done
    ) -> AsyncIterator[AsyncConnection]:
        """Opens a transaction for your own writes and settles a task as its last statement: both happen, or neither.

        Raises LeaseLost, and writes nothing, if the claim no longer holds the task. The transaction is committed here:
        code that commits it, rolls it back or closes the connection gets HandlerMisuse, and the task is not settled.
        """
        mark = uuid4().hex
        async with self._database.lent(mark) as connection:
            yield connection
            with self._database.answering(connection), translated():
                await still_lent(connection, mark)
                parameters = say.settle_parameters(claim, {id_: outcome()}, self.name)
                assert parameters is not None
                rows = await (await connection.execute(say.SETTLE, (*parameters, True), binary=True)).fetchall()
                say.settled(rows)

    # --- changes to existing tasks ----------------------------------------------------------------------------------

    async def cancel(
        self, ids: Iterable[int] | None = None, *, subjects: Iterable[str] | None = None, reason: str = "cancelled"
    ) -> dict[int, str]:
        """Ends tasks unfinished. Returns by id: cancelled; revoked (a worker runs it, and learns of it at its next
        extend or settle); ended (it had ended before); busy (another transaction holds it at this moment: try again);
        or unknown."""
        return await self._each("cancel", ids, subjects, reason=say.storable(reason))

    async def redrive(
        self,
        ids: Iterable[int] | None = None,
        *,
        subjects: Iterable[str] | None = None,
        kind: str | None = None,
        error: str | None = None,
        since: datetime | None = None,
        limit: int | None = None,
    ) -> dict[int, str]:
        """Makes dead tasks wait again: the given ones (also cancelled ones), or all dead ones that match a kind, a text
        in their error and `since`. Their attempts and age start anew. Returns by id: redriven, live (it waits or runs),
        busy or unknown."""
        since = None if since is None else validate.moment(since, "since")
        texts = say.filters(kind=kind, error=error)
        if ids is not None or subjects is not None:
            return await self._each("redrive", ids, subjects, **texts, since=since, limit=say.MOST)
        found: dict[int, str] = {}
        left = None if limit is None else validate.whole(limit, "limit", 1, 2**31)
        self._database.refuse_rehearsal("redrive by filter")
        while left is None or left > 0:
            most = say.MOST if left is None else min(left, say.MOST)
            some = await self._each("redrive", None, None, **texts, since=since, limit=most)
            found |= some
            redriven = sum(result == "redriven" for result in some.values())
            if len(some) < most or not redriven:  # what is left is busy
                break
            left = None if left is None else left - redriven
        return found

    async def reschedule(
        self, due: datetime, ids: Iterable[int] | None = None, *, subjects: Iterable[str] | None = None
    ) -> dict[int, str]:
        """Gives waiting tasks another due. Returns by id: rescheduled, active, ended, busy or unknown."""
        return await self._each("reschedule", ids, subjects, due=validate.moment(due))

    async def reprioritise(
        self, priority: int, ids: Iterable[int] | None = None, *, subjects: Iterable[str] | None = None
    ) -> dict[int, str]:
        """Gives tasks another priority; a running task gets it for its next attempt. Returns by id: reprioritised,
        ended, busy or unknown."""
        return await self._each("reprioritise", ids, subjects, priority=validate.whole(priority, "priority", 0, 9))

    async def purge(
        self,
        *states: State,
        ids: Iterable[int] | None = None,
        kind: str | None = None,
        error: str | None = None,
        before: datetime | None = None,
        limit: int | None = None,
    ) -> int:
        """Removes tasks in these states for good, but never active ones, and returns how many it removed."""
        which = say.chosen(self.name, ids, None) | {
            "states": list(states),
            **say.filters(kind=kind, error=error),
            "before": None if before is None else validate.moment(before, "before"),
        }
        left = None if limit is None else validate.whole(limit, "limit", 1, 2**31)
        gone = 0
        self._database.refuse_rehearsal("purge")
        while left is None or gone < left:
            most = say.MOST if left is None else min(left - gone, say.MOST)
            async with self._database.transaction() as connection:
                row = await (await connection.execute(say.VERBS["purge"].encode(), which | {"limit": most})).fetchone()
            assert row is not None
            gone += row[0]
            if row[0] == 0:  # fewer than `most` may also mean that some were busy
                break
        return gone

    async def _each(
        self, verb: str, ids: Iterable[int] | None, subjects: Iterable[str] | None, **parameters: Any
    ) -> dict[int, str]:
        which = say.chosen(self.name, ids, subjects)
        async with self._database.transaction() as connection:
            rows = await (await connection.execute(say.VERBS[verb].encode(), which | parameters)).fetchall()
        return {int(id_): str(result) for id_, result in rows}

    async def tasks(
        self,
        *,
        state: State | None = None,
        kind: str | None = None,
        subject: str | None = None,
        error: str | None = None,
        after: int | None = None,
        limit: int = 100,
    ) -> list[TaskInfo]:
        """Lists tasks with their present state, ordered by id; for the next page pass the last id as `after`."""
        after = None if after is None else validate.whole(after, "after", 0, 2**63 - 1)
        which = say.filters(kind=kind, subject=subject, error=error) | {"state": say.known_state(state), "after": after}
        return await self._list(id=None, limit=validate.whole(limit, "limit", 1, say.MOST), **which)

    async def task(self, id: int) -> TaskInfo:  # noqa: A002 - the parameter has this name everywhere
        """Returns one task by its id."""
        anything = dict.fromkeys(("state", "kind", "subject", "error", "after"))
        found = await self._list(id=validate.ids([id])[0], limit=1, **anything)
        if not found:
            raise NotFound(
                f"id: there is no task {id} in queue {self.name!r}",
                hint="A done task is removed, unless its queue has keep_done; `app.find_task(id)` finds it in history.",
            )
        return found[0]

    async def _list(self, **which: Any) -> list[TaskInfo]:
        named = which["id"] is not None or which["subject"] is not None
        async with self._database.transaction() as connection:
            # Raises NotFound for a queue that does not exist.
            size = await (await connection.execute(say.SIZE, (self.name,))).fetchone()
            statement = say.list_tasks(which["state"], size[0] if size else 0, named=named)
            rows = await (await connection.execute(statement, {"queue": self.name, **which})).fetchall()
        return say.listed(rows)

    # --- the queue itself -------------------------------------------------------------------------------------------

    async def settings(self) -> QueueSettings:
        """Returns the settings of the queue."""
        found = await settings(self._database, self.name)
        if not found:
            await self.status()  # raises NotFound, with the nearest name
        return found[0]

    async def set(self, **changes: Any) -> QueueSettings:
        """Changes settings: any of lease, max_attempts, retry, sla, keep_done, keep_dead, keep_cancelled, max_payload
        and paused."""
        wanted = say.queue_changes(changes)
        async with self._database.transaction() as connection:
            await connection.execute(say.SET_QUEUE, (self.name, wanted))
        return await self.settings()

    async def pause(self) -> None:
        """Pauses the queue: claims return nothing until `resume`. Pushes go on, and running tasks may settle."""
        await self.set(paused=True)

    async def resume(self) -> None:
        """Resumes a paused queue."""
        await self.set(paused=False)

    async def drop(self, *, force: bool = False) -> int:
        """Removes the queue and returns how many tasks were removed with it. It refuses if the queue has tasks, unless
        `force` is given."""
        gone = 0
        if force:
            # Tasks are removed in short transactions first, because the drop itself blocks all queues.
            await self.pause()
            gone = await self.purge("planned", "pending", "done", "dead", "cancelled")
        async with self._database.transaction() as connection:
            row = await (await connection.execute("select penstock.drop_queue(%s, %s)", (self.name, force))).fetchone()
        assert row is not None
        return gone + int(row[0])

    async def lease(self) -> float:
        """Returns the length of the queue's lease in seconds. Every worker may call this."""
        async with self._database.transaction() as connection:
            row = await (await connection.execute(say.LEASE, (self.name,))).fetchone()
        assert row is not None
        return float(row[0])

    async def set_kinds(self, kinds: list[Json]) -> int:
        """Stores the settings that the code gives to its kinds (retry, max_attempts, timeout), so that settle and
        expiry use the same ones. Workers do this when they start. Returns how many kinds changed."""
        async with self._database.transaction() as connection:
            row = await (await connection.execute(say.SET_KINDS, (self.name, orjson.dumps(kinds).decode()))).fetchone()
        return int(row[0]) if row else 0

    async def status(self) -> QueueStatus:
        """Returns the counts of the queue in one snapshot."""
        return (await status(self._database, self.name))[0]

    async def verify(self) -> Verification:
        """Recounts the queue and compares the result with its counters."""
        return await verify(self._database, self.name)


async def fill(spool: Spool, items: Items[Json | NewTask | None]) -> None:
    """Adds all items to the spool and finishes it."""
    async for some in batches(items, BATCH):
        spool.add(some)
    spool.finish()


async def copy_named(connection: AsyncConnection, queue_id: int, chunk: Chunk) -> None:
    """Copies one chunk, and raises Taken if one of its subjects exists. Rows are in the order of subjects, the same in
    every writer. Ids are in the order given, so that the first task runs first; without subjects PostgreSQL assigns the
    ids."""
    ids = None
    if chunk.subjects is not None:
        rows = await (await connection.execute(say.RESERVE, (len(chunk.payloads),))).fetchall()
        ids = [id_ for (id_,) in rows]
    await copy(connection, *say.copy_text(queue_id, chunk, ids))


async def copy(connection: AsyncConnection, columns: str, data: bytes) -> None:
    """Writes rows into the task table with COPY."""
    async with connection.cursor().copy(f"copy penstock.task ({columns}) from stdin".encode()) as into:
        await into.write(data)


async def persistently(attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeats an attempt that the ledger makes repeatable, while PostgreSQL restarts or the reply to a COMMIT is
    lost."""
    for n in range(RETRIES):
        try:
            return await attempt()
        except Unavailable as error:
            if n == RETRIES - 1 or error.reason in ("read_only", "closed"):
                raise
            await sleep(min(0.1 * 2**n, 2.0))
    raise AssertionError


# --- all queues and their counters ----------------------------------------------------------------------------------


async def create(database: AsyncDatabase, name: str, *, exist_ok: bool = False, **options: Any) -> bool:
    """Creates a queue. Returns False if it existed already; then it is left as it is."""
    statement, parameters = say.create_queue(name, exist_ok, options)
    async with database.transaction() as connection:
        row = await (await connection.execute(statement, parameters)).fetchone()
    return bool(row and row[0])


async def find_task(database: AsyncDatabase, id_: int) -> TaskDetails:
    """Returns one task of any queue, with everything that is known of it. Removed tasks are found in history."""
    (asked,) = validate.ids([id_])
    async with database.transaction() as connection:
        row = await (await connection.execute(say.FIND, (asked,))).fetchone()
        if removed := row is None:
            # This second query uses a later snapshot, so one of the two finds a task that ends in between.
            row = await (await connection.execute(say.FIND_REMOVED, (asked,))).fetchone()
    return say.found_task(row, asked, removed=removed)


async def settings(database: AsyncDatabase, name: str | None = None) -> list[QueueSettings]:
    """Returns the settings of one queue or of all queues."""
    async with database.transaction() as connection:
        return say.settings_of(await (await connection.execute(say.SETTINGS_OF, (name, name))).fetchall())


async def kind_settings(database: AsyncDatabase) -> list[tuple[str, str, Json | None, int | None]]:
    """Returns (queue, kind, retry strategy, max_attempts) of the kinds that have settings of their own; None means that
    the queue's setting applies."""
    async with database.transaction() as connection:
        rows = await (await connection.execute(say.KINDS_OF)).fetchall()
    return [(queue, kind, None if retry is None else orjson.loads(retry), most) for queue, kind, retry, most in rows]


async def status(database: AsyncDatabase, name: str | None = None) -> list[QueueStatus]:
    """Returns the counts of one queue or of all queues, in one snapshot."""
    asked = None if name is None else validate.queue_name(name)
    async with database.transaction() as connection:
        return say.statuses(await (await connection.execute(say.STATUS, (asked,))).fetchall())


async def statuses(database: AsyncDatabase, names: Sequence[str]) -> list[QueueStatus]:
    """Returns the counts of these queues in one statement. A queue that does not exist is left out, unless it is the
    only one."""
    if len(names) == 1:
        return await status(database, names[0])
    async with database.transaction() as connection:
        return say.statuses(await (await connection.execute(say.STATUS_OF, ([*names],))).fetchall())


async def verify(database: AsyncDatabase, name: str | None = None) -> Verification:
    """Recounts one queue or all queues, and compares the result with their counters."""
    async with database.transaction() as connection:
        rows = await (await connection.execute(say.VERIFY, (name,))).fetchall()
        dropped = await (await connection.execute(say.DROPPED, (name,))).fetchone()
    return say.verification(rows, dropped)


async def repair(database: AsyncDatabase, name: str | None = None) -> list[Repair]:
    """Repairs what `verify` finds in one queue or in all queues, and returns what it changed."""
    name = None if name is None else validate.queue_name(name)
    async with database.transaction() as connection:
        return [Repair(*row) for row in await (await connection.execute(say.REPAIR, (name,))).fetchall()]


async def upkeep(database: AsyncDatabase, *, due_only: bool = False, seconds: float = say.UPKEEP_SECONDS) -> say.Upkeep:
    """Runs the parts of upkeep, each in a transaction of its own. A part that fails does not stop the others; the
    report's `failed` names it.

    `due_only` leaves out the parts that another process ran a few seconds ago. A part that has more to do than fits in
    one transaction is repeated until `seconds` have passed.
    """
    ends = time.monotonic() + seconds
    report = say.Upkeep()
    for (part,) in await database.once(say.UPKEEP_PARTS, (due_only,)):
        try:
            report[part] = await upkeep_part(database, part, due_only=due_only, ends=ends)
        except Unavailable as error:
            if error.reason != "retry":
                raise
            report.failed[part] = error
        except PenstockError as error:
            report.failed[part] = error
    return report


async def upkeep_part(database: AsyncDatabase, part: str, *, due_only: bool, ends: float) -> int:
    """Runs one part until nothing is left to do or the time is up. Each statement is a transaction, so a frozen client
    holds no locks."""
    total, more = 0, True
    while more:
        ((rows, more),) = await database.once(say.UPKEEP_PART, (part, due_only))
        total += rows or 0
        if database.rehearses or time.monotonic() > ends:
            break
    return total


async def retentions(database: AsyncDatabase) -> dict[str, timedelta | None]:
    """Returns how long upkeep keeps things; None means for ever."""
    async with database.transaction() as connection:
        return dict(await (await connection.execute(say.RETENTIONS)).fetchall())


async def set_retention(database: AsyncDatabase, what: str, keep: Duration | None) -> None:
    """Sets how long upkeep keeps something."""
    length = None if keep is None else validate.positive(keep, what)
    async with database.transaction() as connection:
        await connection.execute(say.SET_RETENTION, (what, length))


async def beat(
    database: AsyncDatabase,
    worker: str,
    queues: list[str],
    *,
    slots: int,
    busy: int,
    host: str = "",
    pid: int | None = None,
    requested_at: datetime | None = None,
    started_by: str | None = None,
    leaving: bool = False,
) -> dict[str, Standing]:
    """Records that a worker is alive, and returns its standing in each queue."""
    parameters = (worker, queues, slots, busy, host, pid, requested_at, started_by, leaving)
    async with database.transaction(RELAXED) as connection:
        rows = await (await connection.execute(say.BEAT, parameters)).fetchall()
    return {str(queue): Standing(*standing) for queue, *standing in rows}


async def beat_all(
    database: AsyncDatabase,
    workers: Sequence[Json],
    queues: Sequence[str],
    *,
    slots: int,
    host: str = "",
    started_by: str | None = None,
    leaving: bool = False,
    known: int | None = None,
) -> tuple[say.Beaten, say.FoundWork]:
    """Records that the workers of a supervisor are alive, and looks for work, all in one statement. `known` is the
    value that the last beat returned: leases that have not changed since then are not sent again."""
    named = [*queues]
    parameters = (orjson.dumps(workers).decode(), named, slots, host, started_by, leaving, known, named)
    async with database.transaction(RELAXED) as connection:
        row = await (await connection.execute(say.BEAT_ALL, parameters)).fetchone()
    assert row is not None
    return say.beaten(row)


async def find_work(database: AsyncDatabase, queues: Sequence[str]) -> say.FoundWork:
    """Looks for work in all of these queues."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.FIND_WORK, ([*queues],))).fetchone()
    assert row is not None
    return say.FoundWork(*row)


async def prepare_work(
    database: AsyncDatabase, queues: Sequence[str], kinds: Mapping[str, list[Json]]
) -> dict[str, tuple[float, bool]]:
    """Returns the lease of each queue in seconds and whether the queue is paused, and raises NotFound for a queue that
    does not exist. It also stores the settings of the kinds of each queue (see `set_kinds`)."""
    parameters = ([*queues], orjson.dumps(kinds).decode())
    async with database.transaction() as connection:
        rows = await (await connection.execute(say.PREPARE_WORK, parameters)).fetchall()
    return {str(name): (float(lease), bool(paused)) for name, lease, paused in rows}


async def pass_on(database: AsyncDatabase, worker: str, queue: str) -> None:
    """Wakes another worker, because the worker that was woken has no free slot."""
    await database.once(say.WAKE_ANOTHER, (worker, queue))


async def take_quarantine(database: AsyncDatabase, queue: str, worker: str) -> bool:
    """Returns whether this worker is the one that must become empty, to run a quarantined task of the queue alone."""
    async with database.transaction(RELAXED) as connection:
        row = await (await connection.execute(say.TAKE_QUARANTINE, (queue, worker))).fetchone()
    return row == (True,)


async def expire_leases(database: AsyncDatabase, queues: Sequence[str]) -> int:
    """Puts the tasks of expired leases back to waiting, and returns how many there were."""
    async with database.transaction(RELAXED) as connection:
        row = await (await connection.execute(say.EXPIRE_LEASES, ([*queues],))).fetchone()
    return int(row[0]) if row else 0


async def end_leases(database: AsyncDatabase, tokens: Sequence[str]) -> tuple[int, int]:
    """Puts the tasks of these leases back to waiting now, because their worker is dead. Returns how many attempts
    failed by this of tasks that are tried again, and how many tasks are dead."""
    async with database.transaction(RELAXED) as connection:
        row = await (await connection.execute(say.END_LEASES, ([*tokens],))).fetchone()
    return (int(row[0]), int(row[1])) if row else (0, 0)


async def leave(database: AsyncDatabase, worker: str) -> None:
    """Removes a worker that stops from the registry. Tasks that it still holds come back when their leases end."""
    async with database.transaction() as connection:
        await connection.execute(say.LEAVE, (worker,))


# --- scaling --------------------------------------------------------------------------------------------------------
# One scaler at a time holds a queue. A scaler that lost a queue is refused (Conflict).


async def hold_scaling(
    database: AsyncDatabase,
    queues: Sequence[str],
    *,
    holder: str,
    policy: str,
    lease: Duration,
    instead_of: Sequence[str] = (),
) -> dict[str, ScalingHold]:
    """Takes queues in order to scale them, all or none. Raises Conflict if another scaler holds one of them and is not
    among those known to be dead (`instead_of`)."""
    parameters = ([*queues], holder, policy, validate.lease(lease), [*instead_of])
    async with database.transaction() as connection:
        rows = await (await connection.execute(say.HOLD_SCALING, parameters)).fetchall()
    return {one.queue: one for one in say.held(rows)}


async def scalers(database: AsyncDatabase, queues: Sequence[str] | None = None) -> list[QueueScaler]:
    """Returns which scaler holds each queue now."""
    asked = None if queues is None else [*queues]
    async with database.transaction() as connection:
        return [QueueScaler(*row) for row in await (await connection.execute(say.SCALERS, (asked,))).fetchall()]


async def decide(database: AsyncDatabase, decided: Sequence[Json], *, holder: str, lease: Duration) -> list[str]:
    """Stores the decisions of a scaler and extends its hold. Returns the queues whose decision was noted because it is
    new."""
    parameters = (holder, validate.lease(lease), orjson.dumps(decided).decode())
    async with database.transaction() as connection:
        return [str(name) for (name,) in await (await connection.execute(say.DECIDE, parameters)).fetchall()]


async def leave_scaling(database: AsyncDatabase, holder: str) -> None:
    """Gives up the queues that a scaler holds."""
    async with database.transaction() as connection:
        await connection.execute(say.LEAVE_SCALING, (holder,))


async def decisions(
    database: AsyncDatabase, queue: str, *, at: datetime | None = None, limit: int = 20
) -> list[StoredDecision]:
    """Returns the decisions for a queue up to a moment, newest first."""
    async with database.transaction() as connection:
        return say.decisions(await (await connection.execute(say.DECISIONS, (queue, at, limit))).fetchall())


async def board(database: AsyncDatabase, queue: str | None = None, *, decisions: int = 10, samples: int = 0) -> Board:
    """Returns queues, workers and decisions in one round trip."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.BOARD, (queue, decisions, samples))).fetchone()
    assert row is not None
    return say.board(row[0])


async def target_workers(database: AsyncDatabase, queue: str) -> tuple[int, float | None]:
    """Returns how many workers a queue should have, and how many seconds ago that was decided (None means never)."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.TARGET_WORKERS, (queue, queue))).fetchone()
    assert row is not None
    return int(row[0]), row[1]


async def dismiss(database: AsyncDatabase, workers: Sequence[str]) -> int:
    """Tells workers that a scaler started to finish and stop, and returns how many there were."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.DISMISS, ([*workers],))).fetchone()
    return int(row[0]) if row else 0


async def scaler_snapshot(database: AsyncDatabase, asked: Sequence[Asked]) -> ScalerSnapshot:
    """Returns what a scaler needs to know of some queues; due tasks are promoted first."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.SCALER_SNAPSHOT, say.asked(asked))).fetchone()
    assert row is not None
    return say.read_scaler_snapshot(row[0])


# --- schedules ------------------------------------------------------------------------------------------------------
# This module does not know when a cron line fires: the caller passes `next_run` and `decide` (see penstock.schedule).


async def schedules(database: AsyncDatabase, name: str | None = None) -> list[Schedule]:
    """Returns one schedule or all schedules."""
    async with database.transaction() as connection:
        return say.schedules(await (await connection.execute(say.SCHEDULES, (name,))).fetchall())


async def set_schedule(database: AsyncDatabase, new: NewSchedule, next_run: Callable[[Schedule], datetime]) -> Schedule:
    """Creates or changes a schedule. A changed cron line counts from now; ticks that were decided stay decided."""
    async with database.transaction() as connection:
        await connection.execute(say.SET_SCHEDULE, say.set_schedule(new))
        return await aimed(connection, new.name, next_run)


async def drop_schedule(database: AsyncDatabase, name: str) -> None:
    """Removes a schedule."""
    async with database.transaction() as connection:
        await connection.execute(say.DROP_SCHEDULE, (name,))


async def pause_schedule(database: AsyncDatabase, name: str) -> Schedule:
    """Pauses a schedule and returns it."""
    async with database.transaction() as connection:
        await connection.execute(say.PAUSE_SCHEDULE, (name,))
        return say.schedules(await (await connection.execute(say.SCHEDULES, (name,))).fetchall())[0]


async def resume_schedule(database: AsyncDatabase, name: str, next_run: Callable[[Schedule], datetime]) -> Schedule:
    """Resumes a schedule from now on and returns it."""
    async with database.transaction() as connection:
        await connection.execute(say.RESUME_SCHEDULE, (name,))
        return await aimed(connection, name, next_run)


async def aimed(connection: AsyncConnection, name: str, next_run: Callable[[Schedule], datetime]) -> Schedule:
    """Computes the next tick of a schedule, if that is needed, while the transaction that changed the schedule still
    holds it."""
    (found,) = say.schedules(await (await connection.execute(say.SCHEDULES, (name,))).fetchall())
    if found.paused or found.next_at > found.at:
        return found
    next_at = next_run(found)
    await connection.execute(say.FIRE, say.firing(found, Firing([], found.mark, next_at)))
    return replace(found, next_at=next_at)


async def next_schedule(database: AsyncDatabase) -> float | None:
    """Returns the seconds until a schedule is due, or None if no schedule is waiting."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.NEXT_SCHEDULE)).fetchone()
    return None if row is None or row[0] is None else float(row[0])


async def run_schedules(database: AsyncDatabase, decide: Callable[[Schedule], Firing]) -> say.ScheduleRun:
    """Fires the schedules that are due, each in a transaction of its own: a schedule that cannot be fired does not
    delay the others."""
    async with database.transaction() as connection:
        found = say.schedules(await (await connection.execute(say.DUE_SCHEDULES)).fetchall())
    pushed, failed = 0, dict[str, PenstockError]()
    for one in found:
        try:
            told = decide(one)
            async with database.transaction() as connection:
                row = await (await connection.execute(say.FIRE, say.firing(one, told))).fetchone()
        except Unavailable:
            raise
        except PenstockError as error:
            failed[one.name] = error
        else:
            pushed += int(row[0] or 0) if row else 0
    return say.ScheduleRun(pushed, failed)


# --- history --------------------------------------------------------------------------------------------------------


async def horizon(database: AsyncDatabase) -> Horizon:
    """Returns how far history can be read now. Raises Conflict if history was restored from another cluster."""
    async with database.transaction() as connection:
        return say.horizon(await (await connection.execute(say.HORIZON)).fetchone())


async def note_horizon(database: AsyncDatabase) -> Horizon:
    """Returns the horizon for a reader that keeps it. PostgreSQL commits a note of it first; after a failover or a
    restore, the note tells whether everything below the horizon survived."""
    async with database.transaction() as connection:
        return say.horizon(await (await connection.execute(say.NOTE_HORIZON)).fetchone())


async def check_mark(database: AsyncDatabase, mark: Horizon) -> None:
    """Checks a horizon that a reader kept. Raises Conflict if the horizon is not in the past of this database."""
    async with database.transaction() as connection:
        await connection.execute(say.CHECK_MARK, mark[:4])


async def written(database: AsyncDatabase, start: Horizon, end: Horizon) -> bool:
    """Returns whether any history was written between the two horizons. Raises Conflict if the start is of another
    cluster or branch, or ahead of this database."""
    await check_window(database, Window(start, start))
    async with database.transaction() as connection:
        row = await (await connection.execute(say.BETWEEN, (start.xid, end.xid))).fetchone()
    return bool(row and row[0])


async def spans(database: AsyncDatabase, window: Window) -> list[Span]:
    """Returns where the rows of a window are. Raises Conflict if some of them can no longer be read."""
    await check_window(database, window)
    if window.start.xid:
        with suppress(Unavailable):  # there are so many rows that finding them takes too long
            return await find_spans(database, window, roughly=False)
    return await find_spans(database, window, roughly=True)


async def check_window(database: AsyncDatabase, window: Window) -> None:
    """Checks a window. Raises Conflict if one of its ends is not in the past of this database, or if some of its rows
    were dropped."""
    async with database.transaction() as connection:
        for mark in dict.fromkeys((window.start[:4], window.end[:4])):
            await connection.execute(say.CHECK_MARK, mark)
        await connection.execute(say.CHECK_WINDOW, say.check_window(window))


async def find_spans(database: AsyncDatabase, window: Window, *, roughly: bool) -> list[Span]:
    """Returns, by day, the pages from the first to the last one that has a row of the window, or with `roughly` all
    pages of each day."""
    parameters = (window.start.xid, window.end.xid, window.since, window.until, roughly)
    async with database.transaction() as connection:
        await connection.execute(say.SHORTLY)
        return [Span(*row) for row in await (await connection.execute(say.SPANS, parameters)).fetchall()]


async def queue_names(database: AsyncDatabase) -> dict[int, str]:
    """Returns the names of all present and former queues, by their id in history."""
    async with database.transaction() as connection:
        return {int(id_): str(name) for id_, name in await (await connection.execute(say.QUEUE_NAMES)).fetchall()}


async def queues_named(database: AsyncDatabase, name: str) -> list[int]:
    """Returns the ids of the queues that have or had this name. Raises NotFound if there are none."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.QUEUES_NAMED, (name,))).fetchone()
    return list(row[0]) if row else []


async def set_profiles(database: AsyncDatabase, profiles: Sequence[Json]) -> int:
    """Replaces the stored profiles of queues, and returns how many of these queues still exist."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.SET_PROFILES, (orjson.dumps(profiles).decode(),))).fetchone()
    return int(row[0]) if row else 0


async def profiles(database: AsyncDatabase, name: str | None = None) -> list[StoredProfile]:
    """Returns the profile of one queue or of all queues; a queue without a profile is listed with `made` None."""
    async with database.transaction() as connection:
        return say.profiles(await (await connection.execute(say.PROFILES, (name,))).fetchall())


async def running_times(database: AsyncDatabase) -> list[Running]:
    """Returns how long the tasks that run now have been running, in buckets."""
    async with database.transaction() as connection:
        return [Running(*row) for row in await (await connection.execute(say.RUNNING_TIMES)).fetchall()]


async def start_latencies(database: AsyncDatabase) -> list[Latency]:
    """Returns how long workers take from the request to their first task, by queue."""
    async with database.transaction() as connection:
        return [Latency(*row) for row in await (await connection.execute(say.START_LATENCIES)).fetchall()]


async def note_reader(database: AsyncDatabase, name: str, passed: Horizon) -> None:
    """Records that a returning reader has read everything up to a horizon: history that it has not read is kept for
    it."""
    async with database.transaction() as connection:
        await connection.execute(say.NOTE_READER, (name, *passed[:4]))


async def find_reader(database: AsyncDatabase, name: str) -> tuple[int, datetime] | None:
    """Returns how far a reader has read and when it was last here, as this database remembers it, or None if the
    database does not know the reader."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.FIND_READER, (name,))).fetchone()
    return None if row is None else (int(row[0]), row[1])


async def forget_reader(database: AsyncDatabase, name: str) -> None:
    """Forgets a reader. Raises NotFound if there is no reader of that name."""
    async with database.transaction() as connection:
        await connection.execute(say.FORGET_READER, (name,))


async def history_sums(
    database: AsyncDatabase, span: Span, *, below: int, thorough: bool = False
) -> list[tuple[int, str, int, int]]:
    """Counts the rows in some pages of a day that are below a transaction, by queue and outcome. With `thorough` it
    also returns a checksum of their contents."""
    parameters = (span.day, span.first_page, span.pages, below, thorough)
    async with database.transaction() as connection:
        rows = await (await connection.execute(say.HISTORY_SUMS, parameters)).fetchall()
    return [(int(queue), str(outcome), int(count), int(checksum)) for queue, outcome, count, checksum in rows]


async def history_gone(database: AsyncDatabase, after: int) -> dict[tuple[date, int], int]:
    """Returns the rows that were dropped after a known drop, by day and queue."""
    async with database.transaction() as connection:
        rows = await (await connection.execute(say.HISTORY_GONE, (after,))).fetchall()
    return {(day, int(queue)): int(count) for day, queue, count in rows}


async def release_day(database: AsyncDatabase, day: date, *, rows: int, below: int) -> bool:
    """Drops a day of history that has been copied elsewhere. Returns False if another transaction uses the day. Raises
    Conflict if the day has other rows than the copy."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.RELEASE_DAY, (day, rows, below))).fetchone()
    return bool(row and row[0])


async def rebase_history(database: AsyncDatabase) -> int:
    """Makes history readable after a restore into another cluster: its rows become the oldest ones."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.REBASE_HISTORY)).fetchone()
    return int(row[0]) if row else 0


async def today(database: AsyncDatabase) -> date:
    """Returns the day of history that is being written: the current date in UTC by the database's clock."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.TODAY)).fetchone()
    assert row is not None
    found: date = row[0]
    return found


async def sample_days(database: AsyncDatabase, window: Window) -> list[date]:
    """Returns the days for which samples were written in a window."""
    async with database.transaction() as connection:
        rows = await (await connection.execute(say.SAMPLE_DAYS, (window.start.xid, window.end.xid))).fetchall()
    return [day for (day,) in rows]


# --- streams --------------------------------------------------------------------------------------------------------
# One driver at a time holds a consumer group. Every call refuses a driver that lost its group (Conflict).


async def next_epoch(database: AsyncDatabase) -> int:
    """Returns a new epoch for a driver of a consumer group."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.NEXT_EPOCH)).fetchone()
    assert row is not None
    return int(row[0])


async def hold_stream(
    database: AsyncDatabase, queue: str, group: str, *, epoch: int, driver: str, lease: Duration
) -> Held:
    """Takes a group for a driver, which has locked its epoch before."""
    parameters = (queue, group, epoch, driver, validate.lease(lease))
    async with database.transaction() as connection:
        row = await (await connection.execute(say.HOLD_STREAM, parameters)).fetchone()
    assert row is not None
    stream, identity, batch = row
    return Held(stream, epoch, identity, batch)


async def keep_stream(database: AsyncDatabase, held: Held, *, lease: Duration) -> None:
    """Records that the driver is alive and keeps the leases that it was given."""
    async with database.transaction() as connection:
        await connection.execute(say.KEEP_STREAM, (held.stream, held.epoch, validate.lease(lease)))


async def leave_stream(database: AsyncDatabase, held: Held) -> None:
    """Gives up the group that a driver holds."""
    async with database.transaction() as connection:
        await connection.execute(say.LEAVE_STREAM, (held.stream, held.epoch))


async def next_batch(
    database: AsyncDatabase,
    held: Held,
    *,
    after: int,
    limit: int,
    slots: int,
    lease: Duration,
    before: datetime | None = None,
) -> Batch:
    """Marks everything up to batch `after` as done and returns the next batch. A repeated call returns the same
    batch."""
    parameters = (held.stream, held.epoch, after, limit, slots, validate.lease(lease), before)
    async with database.transaction() as connection:
        row = await (await connection.execute(say.NEXT_BATCH, parameters)).fetchone()
    assert row is not None
    return Batch(*row)


async def batch_leases(database: AsyncDatabase, held: Held, after: int, upto: int) -> list[tuple[str, int]]:
    """Returns the leases of the batches after one batch up to another: token and size."""
    async with database.transaction() as connection:
        return await (await connection.execute(say.BATCH_LEASES, (held.stream, held.epoch, after, upto))).fetchall()


async def read_lease(connection: AsyncConnection, token: str, first: int, count: int) -> list[tuple[Any, ...]]:
    """Returns some tasks of a lease, in the order of the lease, as PostgreSQL sent them."""
    with translated():
        return await fetch_raw(connection, say.READ_LEASE, (token, first, count))


async def waiting_now(database: AsyncDatabase, queue: str) -> tuple[datetime, int]:
    """Returns a moment, and how many tasks could run at that moment."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.WAITING_NOW, (queue,))).fetchone()
    assert row is not None
    return row[0], int(row[1])
