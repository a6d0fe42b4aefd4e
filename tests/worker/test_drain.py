"""`penstock drain`: one queue, one function, and a progress bar on a terminal."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from psycopg import Connection

from penstock import NewTask, Queue
from shell import COMMAND, environment, penstock
from workers import End, ends, eventually, noted, write_app

CODE = """
def named(n: int, word: str = "none") -> None:
    note("named", n, word)

def whole(payload) -> None:
    note("whole", sorted(payload))

async def on_loop(n: int, task: Task, context: AsyncContext) -> None:
    if n == 3:
        raise LookupError
    note("loop", n, task.kind, context.queue)

@app.task(queue="elsewhere", kind="other", timeout="20s", max_attempts=1)
def decorated(n: int, context: Context) -> None:
    note("decorated", n, context.queue)

@app.task(queue="elsewhere", kind="timed", timeout="20s")
def in_time(n: int) -> None:
    raise LookupError

class Calls:
    def __call__(self, n: int) -> None:
        note("object", n)

thing = Calls()
"""


def drain(home: Path, dsn: str, function: str, *options: str) -> dict[str, int]:
    ran = penstock("drain", "work", "--handler", f"jobs:{function}", "--json", *options, dsn=dsn, cwd=home)
    assert ran.code == 0, ran.err
    told: dict[str, int] = ran.json
    return {name: told[name] for name in ("done", "failed", "dead", "planned") if told[name]}


def test_any_function_will_do(dsn: str, queue: Queue, sql: Connection, tmp_path: Path) -> None:
    write_app(tmp_path, CODE)
    queue.set(retry="fixed:1h")
    kinds = ("default", "this", "that")

    def push() -> None:
        queue.push_many([NewTask({"n": n}, kind=kinds[n % 3]) for n in range(6)])

    push()
    queue.push({"n": 6, "word": "given"})
    assert drain(tmp_path, dsn, "named") == {"done": 7}
    assert sorted(noted(tmp_path)) == [*(f"named {n} none" for n in range(6)), "named 6 given"]
    push()
    assert drain(tmp_path, dsn, "whole", "-p", "2") == {"done": 6}
    assert noted(tmp_path)[7:] == ["whole ['n']"] * 6
    push()
    assert drain(tmp_path, dsn, "on_loop", "-c", "2") == {"done": 5, "failed": 1, "planned": 1}
    assert sorted(noted(tmp_path)[13:]) == sorted(f"loop {n} {kinds[n % 3]} work" for n in range(6) if n != 3)
    push()
    assert drain(tmp_path, dsn, "decorated") == {"done": 6, "planned": 1}
    assert sorted(noted(tmp_path)[18:]) == [f"decorated {n} work" for n in range(6)]
    push()
    assert drain(tmp_path, dsn, "thing", "--max-tasks", "3") == {"done": 6, "planned": 1}
    assert sorted(noted(tmp_path)[24:]) == [f"object {n}" for n in range(6)]
    assert not sql.execute("select from penstock.kind").rowcount, "drain registers no kind"

    queue.push({"m": 1}, kind="wrong")
    people = penstock("drain", "work", "--handler", "jobs:named", dsn=dsn, cwd=tmp_path)
    first, last = people.out.splitlines()
    assert first == "1 process × 10 for work"
    assert re.fullmatch(r"0 done, 1 failed, 2 tasks planned for later in \d+\.\d s \(0/s\)", last)
    assert ends(sql)[-1] == End("wrong", "failed", 1, "ValidationError")


def test_the_exit_code_says_whether_anything_was_done(dsn: str, queue: Queue, tmp_path: Path) -> None:
    write_app(tmp_path, CODE)
    command = ("drain", "work", "--handler", "jobs:on_loop", "--json")
    queue.set(retry="fixed:1h", max_attempts=2)
    queue.push({"n": 3})
    failed = penstock(*command, dsn=dsn, cwd=tmp_path)
    assert (failed.code, failed.json["failed"], failed.json["done"]) == (1, 1, 0)
    assert penstock(*command, dsn=dsn, cwd=tmp_path).code == 0, "nothing was due"
    queue.set(max_attempts=1)
    queue.push({"n": 3})
    died = penstock(*command, dsn=dsn, cwd=tmp_path)
    assert (died.code, died.json["dead"], died.json["done"]) == (1, 1, 0)
    queue.push_many([{"n": 3}, {"n": 4}])
    mixed = penstock(*command, dsn=dsn, cwd=tmp_path)
    assert (mixed.code, mixed.json["dead"], mixed.json["done"]) == (0, 1, 1)


SLOW = """
def slow(n: int) -> None:
    time.sleep(0.01)
    if n == 7:
        raise KeyError(n)

def waits(n: int) -> None:
    if n >= 20:
        note(n)
        wait_for("go")
"""


@contextmanager
def drained_on_terminal(home: Path, dsn: str, function: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `penstock drain` on a terminal. Its output is in the file `seen` afterwards."""
    write_app(home, SLOW)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "drain", "work", "--handler", f"jobs:{function}", *options],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=environment(dsn, {"TERM": "xterm"}),
        cwd=home,
    ) as process:
        os.close(theirs)
        try:
            with ThreadPoolExecutor(1) as pool:
                seen = pool.submit(lambda: b"".join(iter(lambda: read(ours), b"")))
                yield process
                text = seen.result(60).decode()
            process.wait(30)
        finally:
            process.kill()
    os.close(ours)
    (home / "seen").write_text(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text), "utf-8")


def test_on_a_terminal_there_is_a_bar(dsn: str, queue: Queue, tmp_path: Path) -> None:
    queue.push_many([NewTask({"n": n}) for n in range(60)])
    with drained_on_terminal(tmp_path, dsn, "slow", "-c", "1") as process:
        pass
    assert process.returncode == 0
    text = (tmp_path / "seen").read_text("utf-8")
    assert "Traceback" not in text
    assert "drain work ━" in text
    assert re.findall(r"\d+/\d+", text)[-1] == "59/60", "failed tasks are not counted as done"
    assert re.search(r"\d\d:\d\d:\d\d warning failed task=\d+ queue=work kind=default attempt=1", text)
    assert re.search(r"59 done, 1 failed, 1 task planned for later in \d+\.\d s \(\d+/s\)\s*$", text)


def test_after_a_signal_the_bar_says_what_the_last_line_says(dsn: str, queue: Queue, tmp_path: Path) -> None:
    """Running tasks may finish, and both counts include them. The others go back."""
    queue.push_many([NewTask({"n": n}) for n in range(60)])
    with drained_on_terminal(tmp_path, dsn, "waits", "-c", "4") as process:
        eventually(lambda: len(noted(tmp_path)) == 4)
        process.send_signal(signal.SIGINT)
        eventually(lambda: queue.status().active == 4)
        time.sleep(0.5)  # it no longer looks at the queue
        (tmp_path / "go").touch()
    assert process.returncode == 130
    text = (tmp_path / "seen").read_text("utf-8")
    assert "Traceback" not in text
    assert re.search(r"24 done, 0 failed in \d+\.\d s \(\d+/s\)\s*$", text), text[-300:]
    assert re.findall(r"\d+/\d+", text)[-1] == "24/60"


def read(terminal: int) -> bytes:
    """Reads from a terminal. Linux reports the end of a terminal as an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


@pytest.mark.parametrize("function", ["on_loop", "in_time"], ids=["in the process", "in a process of its own"])
def test_tracebacks_can_be_left_out(dsn: str, queue: Queue, tmp_path: Path, function: str) -> None:
    write_app(tmp_path, CODE)
    queue.set(retry="fixed:1h", max_attempts=5)
    found = []
    for options in ((), ("--no-tracebacks",)):
        id_ = queue.push({"n": 3}).id
        penstock("drain", "work", "--handler", f"jobs:{function}", *options, dsn=dsn, cwd=tmp_path)
        found.append(penstock("tasks", "show", str(id_), "--json", dsn=dsn, tracebacks=True).json)
    assert [one["error"].splitlines()[0] for one in found] == ["LookupError", "LookupError"]
    assert ["raise LookupError" in (one["traceback"] or "") for one in found] == [True, False]
    assert (found[1]["error"], found[1]["traceback"]) == ("LookupError", None)
