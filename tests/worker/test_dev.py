"""`penstock work --dev`: tracebacks in the terminal, new code when a file changes, and breakpoints."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from penstock import Penstock, Queue
from shell import environment, is_one_block, penstock
from workers import MODULE, Worker, eventually, noted, work, working, write_app

CODE = """
import helper

@app.task(queue="work", retry=Fixed("1h"))
def step(n: int) -> None:
    if n == 0:
        raise LookupError("no such step")
    note(helper.WORD, n)

@app.task(queue="work")
def slow() -> None:
    note("began")
    wait_for("go")
    note("ended", helper.WORD)
"""


def test_new_code_runs_when_a_file_changes(queue: Queue, dsn: str, tmp_path: Path) -> None:
    helper = tmp_path / "helper.py"
    helper.write_text("WORD = 'one'\n", "utf-8")
    with working(tmp_path, dsn, CODE, "--dev") as worker:
        queue.push({"n": 1}, kind="step")
        eventually(lambda: worker.noted == ["one 1"])
        (first,) = worker.runners

        queue.push({}, kind="slow")
        eventually(lambda: "began" in worker.noted)
        helper.write_text("WORD = 'another'\n", "utf-8")
        eventually(lambda: "reloading" in worker.stderr)
        assert worker.runners == [first], "a running task may finish"
        worker.allow()
        eventually(lambda: "ended one" in worker.noted)
        eventually(lambda: worker.runners and first not in worker.runners)
        queue.push({"n": 2}, kind="step")
        eventually(lambda: "another 2" in worker.noted)

        helper.write_text("WORD = 'broken\n", "utf-8")
        eventually(lambda: "cannot be loaded" in worker.stderr)
        assert worker.process.poll() is None
        assert "SyntaxError" in worker.stderr
        queue.push({"n": 3}, kind="step")
        helper.write_text("WORD = 'mended it'\n", "utf-8")
        eventually(lambda: "mended it 3" in worker.noted)

        # A kind with its own retry that the supervisor did not know when it started.
        write_app(tmp_path, CODE + "\n@app.task(queue='work', max_attempts=1)\ndef new() -> None:\n    1 / 0\n")
        queue.push({}, kind="new", delay="1s")
        eventually(lambda: queue.status().dead == 1)

        worker.terminate()
        assert worker.process.wait(30) == 0
    assert worker.report["done"] == 4


def test_a_failure_is_shown_with_its_traceback(queue: Queue, dsn: str, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("WORD = 'one'\n", "utf-8")
    with working(tmp_path, dsn, CODE, "--dev") as worker:
        queue.push({"n": 0}, kind="step")
        eventually(lambda: "LookupError: no such step" in worker.stderr)
        eventually(lambda: 'raise LookupError("no such step")' in worker.stderr)
        assert "Traceback (most recent call last):" in worker.stderr


LATE = """
import functools
from dataclasses import replace

def fail_afterwards(spec):
    @functools.wraps(spec.function)
    def call(*words, **named):
        spec.function(*words, **named)
        if spec.kind == "wrapped":
            raise LookupError("in the wrapper")
    return call

app.registry.wrap(fail_afterwards)

@app.task(queue="work")
def wrapped(context: Context) -> None:
    with context.transaction():
        pass

@app.task(queue="work")
def committed(context: Context) -> None:
    with context.transaction():
        pass
    raise LookupError("after the commit")

@app.task(queue="work")
def rolled_back(context: Context) -> None:
    with context.transaction():
        context.dead("enough")
    raise LookupError("after the rollback")

@app.task(queue="work", run="process")
def apart(context: Context) -> None:
    with context.transaction():
        pass
    raise LookupError("in another process")

@app.on_settled_dead
def bury(task, error) -> None:
    raise LookupError("in a hook")
"""
LATE_ERRORS = ["in the wrapper", "after the commit", "after the rollback", "in another process", "in a hook"]


def shows(worker: Worker, text: str) -> bool:
    return text in worker.stderr


def test_errors_after_the_end_of_a_task_are_shown_with_tracebacks(queue: Queue, dsn: str, tmp_path: Path) -> None:
    """They are stored nowhere, so the log is the only place that has them."""
    with working(tmp_path, dsn, LATE, "--dev") as worker:
        for kind in ("wrapped", "committed", "rolled_back", "apart"):
            queue.push({}, kind=kind)
        for said in LATE_ERRORS:
            line = f'    raise LookupError("{said}")'
            eventually(partial(shows, worker, line))
            assert f"LookupError: {said}\n" in worker.stderr
        assert worker.stderr.count("Traceback (most recent call last):") == len(LATE_ERRORS)
        assert "execution.py" not in worker.stderr


def test_other_logs_have_no_tracebacks(queue: Queue, dsn: str, tmp_path: Path) -> None:
    queue.push({}, kind="rolled_back")
    ran = work(tmp_path, dsn, LATE, "--log-format", "text")
    assert "on_settled_dead hook failed" in ran.err
    assert "error after the end of the task" in ran.err
    assert ran.err.count("error_class=LookupError") == 2
    assert "after the rollback" not in ran.err


BREAKPOINT = """
@app.task(queue="work", max_attempts=1)
def stop(word: str) -> None:
    breakpoint()
    note("continued", word)

@app.task(queue="work", max_attempts=1, run="process")
def stop_apart() -> None:
    breakpoint()
"""


def test_a_breakpoint_in_a_worker_says_how_to_debug(app: Penstock, queue: Queue, dsn: str, tmp_path: Path) -> None:
    ids = [queue.push({"word": "w"}, kind="stop").id, queue.push({}, kind="stop_apart").id]
    with working(tmp_path, dsn, BREAKPOINT, "--dev") as worker:
        eventually(lambda: queue.status().dead == 2)
        eventually(lambda: worker.stderr.count("app.run_worker()") >= 2)
    for id_ in ids:
        task = app.find_task(id_).task
        assert task.error_class == "HandlerMisuse"
        assert "no terminal" in (task.message or "")


def test_a_debugger_that_is_named_is_used(queue: Queue, dsn: str, tmp_path: Path) -> None:
    """It may listen on a port; this one only notes that it was called."""
    (tmp_path / "remote.py").write_text("def stop():\n    import jobs\n    jobs.note('debugger')\n", "utf-8")
    queue.push({"word": "w"}, kind="stop")
    with working(tmp_path, dsn, BREAKPOINT, "--dev", env={"PYTHONBREAKPOINT": "remote.stop"}) as worker:
        eventually(lambda: worker.noted == ["debugger", "continued w"])


@pytest.mark.parametrize("way", ["drain_inline", "run_worker"])
def test_a_breakpoint_stops_where_the_documentation_says(queue: Queue, dsn: str, tmp_path: Path, way: str) -> None:
    ways = {
        "drain_inline": "app.drain_inline()",
        "run_worker": "with app.run_worker() as worker:\n    while not worker.report.done: time.sleep(0.02)",
    }
    code = BREAKPOINT.replace(', run="process"', "")  # run_worker starts no processes
    write_app(tmp_path, f"{code}\nstop.push('hidden')\n{ways[way]}\n")
    ran = subprocess.run(
        [sys.executable, f"{MODULE}.py"],
        input="p 'word is ' + word\nc\n",
        env=environment(dsn),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "word is hidden" in ran.stdout
    assert noted(tmp_path) == ["continued hidden"]


def test_a_broken_application_is_an_error_at_the_start(queue: Queue, dsn: str, tmp_path: Path) -> None:
    write_app(tmp_path, "1 / 0")
    ran = penstock("work", "jobs:app", "--dev", dsn=dsn, cwd=tmp_path)
    assert (ran.code, is_one_block(ran.err)) == (3, True)


def test_it_is_one_process(queue: Queue, dsn: str, tmp_path: Path) -> None:
    ran = penstock("work", "jobs:app", "--dev", "--processes", "2", dsn=dsn, cwd=tmp_path)
    assert ran.code == 2
    assert "processes" in ran.err
