"""What handlers say of their tasks: `context.progress` and `context.log`, until they are shown or removed."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from conftest import Clock
from penstock import AsyncContext, AsyncPenstock, Context, NotFound, Outcome, Penstock, Queue, ValidationError
from penstock.client.database import Database
from penstock.client.progress import note_progress
from penstock.handlers.notes import Notes, to_stored
from shell import penstock
from workers import Worker, eventually, working

ROWS = "select count(*) from penstock.progress"


def rows(sql: Connection) -> int:
    found = sql.execute(ROWS.encode()).fetchone()
    assert found is not None
    return int(found[0])


def note(id_: int, part: float | None = None, text: str | None = None, *lines: list[Any], ago: float = 0) -> Any:
    return {"id": id_, "part": part, "text": text, "ago": ago, "lines": [*lines]}


# --- stored -----------------------------------------------------------------------------------------------------------


def test_notes_of_a_lease_are_stored_and_found(database: Database, queue: Queue, app: Penstock, clock: Clock) -> None:
    queue.push_many([{}, {}])
    claim = queue.claim(2)
    first, second = claim.ids
    assert queue.progress(first) is None
    assert note_progress(database, claim.token or "", [note(first, 0.25, "a", [1, 2, "one"], [2, 1, "two"])]) == 1
    clock.advance(5)
    assert note_progress(database, str(claim.token), [note(first, None, None, [3, 0, "three"], ago=1)]) == 1
    found = queue.progress(first)
    assert found is not None
    now = clock.now()
    assert (found.part, found.text, found.attempt) == (0.25, "a", 1), "a line leaves the progress as it was"
    assert (now - found.at).total_seconds() == 1
    assert [(line.text, line.attempt, (now - line.at).total_seconds()) for line in found.log] == [
        ("one", 1, 7),
        ("two", 1, 6),
        ("three", 1, 0),
    ]
    assert note_progress(database, str(claim.token), [note(first, 0.5)]) == 1
    found = app.progress(first)
    assert found is not None
    assert (found.part, found.text) == (0.5, None), "a new progress replaces the text too"
    assert app.progress(second) is None


def test_lines_that_are_sent_again_are_stored_once(database: Database, queue: Queue) -> None:
    id_ = queue.push().id
    claim = queue.claim()
    for last in (2, 2, 3):
        lines = [[n, 0, f"line {n}"] for n in range(1, last + 1)]
        note_progress(database, str(claim.token), [note(id_, None, None, *lines)])
    found = queue.progress(id_)
    assert found is not None
    assert [line.text for line in found.log] == ["line 1", "line 2", "line 3"]


def test_notes_are_bounded(database: Database, queue: Queue) -> None:
    id_ = queue.push().id
    claim = queue.claim()
    lines = [[n, 0, f"{n} " + "x" * 1000] for n in range(1, 251)]
    note_progress(database, str(claim.token), [note(id_, 1, "y" * 1000, *lines[:150])])
    note_progress(database, str(claim.token), [note(id_, None, None, *lines[150:])])
    found = queue.progress(id_)
    assert found is not None
    assert [int(line.text.split()[0]) for line in found.log] == [*range(151, 251)]
    assert {len(text) for text in (found.text or "", *(line.text for line in found.log))} == {200}


def test_notes_stay_over_retries_and_go_with_the_task(
    database: Database, app: Penstock, queue: Queue, clock: Clock, sql: Connection
) -> None:
    ids = [queue.push({}, subject=f"s{n}").id for n in range(4)]
    for attempt in (1, 2):
        claim = queue.claim(4)
        notes = [note(id_, None, None, [1, 0, f"attempt {attempt}"]) for id_ in ids]
        note_progress(database, str(claim.token), notes)
        ends = dict.fromkeys(ids, Outcome.failed("no", delay="1s"))
        queue.settle(claim, ends if attempt == 1 else {ids[0]: Outcome.done(), ids[1]: Outcome.dead("no")})
        clock.advance(2)
    found = queue.progress(ids[1])
    assert found is not None
    assert [(line.text, line.attempt) for line in found.log] == [("attempt 1", 1), ("attempt 2", 2)]
    with pytest.raises(NotFound, match=f"there is no task {ids[0]} in queue 'work'"):
        queue.progress(ids[0])
    queue.purge("dead")
    assert rows(sql) == 3, "the done task's row is left to upkeep"
    clock.advance(601)
    app.upkeep()
    assert rows(sql) == 2
    queue.drop(force=True)
    assert rows(sql) == 0


def test_a_worker_without_the_lease_notes_nothing(
    database: Database, queue: Queue, clock: Clock, sql: Connection
) -> None:
    queue.push_many([{}] * 4)
    claim = queue.claim(4)
    settled, cancelled, held, other = claim.ids
    queue.settle(claim, [settled])
    queue.cancel([cancelled])
    notes = [note(id_, 0.5) for id_ in (settled, cancelled, held, other + 1)]
    assert note_progress(database, str(claim.token), notes) == 1
    clock.advance(11)
    assert note_progress(database, str(claim.token), [note(other, 0.5)]) == 0
    again = queue.claim(4)
    assert note_progress(database, str(again.token), [note(held, 0.7)]) == 1
    assert note_progress(database, str(claim.token), [note(held, 0.5)]) == 0
    assert sql.execute("select task_id, part from penstock.progress").fetchall() == [(held, 0.7)]


def test_a_queue_does_not_settle_more_slowly_for_it(queue: Queue, dsn: str) -> None:
    """Nothing can read the table meanwhile: a settle or a claim that does would be given up."""
    queue.push_many([{}] * 3)
    with psycopg.connect(dsn) as other, psycopg.connect(dsn, autocommit=True) as sql:
        other.execute("lock table penstock.progress in access exclusive mode")
        sql.execute("set lock_timeout = '200ms'")
        claim = queue.claim(3)
        outcomes = ["done", "failed", "dead"]
        sql.execute("select * from penstock.settle(%s, %s, %s)", (claim.token, claim.ids, outcomes))
        assert not queue.claim()


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        ("null", "notes: it is not a JSON array"),
        ("{}", "notes: it is not a JSON array"),
        ("[1]", "notes: "),
        ('[{"id": null, "ago": 0, "lines": []}]', "notes: id: it is null"),
        ('[{"id": 1, "part": 1.5, "ago": 0, "lines": []}]', "notes: part: 1.5 is not between 0 and 1"),
        ('[{"id": 1, "part": "x", "ago": 0, "lines": []}]', "notes: "),
        ('[{"id": 1, "ago": -1, "lines": []}]', "notes: ago: -1 is not between 0 and 31536000 seconds"),
        ('[{"id": 1, "lines": []}]', "notes: ago: null is not between"),
        ('[{"id": 1, "ago": 0}]', "notes: lines: it is not a JSON array"),
        ('[{"id": 1, "ago": 0, "lines": ["x"]}]', "notes: lines: one is not [number, seconds ago, text]"),
        ('[{"id": 1, "ago": 0, "lines": [[1, 0, 7]]}]', "notes: lines: one is not [number, seconds ago, text]"),
        ('[{"id": 1, "ago": 0, "lines": [[0, 0, "x"]]}]', "notes: lines: one is not [number, seconds ago, text]"),
        ('[{"id": 1, "ago": 0, "lines": []}, {"id": 1, "ago": 0, "lines": []}]', "notes: id 1 is given twice"),
    ],
)
def test_bad_notes_are_refused(queue: Queue, sql: Connection, notes: str, said: str) -> None:
    queue.push()
    claim = queue.claim()
    with pytest.raises(psycopg.Error) as refused:
        sql.execute("select penstock.note_progress(%s, %s::jsonb)", (claim.token, notes))
    assert refused.value.sqlstate == "PS400"
    assert (refused.value.diag.message_primary or "").startswith(said)
    assert rows(sql) == 0


# --- said -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [-0.1, 1.1, math.nan, math.inf, True, "0.5", None])
def test_a_part_that_is_none_is_refused(app: Penstock, queue: Queue, part: Any) -> None:
    @app.task(queue="work")
    def say(context: Context) -> None:
        context.progress(part)

    say.push()
    with pytest.raises(ValidationError, match=r"^part: "):
        app.drain_inline()


@pytest.mark.parametrize("text", [7, b"x", None, ["x"]])
def test_a_line_that_is_no_text_is_refused(app: Penstock, queue: Queue, text: Any) -> None:
    @app.task(queue="work")
    def say(context: Context) -> None:
        if text is not None:
            with pytest.raises(ValidationError, match=r"^text: "):
                context.progress(0.5, text)
        context.log(text)

    say.push()
    with pytest.raises(ValidationError, match=r"^text: "):
        app.drain_inline()


def test_any_text_can_be_stored(app: Penstock, queue: Queue) -> None:
    @app.task(queue="work")
    def say(context: Context) -> Outcome:
        context.log("a\0b \ud800 \x1b[2J é \U0001f600")
        context.progress(1, "z" * 300)
        return Outcome.failed("no", delay="1h")

    id_ = say.push().id
    app.drain_inline(raise_errors=False)
    found = queue.progress(id_)
    assert found is not None
    assert (found.log[0].text, found.part) == ("a?b ? ?[2J é \U0001f600", 1.0)
    assert found.text == "z" * 199 + "…"


def test_drain_inline_stores_what_unfinished_tasks_said(app: Penstock, queue: Queue, dsn: str, sql: Connection) -> None:
    @app.task(queue="work")
    def say(n: int, context: Context) -> Outcome | None:
        context.progress(n / 10, f"{n} of 10")
        context.log("begun")
        return Outcome.failed("no", delay="1h") if n else None

    ids = [say.push(n).id for n in (0, 3)]
    app.drain_inline(raise_errors=False)
    assert rows(sql) == 1, "nothing is written for a task that is done"
    found = queue.progress(ids[1])
    assert found is not None
    assert (found.part, found.text, [line.text for line in found.log]) == (0.3, "3 of 10", ["begun"])

    async def main() -> None:
        async with AsyncPenstock(dsn) as client:

            @client.task(queue="work")
            async def tell(context: AsyncContext) -> Outcome:
                context.progress(0.5)
                return Outcome.failed("no", delay="1h")

            id_ = (await tell.push()).id
            await client.drain_inline()
            told = await client.queue("work").progress(id_)
            assert told is not None
            assert told == await client.progress(id_)
            assert (told.part, told.text, told.log) == (0.5, None, ())

    asyncio.run(main())


def test_notes_that_were_stored_are_not_sent_again() -> None:
    notes, copy = Notes(), Notes()
    for n in range(250):
        notes.log(7, f"{n}")
    notes.progress(8, 0.5, None)
    collected = notes.collect()
    copy.merge(collected)
    copy.merge(collected)
    assert [one["id"] for one in collected] == [7, 8]
    assert [line[2] for line in collected[0]["lines"]] == [f"{n}" for n in range(150, 250)]
    notes.log(7, "later")
    notes.note_stored(collected)
    assert notes.fresh
    assert [line[2] for line in notes.collect()[0]["lines"]] == ["later"]
    copy.merge(notes.collect())
    notes.note_stored(notes.collect())
    assert (notes.fresh, notes.collect()) == (False, [])
    assert [line[2] for line in to_stored(copy.collect({7}))[0]["lines"]] == [f"{n}" for n in range(151, 250)] + [
        "later"
    ]


# --- workers ----------------------------------------------------------------------------------------------------------

SAYS = """
def once(name):
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL))
        return True
    except FileExistsError:
        return False

def say(context, kind):
    context.log(f"{kind} begins")
    context.progress(0.5, "half")

@app.task(queue="work")
def in_thread(context: Context) -> None:
    say(context, "in_thread")
    wait_for("go")
    context.log("fails")
    raise LookupError

@app.task(queue="work")
async def on_loop(context: AsyncContext) -> None:
    say(context, "on_loop")
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    context.log("fails")
    raise LookupError

@app.task(queue="work", run="process")
def in_process(context: Context) -> None:
    say(context, "in_process")
    wait_for("go")
    context.log("fails")
    raise LookupError

@app.task(queue="work")
def quick(context: Context) -> None:
    context.log("fails at once")
    raise LookupError

@app.task(queue="work")
def is_done(context: Context) -> None:
    context.log("is done at once")
"""
KINDS = ("in_thread", "on_loop", "in_process")


@pytest.fixture
def talking(app: Penstock, dsn: str, tmp_path: Path) -> Iterator[tuple[Worker, Queue, dict[str, int]]]:
    """A worker whose handlers have said something, and wait."""
    queue = app.create_queue("work", lease="2s", retry="fixed:1h")
    ids = {kind: queue.push(kind=kind).id for kind in KINDS}
    with working(tmp_path, dsn, SAYS, "--concurrency", "3", "--grace", "1s") as worker:
        yield worker, queue, ids


def lines(queue: Queue, id_: int) -> list[str]:
    found = queue.progress(id_)
    return [] if found is None else [line.text for line in found.log]


def test_a_worker_stores_what_running_handlers_say(
    talking: tuple[Worker, Queue, dict[str, int]], sql: Connection
) -> None:
    worker, queue, ids = talking
    for kind, id_ in ids.items():
        found = eventually(functools.partial(queue.progress, id_))
        assert found is not None
        assert (found.part, found.text, found.attempt) == (0.5, "half", 1)
        assert lines(queue, id_) == [f"{kind} begins"]
        assert queue.task(id_).state == "active"
    worker.allow()
    eventually(lambda: not queue.status().active)
    assert {kind: lines(queue, id_) for kind, id_ in ids.items()} == {
        kind: [f"{kind} begins", "fails"] for kind in KINDS
    }, "what was said before the end is stored with the failure"
    ids |= {kind: queue.push(kind=kind).id for kind in ("quick", "is_done")}
    eventually(lambda: not queue.status().pending and not queue.status().active)
    assert lines(queue, ids["quick"]) == ["fails at once"]
    assert rows(sql) == 4
    assert worker.stop() == 0


def test_a_worker_that_stops_stores_what_was_said(talking: tuple[Worker, Queue, dict[str, int]]) -> None:
    worker, queue, ids = talking
    eventually(lambda: all(queue.progress(id_) for id_ in ids.values()))
    worker.stop()
    assert {kind: lines(queue, id_) for kind, id_ in ids.items()} == {kind: [f"{kind} begins"] for kind in KINDS}
    assert queue.status().queued == 3


# --- shown ------------------------------------------------------------------------------------------------------------


def test_the_shell_shows_it(database: Database, queue: Queue, dsn: str, clock: Clock) -> None:
    silent, id_ = queue.push().id, queue.push().id
    claim = queue.claim(2)
    note_progress(database, str(claim.token), [note(id_, 0.4, "page [bold]12 of 30", [1, 0, "begun \x1b[2J"])])
    shown = penstock("tasks", "show", str(id_), dsn=dsn)
    assert shown.code == 0, shown.err
    told = f"{clock.now():%Y-%m-%d %H:%M:%S}Z"
    assert f"progress        40% (page [bold]12 of 30) at {told}, attempt 1\n" in shown.out
    assert f"  {told}  attempt 1  begun ?[2J\n" in shown.out
    answer = penstock("tasks", "show", str(id_), "--json", dsn=dsn).json["progress"]
    assert (answer["part"], answer["text"], answer["attempt"]) == (0.4, "page [bold]12 of 30", 1)
    assert [(line["attempt"], line["text"]) for line in answer["log"]] == [(1, "begun ?[2J")]
    assert penstock("tasks", "show", str(silent), "--json", dsn=dsn).json["progress"] is None
    assert "progress" not in penstock("tasks", "show", str(silent), dsn=dsn).out
