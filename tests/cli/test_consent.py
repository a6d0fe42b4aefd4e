"""The question before a command that cannot be undone, and conventions of all commands."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from typer.main import get_command

from penstock import Penstock, Queue
from penstock.cli import tree
from shell import COMMAND, WAITING, Ran, bury, each, environment, nothing_changes, penstock, refused

# --- the question -----------------------------------------------------------------------------------------------------


def at_terminal(*arguments: str, dsn: str, typed: bytes = b"", after: bytes = b"[y/N] ") -> Ran:
    """Runs a command with a terminal for its questions and answers, while standard output is a pipe. `typed` is sent
    after the question; if it is empty, no question is expected."""
    ours, theirs = os.openpty()
    # A session without a terminal gets the first one it opens, so Ctrl-C in it is a real one.
    script = 'exec "$@" <"$0" 2>"$0"'
    process = subprocess.Popen(
        ["sh", "-c", script, os.ttyname(theirs), *COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(dsn),
        start_new_session=True,
    )
    with process:
        said = read_terminal(ours, until=after) if typed else b""
        os.write(ours, typed)
        out, _ = process.communicate(timeout=30)
        said += read_terminal(ours)
    os.close(ours)
    os.close(theirs)
    assert b"Traceback" not in said
    return Ran(process.returncode, out.decode(), said.decode())


def read_terminal(terminal: int, until: bytes | None = None) -> bytes:
    """Returns what was written on a terminal: up to a question, or what is there."""
    said = b""
    while until is None or until not in said:
        if not select.select([terminal], [], [], 0 if until is None else 30)[0]:
            assert until is None, said
            break
        said += os.read(terminal, 4096)
    return said


def test_a_person_is_asked(dsn: str, app: Penstock, queue: Queue) -> None:
    app.create_queue("spare")
    bury(queue, "a", "b")
    waiting = queue.push().id
    questions: tuple[tuple[tuple[str, ...], str], ...] = (
        (("tasks", "cancel", "work", str(waiting)), "Cancel 1 task of queue work?"),
        (("dead", "redrive", "work", "--all"), "Redrive 2 dead tasks of queue work?"),
        (("dead", "purge", "work", "--error", "a"), "Remove 1 dead task of queue work for good?"),
        (("queues", "purge", "work"), "Remove 3 tasks of queue work for good?"),
        (("queues", "drop", "work", "--force"), "Drop queue work with 3 tasks in it?"),
    )
    for arguments, question in questions:
        with nothing_changes(queue):
            ran = at_terminal(*arguments, dsn=dsn, typed=b"n\n")
        assert (ran.code, ran.out) == (1, "")
        assert ran.err.startswith(f"{question} [y/N] ")
        assert "nothing is changed" in ran.err
    with nothing_changes(queue):
        left = at_terminal("queues", "purge", "work", dsn=dsn, typed=b"\x03")
        ended = at_terminal("queues", "purge", "work", dsn=dsn, typed=b"\x04")
    assert (left.code, ended.code) == (130, 1)

    ran = at_terminal("dead", "purge", "work", "--error", "a", "--json", dsn=dsn, typed=b"y\n")
    assert (ran.code, json.loads(ran.out)) == (0, {"queue": "work", "purged": 1})
    ran = at_terminal("queues", "drop", "spare", dsn=dsn, typed=b"yes\n")
    assert (ran.code, ran.out) == (0, "queue spare with 0 tasks dropped\n")


def test_nothing_to_do_is_not_asked_about(dsn: str, queue: Queue) -> None:
    queue.push(subject="here")
    nothing: tuple[tuple[tuple[str, ...], str], ...] = (
        (("dead", "purge", "work"), "no dead tasks of queue work to remove\n"),
        (("dead", "redrive", "work", "--all"), "no dead tasks of queue work to redrive\n"),
        (("queues", "purge", "work", "--state", "done"), "no tasks of queue work to remove\n"),
        (
            ("tasks", "cancel", "work", "--subject", "gone"),
            "1 unknown\n  gone: unknown\nno tasks of queue work to cancel\n",
        ),
    )
    with nothing_changes(queue):
        for arguments, said in nothing:
            assert at_terminal(*arguments, dsn=dsn) == Ran(0, said, "")
        value = at_terminal("tasks", "cancel", "work", "--subject", "gone", "--json", dsn=dsn)
        assert value.json == {"tasks": {}, "unknown_subjects": ["gone"]}
        ran = at_terminal("tasks", "cancel", "work", "--subject", "gone", "--subject", "here", dsn=dsn, typed=b"n\n")
    assert ran.err.startswith("Cancel 1 task of queue work?")


def test_a_person_types_tasks(dsn: str, queue: Queue) -> None:
    """There is no progress bar, which would write over the typed text."""
    invitation = b"reading tasks, one JSON object a line; Ctrl-D ends\r\n"
    ran = at_terminal("push", "work", dsn=dsn, typed=b'{"payload": {}}\n\x04', after=invitation)
    assert (ran.code, ran.out) == (0, "1 created\n")
    assert ran.err.replace("^D\b\b", "") == invitation.decode() + '{"payload": {}}\r\n'
    ran = at_terminal("push", "work", dsn=dsn, typed=b"\x03", after=invitation)
    assert ran.code == 130
    assert ran.err.endswith("interrupted; nothing was pushed\r\n")


def test_half_a_terminal_is_none(dsn: str, queue: Queue) -> None:
    """If standard input is a pipe, there is no terminal to ask on, whatever the pipe contains."""
    queue.push()
    with nothing_changes(queue):
        ran = penstock("queues", "purge", "work", dsn=dsn, stdin="y\n")
    refused(ran, "no terminal", "--yes")


# --- conventions ------------------------------------------------------------------------------------------------------


def test_a_wrong_command_line_is_one_block_too() -> None:
    option, command, value, missing = each(
        ("tasks", "cancle", "work"), ("dead", "ls", "work", "--limti", "3"), ("claim", "q", "--json", "--limit", "x"),
        ("settle", "q"),
    )  # fmt: skip
    refused(option, "cancel")
    refused(command, "--limit")
    refused(missing, "token")
    assert (value.code, value.out) == (2, "")
    assert json.loads(value.err)["error"].keys() == {"code", "message", "hint"}
    assert json.loads(value.err)["error"]["message"] == "Invalid value for '--limit': 'x' is not a whole number"


def test_every_command_shows_an_example() -> None:
    def leaves(group: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
        for name, command in getattr(group, "commands", {}).items():
            yield from leaves(command, (*path, name))
        if not hasattr(group, "commands"):
            yield path, str(group.help)

    for path, text in leaves(get_command(tree()), ("penstock",)):
        shown = path[:-1] if path == ("penstock", "scale", "run") else path  # `scale` without a subcommand does this
        assert f"Example: {' '.join(shown)}" in text, path


def test_a_read_only_server_changes_nothing(dsn: str, queue: Queue) -> None:
    (dead,) = bury(queue, "x")
    replica = make_conninfo(dsn, options="-c default_transaction_read_only=on")
    with nothing_changes(queue):
        ran, listed = each(("dead", "redrive", "work", str(dead)), ("dead", "ls", "work"), dsn=replica)
    refused(ran, "PS4001", "primary", code=4)
    assert listed.code == 0


def test_a_long_purge_may_be_interrupted(dsn: str, queue: Queue) -> None:
    """The purge waits for a lock, in place of one that runs long. Ctrl-C ends it, and all tasks are still there."""
    queue.push_many([{}] * 3)
    with psycopg.connect(dsn) as other, nothing_changes(queue):
        other.execute("lock table penstock.task in access exclusive mode")
        process = subprocess.Popen(
            [*COMMAND, "queues", "purge", "work", "--yes"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(dsn),
        )
        with process, psycopg.connect(dsn, autocommit=True) as sql:
            while not sql.execute(WAITING).rowcount:
                assert process.poll() is None
            process.send_signal(2)
            out, err = process.communicate(timeout=30)
        other.rollback()
    assert (process.returncode, out, err) == (130, b"", b"")
