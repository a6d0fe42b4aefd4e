"""Writes many tasks to a queue: the pushes of one process, and the parts of a job that many processes write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from uuid import UUID

import orjson

from penstock import validate
from penstock.client.binary import TextArray
from penstock.client.borrowed_async import Run, refusals
from penstock.client.concurrency_async import AsyncItems, batches
from penstock.client.connections_async import AsyncConnection
from penstock.client.database_async import AsyncDatabase, retry_unavailable
from penstock.client.spool import BATCH, Chunk, Spool
from penstock.client.sqlstate import translate_errors
from penstock.client.statements import jobs, pushes
from penstock.client.statements.pushes import Rules
from penstock.errors import PartialPush, Taken, Unavailable, ValidationError
from penstock.model import Json, NewTask, OnConflict, Pushed, PushReport

Progress = Callable[[int], None]
"""Is told how many tasks were written so far."""
Write = Callable[..., Awaitable[dict[str, int]]]


class AsyncBulkWriter:
    """Writes many tasks to one queue.

    The ledger makes every write repeatable: a batch that is written again under the same id finds its parts there.
    """

    def __init__(self, database: AsyncDatabase, queue: str) -> None:
        self._database = database
        self._queue = validate.queue_name(queue)

    async def push(
        self, items: AsyncItems[Json | NewTask | None], batch: UUID, rules: Rules, progress: Progress | None
    ) -> PushReport:
        """Pushes all items in transactions of its own; see `AsyncQueue.push_many`."""
        with Spool(largest=validate.MAX_PAYLOAD) as spool:
            await fill(spool, items)
            if not spool.rows:
                return PushReport(batch)
            queue_id = await retry_unavailable(lambda: self._check_sizes(spool))
            if not spool.named and not rules.paced:
                return await retry_unavailable(lambda: self._push_plain(spool, queue_id, batch, progress))
            if rules.on_conflict == "error":
                return await self._push_strictly(spool, queue_id, batch, progress)
            return await self._push_by_parts(spool, queue_id, batch, rules, progress)

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
                    await copy(connection, *pushes.copy_text(queue_id, chunk))
                    if progress:
                        progress(chunk.first + len(chunk.payloads))
        return PushReport(batch, created=spool.rows)

    async def _push_by_parts(
        self, spool: Spool, queue_id: int, batch: UUID, rules: Rules, progress: Progress | None
    ) -> PushReport:
        """Writes each chunk in a transaction of its own. It uses COPY while no subject is taken. From the first taken
        subject on it uses the SQL function that resolves conflicts, which costs twice as much, until a chunk is all new
        again. An upsert expects taken subjects and starts with the function."""
        totals: Counter[str] = Counter()
        copying = rules.on_conflict != "update" and not rules.paced
        for chunk in spool.chunks():
            try:
                counts = await self._copy_or_merge(chunk, queue_id, batch, rules, copying=copying)
            except Unavailable as error:
                if error.reason == "read_only":
                    raise
                raise PartialPush(
                    f"{chunk.first} of {spool.rows} tasks are written: {error.message}",
                    batch_id=batch,
                    written=chunk.first,
                    hint=f"Repeat the call with batch_id={batch}.",
                ) from error
            copying = counts.get("created") == len(chunk.payloads) and not rules.paced
            totals.update(counts)
            if progress:
                progress(chunk.first + len(chunk.payloads))
        return PushReport(batch, **totals)

    async def _copy_or_merge(
        self, chunk: Chunk, queue_id: int, batch: UUID, rules: Rules, *, copying: bool
    ) -> dict[str, int]:
        if copying:
            with suppress(Taken):
                return await self._in_transaction(self._copy_part, chunk, queue_id, batch)
        return await self._in_transaction(self._merge_part, chunk, rules, batch)

    async def _in_transaction(self, write: Write, *arguments: object) -> dict[str, int]:
        """Writes one part in a transaction of its own."""

        async def attempt() -> dict[str, int]:
            async with self._database.transaction() as connection:
                return await write(connection, *arguments)

        return await retry_unavailable(attempt)

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
            return PushReport(batch, **await retry_unavailable(lambda: attempt(self._copy_part, queue_id)))
        except Taken:
            return PushReport(batch, **await retry_unavailable(lambda: attempt(self._merge_part, Rules("error"))))

    async def _copy_part(self, connection: AsyncConnection, chunk: Chunk, queue_id: int, batch: UUID) -> dict[str, int]:
        """Copies one chunk, and raises Taken if one of its subjects exists. Rows are in the order of subjects, the same
        in every writer, so that two pushes never wait for each other in a circle. Ids are in the order given, so that
        the first task runs first."""
        if not pushes.are_distinct(chunk.subjects):
            raise Taken("a subject is given twice")
        counts = {"created": len(chunk.payloads)}
        known = await self._enter(connection, (batch, chunk.part, len(chunk.payloads), chunk.checksum), counts)
        if known is None:
            await copy_named(connection, queue_id, chunk)
        return counts if known is None else known

    async def _merge_part(self, connection: AsyncConnection, chunk: Chunk, rules: Rules, batch: UUID) -> dict[str, int]:
        known = await self._enter(connection, (batch, chunk.part, len(chunk.payloads), chunk.checksum), {})
        if known is not None:
            return known
        counts = await self._merge(connection, chunk, rules)
        await connection.execute(pushes.NOTE_REPORT, (batch, chunk.part, orjson.dumps(counts).decode()))
        return counts

    async def _merge(self, connection: AsyncConnection, chunk: Chunk, rules: Rules) -> dict[str, int]:
        parameters = pushes.merge_parameters(self._queue, chunk, rules)
        with pushes.renumber_items(chunk.first), translate_errors():
            rows = await (await connection.execute(pushes.PUSH_MANY, parameters)).fetchall()
        return pushes.read_counts(rows)

    async def _enter(
        self, connection: AsyncConnection, entry: tuple[UUID, int, int, int], counts: Mapping[str, int]
    ) -> dict[str, int] | None:
        """Notes batch, part, rows and checksum in the ledger. Returns the earlier report if the part is there
        already."""
        parameters = (self._queue, *entry, orjson.dumps(counts).decode())
        row = await (await connection.execute(pushes.ENTER_PART, parameters)).fetchone()
        assert row is not None
        return None if row[0] is None else orjson.loads(row[0])

    async def push_borrowed(
        self,
        run: Run,
        items: AsyncItems[Json | NewTask | None],
        batch: UUID,
        rules: Rules,
        progress: Progress | None,
        *,
        repeatable: bool,
    ) -> PushReport:
        """Writes the items chunk by chunk in the caller's transaction. The ledger is used only if the push is
        `repeatable`, because the caller gave its batch id: otherwise that transaction is all or nothing already."""
        totals: Counter[str] = Counter()
        with Spool(largest=validate.MAX_PAYLOAD) as spool:
            await fill(spool, items)
            if spool.parts > 1:  # under autocommit, a refused chunk does not undo the chunks before it
                with refusals():
                    ((_, largest),) = await run(pushes.LIMIT_AS_TEXT, [self._queue])
                spool.check_sizes(largest)
            for chunk in spool.chunks():
                totals.update(await self._merge_borrowed(run, chunk, rules, batch if repeatable else None))
                if progress:
                    progress(chunk.first + len(chunk.payloads))
        return PushReport(batch, **totals)

    async def _merge_borrowed(self, run: Run, chunk: Chunk, rules: Rules, batch: UUID | None) -> dict[str, int]:
        if batch is None:
            return pushes.count_results(await write_borrowed(run, self._queue, chunk, rules))
        with refusals():
            entry = [str(one) for one in (self._queue, batch, chunk.part, len(chunk.payloads), chunk.checksum)]
            ((known,),) = await run(pushes.ENTER_AS_TEXT, entry)
        if known is not None:
            return dict(orjson.loads(known))
        counts = pushes.count_results(await write_borrowed(run, self._queue, chunk, rules))
        await run(pushes.NOTE_AS_TEXT, [str(batch), str(chunk.part), orjson.dumps(dict(counts)).decode()])
        return counts

    async def limits(self) -> tuple[int, int]:
        """Returns the queue's id and the size of the largest payload that it accepts."""
        queue_id, largest = await self._database.row(pushes.LIMIT, (self._queue,))
        return int(queue_id), int(largest)

    async def write_part(
        self,
        entry: jobs.Entry,
        chunks: Callable[[], Iterable[Chunk]],
        rejects: Sequence[jobs.Reject] = (),
        *,
        queue_id: int,
        on_conflict: OnConflict = "skip",
        copying: bool = True,
        counted: Mapping[str, int] = MappingProxyType({}),
        reject_table: str | None = None,
        slots: int | None = None,
    ) -> dict[str, int]:
        """Writes one part of a job in one transaction: its ledger entry, its tasks and its rejects. A part that is in
        the ledger already is left as it is, and its report is returned.

        Chunks with subjects contain no subject twice; `counted` says what happened to the duplicates. The part is
        written with COPY while no subject is taken, unless `copying` is false. At most `slots` parts of a job are
        written at once; NoSlot is raised when that many are being written.
        """

        async def attempt(*, copying: bool) -> dict[str, int]:
            counts = Counter(counted)
            async with self._database.transaction() as connection:
                if slots is not None:
                    await self._take_slot(connection, entry.job, slots)
                row = await (await connection.execute(*jobs.enter_statement(self._queue, entry))).fetchone()
                if row is not None and row[0] is not None:
                    return dict(orjson.loads(row[0]))
                for chunk in chunks():
                    if chunk.subjects is not None and not copying:
                        counts.update(await self._merge(connection, chunk, Rules(on_conflict)))
                        del counts["skipped_dead"]
                        continue
                    await copy_named(connection, queue_id, chunk)
                    counts["created"] += len(chunk.payloads)
                if rejects:
                    await connection.execute(*jobs.reject_statement(self._queue, entry, rejects, reject_table))
                    counts["rejected"] += len(rejects)
                await connection.execute(pushes.NOTE_REPORT, (entry.batch, entry.part, orjson.dumps(counts).decode()))
            return dict(counts)

        try:
            return await retry_unavailable(lambda: attempt(copying=copying and on_conflict != "update"))
        except Taken:
            return await retry_unavailable(lambda: attempt(copying=False))

    async def _take_slot(self, connection: AsyncConnection, job: UUID, slots: int) -> None:
        row = await (await connection.execute(jobs.TAKE_SLOT, (job, slots))).fetchone()
        if row is None or not row[0]:
            raise jobs.NoSlot

    async def seal_job(
        self, job: UUID, partitions: int, rows: int, checksum: str, counts: Mapping[str, int]
    ) -> dict[str, int]:
        """Ends a job whose parts are all written. A repeat that differs raises Conflict, which names the difference."""
        parameters = (self._queue, job, partitions, rows, checksum, orjson.dumps(dict(counts)).decode())
        report = await retry_unavailable(lambda: self._database.value(jobs.SEAL_JOB, parameters))
        return dict(orjson.loads(report))

    async def job_report(self, job: UUID) -> dict[str, int] | None:
        """Returns the counts of a sealed job, or None if the job is not sealed."""
        report = await self._database.value(jobs.JOB_REPORT, (job,))
        return None if report is None else dict(orjson.loads(report))

    async def find_refused(self, payloads: list[bytes]) -> dict[int, str]:
        """Returns why PostgreSQL refuses payloads, by their position."""
        rows = await self._database.rows(jobs.JUDGE, (TextArray(payloads),))
        return {int(n): str(reason) for n, reason in rows}

    async def prepare_rejects(self, table: str) -> None:
        """Creates a reject table of the given name, or checks that the existing one has the columns that Penstock
        needs."""
        needed = {"queue", "job", "partition", *jobs.REJECTED}
        named = jobs.quote_table(table)

        async def attempt() -> None:
            async with self._database.transaction() as connection:
                found = {name for (name,) in await (await connection.execute(jobs.REJECT_COLUMNS, (named,))).fetchall()}
                if not found:
                    await connection.execute(jobs.MAKE_REJECTS.format(named).encode())
                elif not needed <= found:
                    missing = ", ".join(sorted(needed - found))
                    raise ValidationError(
                        f"rejectTable: table {table} cannot be used, because it has no column {missing}",
                        hint="Name a table that does not exist: Penstock creates it.",
                        field="rejectTable",
                    )

        await retry_unavailable(attempt)


async def write_borrowed(run: Run, queue: str, chunk: Chunk, rules: Rules) -> list[Pushed]:
    """Writes one chunk in the caller's transaction."""
    with pushes.renumber_items(chunk.first), refusals():
        rows = await run(pushes.PUSH_AS_TEXT, pushes.text_columns(queue, chunk, rules))
    return pushes.read_pushed(rows)


async def fill(spool: Spool, items: AsyncItems[Json | NewTask | None]) -> None:
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
        rows = await (await connection.execute(pushes.RESERVE, (len(chunk.payloads),))).fetchall()
        ids = [id_ for (id_,) in rows]
    await copy(connection, *pushes.copy_text(queue_id, chunk, ids))


async def copy(connection: AsyncConnection, columns: str, data: bytes) -> None:
    """Writes rows into the task table with COPY."""
    async with connection.cursor().copy(f"copy penstock.task ({columns}) from stdin".encode()) as into:
        await into.write(data)
