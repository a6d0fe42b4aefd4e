"""`penstock push` from files, pipes and interrupted terminals."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import Connection

from penstock import Queue
from shell import COMMAND, COUNTS, WAITING, each, environment, is_one_block, penstock

TASKS = """
{"payload": {"n": 1}, "subject": "a"}
{"payload": {"n": 2}, "kind": "k", "priority": 0, "due": "2020-01-01T00:00:00Z"}
"""


def counted(**counts: int) -> dict[str, int]:
    return dict.fromkeys(COUNTS, 0) | counts


def test_push_from_a_file_and_from_stdin(dsn: str, queue: Queue, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(TASKS)
    dry = penstock("push", "work", "--file", str(file), "--dry-run", "--json", dsn=dsn)
    assert dry.json == counted() | {"checked": 2, "dry_run": True}
    assert queue.status().totals["pushed"] == 0

    first = penstock("push", "work", "--file", str(file), "--json", dsn=dsn)
    assert (first.code, first.json, first.err) == (0, counted(created=2), "")
    again = penstock("push", "work", "--on-conflict", "skip", "--json", dsn=dsn, stdin=TASKS)
    assert again.json == counted(created=1, skipped=1)
    twice = penstock("push", "work", "--file", "-", dsn=dsn, stdin='{"payload": {}, "subject": "b"}\n' * 3 + TASKS)
    assert twice.out == "2 created, 1 skipped, 2 superseded\n"

    tasks = {task.id: task for task in queue.claim(10).tasks}
    assert len(tasks) == 5
    assert [(task.subject, task.kind, task.priority, task.payload) for _, task in sorted(tasks.items())][:2] == [
        ("a", "default", 5, {"n": 1}),
        (None, "k", 0, {"n": 2}),
    ]


def test_push_tells_of_conflicts_and_of_queues_that_are_not_there(dsn: str, queue: Queue, tmp_path: Path) -> None:
    queue.push(subject="a")
    file = tmp_path / "tasks.jsonl"
    file.write_text(TASKS)
    taken, unknown, missing, mode, batch = each(
        ("push", "work", "--on-conflict", "error", "--file", str(file)),
        ("push", "wrok", "--file", str(file), "--json"),
        ("push", "work", "--file", str(tmp_path / "nothing.jsonl")),
        ("push", "work", "--on-conflict", "maybe", "--file", str(file)),
        ("push", "work", "--batch-id", "abc", "--file", str(file)),
        dsn=dsn,
    )
    assert (taken.code, unknown.code, missing.code, mode.code, batch.code) == (1, 1, 2, 2, 2)
    assert is_one_block(taken.err)
    assert "line 2: subject 'a' is taken" in taken.err  # the first line is blank
    assert "Nothing was written; --on-conflict skip or update would accept it." in taken.err
    assert (unknown.out, '"hint": "Did you mean \'work\'?"' in unknown.err) == ("", True)
    assert "No such file" in missing.err
    assert "on_conflict" in mode.err
    assert "batch_id: 'abc' is not a UUID" in batch.err
    assert queue.status().totals["pushed"] == 1


def test_a_repeated_batch_doubles_nothing(dsn: str, queue: Queue) -> None:
    batch = str(uuid4())
    plain = '{"payload": {}}\n' * 3
    first, second = (penstock("push", "work", "--batch-id", batch, "--json", dsn=dsn, stdin=plain) for _ in range(2))
    assert first.json == second.json == counted(created=3)
    other = penstock("push", "work", "--batch-id", batch, dsn=dsn, stdin=plain * 2)
    assert other.code == 1
    assert "other content" in other.err
    assert queue.status().pending == 3


def test_a_line_that_is_not_json_is_named_once(dsn: str, queue: Queue) -> None:
    ran = penstock("push", "work", dsn=dsn, stdin='{"payload": {}}\n{"payload": nix}\n')
    assert ran.code == 2
    assert is_one_block(ran.err)
    assert ran.err.startswith("error PS1002: line 2: it is not JSON: ")
    assert ran.err.count("line") == 1
    assert ran.err.rstrip().endswith(" at column 13")


def test_an_interrupted_push_writes_nothing(dsn: str, queue: Queue, sql: Connection) -> None:
    with subprocess.Popen(
        [*COMMAND, "push", "work"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(dsn),
    ) as process:
        assert process.stdin
        process.stdin.write(b'{"payload": {}}\n' * 100)
        process.stdin.flush()
        theirs = """
            select from pg_stat_activity
            where datname = current_database() and application_name = 'penstock' and query = 'commit'
        """
        known = sql.execute(theirs).rowcount
        deadline = time.monotonic() + 30
        while sql.execute(theirs).rowcount <= known and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, b"", b"interrupted; nothing was pushed\n")
    assert queue.status().totals["pushed"] == 0


@pytest.mark.parametrize("mode", ["skip", "error"])
def test_a_push_interrupted_while_it_writes_says_how_to_go_on(
    dsn: str, queue: Queue, tmp_path: Path, mode: str
) -> None:
    """The push waits for a lock. A single transaction is rolled back; of several, some may be committed."""
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(f'{{"payload": {{}}, "subject": "s{n}"}}\n' for n in range(10)))
    push = ("push", "work", "--file", str(file), "--on-conflict", mode)
    with psycopg.connect(dsn) as other, psycopg.connect(dsn, autocommit=True) as sql:
        other.execute("lock table penstock.task in access exclusive mode")
        with subprocess.Popen([*COMMAND, *push], stderr=subprocess.PIPE, env=environment(dsn)) as process:
            while not sql.execute(WAITING).rowcount:
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
        other.rollback()
    assert process.returncode == 130
    if mode == "error":
        assert err == b"interrupted; nothing was pushed\n"
        return
    (batch,) = re.findall(rb"^interrupted; some tasks may be written: repeat it with --batch-id (\S+),", err)
    assert penstock(*push, "--batch-id", batch.decode(), "--json", dsn=dsn).json == counted(created=10)
