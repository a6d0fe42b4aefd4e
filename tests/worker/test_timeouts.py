"""Handlers that take too long or end their process: each gets an outcome, and the next task runs."""

from __future__ import annotations

from pathlib import Path

from psycopg import Connection

from penstock import NewTask, Queue
from workers import End, effects, ends, work

LATE = """
def kind(**options):
    return app.task(queue="work", max_attempts=1, **options)

@kind(timeout="1s")
def ended(n: int) -> None:
    note("ended", n)
    if n == 0:
        time.sleep(60)

@kind(timeout="1s")
async def called_off(n: int) -> None:
    try:
        await asyncio.sleep(60 if n == 0 else 0)
    except asyncio.CancelledError:
        note("called off", n)
        raise

@kind(timeout="1s", run="thread")
def told(n: int, context: Context) -> None:
    while n == 0 and not context.cancelled:
        time.sleep(0.01)
    note("told", context.cancelled)

@kind(timeout="1s", batch=2)
def ended_together(tasks: list[Task]) -> None:
    time.sleep(60 if tasks[0].payload["n"] == 0 else 0)

@kind(timeout="1s", batch=2, run="thread")
def late_together(tasks: list[Task]) -> None:
    time.sleep(1.5)

@kind(timeout="1s", batch=2)
async def called_off_together(tasks: list[Task]) -> None:
    await asyncio.sleep(60)

@kind(timeout="2s")
def extended(n: int, context: Context) -> None:
    context.extend("20s")
    time.sleep(2.5)

@kind(timeout="2s", run="thread")
def extended_in_thread(n: int, context: Context) -> None:
    context.extend("20s")
    time.sleep(2.5)

@kind(timeout="2s")
async def extended_on_loop(n: int, context: AsyncContext) -> None:
    await context.extend("20s")
    await asyncio.sleep(2.5)

@kind(timeout="20s")
def extended_too_little(n: int, context: Context) -> None:
    context.extend("100ms")
    time.sleep(60)

@kind(run="process")
def exits(n: int) -> None:
    os._exit(3)

@kind(run="process")
def shoots_itself(n: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)

@kind(run="process")
def stays(n: int) -> None:
    note("stays", n)
"""


def test_every_handler_ends(dsn: str, queue: Queue, sql: Connection, tmp_path: Path) -> None:
    late = ("ended", "called_off", "told", "ended_together", "late_together", "called_off_together")
    given = ("extended", "extended_in_thread", "extended_on_loop", "extended_too_little")
    again = ("ended", "called_off", "told", "ended_together")
    crashing = ("exits", "shoots_itself")
    queue.push_many([NewTask({"n": 0}, kind=kind) for kind in (*late, *given, *crashing)])
    queue.push_many([NewTask({"n": 1}, kind=kind) for kind in again])
    queue.push_many([NewTask({"n": n}, kind="stays") for n in range(4)])
    ran = work(tmp_path, dsn, LATE, "-c", "3")
    assert ran.code == 0, ran.err
    assert (ran.json["done"], ran.json["dead"]) == (11, 9)

    found = ends(sql)
    assert {end for end in found if end.outcome == "dead"} == {
        *(End(kind, "dead", 1, "Timeout") for kind in (*late, "extended_too_little")),
        *(End(kind, "dead", 1, "HandlerCrashed") for kind in crashing),
    }
    assert sorted(end.kind for end in found if end.outcome == "done") == sorted(
        ["extended", "extended_in_thread", "extended_on_loop", *again, *["stays"] * 4]
    )
    errors = {task.kind: (task.error or "").splitlines()[0] for task in queue.tasks(state="dead")}
    assert errors["ended"] == "timeout: it took longer than 1 s"
    assert errors["exits"] == "the handler's process exited: 3"
    assert errors["shoots_itself"] == "the handler's process ended by signal 9"

    seen = effects(tmp_path)
    assert {one.words for one in seen} >= {"called off 0", "told True", "told False", "ended 1"}
    first, second = (one.pid for one in seen if one.words in ("ended 0", "ended 1"))
    assert first != second, "a process that was ended is replaced"
