"""`penstock work` runs the tasks that are there, in the way their handlers ask for, and counts them."""

from __future__ import annotations

import re
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

from psycopg import Connection

from penstock import NewTask, Penstock, Queue
from shell import is_one_block, penstock
from workers import End, ends, eventually, noted, work, working, write_app

ALL_SORTS = """
@app.task(queue="work")
def plain(n: int) -> None:
    note("plain", n)

@app.task(queue="work")
async def waiting(n: int, task: Task, context: AsyncContext) -> dict[str, int]:
    await asyncio.sleep(0.01)
    note("waiting", n, task.kind, context.attempt)
    return {"n": n}

@app.task(queue="work", batch=4)
def together(tasks: list[Task]) -> None:
    note("together", *(task.payload["n"] for task in tasks))

@app.task(queue="work", batch=3)
async def woven(tasks: list[Task]) -> dict[int, Outcome]:
    note("woven", *(task.payload["n"] for task in tasks))
    return {task.id: Outcome.failed("odd", delay="1h") for task in tasks if task.payload["n"] % 2}

@app.task(queue="work", run="process")
def apart(n: int, context: Context) -> None:
    note("apart", n, context.queue)

@app.task(queue="work")
def twice(n: int, context: Context) -> None:
    note("twice", n, context.iterations)
    if not context.iterations:
        context.again(payload={"n": n + 1})

@app.task(queue="work", kind="*")
def others(payload: dict[str, Any], task: Task) -> None:
    note(task.kind, payload)
"""


def test_everything_that_is_due_is_run_once(dsn: str, queue: Queue, sql: Connection, tmp_path: Path) -> None:
    kinds = ("plain", "waiting", "together", "woven", "apart")
    queue.push_many([NewTask({"n": n}, kind=kind) for n in range(6) for kind in kinds])
    queue.push({"n": 7}, kind="twice")
    queue.push({"any": "thing"}, kind="unheard of")
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    queue.push({"n": 8}, kind="plain", due=tomorrow)

    ran = work(tmp_path, dsn, ALL_SORTS)
    assert ran.code == 0, ran.err
    told = ran.json
    assert (told.pop("seconds") > 0, told.pop("rate") > 0) == (True, True)
    assert told == {"done": 30, "failed": 3, "dead": 0, "released": 0, "unknown_kind": 0, "unsettled": 0, "planned": 4}

    found = noted(tmp_path)
    alone = [line for line in found if not line.startswith(("together", "woven"))]
    assert sorted(alone) == sorted(
        [
            *(f"plain {n}" for n in range(6)),
            *(f"waiting {n} waiting 1" for n in range(6)),
            *(f"apart {n} work" for n in range(6)),
            "twice 7 0",
            "twice 8 1",
            "unheard of {'any': 'thing'}",
        ]
    )
    for kind, most in (("together", 4), ("woven", 3)):
        batches = [line.split()[1:] for line in found if line.startswith(kind)]
        assert sorted(n for batch in batches for n in batch) == [*"012345"]
        assert max(map(len, batches)) <= most
    assert Counter(end.outcome for end in ends(sql)) == {"done": 29, "again": 1, "failed": 3}
    status = queue.status()
    assert (status.pending, status.active, status.planned) == (0, 0, 4)

    queue.push_many([NewTask({"n": n}, kind="plain") for n in range(1200)])
    write_app(tmp_path, ALL_SORTS)
    people = penstock("work", "jobs:app", "--until-empty", "-c", "3", "-p", "2", dsn=dsn, cwd=tmp_path, cold=True)
    first, last = people.out.splitlines()
    assert first == "2 processes × 3 for work"
    assert re.fullmatch(r"1,200 done, 0 failed, 4 tasks planned for later in \d+\.\d s \([\d,]+/s\)", last)
    assert noted(tmp_path).count("plain 3") == 2
    quiet = penstock("work", "jobs:app", "--until-empty", "-q", dsn=dsn, cwd=tmp_path)
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")


STRICT = """
@app.task(queue="work", retry="fixed:20ms", max_attempts=4, timeout="90s", run="thread")
def fails(task: Task) -> None:
    raise LookupError(task.id)

@app.task(queue="work")
def plain() -> None: ...

def never(error, attempt, age):
    return "10ms" if attempt < 2 else None

@app.task(queue="work", retry=never)
def decides() -> None:
    raise ValueError("decided")
"""


def test_a_kind_is_retried_as_its_code_says(dsn: str, queue: Queue, sql: Connection, tmp_path: Path) -> None:
    def kinds() -> dict[str, list[object]]:
        rows = sql.execute("select kind, retry, max_attempts, extract(epoch from timeout)::int from penstock.kind")
        return {kind: rest for kind, *rest in rows.fetchall()}

    fails, decides = queue.push(kind="fails").id, queue.push(kind="decides").id
    with working(tmp_path, dsn, STRICT, cold=True) as worker:
        eventually(lambda: queue.status().dead == 2)
        assert worker.stop() == 0
        told = [one for one in worker.events if one["event"] == "failed" and one["task"] == fails]
        assert [(one["attempt"], one["kind"], one["error_class"]) for one in told] == [
            (n, "fails", "LookupError") for n in range(1, 5)
        ]
        assert (worker.report["failed"], worker.report["dead"]) == (4, 2)
    assert ends(sql) == [
        *(End("fails", "failed", n, "LookupError") for n in (1, 2, 3)),
        End("fails", "dead", 4, "LookupError"),
        End("decides", "failed", 1, "ValueError"),
        End("decides", "dead", 2, "ValueError"),
    ]
    assert queue.task(fails).reason == "attempts spent"
    assert queue.task(decides).reason == "the retry policy ended: decided"
    assert kinds() == {
        "fails": [{"type": "fixed", "delay": 0.02}, 4, 90],
        "plain": [None, None, None],
        "decides": [None, None, None],
    }

    changed = STRICT.replace("fixed:20ms", "fibonacci:1m").replace("max_attempts=4, timeout", "timeout")
    assert work(tmp_path, dsn, changed).code == 0
    assert kinds()["fails"] == [{"type": "fibonacci", "unit": 60.0}, None, 90]


QUEUES = """
@app.task(queue="small")
def small() -> None:
    note("small")
    time.sleep(0.005)

@app.task(queue="large")
def large() -> None:
    note("large")
    time.sleep(0.005)
"""


def test_queues_take_turns_by_weight(app: Penstock, dsn: str, tmp_path: Path) -> None:
    for name in ("small", "large", "foreign"):
        app.create_queue(name).push_many([NewTask({}, kind=name)] * 200)
    some = work(tmp_path, dsn, QUEUES, "--queues", "small,large:3", "-c", "1")
    assert some.json["done"] == 400
    begun = noted(tmp_path)
    while_both = Counter(begun[: len(begun) - begun[::-1].index("large")])
    assert while_both["large"] == 200
    assert 40 <= while_both["small"] <= 110, "one to three would be 67, without tasks claimed ahead"
    assert app.queue("foreign").status().pending == 200, "only queues that have handlers or were asked for"

    for name in ("small", "large"):
        app.queue(name).push(kind=name)
    assert work(tmp_path, dsn, QUEUES, "--queues", "large").json["done"] == 1
    assert work(tmp_path, dsn, QUEUES).json["done"] == 1, "all queues that have handlers"
    assert noted(tmp_path)[-2:] == ["large", "small"]


SLOW = """
@app.task(queue="work")
def step(n: int) -> None:
    note(n)
    time.sleep(0.01)
"""


def test_a_pause_is_heeded_and_a_resume_too(dsn: str, queue: Queue, tmp_path: Path) -> None:
    queue.push_many([NewTask({"n": n}, kind="step") for n in range(2000)])
    with working(tmp_path, dsn, SLOW, "-c", "2") as worker:
        eventually(lambda: len(worker.noted) > 50)
        queue.pause()

        def rests() -> bool:
            """Whether it begins no task for half a second and has none in hand."""
            before = len(worker.noted)
            time.sleep(0.5)
            return len(worker.noted) == before and queue.status().active == 0

        eventually(rests)
        begun = len(worker.noted)
        assert begun < 2000
        queue.resume()
        eventually(lambda: len(worker.noted) > begun + 50)
        queue.pause()
        assert worker.stop() == 0

    ran = work(tmp_path, dsn, SLOW)
    assert ran.code == 1
    refused = penstock("work", "jobs:app", "--until-empty", dsn=dsn, cwd=tmp_path)
    assert is_one_block(refused.err)
    assert refused.err == (
        "error PS2002: queue 'work' is paused: it would never be empty\n  penstock queues resume work\n"
    )
    queue.resume()
    with working(tmp_path, dsn, SLOW, "-c", "1", "--until-empty") as worker:
        queue.pause()
        assert worker.wait() == 1
        assert "'work' is paused" in worker.stderr
    assert queue.status().active == 0
