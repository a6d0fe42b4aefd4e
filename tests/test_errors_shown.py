"""The class, message and traceback of an error are stored, found and shown together."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from psycopg import Connection

from penstock import Context, NewTask, NotFound, Outcome, Penstock, Queue, TaskDetails, ValidationError
from shell import COMMAND, each, in_a_terminal, penstock
from workers import work, write_app


def broken(payload: dict[str, str]) -> str:
    return payload["k"]


def failing(app: Penstock) -> None:
    @app.task(queue="work", max_attempts=1)
    def look_up(secret: str) -> None:
        broken({"other": secret})


def test_class_message_and_traceback_are_stored(app: Penstock, queue: Queue, sql: Connection) -> None:
    failing(app)
    queue.push({"secret": "hunter2"}, kind="look_up")
    assert app.drain_inline(raise_errors=False) == {"dead": 1}
    (task,) = queue.tasks(state="dead")
    assert (task.error_class, task.message, task.attempts) == ("KeyError", "'k'", 1)
    assert task.traceback is not None
    assert task.traceback.startswith("Traceback (most recent call last):\n  File ")
    assert 'return payload["k"]' in task.traceback, "it has lines of the source"
    assert "hunter2" not in (task.error or ""), "it has no values of variables"
    (row,) = sql.execute("select error_class, error from penstock.history").fetchall()
    assert row == ("KeyError", task.error)
    assert (task.error or "").splitlines()[0] == "'k'"


@pytest.mark.parametrize("text", ["KeyError", "keyerror: 'k'", "in broken", 'return payload["k"]', "attempts spent"])
def test_each_of_them_is_found(app: Penstock, queue: Queue, text: str) -> None:
    failing(app)
    queue.push({"secret": "s"}, kind="look_up")
    queue.push({"secret": "s"}, kind="other")
    claim = queue.claim(2)
    queue.settle(claim, {claim.ids[1]: Outcome.dead("something else")} | {claim.ids[0]: Outcome.release()})
    app.drain_inline(raise_errors=False)
    assert [one.kind for one in queue.tasks(state="dead", error=text)] == ["look_up"]
    assert len(queue.redrive(error=text)) == 1


def test_class_and_text_are_of_the_same_error(queue: Queue) -> None:
    queue.push()
    seen = []
    for outcome in (
        Outcome.failed("first", delay=0, error_class="One"),
        Outcome.failed("second", delay=0),
        Outcome.release(delay=0),
        Outcome.failed("third", delay=0, error_class="Three"),
    ):
        claim = queue.claim()
        queue.settle(claim, {claim.ids[0]: outcome})
        task = queue.task(claim.ids[0])
        seen.append((task.error_class, task.error))
    assert seen == [("One", "first"), (None, "second"), (None, "second"), ("Three", "third")]
    assert queue.redrive([claim.ids[0]]) == {claim.ids[0]: "redriven"}
    task = queue.task(claim.ids[0])
    assert (task.error_class, task.error) == (None, None)
    claim = queue.claim()
    queue.settle(claim, {claim.ids[0]: Outcome.failed("x", delay=0, error_class="X")})
    claim = queue.claim()
    queue.settle(claim, {claim.ids[0]: Outcome.again()})
    task = queue.task(claim.ids[0])
    assert (task.error_class, task.error) == (None, None)


def test_a_traceback_is_bounded_and_has_its_causes(app: Penstock, queue: Queue) -> None:
    def deep(n: int) -> None:
        if n == 0:
            raise ValueError("x" * 10_000)
        deep(n - 1)

    @app.task(queue="work")
    def fail() -> None:
        try:
            deep(200)
        except ValueError as error:
            wrapped = RuntimeError("wrapped")
            wrapped.add_note("Look at the manual.")
            raise wrapped from error

    fail.push()
    app.drain_inline(raise_errors=False)
    (task,) = queue.tasks()
    assert task.message == "wrapped"
    assert len(task.error or "") <= 6000
    found = task.traceback or ""
    assert "The above exception was the direct cause of the following exception:" in found
    assert found.rstrip().endswith("Look at the manual.")
    assert "raise wrapped from error" in found


def test_tracebacks_can_be_switched_off(dsn: str, queue: Queue) -> None:
    with Penstock(dsn, tracebacks=False) as app:

        @app.task(queue="work")
        def fail(context: Context) -> None:
            if context.attempt == 1:
                raise LookupError("gone")
            try:
                broken({})
            except KeyError as error:
                context.failed(error, delay="1h")

        pushed = fail.push()
        app.drain_inline(raise_errors=False)
        task = queue.task(pushed.id)
        assert (task.error_class, task.error) == ("LookupError", "gone")
        queue.reschedule(task.created, [pushed.id])
        app.drain_inline(raise_errors=False)
        task = queue.task(pushed.id)
        assert (task.error_class, task.error) == ("KeyError", "'k'")


def test_an_error_given_to_the_context_has_its_traceback(app: Penstock, queue: Queue) -> None:
    @app.task(queue="work")
    def fail(context: Context) -> None:
        try:
            broken({})
        except KeyError as error:
            context.failed(error, delay="1h")

    fail.push()
    app.drain_inline()
    (task,) = queue.tasks()
    assert (task.error_class, task.message) == ("KeyError", "'k'")
    assert "in broken" in (task.traceback or "")


def test_the_shell_shows_them(app: Penstock, queue: Queue, dsn: str) -> None:
    failing(app)
    pushed = queue.push({"secret": "s"}, kind="look_up", subject="a")
    app.drain_inline(raise_errors=False)
    listed = penstock("dead", "ls", "work", dsn=dsn)
    assert "KeyError: 'k' (attempts spent)" in listed.out
    shown = penstock("tasks", "show", str(pushed.id), dsn=dsn, tracebacks=True)
    for text in ("state           dead", "attempts        1", "error_class     KeyError", "message         'k'"):
        assert text in shown.out, shown.out
    lines = shown.out.splitlines()
    assert lines[-1] == "KeyError: 'k'"
    assert any("in broken" in line for line in lines)
    value = penstock("tasks", "show", str(pushed.id), "--json", dsn=dsn, tracebacks=True).json
    assert (value["error_class"], value["message"], value["queue"]) == ("KeyError", "'k'", "work")
    assert "in broken" in value["traceback"]
    redriven = penstock("dead", "redrive", "work", "--error", "KeyError", "--json", dsn=dsn)
    assert redriven.json["tasks"] == {str(pushed.id): "redriven"}


def test_one_task_of_any_queue_and_its_worker(app: Penstock, queue: Queue) -> None:
    queue.push_many([NewTask({"n": n}, f"s{n}") for n in range(3)])
    claim = queue.claim(2, worker="me")
    found = app.find_task(claim.ids[1])
    assert isinstance(found, TaskDetails)
    assert (found.task.queue, found.task.state, found.task.attempts) == ("work", "active", 0)
    assert (found.worker, found.lease_until) == ("me", claim.until)
    assert found.claimed_at is not None
    queue.settle(claim, [claim.ids[0]])
    (waiting,) = queue.tasks(state="pending")
    assert app.find_task(waiting.id) == (waiting, None, None, None, False)
    with pytest.raises(NotFound, match="no task 4711"):
        app.find_task(4711)
    with pytest.raises(ValidationError):
        app.find_task("x")  # type: ignore[arg-type]
    queue.release(claim)


def test_a_long_payload_is_cut_for_people(queue: Queue, dsn: str) -> None:
    pushed = queue.push({"n": [*range(3000)]})
    said = penstock("tasks", "show", str(pushed.id), dsn=dsn).out
    assert len(said) < 6000
    assert "--json shows all" in said
    assert penstock("tasks", "show", str(pushed.id), "--json", dsn=dsn).json["payload"] == {"n": [*range(3000)]}


FAILS = """
@app.task(queue="work", max_attempts=1)
def look_up(k: str) -> None:
    {}["a\\x1b[31mb"]
"""


def test_a_worker_says_it_in_a_terminal(queue: Queue, dsn: str, tmp_path: Path) -> None:
    queue.push({"k": "hunter2"}, kind="look_up")
    write_app(tmp_path, FAILS)
    code, said = in_a_terminal([*COMMAND, "work", "jobs:app", "--until-empty"], dsn, tmp_path)
    assert code == 1, "every task failed"
    (line,) = [one for one in said.splitlines() if " warning " in one]
    assert line.endswith(r"KeyError: 'a\x1b[31mb'")
    assert "kind=look_up" in line
    assert "hunter2" not in said
    assert "Traceback" not in said


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_collected_logs_have_only_the_class(queue: Queue, dsn: str, tmp_path: Path, log_format: str) -> None:
    queue.push({"k": "hunter2"}, kind="look_up")
    ran = work(tmp_path, dsn, FAILS, "--log-format", log_format)
    (line,) = [one for one in ran.err.splitlines() if "look_up" in one]
    assert "KeyError" in line
    assert "summary" not in line
    assert "31m" not in ran.err


def test_a_hint_is_in_the_traceback() -> None:
    error = ValidationError("due: it is wrong", hint="Say its zone too.")
    assert traceback.format_exception(error)[-1] == "Hint: Say its zone too.\n"
    error.hint = "Another."
    assert error.__notes__ == ["Hint: Another."]
    assert error.at(3).hint == "Another."
    assert not hasattr(ValidationError("due: it is wrong"), "__notes__")


# --- tasks that are removed -------------------------------------------------------------------------------------------


def test_a_done_task_is_found_in_history(app: Penstock, queue: Queue, dsn: str) -> None:
    queue.push_many([NewTask({"n": n}, f"s{n}", kind="k") for n in range(3)])
    claim = queue.claim(3, worker="me")
    queue.settle(claim, {claim.ids[0]: Outcome.done(), claim.ids[1]: Outcome.failed("x", delay="1h")})
    queue.cancel([claim.ids[2]])
    found = app.find_task(claim.ids[0])
    assert found.removed
    assert (found.worker, found.lease_until, found.task.payload, found.task.priority) == ("me", None, None, None)
    assert (found.task.queue, found.task.kind, found.task.subject) == ("work", "k", "s0")
    assert (found.task.state, found.task.iterations, found.task.attempts) == ("done", 1, 0)
    assert found.task.ended_at == found.task.last_iteration
    with pytest.raises(NotFound, match="no task"):
        queue.task(claim.ids[0])
    queue.purge("cancelled")
    assert app.find_task(claim.ids[2]).task.state == "cancelled"
    shown, value = each(("tasks", "show", str(claim.ids[0])), ("tasks", "show", str(claim.ids[0]), "--json"), dsn=dsn)
    assert "state           done" in shown.out
    assert "removed" in shown.out
    assert (value.json["state"], value.json["removed"], value.json["payload"]) == ("done", True, None)
    queue.drop(force=True)
    assert app.find_task(claim.ids[0]).task.queue == "work"
    with pytest.raises(NotFound):
        app.find_task(claim.ids[1])  # its attempt failed, and then its queue was dropped
