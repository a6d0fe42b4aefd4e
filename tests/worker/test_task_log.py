"""The records that handlers log say which task they belong to: in threads, coroutines, processes and batches."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from penstock import NewTask, Penstock, Queue, Task
from penstock.worker.logs import Facts
from penstock.worker.task_log import TaskLogFilter, facts_of_running
from workers import work

JOBS = """
import logging
LOG = logging.getLogger("shop.mail")
SETUP

@app.task(queue="work")
def quick(n: int) -> None:
    LOG.warning("said", extra={"n": n})

@app.task(queue="work")
def threaded(n: int, context: Context) -> None:
    LOG.warning("said", extra={"n": n})

@app.task(queue="work")
async def awaited(n: int) -> None:
    await asyncio.gather(asyncio.to_thread(LOG.warning, "said", extra={"n": n}), asyncio.sleep(0.001 * (n % 5)))

@app.task(queue="work", run="process")
def apart(n: int) -> None:
    LOG.warning("said", extra={"n": n})

@app.task(queue="work", batch=10)
def together(tasks: list[Task]) -> None:
    LOG.warning("said", extra={"n": -1})

@app.task(queue="work")
def own_words(n: int) -> None:
    LOG.warning("said", extra={"n": n, "queue": "mine", "task": "mine"})

@app.middleware
def outside(task, run):
    if task.kind == "wrapped":
        LOG.warning("said", extra={"n": task.payload["n"]})
    return run()

@app.middleware(form_of=outside)
async def outside_async(task, run):
    return await run()

@app.middleware(form_of=outside, batch=True)
def outside_batch(tasks, run):
    return run()

@app.task(queue="work")
def wrapped(n: int) -> None: ...

@app.task(queue="work", retry="fixed:1ms", max_attempts=3)
def again(n: int, task: Task) -> None:
    LOG.warning("said", extra={"n": n})
    if task.attempt == 1:
        raise ValueError

@app.on_stop
def stop() -> None:
    LOG.warning("stopped")
"""
FORMATTED = """
app.on_start(lambda: logging.basicConfig(
    format="%(message)s|%(queue)s|%(kind)s|%(task)s|%(attempt)s"))
"""
EACH = ("quick", "threaded", "awaited", "apart", "wrapped")


def said(text: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if line["event"] == "said"]


def test_a_record_has_its_task(queue: Queue, dsn: str, tmp_path: Path) -> None:
    kinds = [kind for kind in (*EACH, "together") for _ in range(20)]
    queue.push_many([NewTask({"n": n}, kind=kind, subject=str(n)) for n, kind in enumerate(kinds)])
    ids = {int(task.subject or -1): task.id for task in queue.tasks(limit=1000)}
    ran = work(tmp_path, dsn, JOBS.replace("SETUP", ""), "--log-format", "json", "--processes", "2")
    found = said(ran.err)
    assert {(one["n"], one["kind"], one["task"], one["attempt"], one["queue"]) for one in found if one["n"] >= 0} == {
        (n, kind, ids[n], 1, "work") for n, kind in enumerate(kinds) if kind != "together"
    }
    batches = [one for one in found if one["n"] < 0]
    assert {(one["kind"], one["queue"], one["logger"]) for one in batches} == {("together", "work", "shop.mail")}
    assert not any("task" in one for one in batches)
    stopped = [one for one in map(json.loads, ran.err.splitlines()) if one["event"] == "stopped"]
    assert len(stopped) >= 2
    assert not any("task" in one for one in stopped), "what is logged outside of a handler belongs to no task"


def test_a_record_has_its_attempt_and_keeps_its_own_words(queue: Queue, dsn: str, tmp_path: Path) -> None:
    queue.push({"n": 1}, kind="again")
    queue.push({"n": 2}, kind="own_words")
    ran = work(tmp_path, dsn, JOBS.replace("SETUP", ""), "--log-format", "json")
    found = said(ran.err)
    assert sorted(one["attempt"] for one in found if one["n"] == 1) == [1, 2]
    assert [(one["queue"], one["task"], one["kind"]) for one in found if one["n"] == 2] == [
        ("mine", "mine", "own_words")
    ]


def test_logging_of_the_application_gets_the_names(queue: Queue, dsn: str, tmp_path: Path) -> None:
    """A format of the application, which it sets when the process starts, may name them, also outside of handlers."""
    first = queue.push({"n": 1}, kind="quick")
    ran = work(tmp_path, dsn, JOBS.replace("SETUP", FORMATTED), "--log-format", "json")
    lines = [line for line in ran.err.splitlines() if "|" in line]
    assert lines == [f"said|work|quick|{first.id}|1", "stopped|None|None|None|None"]


@pytest.fixture
def seen(app: Penstock) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []

    @app.task(queue="work")
    def note(task: Task) -> None:
        found.append(facts_of_running())

    @app.task(queue="work")
    async def note_async(task: Task) -> None:
        found.append(facts_of_running())

    return found


def test_inline_runs_leave_nothing_behind(app: Penstock, queue: Queue, seen: list[tuple[object, ...]]) -> None:
    ids = [queue.push(kind=kind).id for kind in ("note", "note_async")]
    app.drain_inline()
    assert seen == [("work", "note", ids[0], 1), ("work", "note_async", ids[1], 1)]
    assert facts_of_running() == (None, None, None, None)


def test_a_logged_error_keeps_its_traceback() -> None:
    with pytest.raises(ValueError) as caught:
        raise ValueError("traced")
    told = (caught.type, caught.value, caught.tb)
    record = logging.makeLogRecord({"name": "shop", "msg": "caught %s", "args": ("it",), "exc_info": told, "odd": {1}})
    line = json.loads(Facts(as_json=True, messages=False, tracebacks=False).format(record))
    assert (line["event"], line["logger"], line["odd"]) == ("caught it", "shop", "{1}")
    assert line["traceback"].endswith("ValueError: traced")
    assert "ValueError: traced" in Facts(as_json=False, messages=True, tracebacks=True).format(record)


def test_the_filter_keeps_every_record() -> None:
    record = logging.makeLogRecord({"msg": "x", "task": 7})
    assert TaskLogFilter().filter(record)
    assert (record.task, record.queue) == (7, None)  # type: ignore[attr-defined]
