"""Queues and adopted tables drained by Spark's executors, for heavy work: claim → handler → settle in each Spark task,
until nothing waits. Leases decide who has what, so a Spark task that is repeated simply goes on."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext, cloudpickle

from penstock import backlog, validate
from penstock.errors import Conflict, LeaseLost, PenstockError, Unavailable, ValidationError, shown
from penstock.model import Claim, Duration, Outcome, Task
from penstock.queue import Queue, persistently
from penstock.spark.hand import Ended, Hand
from penstock.spark.hints import hinted
from penstock.spark.options import MOST_PARTITIONS, Place
from penstock.spark.place import found, opened
from penstock.statements import storable
from penstock.worker.execution import error_text, judged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Handler = Callable[[Task], Outcome | None]

BATCH = 10
SETTLE_EVERY = 0.5  # seconds: small tasks are settled together
LOOK_AGAIN = 0.1  # seconds
PATIENCE = 30.0  # seconds without a task, although some wait: somebody holds them
PASS = 10_000  # records of an adopted table in one pass
DEATHS = 20  # of processes, one after the other, with nothing handled between

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
class Orders:
    """What a Spark task is told."""

    dsn: str = field(repr=False)
    source: str
    name: str  # of the queue, or of the adopted table
    function: bytes = field(repr=False)
    shares: tuple[int | None, ...]
    job: str
    batch: int = BATCH
    lease: float = 0.0


def drain(
    spark: SparkSession,
    queue: str,
    handler: Handler,
    *,
    dsn: str | None = None,
    batch: int = BATCH,
    partitions: int | None = None,
    lease: Duration | None = None,
    max_tasks: int | None = None,
) -> DataFrame:
    """Runs now, until nothing is pending or `max_tasks` were handled, and answers what became of each.

    The handler is called with a Task, in a process of its own beside each executor's Python worker. It returns (done),
    returns an Outcome, or raises (failed, tried again as the queue says); one that ends its process has failed too.
    Rows: id, kind, subject, attempt, outcome (as in history; lost: the lease was), error, seconds, worker. A Spark task
    that is repeated has forgotten its rows, never its tasks; and begins its share of `max_tasks` anew.
    """
    name = validate.queue_name(queue)
    size = validate.whole(batch, "batch", 1, validate.LARGEST_CLAIM)
    most = None if max_tasks is None else validate.whole(max_tasks, "max_tasks", 1, 2**31)
    asked = validate.lease(lease)
    check_handler(handler, "task")
    place, source = found(Place(dsn))
    with opened(Place(place)) as database:
        seconds = Queue(database, name).lease() if asked is None else asked.total_seconds()
    shares = shared(most, parallel(spark, partitions))
    orders = Orders(place, source, name, pickled(partial(performed, handler)), shares, new_job(), size, seconds)
    return outcomes(spark, orders, work, OUTCOMES)


def drain_backlog(
    spark: SparkSession,
    name: str,
    handler: Callable[..., Any],
    *,
    dsn: str | None = None,
    partitions: int | None = None,
    max_records: int | None = None,
    max_age: Duration | None = None,
) -> DataFrame:
    """The same for an adopted table: each Spark task runs passes over it until one finds nothing more. What a pass has
    locked no other sees, so any number may run at once. Rows: what each pass did; `ended`: processes it cost."""
    most = None if max_records is None else validate.whole(max_records, "max_records", 1, 2**31)
    check_handler(handler, "record")
    place, source = found(Place(dsn))
    with hinted():
        known = backlog.load(place, source, name)
        if known.terms.mode == "observe":
            raise Conflict(f"{known.name} was adopted to be observed only")
    one_pass = partial(passed, dsn=place, source=source, name=known.name, handler=handler, max_age=max_age)
    orders = Orders(place, source, known.name, pickled(one_pass), shared(most, parallel(spark, partitions)), new_job())
    return outcomes(spark, orders, work_backlog, PASSES)


# --- in the driver ----------------------------------------------------------------------------------------------------


def outcomes(
    spark: SparkSession, orders: Orders, run: Callable[[Orders, int], Iterator[pa.RecordBatch]], schema: pa.Schema
) -> DataFrame:
    """Made now and kept by the executors, cut off from how it was made: if one of them is lost, looking at it fails. A
    cached DataFrame would be made again then, and drain again."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - it brings pandas

    def drained(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch["id"].to_pylist():
                yield from run(orders, part)

    parts = len(orders.shares)
    numbers = spark.range(0, parts, 1, parts)
    made = numbers.mapInArrow(drained, from_arrow_schema(schema))
    return made.localCheckpoint(eager=True)


def check_handler(handler: object, what: str) -> None:
    if not callable(handler):
        raise ValidationError(f"handler: {shown(handler)} can not be called", field="handler")
    if inspect.iscoroutinefunction(handler):
        raise ValidationError(
            "handler: an async function can not run on executors", hint=f"def handle({what}): …", field="handler"
        )


def pickled(function: Callable[[Any], Any]) -> bytes:
    try:
        return cast("bytes", cloudpickle.dumps(function))  # type: ignore[no-untyped-call]  # Spark's
    except Exception as error:
        raise ValidationError(f"handler: it can not be sent to executors: {error}", field="handler") from error


def parallel(spark: SparkSession, partitions: int | None) -> int:
    if partitions is not None:
        return validate.whole(partitions, "partitions", 1, MOST_PARTITIONS)
    return min(spark.sparkContext.defaultParallelism, MOST_PARTITIONS)


def shared(most: int | None, parts: int) -> tuple[int | None, ...]:
    """A limit, in so many parts; none of them empty."""
    if most is None:
        return (None,) * parts
    each, rest = divmod(most, parts)
    return tuple(each + (n < rest) for n in range(min(parts, most)))


def new_job() -> str:
    return uuid4().hex[:8]


# --- in an executor: a queue ------------------------------------------------------------------------------------------


class Done(NamedTuple):
    """A row of the answer."""

    id: int
    kind: str
    subject: str | None
    attempt: int
    outcome: str
    error: str | None
    seconds: float
    worker: str


def performed(handler: Handler, task: Task) -> Outcome:
    """One task, in the hand's process. Whoever wants to end it has failed: put back, it would do so again and again."""
    try:
        return judged(handler(task), None)
    except BaseException as error:  # noqa: BLE001 - an outcome comes of it
        return Outcome.failed(error_text(error), error_class=type(error).__name__)


def work(orders: Orders, part: int) -> Iterator[pa.RecordBatch]:
    worker = named(orders, part)
    with ExitStack() as stack:
        stack.enter_context(hinted())
        hand = stack.enter_context(Hand(orders.function))
        database = stack.enter_context(opened(Place(orders.dsn), connections=2))
        queue = Queue(database, orders.name)
        keeper = stack.enter_context(Keeper(queue, orders.lease))
        for claim in claims(queue, orders, worker, orders.shares[part]):
            with keeper.holding(claim):
                for rows in flown(queue, claim, hand, keeper, worker):
                    yield as_batch(rows, OUTCOMES)


def named(orders: Orders, part: int) -> str:
    context = TaskContext.get()
    return f"spark-{orders.job}-{part}.{context.attemptNumber() if context else 0}"


def claims(queue: Queue, orders: Orders, worker: str, left: int | None) -> Iterator[Claim]:
    """Until nothing is pending, looked at twice: what failed a moment ago may be due the next. For what nobody can get
    at it does not wait for ever."""
    since, looked = time.monotonic(), 0
    while left != 0:
        size = orders.batch if left is None else min(orders.batch, left)
        claim = persistently(partial(queue.claim, size, lease=orders.lease, worker=worker))
        if claim:
            yield claim
            left = None if left is None else left - len(claim)
            since, looked = time.monotonic(), 0
            continue
        status = persistently(queue.status)
        waited = time.monotonic() - since
        looked = 0 if status.pending else looked + 1
        if looked > 1 or status.paused or waited > PATIENCE:
            return
        queue.look_afresh()
        time.sleep(min(LOOK_AGAIN + waited / 4, 1.0))


def flown(queue: Queue, claim: Claim, hand: Hand, keeper: Keeper, worker: str) -> Iterator[list[Done]]:
    """The tasks of a claim, one by one; what became of them is settled every now and then, and at the end."""
    told: dict[int, tuple[Task, Outcome, float]] = {}
    settled_at = time.monotonic()
    try:
        for task in claim.tasks:
            if keeper.lost or task.id in keeper.revoked:
                yield [row(task, "lost" if keeper.lost else "revoked", None, 0.0, worker)]
                continue
            began = time.monotonic()
            outcome = handled(hand, task)
            told[task.id] = (task, outcome, time.monotonic() - began)
            if time.monotonic() - settled_at > SETTLE_EVERY:
                yield settled(queue, claim, told, worker)
                told, settled_at = {}, time.monotonic()
        if told:
            rows, told = settled(queue, claim, told, worker), {}
            yield rows
    except BaseException:
        with suppress(PenstockError):  # what was not begun is somebody else's at once, not when the lease ends
            settled(queue, claim, told, worker)
            queue.release(claim)
        raise


def handled(hand: Hand, task: Task) -> Outcome:
    try:
        return cast("Outcome", hand.call(task))
    except Ended as error:
        return Outcome.failed(error, error_class="EndedItsProcess")


def settled(queue: Queue, claim: Claim, told: dict[int, tuple[Task, Outcome, float]], worker: str) -> list[Done]:
    words = settle(queue, claim, {id_: outcome for id_, (_, outcome, _) in told.items()})
    return [
        row(task, words[id_], storable(outcome.error), seconds, worker)
        for id_, (task, outcome, seconds) in told.items()
    ]


def settle(queue: Queue, claim: Claim, told: dict[int, Outcome]) -> dict[int, str]:
    """The outcome of each, as history has it. An outcome that PostgreSQL refuses becomes a failure of its task alone;
    what is no longer ours is counted."""
    try:
        states = persistently(lambda: queue.settle(claim, told))
    except LeaseLost as error:
        gone = dict.fromkeys(error.refused, "lost") | dict.fromkeys(error.revoked, "revoked")
        return {id_: gone.get(id_) or word(outcome, "") for id_, outcome in told.items()}
    except ValidationError as error:
        if len(told) > 1:
            return {id_: said for one in told for id_, said in settle(queue, claim, {one: told[one]}).items()}
        refused = Outcome.failed(f"the outcome was refused: {error.message}", error_class=type(error).__name__)
        states = queue.settle(claim, dict.fromkeys(told, refused))
        return {id_: word(refused, states[id_]) for id_ in told}
    return {id_: word(outcome, states[id_]) for id_, outcome in told.items()}


def word(outcome: Outcome, state: str) -> str:
    return "dead" if state == "dead" else "released" if outcome.word == "release" else outcome.word


def row(task: Task, outcome: str, error: str | None, seconds: float, worker: str) -> Done:
    return Done(task.id, task.kind, task.subject, task.attempt, outcome, error, seconds, worker)


def as_batch(rows: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([one._asdict() for one in rows], schema=schema)


class Keeper:
    """Keeps the lease of the claim in hand alive, in a thread. The handler has a process of its own: whatever it does,
    it does not stop this."""

    def __init__(self, queue: Queue, seconds: float) -> None:
        self.lost = False
        self.revoked: set[int] = set()
        self._queue = queue
        self._seconds = seconds
        self._claim: Claim | None = None
        self._due = 0.0
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._keep, name="penstock-keeper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._over = True
            self._changed.notify()
        self._thread.join()

    @contextmanager
    def holding(self, claim: Claim) -> Iterator[None]:
        with self._changed:
            self._claim, self.lost, self.revoked = claim, False, set()
            self._due = time.monotonic() + self._seconds / 3
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._claim = None
                self._changed.notify()

    def _keep(self) -> None:
        """A third of the lease after it was taken, and again. One that could not be extended is tried again soon."""
        while True:
            with self._changed:
                if self._over:
                    return
                claim = None if self.lost else self._claim
                wait = None if claim is None else self._due - time.monotonic()
                if claim is None or (wait or 0.0) > 0:
                    self._changed.wait(wait)
                    continue
            kept = self._extend(claim)
            with self._changed:
                self._due = time.monotonic() + (self._seconds / 3 if kept else min(self._seconds / 3, 1.0))

    def _extend(self, claim: Claim) -> bool:
        try:
            revoked = self._queue.extend(claim, lease=self._seconds).revoked
        except LeaseLost as error:
            with self._changed:
                if self._claim is claim:
                    self.lost = not error.revoked
                    self.revoked |= {*error.revoked}
        except Unavailable:
            return False
        else:
            with self._changed:
                if self._claim is claim:
                    self.revoked |= {*revoked}
        return True


# --- in an executor: an adopted table ---------------------------------------------------------------------------------


class Passed(NamedTuple):
    """A row of the answer: one pass."""

    worker: str
    done: int
    failed: int
    dead: int
    changed: int
    skipped: int
    ended: int
    seconds: float


def passed(
    limit: int, *, dsn: str, source: str, name: str, handler: Callable[..., Any], max_age: Duration | None
) -> tuple[backlog.PassReport, bool]:
    """One pass, in the hand's process; and whether there may be more."""
    report = backlog.load(dsn, source, name).process(handler, max_age=max_age, max_records=limit)
    return report, report.more and report.handled > 0


def work_backlog(orders: Orders, part: int) -> Iterator[pa.RecordBatch]:
    """Pass after pass. After one whose process ended the next is careful, and finds out which record it was."""
    worker = named(orders, part)
    left = orders.shares[part]
    ended, more = 0, True
    with hinted(), Hand(orders.function) as hand:
        while more and left != 0:
            limit = PASS if left is None else min(left, PASS)
            try:
                report, more = hand.call(limit)
            except Ended as error:
                ended += 1
                if ended >= DEATHS:
                    raise Conflict(f"{orders.name}: {ended} passes in a row did not end: {error}") from None
                continue
            counts = (report.done, report.failed, report.dead, report.changed, report.skipped)
            yield as_batch([Passed(worker, *counts, ended, report.seconds)], PASSES)
            left = None if left is None else left - report.handled
            ended = 0
