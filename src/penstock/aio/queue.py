"""The seam: one method per SQL function. Everything else talks to PostgreSQL through here."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import date, datetime
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID, uuid4

import orjson

from penstock import statements as say
from penstock import validate
from penstock.aio.borrowed import Run, borrow, refusals
from penstock.aio.colour import Items, batches, sleep
from penstock.aio.database import AsyncConnection, AsyncDatabase, Once, fetch_raw, still_lent
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
    CronSchedule,
    Duration,
    Extended,
    Firing,
    Held,
    Horizon,
    Json,
    Kept,
    Latency,
    Listed,
    Look,
    NewSchedule,
    NewTask,
    NotedDecision,
    OnConflict,
    Outcome,
    Pushed,
    PushReport,
    QueueScaler,
    QueueSettings,
    QueueStatus,
    Repair,
    Running,
    ScalingHold,
    Span,
    Standing,
    State,
    StoredProfile,
    Verification,
    Window,
)
from penstock.spool import BATCH, Chunk, Spool, task_columns
from penstock.wire import TextArray, translated

Progress = Callable[[int], None]
Write = Callable[..., Awaitable[dict[str, int]]]
T = TypeVar("T")
RETRIES = 6


class AsyncQueue:
    """One queue. Thread-safe; cheap to make, but keep it: it remembers where in the queue to look next."""

    def __init__(self, database: AsyncDatabase, name: str) -> None:
        self.name = validate.queue_name(name)
        self._database = database
        self._hint = say.Hint()

    def __repr__(self) -> str:
        return f"<AsyncQueue {self.name}>"

    @property
    def dsn(self) -> str:
        return self._database.dsn

    # --- push -------------------------------------------------------------------------------------------------------

    async def push(
        self,
        payload: Json | None = None,
        *,
        subject: str | None = None,
        kind: str = "default",
        due: datetime | None = None,
        priority: int = 5,
        on_conflict: OnConflict = "skip",
        connection: object | None = None,
    ) -> Pushed:
        """One task. When this returns, it survives a crash of anything.

        With `connection`, yours (psycopg, asyncpg, SQLAlchemy, a Django alias), it is written in your transaction and
        is there when you commit; we begin, commit and retry nothing on it.
        """
        task = validate.new_task(NewTask(payload, subject, due, priority, kind))
        raw = validate.payload(task.payload, validate.LARGEST_EVER)
        if connection is not None:
            chunk = Chunk([raw], *task_columns([task]), checksum=0, part=0, first=0)
            return (await self._write_borrowed(borrow(connection), chunk, say.conflict(on_conflict)))[0]
        parameters = (self.name, raw.decode(), subject, kind, task.due, priority, say.conflict(on_conflict))
        async with self._database.transaction() as own:
            row = await (await own.execute(say.PUSH, parameters)).fetchone()
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
        """Any number of tasks, in bounded memory, all or nothing: an item we do not accept refuses the whole call.

        Without subjects, and with `on_conflict="error"`, it is one transaction. Else it is one per chunk; if PostgreSQL
        fails between two, `PartialPush` carries the `batch_id` with which the same call completes it, doubling nothing.
        With `connection` everything happens in your transaction (see `push`).
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
        """`push_many` that brings what exists up to date: a waiting task gets the new payload, kind, priority and due;
        one that runs now runs again with them afterwards; an ended one begins anew."""
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
        """Chunk by chunk in the caller's transaction. The ledger is kept only for a batch id that was asked for: else
        that transaction is all or nothing already."""
        totals: Counter[str] = Counter()
        with Spool(largest=validate.LARGEST_EVER) as spool:
            await fill(spool, items)
            if spool.parts > 1:  # under autocommit nothing undoes the chunks before the one that is refused
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
            return Counter(one.result for one in await self._write_borrowed(run, chunk, on_conflict))
        with refusals():
            entry = [str(one) for one in (self.name, batch, chunk.part, len(chunk.payloads), chunk.checksum)]
            ((known,),) = await run(say.ENTER_AS_TEXT, entry)
        if known is not None:
            return dict(orjson.loads(known))
        counts = Counter(one.result for one in await self._write_borrowed(run, chunk, on_conflict))
        await run(say.NOTE_AS_TEXT, [str(batch), str(chunk.part), orjson.dumps(dict(counts)).decode()])
        return counts

    async def _write_borrowed(self, run: Run, chunk: Chunk, on_conflict: str) -> list[Pushed]:
        with say.counted_from(chunk.first), refusals():
            rows = await run(say.PUSH_AS_TEXT, say.text_columns(self.name, chunk, on_conflict))
        return [Pushed(id_, result, state) for _, id_, result, state in rows]

    async def _check_sizes(self, spool: Spool) -> int:
        """The queue's id, if its limit allows everything in the spool."""
        queue_id, largest = await self.limits()
        spool.check_sizes(largest)
        return queue_id

    async def _push_plain(self, spool: Spool, queue_id: int, batch: UUID, progress: Progress | None) -> PushReport:
        """COPY into the documents; their trigger writes the agenda. Chunk by chunk, so that the trigger's view of what
        is new stays in memory; one transaction."""
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
        """One transaction per chunk. By COPY while no subject is taken; by the function that knows what to do then, at
        twice the cost, from the first one that is until a chunk was all new. An upsert expects to meet some."""
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
        """One part in a transaction of its own."""

        async def attempt() -> dict[str, int]:
            async with self._database.transaction() as connection:
                return await write(connection, *arguments)

        return await persistently(attempt)

    async def _push_strictly(self, spool: Spool, queue_id: int, batch: UUID, progress: Progress | None) -> PushReport:
        """`on_conflict="error"`: a taken subject undoes everything, so everything is one transaction. Subjects are in
        order only within a chunk: two such pushes may meet in a deadlock; PostgreSQL ends one, and it is repeated."""

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
        """Raises Taken for a subject that is. In the order of subjects, as everybody writes them, so that two pushes
        never wait for each other in a circle; with ids in the order given, so that the first runs first."""
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
        return {str(word): int(count) for word, count in rows}

    async def _enter(
        self, connection: AsyncConnection, entry: tuple[UUID, int, int, int], counts: Mapping[str, int]
    ) -> dict[str, int] | None:
        """Notes batch, part, rows and checksum in the ledger. Answers what was reported if it was there already."""
        parameters = (self.name, *entry, orjson.dumps(counts).decode())
        row = await (await connection.execute(say.ENTER_PART, parameters)).fetchone()
        assert row is not None
        return None if row[0] is None else orjson.loads(row[0])

    # --- bulk writers that run in many places at once ---------------------------------------------------------------

    async def limits(self) -> tuple[int, int]:
        """The queue's id, and the largest payload it takes."""
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
        """One part of a job: noted in the ledger, its tasks and what it rejects, in one transaction. One that is there
        already is left as it is, and its report answered. Chunks with subjects have none twice; `counted` is what
        became of those. By COPY, if that is worth a try, while no subject is taken. `places`: so many of a job's parts
        may be written at once; if they are, NoPlace is raised."""

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
        """The end of a job, whose parts are all written. A repeat that differs is a Conflict that says in what."""
        parameters = (self.name, job, partitions, rows, checksum, orjson.dumps(dict(counts)).decode())

        async def attempt() -> dict[str, int]:
            async with self._database.transaction() as connection:
                row = await (await connection.execute(say.SEAL_JOB, parameters)).fetchone()
            assert row is not None
            return dict(orjson.loads(row[0]))

        return await persistently(attempt)

    async def job_report(self, job: UUID) -> dict[str, int] | None:
        """What became of a job; None: it is not sealed."""
        async with self._database.transaction() as connection:
            row = await (await connection.execute(say.JOB_REPORT, (job,))).fetchone()
        return None if row is None or row[0] is None else dict(orjson.loads(row[0]))

    async def judge(self, payloads: list[bytes]) -> dict[int, str]:
        """What PostgreSQL has against payloads, by their position."""
        async with self._database.transaction() as connection:
            rows = await (await connection.execute(say.JUDGE, (TextArray(payloads),))).fetchall()
        return {int(n): str(reason) for n, reason in rows}

    async def prepare_rejects(self, table: str) -> None:
        """A table of somebody's own for what can not be a task: there, and as we need it, or made."""
        needed = {"queue", "job", "partition", *say.REJECTED}
        async with self._database.transaction() as connection:
            named = say.quoted(table)
            await connection.execute("select pg_advisory_xact_lock(hashtext('penstock.reject'))")
            found = {name for (name,) in await (await connection.execute(say.REJECT_COLUMNS, (named,))).fetchall()}
            if not found:
                await connection.execute(say.MAKE_REJECTS.format(named).encode())
            elif not needed <= found:
                raise ValidationError(
                    f"rejectTable: {table} has no {', '.join(sorted(needed - found))}",
                    hint="Name a table that is not there yet: it is made.",
                    field="rejectTable",
                )

    # --- claim, extend, settle, release -----------------------------------------------------------------------------

    async def claim(
        self, limit: int = 1, *, lease: Duration | None = None, worker: str = "", may_alone: bool = True
    ) -> Claim:
        """Up to `limit` tasks, ours until the lease ends. An empty claim is not an empty queue: ask `status`.

        Say `may_alone=False` while other tasks of this worker are running: a task that once took a worker down with it
        is only given to one that has nothing else to lose.
        """
        hint = self._hint.current()
        return await self._claim(self._database.once, say.Wanted(self.name, limit, lease, worker, hint, may_alone))

    async def claim_heard(
        self, once: Once, limit: int, *, lease: Duration | None, worker: str, may_alone: bool
    ) -> Claim:
        """The same for who has just heard of a push, by the connection that heard of it. What expired or is due by now
        is looked after twice a second, not each time."""
        hint = self._hint.heard()
        return await self._claim(once, say.Wanted(self.name, limit, lease, worker, hint, may_alone))

    async def _claim(self, once: Once, wanted: say.Wanted) -> Claim:
        parameters = wanted.checked()
        began = time.perf_counter()
        rows = await once(say.CLAIM, parameters)  # a claim that is lost ends by itself
        self._hint.note(rows, wanted.limit, wanted.hint is None, time.perf_counter() - began)
        claim = say.claimed(self.name, rows)
        unreadable = say.unreadable(claim)
        if unreadable:
            await self.settle(claim, unreadable)
            claim = replace(claim, tasks=tuple(task for task in claim.tasks if task.id not in unreadable))
        return claim

    def look_afresh(self) -> None:
        """The next claim begins at the start of the queue, where it also expires and promotes."""
        self._hint.forget()

    async def extend(self, claim: Claim | UUID | str, *, lease: Duration | None = None) -> Extended:
        """The lease goes on from now. LeaseLost: it is somebody else's, or everything in it was cancelled."""
        parameters = (say.token_of(claim, self.name), validate.lease(lease))
        async with self._database.transaction() as connection:
            row = await (await connection.execute(say.EXTEND, parameters)).fetchone()
        return say.extended(row, claim)

    async def extend_many(self, tokens: Iterable[UUID | str], *, lease: Duration | None = None) -> dict[str, Kept]:
        """Many leases of the queue go on from now; those that are lost are not in the answer."""
        asked = [str(validate.token(token)) for token in tokens]
        async with self._database.transaction() as connection:
            rows = await (await connection.execute(say.EXTEND_MANY, (asked, validate.lease(lease)))).fetchall()
        return {str(token): Kept(until, tuple(revoked)) for token, until, revoked in rows}

    async def settle(
        self, claim: Claim | UUID | str, outcomes: Mapping[int, Outcome] | Iterable[int] | None = None
    ) -> dict[int, str]:
        """Says what became of claimed tasks: a mapping of id to Outcome, or the ids that are done, or nothing: all of
        the claim is done. Answers the state each is in now: done, planned, pending or dead.

        What is no longer ours changes nothing and raises LeaseLost, after the rest is applied.
        """
        parameters = say.settle_parameters(claim, outcomes, self.name)
        if parameters is None:
            return {}
        async with self._database.transaction() as connection:
            rows = await (await connection.execute(say.SETTLE, parameters, binary=True)).fetchall()
        return say.settled(rows)

    async def release(self, claim: Claim | UUID | str, *, delay: Duration | None = None) -> dict[int, str]:
        """Puts back what is still open of the claim, as it was: no attempt burned."""
        wait = validate.delay(delay)
        if isinstance(claim, Claim) and not claim:
            return {}
        token = say.token_of(claim, self.name)
        async with self._database.transaction() as connection:
            rows = await (await connection.execute(say.RELEASE, (token, wait))).fetchall()
        if not rows:
            raise LeaseLost(say.LOST, refused=say.ids_of(claim))
        return say.settled(rows)

    @asynccontextmanager
    async def settling(
        self, claim: Claim, id_: int, outcome: Callable[[], Outcome] = Outcome.done
    ) -> AsyncIterator[AsyncConnection]:
        """A transaction for your own writes that settles a task as its last statement: both happen, or neither.

        LeaseLost, and nothing was written, if the task is no longer ours. It is committed here: who commits, rolls back
        or closes it gets HandlerMisuse, and the task is not settled.
        """
        mark = uuid4().hex
        async with self._database.lent(mark) as connection:
            yield connection
            with translated():
                await still_lent(connection, mark)
                parameters = say.settle_parameters(claim, {id_: outcome()}, self.name)
                assert parameters is not None
                rows = await (await connection.execute(say.SETTLE, parameters, binary=True)).fetchall()
                say.settled(rows)

    # --- what people do to tasks that are there ---------------------------------------------------------------------

    async def cancel(
        self, ids: Iterable[int] | None = None, *, subjects: Iterable[str] | None = None, reason: str = "cancelled"
    ) -> dict[int, str]:
        """Ends tasks unfinished. By id: cancelled, revoked (somebody works on it, and is told at the next extend or
        settle), ended (before), busy (somebody holds it this moment: try again), unknown."""
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
        """Gives dead tasks another life: these (cancelled ones too), or all dead ones of a kind, with this text in
        their error, since then. Attempts and age begin anew. By id: redriven, live (waits or runs), busy, unknown."""
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
            if len(some) < most:
                break
            left = None if left is None else left - len(some)
        return found

    async def reschedule(
        self, due: datetime, ids: Iterable[int] | None = None, *, subjects: Iterable[str] | None = None
    ) -> dict[int, str]:
        """Gives waiting tasks another due. By id: rescheduled, active, ended, busy, unknown."""
        return await self._each("reschedule", ids, subjects, due=validate.moment(due))

    async def reprioritise(
        self, priority: int, ids: Iterable[int] | None = None, *, subjects: Iterable[str] | None = None
    ) -> dict[int, str]:
        """Gives tasks another priority; one that runs now has it from its next attempt on. By id: reprioritised, ended,
        busy, unknown."""
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
        """Removes tasks in these states for good (never active ones); answers how many."""
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
            if row[0] < most:
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
    ) -> list[Listed]:
        """Tasks as they are, in the order of their ids; go on with `after` the last one."""
        after = None if after is None else validate.whole(after, "after", 0, 2**63 - 1)
        which = say.filters(kind=kind, subject=subject, error=error) | {"state": say.known_state(state), "after": after}
        return await self._list(id=None, limit=validate.whole(limit, "limit", 1, say.MOST), **which)

    async def task(self, id: int) -> Listed:  # noqa: A002 - it is what it is called everywhere
        """One task."""
        anything = dict.fromkeys(("state", "kind", "subject", "error", "after"))
        found = await self._list(id=validate.ids([id])[0], limit=1, **anything)
        if not found:
            raise NotFound(f"id: there is no task {id} in queue {self.name!r}")
        return found[0]

    async def _list(self, **which: Any) -> list[Listed]:
        statement = say.list_tasks(which["state"])
        async with self._database.transaction() as connection:
            await connection.execute(
                say.LIMIT, (self.name,)
            )  # a queue that is not there is told apart from an empty one
            rows = await (await connection.execute(statement, {"queue": self.name, **which})).fetchall()
        return say.listed(rows)

    # --- the queue itself -------------------------------------------------------------------------------------------

    async def settings(self) -> QueueSettings:
        found = await settings(self._database, self.name)
        if not found:
            await self.status()  # raises NotFound, with the nearest name
        return found[0]

    async def set(self, **changes: Any) -> QueueSettings:
        """Changes any of lease, max_attempts, retry, sla, keep_done, keep_dead, keep_cancelled, max_payload, paused."""
        wanted = say.queue_changes(changes)
        async with self._database.transaction() as connection:
            await connection.execute(say.SET_QUEUE, (self.name, wanted))
        return await self.settings()

    async def pause(self) -> None:
        """Claims answer nothing until `resume`. Pushes go on; what runs now may settle."""
        await self.set(paused=True)

    async def resume(self) -> None:
        await self.set(paused=False)

    async def drop(self, *, force: bool = False) -> int:
        """Removes the queue. Tasks in it are a reason to refuse, unless forced; answers how many went with it."""
        gone = 0
        if force:
            # In short transactions first: the drop itself makes all queues stand still.
            await self.pause()
            gone = await self.purge("planned", "pending", "done", "dead", "cancelled")
        async with self._database.transaction() as connection:
            row = await (await connection.execute("select penstock.drop_queue(%s, %s)", (self.name, force))).fetchone()
        assert row is not None
        return gone + int(row[0])

    async def lease(self) -> float:
        """Seconds that a claim is ours. Any worker may ask."""
        async with self._database.transaction() as connection:
            row = await (await connection.execute(say.LEASE, (self.name,))).fetchone()
        assert row is not None
        return float(row[0])

    async def set_kinds(self, kinds: list[Json]) -> int:
        """What the code knows of its kinds (retry, max_attempts, timeout), so that settle and expiry agree with it.
        Workers do this at their start. Answers how many changed."""
        async with self._database.transaction() as connection:
            row = await (await connection.execute(say.SET_KINDS, (self.name, orjson.dumps(kinds).decode()))).fetchone()
        return int(row[0]) if row else 0

    async def status(self) -> QueueStatus:
        return (await status(self._database, self.name))[0]

    async def verify(self) -> Verification:
        return await verify(self._database, self.name)


async def fill(spool: Spool, items: Items[Json | NewTask | None]) -> None:
    async for some in batches(items, BATCH):
        spool.add(some)
    spool.finish()


async def copy_named(connection: AsyncConnection, queue_id: int, chunk: Chunk) -> None:
    """Raises Taken for a subject that is. In the order of subjects, as everybody writes them, with ids in the order
    given, so that the first runs first; without subjects the ids come by themselves."""
    ids = None
    if chunk.subjects is not None:
        rows = await (await connection.execute(say.RESERVE, (len(chunk.payloads),))).fetchall()
        ids = [id_ for (id_,) in rows]
    await copy(connection, *say.copy_text(queue_id, chunk, ids))


async def copy(connection: AsyncConnection, columns: str, data: bytes) -> None:
    async with connection.cursor().copy(f"copy penstock.task ({columns}) from stdin".encode()) as into:
        await into.write(data)


async def persistently(attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeats what a ledger makes repeatable, while PostgreSQL restarts or a COMMIT's reply is lost."""
    for n in range(RETRIES):
        try:
            return await attempt()
        except Unavailable as error:
            if n == RETRIES - 1 or error.reason in ("read_only", "closed"):
                raise
            await sleep(min(0.1 * 2**n, 2.0))
    raise AssertionError


# --- all queues and their books -------------------------------------------------------------------------------------


async def create(database: AsyncDatabase, name: str, *, exist_ok: bool = False, **options: Any) -> bool:
    """Creates a queue; False: it was there already (and was left as it is)."""
    statement, parameters = say.create_queue(name, exist_ok, options)
    async with database.transaction() as connection:
        row = await (await connection.execute(statement, parameters)).fetchone()
    return bool(row and row[0])


async def settings(database: AsyncDatabase, name: str | None = None) -> list[QueueSettings]:
    async with database.transaction() as connection:
        return say.settings_of(await (await connection.execute(say.SETTINGS_OF, (name, name))).fetchall())


async def kind_settings(database: AsyncDatabase) -> list[tuple[str, str, Json | None, int | None]]:
    """(queue, kind, retry strategy, max_attempts) of the kinds that have something of their own; None: the queue's."""
    async with database.transaction() as connection:
        rows = await (await connection.execute(say.KINDS_OF)).fetchall()
    return [(queue, kind, None if retry is None else orjson.loads(retry), most) for queue, kind, retry, most in rows]


async def status(database: AsyncDatabase, name: str | None = None) -> list[QueueStatus]:
    asked = None if name is None else validate.queue_name(name)
    async with database.transaction() as connection:
        return say.statuses(await (await connection.execute(say.STATUS, (asked,))).fetchall())


async def verify(database: AsyncDatabase, name: str | None = None) -> Verification:
    async with database.transaction() as connection:
        rows = await (await connection.execute(say.VERIFY, (name,))).fetchall()
        dropped = await (await connection.execute(say.DROPPED, (name,))).fetchone()
    return say.verification(rows, dropped)


async def repair(database: AsyncDatabase, name: str | None = None) -> list[Repair]:
    name = None if name is None else validate.queue_name(name)
    async with database.transaction() as connection:
        return [Repair(*row) for row in await (await connection.execute(say.REPAIR, (name,))).fetchall()]


async def upkeep(database: AsyncDatabase) -> dict[str, int]:
    async with database.transaction() as connection:
        rows = await (await connection.execute(say.UPKEEP)).fetchall()
    return {str(part): int(count) for part, count in rows}


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
    """A worker lives."""
    parameters = (worker, queues, slots, busy, host, pid, requested_at, started_by, leaving)
    async with database.transaction() as connection:
        rows = await (await connection.execute(say.BEAT, parameters)).fetchall()
    return {str(queue): Standing(*standing) for queue, *standing in rows}


async def leave(database: AsyncDatabase, worker: str) -> None:
    """A worker goes."""
    async with database.transaction() as connection:
        await connection.execute(say.LEAVE, (worker,))


# --- scaling --------------------------------------------------------------------------------------------------------
# A queue is scaled by one at a time. Who lost it is refused (Conflict).


async def hold_scaling(
    database: AsyncDatabase,
    queues: Sequence[str],
    *,
    holder: str,
    policy: str,
    lease: Duration,
    instead_of: Sequence[str] = (),
) -> dict[str, ScalingHold]:
    """Takes queues to scale them, all or none. Conflict: another scaler holds one, and is none of those known to be
    dead."""
    parameters = ([*queues], holder, policy, validate.lease(lease), [*instead_of])
    async with database.transaction() as connection:
        rows = await (await connection.execute(say.HOLD_SCALING, parameters)).fetchall()
    return {one.queue: one for one in say.held(rows)}


async def scalers(database: AsyncDatabase, queues: Sequence[str] | None = None) -> list[QueueScaler]:
    """Who scales queues now."""
    asked = None if queues is None else [*queues]
    async with database.transaction() as connection:
        return [QueueScaler(*row) for row in await (await connection.execute(say.SCALERS, (asked,))).fetchall()]


async def decide(database: AsyncDatabase, decided: Sequence[Json], *, holder: str, lease: Duration) -> list[str]:
    """What a scaler wants; its hold goes on. Answers the queues whose decision was noted, being new."""
    parameters = (holder, validate.lease(lease), orjson.dumps(decided).decode())
    async with database.transaction() as connection:
        return [str(name) for (name,) in await (await connection.execute(say.DECIDE, parameters)).fetchall()]


async def leave_scaling(database: AsyncDatabase, holder: str) -> None:
    async with database.transaction() as connection:
        await connection.execute(say.LEAVE_SCALING, (holder,))


async def decisions(
    database: AsyncDatabase, queue: str, *, at: datetime | None = None, limit: int = 20
) -> list[NotedDecision]:
    """What was decided for a queue up to a moment, the newest first."""
    async with database.transaction() as connection:
        return say.decisions(await (await connection.execute(say.DECISIONS, (queue, at, limit))).fetchall())


async def board(database: AsyncDatabase, queue: str | None = None, *, decisions: int = 10, samples: int = 0) -> Board:
    """Queues, workers and decisions, in one round trip."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.BOARD, (queue, decisions, samples))).fetchone()
    assert row is not None
    return say.board(row[0])


async def target_workers(database: AsyncDatabase, queue: str) -> tuple[int, float | None]:
    """How many workers a queue shall have, and how many seconds ago that was decided (None: never)."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.TARGET_WORKERS, (queue, queue))).fetchone()
    assert row is not None
    return int(row[0]), row[1]


async def dismiss(database: AsyncDatabase, workers: Sequence[str]) -> int:
    """Workers that a scaler started shall finish and go."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.DISMISS, ([*workers],))).fetchone()
    return int(row[0]) if row else 0


async def look(database: AsyncDatabase, asked: Sequence[Asked]) -> Look:
    """What a scaler has to know of some queues; what is due is promoted first."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.LOOK, say.asked(asked))).fetchone()
    assert row is not None
    return say.look(row[0])


# --- schedules ------------------------------------------------------------------------------------------------------
# When a cron line fires is not known here: `next_run` and `decide` are given (see penstock.schedule).


async def schedules(database: AsyncDatabase, name: str | None = None) -> list[CronSchedule]:
    async with database.transaction() as connection:
        return say.schedules(await (await connection.execute(say.SCHEDULES, (name,))).fetchall())


async def set_schedule(
    database: AsyncDatabase, new: NewSchedule, next_run: Callable[[CronSchedule], datetime]
) -> CronSchedule:
    """A schedule, new or changed. Another line counts from now: what was decided stays so."""
    async with database.transaction() as connection:
        await connection.execute(say.SET_SCHEDULE, say.set_schedule(new))
        return await aimed(connection, new.name, next_run)


async def drop_schedule(database: AsyncDatabase, name: str) -> None:
    async with database.transaction() as connection:
        await connection.execute(say.DROP_SCHEDULE, (name,))


async def pause_schedule(database: AsyncDatabase, name: str) -> CronSchedule:
    async with database.transaction() as connection:
        await connection.execute(say.PAUSE_SCHEDULE, (name,))
        return say.schedules(await (await connection.execute(say.SCHEDULES, (name,))).fetchall())[0]


async def resume_schedule(
    database: AsyncDatabase, name: str, next_run: Callable[[CronSchedule], datetime]
) -> CronSchedule:
    async with database.transaction() as connection:
        await connection.execute(say.RESUME_SCHEDULE, (name,))
        return await aimed(connection, name, next_run)


async def aimed(connection: AsyncConnection, name: str, next_run: Callable[[CronSchedule], datetime]) -> CronSchedule:
    """Its next tick, if that has to be worked out, while what changed it still holds it."""
    (found,) = say.schedules(await (await connection.execute(say.SCHEDULES, (name,))).fetchall())
    if found.paused or found.next_at > found.at:
        return found
    next_at = next_run(found)
    await connection.execute(say.FIRE, say.firing(found, Firing([], found.mark, next_at)))
    return replace(found, next_at=next_at)


async def next_schedule(database: AsyncDatabase) -> float | None:
    """Seconds until a schedule is due; None: none is waiting."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.NEXT_SCHEDULE)).fetchone()
    return None if row is None or row[0] is None else float(row[0])


async def run_schedules(database: AsyncDatabase, decide: Callable[[CronSchedule], Firing]) -> say.Round:
    """Fires what is due, each in a transaction of its own: one that can not be fired holds up no other."""
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
    return say.Round(pushed, failed)


# --- history --------------------------------------------------------------------------------------------------------


async def horizon(database: AsyncDatabase) -> Horizon:
    """How far history can be read now. Conflict: it was restored from another cluster."""
    async with database.transaction() as connection:
        return say.horizon(await (await connection.execute(say.HORIZON)).fetchone())


async def written(database: AsyncDatabase, start: Horizon, end: Horizon) -> bool:
    """Whether anything was, between the two. Conflict: the start is of another cluster, or ahead of this one."""
    await check_window(database, Window(start, start))
    async with database.transaction() as connection:
        row = await (await connection.execute(say.BETWEEN, (start.xid, end.xid))).fetchone()
    return bool(row and row[0])


async def spans(database: AsyncDatabase, window: Window) -> list[Span]:
    """Where its rows are. Conflict: some of them can no longer be read."""
    await check_window(database, window)
    if window.start.xid:
        with suppress(Unavailable):  # so many that looking for them takes too long
            return await find_spans(database, window, roughly=False)
    return await find_spans(database, window, roughly=True)


async def check_window(database: AsyncDatabase, window: Window) -> None:
    async with database.transaction() as connection:
        for parameters in say.check_window(window):
            await connection.execute(say.CHECK_WINDOW, parameters)


async def find_spans(database: AsyncDatabase, window: Window, *, roughly: bool) -> list[Span]:
    parameters = (window.start.xid, window.end.xid, window.since, window.until, roughly)
    async with database.transaction() as connection:
        await connection.execute(say.SHORTLY)
        return [Span(*row) for row in await (await connection.execute(say.SPANS, parameters)).fetchall()]


async def queue_names(database: AsyncDatabase) -> dict[int, str]:
    """Of all queues there are and were, by their id in history."""
    async with database.transaction() as connection:
        return {int(id_): str(name) for id_, name in await (await connection.execute(say.QUEUE_NAMES)).fetchall()}


async def queues_named(database: AsyncDatabase, name: str) -> list[int]:
    """Those that have, or had, this name. NotFound: none."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.QUEUES_NAMED, (name,))).fetchone()
    return list(row[0]) if row else []


async def set_profiles(database: AsyncDatabase, profiles: Sequence[Json]) -> int:
    """What was learnt about queues, each in place of what was known before; how many of them there still are."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.SET_PROFILES, (orjson.dumps(profiles).decode(),))).fetchone()
    return int(row[0]) if row else 0


async def profiles(database: AsyncDatabase, name: str | None = None) -> list[StoredProfile]:
    """Of one queue or of all; one that has none is there with `made` None."""
    async with database.transaction() as connection:
        return say.profiles(await (await connection.execute(say.PROFILES, (name,))).fetchall())


async def running_times(database: AsyncDatabase) -> list[Running]:
    async with database.transaction() as connection:
        return [Running(*row) for row in await (await connection.execute(say.RUNNING_TIMES)).fetchall()]


async def start_latencies(database: AsyncDatabase) -> list[Latency]:
    async with database.transaction() as connection:
        return [Latency(*row) for row in await (await connection.execute(say.START_LATENCIES)).fetchall()]


async def note_reader(database: AsyncDatabase, name: str, passed: Horizon) -> None:
    """Somebody who will come again has read everything up to there: what he has not is kept for him."""
    async with database.transaction() as connection:
        await connection.execute(say.NOTE_READER, (name, passed.system, passed.xid))


async def forget_reader(database: AsyncDatabase, name: str) -> None:
    """NotFound: there is none of that name."""
    async with database.transaction() as connection:
        await connection.execute(say.FORGET_READER, (name,))


async def history_sums(
    database: AsyncDatabase, span: Span, *, below: int, thorough: bool = False
) -> list[tuple[int, str, int, int]]:
    """Of some pages of a day: rows below a transaction by queue and outcome, and, if thorough, a sum over what they
    say."""
    parameters = (span.day, span.first_page, span.pages, below, thorough)
    async with database.transaction() as connection:
        rows = await (await connection.execute(say.HISTORY_SUMS, parameters)).fetchall()
    return [(int(queue), str(outcome), int(count), int(checksum)) for queue, outcome, count, checksum in rows]


async def history_gone(database: AsyncDatabase, after: int) -> dict[tuple[date, int], int]:
    """What was dropped after a drop that was known: rows by day and queue."""
    async with database.transaction() as connection:
        rows = await (await connection.execute(say.HISTORY_GONE, (after,))).fetchall()
    return {(day, int(queue)): int(count) for day, queue, count in rows}


async def release_day(database: AsyncDatabase, day: date, *, rows: int, below: int) -> bool:
    """Drops a day of history of which somebody has a copy. False: somebody is at it. Conflict: it has other rows."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.RELEASE_DAY, (day, rows, below))).fetchone()
    return bool(row and row[0])


async def rebase_history(database: AsyncDatabase) -> int:
    """After a restore into another cluster: history's rows become the oldest there are."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.REBASE_HISTORY)).fetchone()
    return int(row[0]) if row else 0


async def today(database: AsyncDatabase) -> date:
    """By the database's clock, in UTC: the day of history that is being written."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.TODAY)).fetchone()
    assert row is not None
    found: date = row[0]
    return found


async def sample_days(database: AsyncDatabase, window: Window) -> list[date]:
    """The days of which samples were written in a window."""
    async with database.transaction() as connection:
        rows = await (await connection.execute(say.SAMPLE_DAYS, (window.start.xid, window.end.xid))).fetchall()
    return [day for (day,) in rows]


# --- streams --------------------------------------------------------------------------------------------------------
# A consumer group is driven by one at a time. Who lost it is refused by every call (Conflict).


async def next_epoch(database: AsyncDatabase) -> int:
    async with database.transaction() as connection:
        row = await (await connection.execute(say.NEXT_EPOCH)).fetchone()
    assert row is not None
    return int(row[0])


async def hold_stream(
    database: AsyncDatabase, queue: str, group: str, *, epoch: int, driver: str, lease: Duration
) -> Held:
    """A driver takes a group; it has locked its epoch before."""
    parameters = (queue, group, epoch, driver, validate.lease(lease))
    async with database.transaction() as connection:
        row = await (await connection.execute(say.HOLD_STREAM, parameters)).fetchone()
    assert row is not None
    stream, identity, batch = row
    return Held(stream, epoch, identity, batch)


async def keep_stream(database: AsyncDatabase, held: Held, *, lease: Duration) -> None:
    """The driver lives, and holds what it was given."""
    async with database.transaction() as connection:
        await connection.execute(say.KEEP_STREAM, (held.stream, held.epoch, validate.lease(lease)))


async def leave_stream(database: AsyncDatabase, held: Held) -> None:
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
    """What was given up to `after` is done; what comes next. May be repeated: then it is the same."""
    parameters = (held.stream, held.epoch, after, limit, slots, validate.lease(lease), before)
    async with database.transaction() as connection:
        row = await (await connection.execute(say.NEXT_BATCH, parameters)).fetchone()
    assert row is not None
    return Batch(*row)


async def batch_leases(database: AsyncDatabase, held: Held, after: int, upto: int) -> list[tuple[str, int]]:
    """The leases of what was given after one batch up to another: token and size."""
    async with database.transaction() as connection:
        return await (await connection.execute(say.BATCH_LEASES, (held.stream, held.epoch, after, upto))).fetchall()


async def read_lease(connection: AsyncConnection, token: str, first: int, count: int) -> list[tuple[Any, ...]]:
    """Some of a lease, in its order, as PostgreSQL sent them."""
    with translated():
        return await fetch_raw(connection, say.READ_LEASE, (token, first, count))


async def waiting_now(database: AsyncDatabase, queue: str) -> tuple[datetime, int]:
    """A moment, and how many tasks could run at it."""
    async with database.transaction() as connection:
        row = await (await connection.execute(say.WAITING_NOW, (queue,))).fetchone()
    assert row is not None
    return row[0], int(row[1])
