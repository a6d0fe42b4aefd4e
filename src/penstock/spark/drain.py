"""Drains queues and adopted tables on Spark's executors, for heavy work. Each Spark task claims, calls the handler and
settles until no task waits. Leases decide which Spark task has which tasks, so a repeated Spark task simply
continues."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import pyarrow as pa
from pyspark import TaskContext, cloudpickle

from penstock import backlog, validate
from penstock.client.claims import Claimer
from penstock.client.database import retry_unavailable
from penstock.client.queue import Queue
from penstock.client.statements.claims import failure_of_settle
from penstock.client.statements.texts import to_storable
from penstock.client.workers import find_lease
from penstock.errors import Conflict, LeaseLost, PenstockError, Unavailable, ValidationError, shown
from penstock.handlers.outcomes import judged
from penstock.handlers.tracebacks import error_text
from penstock.model import Claim, Duration, Outcome, Task
from penstock.spark.connection import open_database, resolve_dsn
from penstock.spark.options import MAX_PARTITIONS, Address
from penstock.spark.renewal import RenewalThread
from penstock.spark.subprocess_call import ChildProcess, ProcessEnded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SparkHandler = Callable[[Task], Outcome | None]
"""Handles one task on an executor. None means that the task is done."""

BATCH_SIZE = 10
SETTLE_EVERY = 0.5  # seconds: small tasks are settled together
LOOK_AGAIN = 0.1  # seconds
MAX_WAIT = 30.0  # seconds without a claim although tasks wait: other workers hold them
PASS_SIZE = 10_000  # records of an adopted table in one pass
MAX_DEATHS = 20  # of processes in a row, without a pass that ended

OUTCOMES = pa.schema(
    [
        ("id", pa.int64()),
        ("kind", pa.string()),
        ("subject", pa.string()),
        ("attempt", pa.int32()),
        ("outcome", pa.string()),
        ("error", pa.string()),
        ("seconds", pa.float64()),
        ("worker", pa.string()),
    ]
)
PASSES = pa.schema(
    [
        ("worker", pa.string()),
        *((name, pa.int64()) for name in ("done", "failed", "dead", "changed", "skipped", "ended")),
        ("seconds", pa.float64()),
    ]
)


@dataclass(frozen=True, slots=True)
class DrainSpec:
    """What a Spark task needs to know."""

    dsn: str = field(repr=False)
    source: str
    name: str  # of the queue, or of the adopted table
    function: bytes = field(repr=False)
    shares: tuple[int | None, ...]
    job: str
    batch: int = BATCH_SIZE
    lease: float = 0.0


def drain(
    spark: SparkSession,
    queue: str,
    handler: SparkHandler,
    *,
    dsn: str | None = None,
    batch: int = BATCH_SIZE,
    partitions: int | None = None,
    lease: Duration | None = None,
    limit: int | None = None,
) -> DataFrame:
    """Drains a queue now, until no task is pending or `limit` tasks were handled. Returns the outcome of each task.

    The handler is called with a Task, in a process of its own beside each executor's Python worker. It returns None
    (done), returns an Outcome, or raises (failed, and retried as the queue says). A handler that ends its process has
    failed too. Columns of the result: id, kind, subject, attempt, outcome (as in history; lost: the lease was lost),
    error, seconds, worker. If a Spark task is repeated, its earlier rows are missing, but its tasks are settled; its
    share of `limit` begins again.
    """
    name = validate.queue_name(queue)
    size = validate.whole(batch, "batch", 1, validate.MAX_CLAIM)
    limit = None if limit is None else validate.whole(limit, "limit", 1, 2**31)
    asked = validate.lease(lease)
    check_handler(handler, "task")
    resolved, source = resolve_dsn(Address(dsn))
    with open_database(Address(resolved)) as database:
        seconds = find_lease(database, name) if asked is None else asked.total_seconds()
    shares = split_limit(limit, choose_partitions(spark, partitions))
    spec = DrainSpec(
        resolved, source, name, pickle_handler(partial(perform, handler)), shares, make_job_id(), size, seconds
    )
    return run_drain(spark, spec, drain_queue, OUTCOMES)


def drain_backlog(
    spark: SparkSession,
    name: str,
    handler: Callable[..., Any],
    *,
    dsn: str | None = None,
    partitions: int | None = None,
    limit: int | None = None,
    max_age: Duration | None = None,
) -> DataFrame:
    """Drains an adopted table: each Spark task runs passes over it until one finds nothing more. A pass skips the
    records that another pass has locked, so any number may run at once. Each row of the result is a pass; `ended`
    counts the processes that ended during it."""
    limit = None if limit is None else validate.whole(limit, "limit", 1, 2**31)
    check_handler(handler, "record")
    resolved, source = resolve_dsn(Address(dsn))
    known = backlog.load(resolved, source, name)
    if known.terms.mode == "observe":
        raise Conflict(f"{known.name} was adopted to be observed only")
    one_pass = partial(run_pass, dsn=resolved, source=source, name=known.name, handler=handler, max_age=max_age)
    spec = DrainSpec(
        resolved,
        source,
        known.name,
        pickle_handler(one_pass),
        split_limit(limit, choose_partitions(spark, partitions)),
        make_job_id(),
    )
    return run_drain(spark, spec, drain_table, PASSES)


# --- in the driver ----------------------------------------------------------------------------------------------------


def run_drain(
    spark: SparkSession, spec: DrainSpec, run: Callable[[DrainSpec, int], Iterator[pa.RecordBatch]], schema: pa.Schema
) -> DataFrame:
    """Drains now, and keeps the rows on the executors without their lineage: if an executor is lost, reading the result
    fails. A cached DataFrame would be computed again then, and drain again."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - it brings pandas

    def drained(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch["id"].to_pylist():
                yield from run(spec, part)

    parts = len(spec.shares)
    numbers = spark.range(0, parts, 1, parts)
    made = numbers.mapInArrow(drained, from_arrow_schema(schema))
    return made.localCheckpoint(eager=True)


def check_handler(handler: object, what: str) -> None:
    if not callable(handler):
        raise ValidationError(f"handler: {shown(handler)} cannot be called", field="handler")
    if inspect.iscoroutinefunction(handler):
        raise ValidationError(
            "handler: an async function cannot run on executors", hint=f"def handle({what}): …", field="handler"
        )


def pickle_handler(function: Callable[[Any], Any]) -> bytes:
    try:
        return cast("bytes", cloudpickle.dumps(function))  # type: ignore[no-untyped-call]  # Spark's
    except Exception as error:
        raise ValidationError(f"handler: it cannot be sent to executors: {error}", field="handler") from error


def choose_partitions(spark: SparkSession, partitions: int | None) -> int:
    if partitions is not None:
        return validate.whole(partitions, "partitions", 1, MAX_PARTITIONS)
    return min(spark.sparkContext.defaultParallelism, MAX_PARTITIONS)


def split_limit(limit: int | None, parts: int) -> tuple[int | None, ...]:
    """Splits a limit into parts, none of which is 0."""
    if limit is None:
        return (None,) * parts
    each, rest = divmod(limit, parts)
    return tuple(each + (n < rest) for n in range(min(parts, limit)))


def make_job_id() -> str:
    return token_hex(8)


# --- in an executor: a queue ------------------------------------------------------------------------------------------


class TaskRow(NamedTuple):
    """A row of the result: one task."""

    id: int
    kind: str
    subject: str | None
    attempt: int
    outcome: str
    error: str | None
    seconds: float
    worker: str


def perform(handler: SparkHandler, task: Task) -> Outcome:
    """Calls the handler with one task, in the child process. A handler that raises SystemExit has failed: if its task
    were released, it would do so again and again."""
    try:
        return judged(handler(task), None)
    except BaseException as error:  # noqa: BLE001 - an outcome comes of it
        return Outcome.failed(error_text(error), error_class=type(error).__name__)


def drain_queue(spec: DrainSpec, part: int) -> Iterator[pa.RecordBatch]:
    worker = name_worker(spec, part)
    with ExitStack() as stack:
        child = stack.enter_context(ChildProcess(spec.function))
        database = stack.enter_context(open_database(Address(spec.dsn), connections=2))
        queue = Queue(database, spec.name)
        keeper = stack.enter_context(LeaseKeeper(queue, spec.lease))
        claimer = Claimer(database, spec.name)
        for claim in claim_until_empty(queue, claimer, spec, worker, spec.shares[part]):
            with keeper.hold(claim):
                for rows in run_claim(queue, claim, child, keeper, worker):
                    yield to_batch(rows, OUTCOMES)


def name_worker(spec: DrainSpec, part: int) -> str:
    context = TaskContext.get()
    return f"spark-{spec.job}-{part}.{context.attemptNumber() if context else 0}"


def claim_until_empty(
    queue: Queue, claimer: Claimer, spec: DrainSpec, worker: str, left: int | None
) -> Iterator[Claim]:
    """Yields claims until nothing is pending in two consecutive looks, because a task that has just failed may be due
    at once. It gives up after MAX_WAIT seconds if other workers hold the tasks that wait."""
    since, looked = time.monotonic(), 0
    while left != 0:
        size = spec.batch if left is None else min(spec.batch, left)
        claim = retry_unavailable(partial(claimer.claim, size, lease=spec.lease, worker=worker))
        if claim:
            yield claim
            left = None if left is None else left - len(claim)
            since, looked = time.monotonic(), 0
            continue
        status = retry_unavailable(queue.status)
        waited = time.monotonic() - since
        looked = 0 if status.pending else looked + 1
        if looked > 1 or status.paused or waited > MAX_WAIT:
            return
        claimer.start_over()
        time.sleep(min(LOOK_AGAIN + waited / 4, 1.0))


def run_claim(
    queue: Queue, claim: Claim, child: ChildProcess, keeper: LeaseKeeper, worker: str
) -> Iterator[list[TaskRow]]:
    """Runs the tasks of a claim one by one. Outcomes are settled every SETTLE_EVERY seconds, and at the end."""
    done: dict[int, tuple[Task, Outcome, float]] = {}
    settled_at = time.monotonic()
    try:
        for task in claim.tasks:
            if keeper.lost or task.id in keeper.revoked:
                yield [make_row(task, "lost" if keeper.lost else "revoked", None, 0.0, worker)]
                continue
            began = time.monotonic()
            outcome = call_handler(child, task)
            done[task.id] = (task, outcome, time.monotonic() - began)
            if time.monotonic() - settled_at > SETTLE_EVERY:
                yield settle_rows(queue, claim, done, worker)
                done, settled_at = {}, time.monotonic()
        if done:
            rows, done = settle_rows(queue, claim, done, worker), {}
            yield rows
    except BaseException:
        with suppress(PenstockError):  # other workers get the remaining tasks at once, not when the lease ends
            settle_rows(queue, claim, done, worker)
            queue.release(claim)
        raise


def call_handler(child: ChildProcess, task: Task) -> Outcome:
    try:
        return cast("Outcome", child.call(task))
    except ProcessEnded as error:
        return Outcome.failed(error, error_class="EndedItsProcess")


def settle_rows(queue: Queue, claim: Claim, done: dict[int, tuple[Task, Outcome, float]], worker: str) -> list[TaskRow]:
    words = settle_lease(queue, claim, {id_: outcome for id_, (_, outcome, _) in done.items()})
    return [
        make_row(task, words[id_], to_storable(outcome.error), seconds, worker)
        for id_, (task, outcome, seconds) in done.items()
    ]


def settle_lease(queue: Queue, claim: Claim, outcomes: dict[int, Outcome]) -> dict[int, str]:
    """Returns the outcome of each task, as in history. If PostgreSQL refuses an outcome, only that task fails. Tasks
    whose lease was lost are reported as lost."""
    try:
        states = retry_unavailable(lambda: queue.settle(claim, outcomes))
    except LeaseLost as error:
        gone = dict.fromkeys(error.refused, "lost") | dict.fromkeys(error.revoked, "revoked")
        return {id_: gone.get(id_) or name_outcome(outcome, "") for id_, outcome in outcomes.items()}
    except ValidationError as error:
        if len(outcomes) > 1:
            each = [settle_lease(queue, claim, {id_: outcome}) for id_, outcome in outcomes.items()]
            return {id_: word for words in each for id_, word in words.items()}
        refused = failure_of_settle(error)
        states = queue.settle(claim, dict.fromkeys(outcomes, refused))
        return {id_: name_outcome(refused, states[id_]) for id_ in outcomes}
    return {id_: name_outcome(outcome, states[id_]) for id_, outcome in outcomes.items()}


def name_outcome(outcome: Outcome, state: str) -> str:
    return "dead" if state == "dead" else "released" if outcome.word == "release" else outcome.word


def make_row(task: Task, outcome: str, error: str | None, seconds: float, worker: str) -> TaskRow:
    return TaskRow(task.id, task.kind, task.subject, task.attempt, outcome, error, seconds, worker)


def to_batch(rows: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([one._asdict() for one in rows], schema=schema)


class LeaseKeeper:
    """Extends the lease of the present claim in a thread. The handler runs in a process of its own, so it cannot block
    this thread."""

    def __init__(self, queue: Queue, seconds: float) -> None:
        self.lost = False
        self.revoked: set[int] = set()
        self._queue = queue
        self._seconds = seconds
        self._claim: Claim | None = None
        self._changing = threading.Lock()
        self._renewal = RenewalThread("penstock-keeper", self._renew, seconds / 3)

    def __enter__(self) -> Self:
        self._renewal.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._renewal.stop()

    @contextmanager
    def hold(self, claim: Claim) -> Iterator[None]:
        with self._changing:
            self._claim, self.lost, self.revoked = claim, False, set()
        self._renewal.set_next(self._seconds / 3)
        try:
            yield
        finally:
            with self._changing:
                self._claim = None

    def _renew(self) -> float:
        """Extends the lease after each third of its duration. If that fails, it tries again soon."""
        with self._changing:
            claim = None if self.lost else self._claim
        kept = claim is None or self._extend(claim)
        return self._seconds / 3 if kept else min(self._seconds / 3, 1.0)

    def _extend(self, claim: Claim) -> bool:
        try:
            revoked = self._queue.extend(claim, lease=self._seconds).revoked
        except LeaseLost as error:
            with self._changing:
                if self._claim is claim:
                    self.lost = not error.revoked
                    self.revoked |= {*error.revoked}
        except Unavailable:
            return False
        else:
            with self._changing:
                if self._claim is claim:
                    self.revoked |= {*revoked}
        return True


# --- in an executor: an adopted table ---------------------------------------------------------------------------------


class PassRow(NamedTuple):
    """A row of the result: one pass."""

    worker: str
    done: int
    failed: int
    dead: int
    changed: int
    skipped: int
    ended: int
    seconds: float


def run_pass(
    limit: int, *, dsn: str, source: str, name: str, handler: Callable[..., Any], max_age: Duration | None
) -> tuple[backlog.PassReport, bool]:
    """Runs one pass in the child process. Returns its report, and whether there may be more records."""
    report = backlog.load(dsn, source, name).process(handler, max_age=max_age, limit=limit)
    return report, report.more and report.handled > 0


def drain_table(spec: DrainSpec, part: int) -> Iterator[pa.RecordBatch]:
    """Runs passes. After a pass whose process ended, the next one is careful and finds out which record ended it."""
    worker = name_worker(spec, part)
    left = spec.shares[part]
    ended, more = 0, True
    with ChildProcess(spec.function) as child:
        while more and left != 0:
            limit = PASS_SIZE if left is None else min(left, PASS_SIZE)
            try:
                report, more = child.call(limit)
            except ProcessEnded as error:
                ended += 1
                if ended >= MAX_DEATHS:
                    raise Conflict(f"{spec.name}: {ended} passes in a row did not end: {error}") from None
                continue
            counts = (report.done, report.failed, report.dead, report.changed, report.skipped)
            yield to_batch([PassRow(worker, *counts, ended, report.seconds)], PASSES)
            left = None if left is None else left - report.handled
            ended = 0
