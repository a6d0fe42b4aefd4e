"""`penstock drain`: one queue, one function, and a bar for whoever looks."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

from psycopg import Connection

from penstock import NewTask, Queue
from shell import COMMAND, environment, penstock
from workers import End, ends, noted, write_app

CODE = """
def named(n: int, word: str = "none") -> None:
    note("named", n, word)

def whole(payload) -> None:
    note("whole", sorted(payload))

async def on_loop(n: int, task: Task, context: AsyncContext) -> None:
    if n == 3:
        raise LookupError
    note("loop", n, task.kind, context.queue)

@app.task(queue="elsewhere", kind="other", timeout="1s", max_attempts=1)
def decorated(n: int, context: Context) -> None:
    note("decorated", n, context.queue)

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
    assert not sql.execute("select from penstock.kind").rowcount, "it knows nothing of any kind"

    queue.push({"m": 1}, kind="wrong")
    people = penstock("drain", "work", "--handler", "jobs:named", dsn=dsn, cwd=tmp_path)
    first, last = people.out.splitlines()
    assert first == "1 process × 10 for work"
    assert re.fullmatch(r"0 done, 1 failed, 2 tasks planned for later in \d+\.\d s \(0/s\)", last)
    assert ends(sql)[-1] == End("wrong", "failed", 1, "ValidationError")


def test_on_a_terminal_there_is_a_bar(dsn: str, queue: Queue, tmp_path: Path) -> None:
    write_app(tmp_path, "def slow(n: int) -> None:\n    time.sleep(0.01)\n    if n == 7:\n        raise KeyError(n)\n")
    queue.push_many([NewTask({"n": n}) for n in range(60)])
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "drain", "work", "--handler", "jobs:slow", "-c", "1"],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=environment(dsn, {"TERM": "xterm"}),
        cwd=tmp_path,
    ) as process:
        os.close(theirs)
        seen = b""
        while some := read(ours):
            seen += some
    os.close(ours)
    assert process.returncode == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode())
    assert "Traceback" not in text
    assert "drain work ━" in text
    assert "59/59" in text or "60/60" in text
    assert re.search(r"\d\d:\d\d:\d\d warning failed task=\d+ queue=work kind=default attempt=1", text)
    assert re.search(r"59 done, 1 failed, 1 task planned for later in \d+\.\d s \(\d+/s\)\s*$", text)


def read(terminal: int) -> bytes:
    """Linux tells of the end of a terminal by an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
