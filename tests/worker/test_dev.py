"""`penstock work --dev`: tracebacks in the terminal, and new code when a file changes."""

from __future__ import annotations

from pathlib import Path

from penstock import Queue
from shell import is_one_block, penstock
from workers import eventually, working, write_app

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
        assert worker.runners == [first], "what runs may finish"
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

        # A kind that the supervisor did not know when it started, with its own retry.
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


def test_a_broken_application_is_an_error_at_the_start(queue: Queue, dsn: str, tmp_path: Path) -> None:
    write_app(tmp_path, "1 / 0")
    ran = penstock("work", "jobs:app", "--dev", dsn=dsn, cwd=tmp_path)
    assert (ran.code, is_one_block(ran.err)) == (3, True)


def test_it_is_one_process(queue: Queue, dsn: str, tmp_path: Path) -> None:
    ran = penstock("work", "jobs:app", "--dev", "--processes", "2", dsn=dsn, cwd=tmp_path)
    assert ran.code == 2
    assert "processes" in ran.err
