# Made from src/penstock/client/queue_async.py by scripts/make_sync.py (`make generate`): edit that, never this.
"""The verbs of one queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Unpack
from uuid import UUID, uuid4

from penstock import validate
from penstock.client import claims, queues
from penstock.client.borrowed import borrow
from penstock.client.bulk import BulkWriter, Progress, write_borrowed
from penstock.client.concurrency import Items
from penstock.client.connections import Connection
from penstock.client.database import Database, retry_collided
from penstock.client.progress import find_progress
from penstock.client.spool import Chunk, task_columns
from penstock.client.statements import pushes, tasks
from penstock.client.statements.queues import QueueChanges
from penstock.client.statements.tasks import MAX_TASKS
from penstock.client.statements.texts import to_storable
from penstock.client.tasks import change_tasks, explain, list_attempts, list_tasks
from penstock.errors import NotFound
from penstock.model import (
    Attempt,
    Claim,
    Duration,
    Explanation,
    Extended,
    Json,
    NewTask,
    OnConflict,
    Outcome,
    Pushed,
    PushReport,
    QueueSettings,
    QueueStatus,
    State,
    TaskInfo,
    TaskProgress,
    Verification,
)


class Queue:
    """One queue. It is thread-safe. It is cheap to make, but keep it: it remembers where in the queue to look next."""

    def __init__(self, database: Database, name: str) -> None:
        self.name = validate.queue_name(name)
        self._database = database
        self._claimer = claims.Claimer(database, self.name)

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    @property
    def dsn(self) -> str:
        """The DSN of the database that the queue is in."""
        return self._database.dsn

    # --- push -------------------------------------------------------------------------------------------------------

    def push(
        self,
        payload: Json | None = None,
        *,
        subject: str | None = None,
        kind: str = "default",
        due: datetime | None = None,
        delay: Duration | None = None,
        priority: int = 5,
        on_conflict: OnConflict = "skip",
        key: str | None = None,
        meta: Json | None = None,
        expires: datetime | Duration | None = None,
        debounce: Duration | None = None,
        at_most: Duration | None = None,
        throttle: Duration | None = None,
        connection: object | None = None,
    ) -> Pushed:
        """Pushes one task. When the call returns, the task survives a crash of any process or server. The task may run
        at once, from `due` on, or after `delay`, counted by the clock of this machine.

        `key` says whose task it is: a tenant, a customer or a resource, in at most 128 bytes. `meta` is a JSON object
        of headers for the handler, of at most 8,192 bytes, such as the context of a trace. A task that has not started
        when it `expires` is cancelled: at a moment, or so long after its due, or after the push without one.

        With `debounce`, a task waits until its subject was not pushed for so long, and `at_most` so long after the
        first of these pushes. With `throttle`, a push is skipped if one of its subject was not skipped so long ago.

        With `connection`, a connection of yours (psycopg, asyncpg, SQLAlchemy or a Django alias), the task is written
        in your transaction and exists once you commit. Penstock begins, commits and retries nothing on that connection.
        """
        if delay is not None:
            due = validate.due_after(delay, due)
        until = None if expires is None else validate.expires_at(expires, due)
        task = validate.new_task(NewTask(payload, subject, due, priority, kind, None, key, meta, until))
        raw = validate.payload(task.payload, validate.MAX_PAYLOAD)
        rules = pushes.check_rules(on_conflict, debounce, at_most, throttle)
        pushes.check_paced(rules, [task])
        if connection is not None:
            chunk = Chunk([raw], *task_columns([task]), checksum=0, part=0, first=0)
            return write_borrowed(borrow(connection), self.name, chunk, rules)[0]
        statement, parameters = pushes.push_one(self.name, raw, task, rules)

        def attempt() -> Pushed:
            with self._database.transaction() as own:
                row = own.execute(statement, parameters, prepare=True).fetchone()
            assert row is not None
            return Pushed(*row)

        return retry_collided(attempt)

    def push_many(
        self,
        items: Items[Json | NewTask | None],
        *,
        on_conflict: OnConflict = "skip",
        debounce: Duration | None = None,
        at_most: Duration | None = None,
        throttle: Duration | None = None,
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
        rules = pushes.check_rules(on_conflict, debounce, at_most, throttle)
        writer = BulkWriter(self._database, self.name)
        if connection is None:
            return writer.push(items, batch, rules, progress)
        return writer.push_borrowed(borrow(connection), items, batch, rules, progress, repeatable=batch_id is not None)

    def upsert_many(
        self,
        items: Items[Json | NewTask | None],
        *,
        batch_id: UUID | None = None,
        progress: Progress | None = None,
        connection: object | None = None,
    ) -> PushReport:
        """Pushes tasks like `push_many` and updates the ones that exist: a waiting task gets the new payload, kind,
        priority, key, meta and `expires`, and the new due if there is one; a running task runs again with them
        afterwards; an ended task starts anew."""
        return self.push_many(items, on_conflict="update", batch_id=batch_id, progress=progress, connection=connection)

    # --- claim, extend, settle, release -----------------------------------------------------------------------------

    def claim(
        self, limit: int = 1, *, lease: Duration | None = None, worker: str = "", quarantined: bool = True
    ) -> Claim:
        """Claims up to `limit` tasks and leases them to the caller. An empty claim does not mean that the queue is
        empty: use `status` for that.

        Pass `quarantined=False` while other tasks of this worker are running: a task that once crashed its worker is
        given only to a worker that runs nothing else.
        """
        return self._claimer.claim(limit, lease=lease, worker=worker, quarantined=quarantined)

    def extend(self, claim: Claim | UUID | str, *, lease: Duration | None = None) -> Extended:
        """Extends the lease from now on. Raises LeaseLost if another worker has the tasks, or if all of them were
        cancelled."""
        return claims.extend(self._database, self.name, claim, lease=lease)

    def settle(
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
        return claims.settle(self._database, self.name, claim, outcomes, wait=wait)

    def release(self, claim: Claim | UUID | str, *, delay: Duration | None = None, wait: bool = True) -> dict[int, str]:
        """Puts the open tasks of the claim back as they were, without counting an attempt. For `wait` see `settle`."""
        return claims.release(self._database, self.name, claim, delay=delay, wait=wait)

    @contextmanager
    def settling(self, claim: Claim, id_: int, outcome: Callable[[], Outcome] = Outcome.done) -> Iterator[Connection]:
        """Opens a transaction for your own writes and settles a task as its last statement: both happen, or neither.

        Raises LeaseLost, and writes nothing, if the claim no longer holds the task. The transaction is committed here:
        code that commits it, rolls it back or closes the connection gets HandlerMisuse, and the task is not settled.
        """
        with claims.settling(self._database, self.name, claim, id_, outcome) as connection:
            yield connection

    # --- changes to existing tasks ----------------------------------------------------------------------------------

    def cancel(
        self, ids: Iterable[int] | None = None, *, subjects: Iterable[str] | None = None, reason: str = "cancelled"
    ) -> dict[int, str]:
        """Ends tasks unfinished. Returns by id: cancelled; revoked (a worker runs it, and learns of it at its next
        extend or settle); ended (it had ended before); busy (another transaction holds it at this moment: try again);
        or unknown."""
        return change_tasks(self._database, self.name, "cancel", ids, subjects, reason=to_storable(reason))

    def redrive(
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
        chosen = tasks.check_filters(kind=kind, error=error)
        if ids is not None or subjects is not None:
            return change_tasks(
                self._database, self.name, "redrive", ids, subjects, **chosen, since=since, limit=tasks.MAX_TASKS
            )
        found: dict[int, str] = {}
        left = None if limit is None else validate.whole(limit, "limit", 1, 2**31)
        self._database.refuse_rehearsal("redrive by filter")
        while left is None or left > 0:
            most = tasks.MAX_TASKS if left is None else min(left, tasks.MAX_TASKS)
            some = change_tasks(self._database, self.name, "redrive", None, None, **chosen, since=since, limit=most)
            found |= some
            redriven = sum(result == "redriven" for result in some.values())
            if len(some) < most or not redriven:  # what is left is busy
                break
            left = None if left is None else left - redriven
        return found

    def reschedule(
        self, due: datetime, ids: Iterable[int] | None = None, *, subjects: Iterable[str] | None = None
    ) -> dict[int, str]:
        """Gives waiting tasks another due. Returns by id: rescheduled, active, ended, busy or unknown."""
        return change_tasks(self._database, self.name, "reschedule", ids, subjects, due=validate.moment(due))

    def reprioritise(
        self, priority: int, ids: Iterable[int] | None = None, *, subjects: Iterable[str] | None = None
    ) -> dict[int, str]:
        """Gives tasks another priority; a running task gets it for its next attempt. Returns by id: reprioritised,
        ended, busy or unknown."""
        return change_tasks(
            self._database,
            self.name,
            "reprioritise",
            ids,
            subjects,
            priority=validate.check_priority(priority),
        )

    def purge(
        self,
        *states: State,
        ids: Iterable[int] | None = None,
        kind: str | None = None,
        error: str | None = None,
        before: datetime | None = None,
        limit: int | None = None,
    ) -> int:
        """Removes tasks in these states for good, but never active ones, and returns how many it removed."""
        which = tasks.choose_tasks(self.name, ids, None) | {
            "states": list(states),
            **tasks.check_filters(kind=kind, error=error),
            "before": None if before is None else validate.moment(before, "before"),
        }
        left = None if limit is None else validate.whole(limit, "limit", 1, 2**31)
        gone = 0
        self._database.refuse_rehearsal("purge")
        while left is None or gone < left:
            most = tasks.MAX_TASKS if left is None else min(left - gone, tasks.MAX_TASKS)
            removed = self._database.value(tasks.VERBS["purge"], which | {"limit": most})
            gone += removed
            if removed == 0:  # fewer than `most` may also mean that some were busy
                break
        return gone

    def tasks(
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
        which = tasks.check_filters(kind=kind, subject=subject, error=error) | {
            "state": tasks.check_state(state),
            "after": after,
        }
        return list_tasks(
            self._database, self.name, id=None, limit=validate.whole(limit, "limit", 1, tasks.MAX_TASKS), **which
        )

    def task(self, id: int) -> TaskInfo:  # noqa: A002 - the parameter has this name everywhere
        """Returns one task by its id."""
        anything = dict.fromkeys(("state", "kind", "subject", "error", "after"))
        found = list_tasks(self._database, self.name, id=validate.ids([id])[0], limit=1, **anything)
        if not found:
            raise NotFound(
                f"id: there is no task {id} in queue {self.name!r}",
                hint="A done task is removed, unless its queue has keep_done; `app.find_task(id)` finds it in history.",
            )
        return found[0]

    def attempts(self, id: int, *, limit: int = MAX_TASKS) -> list[Attempt]:  # noqa: A002 - the parameter has this name everywhere
        """Returns the attempts of one task, oldest first: the finished ones, as long as history is kept, and at the end
        the running one. If there are more than `limit`, these are the last ones."""
        return list_attempts(self._database, id, self.name, limit=limit)

    def progress(self, id: int) -> TaskProgress | None:  # noqa: A002 - the parameter has this name everywhere
        """Returns how far a task is and what it logged, as its handler said with `context.progress` and `context.log`,
        or None if it said nothing."""
        return find_progress(self._database, id, self.name)

    def why(self, id: int) -> Explanation:  # noqa: A002 - the parameter has this name everywhere
        """Returns why a task does not run: a reason, a sentence with numbers, and the facts. It also answers for a task
        that runs, has ended, is removed, or was never there."""
        return explain(self._database, self.name, id)

    # --- the queue itself -------------------------------------------------------------------------------------------

    def settings(self) -> QueueSettings:
        """Returns the settings of the queue."""
        found = queues.settings(self._database, self.name)
        if not found:
            self.status()  # raises NotFound, with the nearest name
        return found[0]

    def set(self, **changes: Unpack[QueueChanges]) -> QueueSettings:
        """Changes the given settings, and returns all of them: any of lease, max_attempts, max_crashes, retry, sla,
        keep_done, keep_dead, keep_cancelled, priority_step, max_payload, notify and paused."""
        queues.change(self._database, self.name, changes)
        return self.settings()

    def pause(self) -> None:
        """Pauses the queue: claims return nothing until `resume`. Pushes go on, and running tasks may settle."""
        queues.set_paused(self._database, self.name, True)

    def resume(self) -> None:
        """Resumes a paused queue."""
        queues.set_paused(self._database, self.name, False)

    def drop(self, *, force: bool = False) -> int:
        """Removes the queue and returns how many tasks were removed with it. It refuses if the queue has tasks, or
        gets the follow-ups of another queue, unless `force` is given."""
        gone = 0
        if force:
            # Tasks are removed in short transactions first, because the drop itself blocks all queues.
            self.pause()
            gone = self.purge("planned", "pending", "done", "dead", "cancelled")
        return gone + queues.drop(self._database, self.name, force=force)

    def status(self) -> QueueStatus:
        """Returns the counts of the queue in one snapshot."""
        return queues.status(self._database, self.name)[0]

    def verify(self) -> Verification:
        """Recounts the queue and compares the result with its counters."""
        return queues.verify(self._database, self.name)
