"""The verbs in the shell, from outside: tasks, dead, queues, leases, upkeep, repair, psql, and the question before what
can not be undone."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import Connection, pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from typer.main import get_command

from conftest import Clock
from penstock import NewTask, Outcome, Penstock, Queue
from penstock.cli import tree
from penstock.cli.output import age, span
from penstock.cli.psql import environment as psql_environment
from penstock.cli.psql import flags, variable
from penstock.cli.settings import size, strategy
from penstock.embedded import Server
from penstock.model import Listed, QueueSettings
from penstock.retry import parse
from shell import COMMAND, COUNTS, Ran, each, environment, is_one_block, penstock

LISTED = {*Listed._fields}
CLAIMED = {"id", "kind", "subject", "payload", "priority", "attempt", "iterations", "due", "created"}
SETTINGS = {one.name for one in fields(QueueSettings)}
NOBODY = 10**9


def bury(queue: Queue, *errors: str, kind: str = "default") -> list[int]:
    """Dead tasks with these errors."""
    ids = []
    for error in errors:
        ids.append(queue.push({}, kind=kind, priority=0).id)
        queue.settle(queue.claim(), {ids[-1]: Outcome.dead(error)})
    return ids


@contextmanager
def nothing_changes(queue: Queue) -> Iterator[None]:
    def picture() -> object:
        return queue.tasks(limit=10_000), queue.settings(), queue.status().totals

    before = picture()
    yield
    assert picture() == before


def refused(ran: Ran, *words: str, code: int = 2) -> None:
    assert (ran.code, ran.out) == (code, ""), ran
    assert is_one_block(ran.err), ran.err
    for word in words:
        assert word in ran.err


# --- push -------------------------------------------------------------------------------------------------------------


def test_push_updates(dsn: str, queue: Queue) -> None:
    queue.push({"n": 1}, subject="a")
    ran = penstock(
        "push", "work", "--on-conflict", "update", "--json", dsn=dsn,
        stdin='{"payload": {"n": 2}, "subject": "a"}\n{"payload": {}, "subject": "b"}',
    )  # fmt: skip
    assert ran.json == dict.fromkeys(COUNTS, 0) | {"created": 1, "updated": 1}
    assert queue.tasks(subject="a")[0].payload == {"n": 2}


# --- tasks ls, show ---------------------------------------------------------------------------------------------------


def test_tasks_are_listed_and_chosen(dsn: str, queue: Queue) -> None:
    queue.push_many([NewTask({"n": n}, f"s{n}", kind="k" if n % 2 else "default") for n in range(5)])
    (dead,) = bury(queue, "boom")
    ids = [task.id for task in queue.tasks()]
    every, kind, subject, state, error, page, table, none, nothing = each(
        ("tasks", "ls", "work", "--json"),
        ("tasks", "ls", "work", "--kind", "k", "--json"),
        ("tasks", "ls", "work", "--subject", "s3", "--json"),
        ("tasks", "ls", "work", "--state", "pending", "--json"),
        ("tasks", "ls", "work", "--error", "oom", "--json"),
        ("tasks", "ls", "work", "--after", str(ids[1]), "--limit", "2", "--json"),
        ("tasks", "ls", "work", "--limit", "3"),
        ("tasks", "ls", "work", "--kind", "none", "--json"),
        ("tasks", "ls", "work", "--kind", "none"),
        dsn=dsn,
    )
    assert [task["id"] for task in every.json["tasks"]] == ids
    assert every.json["next"] is None
    assert all(set(task) == LISTED for task in every.json["tasks"])
    assert datetime.fromisoformat(every.json["tasks"][0]["due"]).utcoffset() == timedelta()
    assert [task["payload"]["n"] for task in kind.json["tasks"]] == [1, 3]
    assert [task["subject"] for task in subject.json["tasks"]] == ["s3"]
    assert len(state.json["tasks"]) == 5
    assert [(task["id"], task["reason"]) for task in error.json["tasks"]] == [(dead, "boom")]
    assert ([task["id"] for task in page.json["tasks"]], page.json["next"]) == (ids[2:4], ids[3])
    head, *rows, more = table.out.splitlines()
    assert head.split()[:4] == ["id", "state", "kind", "subject"]
    assert [row.split()[0] for row in rows] == [str(id_) for id_ in ids[:3]]
    assert f"--after {ids[2]}" in more
    assert (none.code, none.json) == (0, {"tasks": [], "next": None})
    assert (nothing.code, nothing.out) == (0, "no tasks\n")


def test_a_list_that_makes_no_sense_is_refused(dsn: str, queue: Queue) -> None:
    state, limit, after, error, missing = each(
        ("tasks", "ls", "work", "--state", "pendign"),
        ("tasks", "ls", "work", "--limit", "0"),
        ("tasks", "ls", "work", "--after", str(2**63)),
        ("tasks", "ls", "work", "--error", ""),
        ("tasks", "ls", "wrok"),
        dsn=dsn,
    )
    refused(state, "Did you mean pending?")
    refused(limit, "limit: 0")
    refused(after, "after: 9223372036854775808")
    refused(error, "error: 0 bytes")
    refused(missing, "PS2001", "Did you mean 'work'?", code=1)


def test_one_task_is_shown(dsn: str, queue: Queue) -> None:
    pushed = queue.push({"to": "Ünï", "lines": [1]}, subject="[red]\x1b[31m\n")
    value, said, listed, unknown, strange = each(
        ("tasks", "show", "work", str(pushed.id), "--json"),
        ("tasks", "show", "work", str(pushed.id)),
        ("tasks", "ls", "work"),
        ("tasks", "show", "work", str(NOBODY)),
        ("tasks", "show", "work", "abc", "--json"),
        dsn=dsn,
    )
    assert set(value.json) == LISTED
    assert (value.json["id"], value.json["payload"]) == (pushed.id, {"to": "Ünï", "lines": [1]})
    assert 'payload\n{\n  "to": "Ünï",\n  "lines": [\n    1\n  ]\n}\n' in said.out
    assert "[red]\\x1b[31m\\n" in said.out
    assert "[red]\\x1b[31m\\n" in listed.out
    refused(unknown, "PS2001", f"no task {NOBODY}", code=1)
    assert (strange.code, json.loads(strange.err)["error"]["code"]) == (2, "PS1001")


# --- tasks cancel, reschedule, reprioritise ---------------------------------------------------------------------------


def test_cancel(dsn: str, queue: Queue) -> None:
    queue.push_many([NewTask({}, f"s{n}") for n in range(4)])
    claimed, first, second, _ = (task.id for task in queue.tasks())
    assert queue.claim().ids == [claimed]
    words = ("tasks", "cancel", "work", str(claimed), str(first), str(NOBODY), "--subject", "s2", "--subject", "gone")
    fates = {str(claimed): "revoked", str(first): "cancelled", str(NOBODY): "unknown", str(second): "cancelled"}
    with nothing_changes(queue):
        dry, said, unasked = each((*words, "--dry-run", "--json"), (*words, "--dry-run"), (*words, "--json"), dsn=dsn)
    assert dry.json == {"tasks": {}, "would": fates, "dry_run": True, "unknown_subjects": ["gone"]}
    assert dry.code == said.code == 1
    assert said.out == f"would be: 2 cancelled, 1 revoked, 2 unknown\n  {NOBODY}: unknown\n  gone: unknown\n"
    assert (unasked.code, unasked.out) == (2, "")
    assert json.loads(unasked.err)["error"]["code"] == "PS1001"

    ran = penstock(*words, "--reason", "no longer", "--yes", "--json", dsn=dsn)
    assert (ran.code, ran.json) == (1, {"tasks": fates, "unknown_subjects": ["gone"]})
    assert {task.reason for task in queue.tasks(state="cancelled")} == {"no longer"}
    good = penstock("tasks", "cancel", "work", "--subject", "s3", "--reason", "x" * 9000 + "\udcff", "--yes", dsn=dsn)
    assert (good.code, good.out, good.err) == (0, "1 cancelled\n", "")
    assert str(queue.tasks(subject="s3")[0].reason).endswith("(cut)")


def test_names_that_are_none(dsn: str, queue: Queue) -> None:
    queue.push()
    with nothing_changes(queue):
        neither, twice, zero, large, missing, empty = each(
            ("tasks", "cancel", "work", "--yes"),
            ("tasks", "cancel", "work", "5", "5", "--yes"),
            ("tasks", "cancel", "work", "0", "--yes"),
            ("tasks", "cancel", "work", str(2**63), "--yes"),
            ("tasks", "cancel", "wokr", "1", "--yes"),
            ("tasks", "cancel", "work", "--subject", "", "--yes"),
            dsn=dsn,
        )
    refused(neither, "neither ids nor subjects")
    refused(twice, "id: 5 is there twice")
    refused(zero, "id: 0")
    refused(large, "id: 9223372036854775808")
    refused(missing, "Did you mean 'work'?", code=1)
    refused(empty, "subject: 0 bytes")


def test_reschedule(dsn: str, queue: Queue) -> None:
    one, other = queue.push(subject="a").id, queue.push().id
    due = (datetime.now(UTC) + timedelta(days=3)).isoformat()
    with nothing_changes(queue):
        dry, both, neither, naive, length = each(
            ("tasks", "reschedule", "work", str(one), "--in", "1h30m", "--dry-run", "--json"),
            ("tasks", "reschedule", "work", str(one), "--in", "1h", "--due", due),
            ("tasks", "reschedule", "work", str(one)),
            ("tasks", "reschedule", "work", str(one), "--due", "2030-01-31T06:00:00"),
            ("tasks", "reschedule", "work", str(one), "--in", "soon"),
            dsn=dsn,
        )
    assert (dry.code, dry.json["would"]) == (0, {str(one): "rescheduled"})
    refused(both, "either --due or --in")
    refused(neither, "either --due or --in")
    refused(naive, "no time zone", "2030-01-31T06:00:00Z")
    refused(length, "in: 'soon'")
    by_id = penstock("tasks", "reschedule", "work", str(other), "--due", due, "--json", dsn=dsn)
    assert (by_id.code, by_id.json) == (0, {"tasks": {str(other): "rescheduled"}, "unknown_subjects": []})
    by_subject = penstock("tasks", "reschedule", "work", "--subject", "a", "--in", "1h30m", dsn=dsn)
    assert (by_subject.code, by_subject.out) == (0, "1 rescheduled\n")
    assert queue.task(other).due == datetime.fromisoformat(due)
    late = queue.task(one).due
    assert late is not None
    assert timedelta(minutes=85) < late - datetime.now(UTC) <= timedelta(minutes=90)


def test_reprioritise(dsn: str, queue: Queue) -> None:
    one, ended = queue.push().id, bury(queue, "x")[0]
    with nothing_changes(queue):
        dry, wrong, none = each(
            ("tasks", "reprioritise", "work", str(one), str(ended), "--priority", "0", "--dry-run"),
            ("tasks", "reprioritise", "work", str(one), "--priority", "10"),
            ("tasks", "reprioritise", "work", str(one)),
            dsn=dsn,
        )
    assert (dry.code, dry.out) == (1, f"would be: 1 ended, 1 reprioritised\n  {ended}: ended\n")
    refused(wrong, "priority: 10")
    refused(none, "--priority")
    ran = penstock("tasks", "reprioritise", "work", str(one), "--priority", "0", "--json", dsn=dsn)
    assert (ran.code, ran.json["tasks"]) == (0, {str(one): "reprioritised"})
    assert queue.task(one).priority == 0


# --- dead -------------------------------------------------------------------------------------------------------------


def test_dead_tasks_are_listed(dsn: str, queue: Queue) -> None:
    queue.push()
    boom, _ = bury(queue, "boom", "bang")
    every, some, none = each(
        ("dead", "ls", "work", "--json"), ("dead", "ls", "work", "--error", "boom"), ("dead", "ls", "wokr"), dsn=dsn
    )
    assert [(task["state"], task["reason"]) for task in every.json["tasks"]] == [("dead", "boom"), ("dead", "bang")]
    assert str(boom) in some.out
    assert "bang" not in some.out
    refused(none, "Did you mean 'work'?", code=1)


def test_redrive_of_named_ones(dsn: str, queue: Queue) -> None:
    boom, _ = bury(queue, "boom", "bang")
    waiting = queue.push(subject="w").id
    words = ("dead", "redrive", "work", str(boom), str(NOBODY), "--subject", "w")
    fates = {str(boom): "redriven", str(NOBODY): "unknown", str(waiting): "live"}
    with nothing_changes(queue):
        dry = penstock(*words, "--dry-run", "--json", dsn=dsn)
    assert (dry.code, dry.json["would"]) == (1, fates)
    ran = penstock(*words, "--json", dsn=dsn)
    assert (ran.code, ran.json["tasks"]) == (1, fates)
    assert (queue.status().dead, queue.status().pending) == (1, 2)


def test_redrive_of_what_matches(dsn: str, queue: Queue) -> None:
    old, boom, _ = bury(queue, "old boom", "boom", "bang")
    (kind,) = bury(queue, "boom", kind="k")
    since = queue.task(boom).ended_at
    assert since is not None
    some = ("dead", "redrive", "work", "--error", "boom", "--kind", "default")
    with nothing_changes(queue):
        dry, limited, none, both, filtered, every, unasked = each(
            (*some, "--since", since.isoformat(), "--dry-run", "--json"),
            (*some, "--limit", "1", "--dry-run", "--json"),
            ("dead", "redrive", "work", "--limit", "1"),
            ("dead", "redrive", "work", str(old), "--kind", "k"),
            ("dead", "redrive", "work", "--all", "--kind", "k", "--yes"),
            ("dead", "redrive", "work", "--all", "--dry-run", "--json"),
            ("dead", "redrive", "work", "--all"),
            dsn=dsn,
        )
    assert (dry.code, dry.json["would"]) == (0, {str(boom): "redriven"})
    assert limited.json["would"] == {str(old): "redriven"}, "the oldest first"
    refused(none, "say --all")
    refused(both, "--kind has nothing to choose")
    refused(filtered, "all: ")
    assert len(every.json["would"]) == 4
    refused(unasked, "--yes")

    ran = penstock(*some, "--since", since.isoformat(), "--json", dsn=dsn)
    assert (ran.code, ran.json["tasks"]) == (0, {str(boom): "redriven"})
    ran = penstock("dead", "redrive", "work", "--kind", "k", dsn=dsn)
    assert ran.out == "1 redriven\n"
    assert queue.task(kind).state == "pending"
    ran = penstock("dead", "redrive", "work", "--all", "--yes", "--json", dsn=dsn)
    assert len(ran.json["tasks"]) == 2
    ran = penstock("dead", "redrive", "work", "--all", "--yes", dsn=dsn)
    assert (ran.code, ran.out) == (0, "no tasks\n")


def test_dead_purge(dsn: str, queue: Queue) -> None:
    waiting = queue.push().id
    old, boom, bang, last = bury(queue, "old", "boom", "bang", "last")
    before = queue.task(boom).ended_at
    assert before is not None
    purge = ("dead", "purge", "work")
    with nothing_changes(queue):
        every, by_error, by_id, by_time, capped, unasked, both = each(
            (*purge, "--dry-run", "--json"),
            (*purge, "--error", "boom", "--dry-run"),
            (*purge, str(old), str(waiting), "--dry-run", "--json"),
            (*purge, "--before", before.isoformat(), "--dry-run", "--json"),
            (*purge, "--limit", "3", "--dry-run", "--json"),
            purge,
            (*purge, str(old), "--limit", "1", "--yes"),
            dsn=dsn,
        )
    assert every.json == {"queue": "work", "purged": 0, "would": 4, "dry_run": True}
    assert by_error.out == "1 dead task of queue work would be removed\n"
    assert (by_id.code, by_id.json["would"]) == (1, 1)
    assert (by_time.json["would"], capped.json["would"]) == (1, 3)
    refused(unasked, "--yes")
    refused(both, "--limit has nothing to choose")

    ran = penstock(*purge, "--before", before.isoformat(), "--yes", "--json", dsn=dsn)
    assert (ran.code, ran.json) == (0, {"queue": "work", "purged": 1})
    ran = penstock(*purge, str(boom), str(old), "--yes", dsn=dsn)
    assert (ran.code, ran.out) == (1, "1 dead task of queue work removed\n")
    assert [task.id for task in queue.tasks(state="dead")] == [bang, last]
    assert penstock(*purge, "--yes", "-q", dsn=dsn) == Ran(0, "", "")
    assert [task.id for task in queue.tasks()] == [waiting]


# --- queues -----------------------------------------------------------------------------------------------------------


def test_a_queue_is_created_shown_and_set(dsn: str, app: Penstock) -> None:
    created = penstock(
        "queues", "create", "mail", "--keep-dead", "30d", "--keep-cancelled", "1d", "--max-payload", "2000", dsn=dsn
    )
    assert created.code == 0, created.err
    value, said, missing = each(
        ("queues", "show", "mail", "--json"), ("queues", "show", "mail"), ("queues", "show", "mial"), dsn=dsn
    )
    assert set(value.json) == SETTINGS | {"status"}
    assert (value.json["keep_dead"], value.json["keep_cancelled"], value.json["max_payload"]) == (2592000, 86400, 2000)
    assert value.json["status"]["pending"] == 0
    shown = dict(line.split(maxsplit=1) for line in said.out.splitlines()[1:])
    assert (shown["keep_dead"], shown["lease"], shown["max_payload"]) == ("30d", "30s", "2,000 bytes")
    assert shown["retry"] == "exponential:5s,factor=2,cap=1h,jitter=0.1"
    assert "pending" in said.out
    refused(missing, "Did you mean 'mail'?", code=1)

    change = (
        "queues", "set", "mail", "--lease", "1m", "--max-attempts", "none", "--retry", "fixed:30s", "--sla", "1h30m",
        "--keep-done", "1d", "--keep-dead", "none", "--max-payload", "3000",
    )  # fmt: skip
    with nothing_changes(app.queue("mail")):
        dry, told = each((*change, "--dry-run", "--json"), (*change, "--dry-run"), dsn=dsn)
    assert told.out.startswith("queue mail would be: lease 30s -> 1m, max_attempts 20 -> none, retry exponential:5s,")
    ran = penstock(*change, "--json", dsn=dsn)
    assert dry.json == ran.json | {"dry_run": True}
    assert set(ran.json) == SETTINGS
    assert (ran.json["lease"], ran.json["max_attempts"], ran.json["sla"]) == (60, None, 5400)
    assert (ran.json["retry"], ran.json["keep_dead"]) == ({"type": "fixed", "delay": 30}, None)
    again = penstock("queues", "set", "mail", "--sla", "none", "--keep-done", "none", dsn=dsn)
    assert again.out == "queue mail: sla 1h30m -> none, keep_done 1d -> none\n"
    assert app.queue("mail").settings().sla is None


@pytest.mark.parametrize(
    "written",
    [
        "fibonacci:1m",
        "fibonacci:1m30s,cap=1d",
        "exponential:5s,factor=1.5,cap=1h,jitter=0",
        "fixed:250ms",
        "schedule:1m,5m,1h30m",
        "progressive:1d=5m,7d=1h",
    ],
)
def test_a_strategy_is_shown_as_one_writes_it(written: str) -> None:
    assert strategy(parse(written).to_json()) == written


def test_lengths_and_sizes_for_people() -> None:
    lengths = {
        0: "0s",
        0.25: "200ms",
        2.13: "2.1s",
        45.4: "45s",
        59.9: "1m",
        320: "5m20s",
        5400: "1h30m",
        273700: "3d4h",
    }
    assert {seconds: age(seconds) for seconds in lengths} == lengths
    assert (age(None), span(None), span(timedelta(seconds=90.5))) == ("–", "–", "1m30.5s")
    sizes = {1 << 20: "1 MiB", 16 << 20: "16 MiB", 64 << 10: "64 KiB", 2000: "2,000 bytes"}
    assert {count: size(count) for count in sizes} == sizes


def test_settings_that_make_no_sense_change_nothing(dsn: str, queue: Queue) -> None:
    with nothing_changes(queue):
        none, lease, attempts, payload, sla, missing = each(
            ("queues", "set", "work"),
            ("queues", "set", "work", "--lease", "none"),
            ("queues", "set", "work", "--max-attempts", "many"),
            ("queues", "set", "work", "--max-payload", "1"),
            ("queues", "set", "work", "--sla", "-1s"),
            ("queues", "set", "wrok", "--sla", "1s"),
            dsn=dsn,
        )
    refused(none, "settings: none is given")
    refused(lease, "lease: 'none'")
    refused(attempts, "max_attempts: 'many'")
    refused(payload, "max_payload: 1")
    refused(sla, "sla: ")
    refused(missing, "Did you mean 'work'?", code=1)


def test_pause_and_resume(dsn: str, queue: Queue) -> None:
    dry = penstock("queues", "pause", "work", "--dry-run", dsn=dsn)
    assert (dry.out, queue.settings().paused) == ("queue work would be: paused no -> yes\n", False)
    ran = penstock("queues", "pause", "work", "--json", dsn=dsn)
    assert (ran.json["paused"], queue.settings().paused) == (True, True)
    ran, again = penstock("queues", "resume", "work", dsn=dsn), penstock("queues", "resume", "work", dsn=dsn)
    assert (ran.out, again.out) == ("queue work: paused yes -> no\n", "queue work: as it was\n")
    assert not queue.settings().paused


def test_queues_purge(dsn: str, queue: Queue) -> None:
    queue.push_many([{}] * 3)
    queue.claim()
    queue.push(due=datetime.now(UTC) + timedelta(hours=1))
    purge = ("queues", "purge", "work")
    with nothing_changes(queue):
        every, some, unasked, active, strange, missing = each(
            (*purge, "--dry-run", "--json"),
            (*purge, "--state", "planned", "--dry-run"),
            purge,
            (*purge, "--state", "active", "--yes"),
            (*purge, "--state", "plannd", "--yes"),
            ("queues", "purge", "wrok", "--yes"),
            dsn=dsn,
        )
    assert every.json == {"queue": "work", "purged": 0, "would": 3, "dry_run": True}
    assert some.out == "1 task of queue work would be removed\n"
    refused(unasked, "--yes")
    refused(active, "state: 'active'")
    refused(strange, "Did you mean planned?")
    refused(missing, "Did you mean 'work'?", code=1)
    ran = penstock(*purge, "--state", "planned", "--state", "dead", "--yes", "--json", dsn=dsn)
    assert ran.json == {"queue": "work", "purged": 1}
    assert penstock(*purge, "--yes", dsn=dsn).out == "2 tasks of queue work removed\n"
    assert [task.state for task in queue.tasks()] == ["active"]


def test_queues_drop(dsn: str, app: Penstock, queue: Queue) -> None:
    app.create_queue("empty")
    queue.push_many([{}] * 2)
    drop = ("queues", "drop", "work")
    with nothing_changes(queue):
        full, unasked, dry, missing = each(
            (*drop, "--yes"),
            (*drop, "--force"),
            (*drop, "--force", "--dry-run", "--json"),
            ("queues", "drop", "emtpy", "--yes"),
            dsn=dsn,
        )
    refused(full, "has 2 tasks", "--force", code=1)
    refused(unasked, "--yes")
    assert dry.json == {"queue": "work", "dropped": False, "tasks": 2, "dry_run": True}
    refused(missing, "Did you mean 'empty'?", code=1)
    empty, forced = each(("queues", "drop", "empty", "--yes"), (*drop, "--force", "--yes", "--json"), dsn=dsn)
    assert empty.out == "queue empty with 0 tasks dropped\n"
    assert forced.json == {"queue": "work", "dropped": True, "tasks": 2}
    assert app.queues() == []


# --- claim, settle ----------------------------------------------------------------------------------------------------


def test_a_worker_made_of_commands(dsn: str, queue: Queue, sql: Connection) -> None:
    queue.push_many([{"n": n} for n in range(5)])
    ran = penstock("claim", "work", "--limit", "9", "--lease", "5m", "--worker", "me", "--json", dsn=dsn)
    assert set(ran.json) == {"token", "until", "tasks"}
    token, tasks = ran.json["token"], ran.json["tasks"]
    assert [task["payload"]["n"] for task in tasks] == [0, 1, 2, 3, 4]
    assert all(set(task) == CLAIMED for task in tasks)
    left = datetime.fromisoformat(ran.json["until"]) - datetime.now(UTC)
    assert timedelta(minutes=4) < left <= timedelta(minutes=5)
    done, again, failed, dead, release = (str(task["id"]) for task in tasks)

    def settle(*words: str) -> dict[str, str]:
        ran = penstock("settle", "work", token, *words, "--json", dsn=dsn)
        assert ran.code == 0, ran.err
        assert set(ran.json) == {"settled"}
        return dict(ran.json["settled"])

    assert settle(done) == {done: "done"}
    assert settle(again, "--outcome", "again", "--delay", "1h", "--payload", '{"n": 7}') == {again: "planned"}
    assert settle(failed, "--outcome", "failed", "--error", "no route") == {failed: "planned"}
    assert settle(dead, "--outcome", "dead", "--error", "never") == {dead: "dead"}
    assert settle(release, "--outcome", "release") == {release: "pending"}
    assert queue.task(int(again)).payload == {"n": 7}
    assert (queue.task(int(failed)).error, queue.task(int(dead)).reason) == ("no route", "never")
    assert sql.execute("select distinct worker from penstock.history").fetchall() == [("me",)]

    lost = penstock("settle", "work", token, done, dsn=dsn)
    refused(lost, "PS2003", f"Not settled: {done}.", code=1)


def test_claims_for_people_and_of_nothing(dsn: str, queue: Queue) -> None:
    pushed = queue.push({"to": "ann" * 100}, subject="welcome")
    said = penstock("claim", "work", "--lease", "5m", dsn=dsn)
    first, _, row = said.out.splitlines()
    token = first.split()[1].rstrip(",")
    assert first.startswith("token ")
    assert row.split()[:3] == [str(pushed.id), "default", "welcome"]
    assert '  {"to": "annann' in row
    assert row.endswith("…")
    value, none, missing, limit, lease = each(
        ("claim", "work", "--json"),
        ("claim", "work"),
        ("claim", "wrok"),
        ("claim", "work", "--limit", "10001"),
        ("claim", "work", "--lease", "1us"),
        dsn=dsn,
    )
    assert (value.code, value.json) == (0, {"token": None, "until": None, "tasks": []})
    assert (none.code, none.out) == (0, "no tasks\n")
    refused(missing, "Did you mean 'work'?", code=1)
    refused(limit, "limit: 10001")
    refused(lease, "lease: ")
    settled = penstock("settle", "work", token, str(pushed.id), dsn=dsn)
    assert (settled.code, settled.out) == (0, f"{pushed.id}: done\n")


def test_settles_that_make_no_sense(dsn: str, queue: Queue) -> None:
    queue.push()
    claim = queue.claim()
    token, id_ = str(claim.token), str(claim.ids[0])
    with nothing_changes(queue):
        word, error, both, payload, list_, naive, uuid, twice, stranger, missing = each(
            ("settle", "work", token, id_, "--outcome", "dnoe"),
            ("settle", "work", token, id_, "--error", "x"),
            ("settle", "work", token, id_, "--outcome", "again", "--due", "2027-01-01T00:00:00Z", "--delay", "5m"),
            ("settle", "work", token, id_, "--outcome", "again", "--payload", "{broken"),
            ("settle", "work", token, id_, "--outcome", "again", "--payload", "[1]"),
            ("settle", "work", token, id_, "--outcome", "again", "--due", "tomorrow"),
            ("settle", "work", "abc", id_),
            ("settle", "work", token, id_, id_),
            ("settle", "work", token, str(NOBODY)),
            ("settle", "wrok", token, id_),
            dsn=dsn,
        )
    refused(word, "Did you mean done?")
    refused(error, "error: the outcome done has none")
    refused(both, "either --due or --delay")
    refused(payload, "PS1002", "payload: it is not JSON")
    refused(list_, "PS1002", "not a JSON object")
    refused(naive, "due: 'tomorrow'")
    refused(uuid, "token: 'abc'")
    refused(twice, "there twice")
    refused(stranger, "PS2001", "never in this lease", code=1)
    refused(missing, "Did you mean 'work'?", code=1)
    unknown = penstock("settle", "work", str(uuid4()), id_, "--json", dsn=dsn)
    assert (unknown.code, json.loads(unknown.err)["error"]["code"]) == (1, "PS2003")
    queue.settle(claim)


def test_a_claim_that_nobody_could_read_is_given_back(dsn: str, queue: Queue) -> None:
    queue.push()
    with Path("/dev/full").open("wb") as full:
        ran = subprocess.run(
            [*COMMAND, "claim", "work", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(dsn),
            check=False,
        )
    assert ran.returncode == 1
    assert b"No space left" in ran.stderr
    assert (queue.status().pending, queue.status().active) == (1, 0)


# --- upkeep, repair, init ---------------------------------------------------------------------------------------------


def test_upkeep(dsn: str, queue: Queue, clock: Clock) -> None:
    queue.push(due=clock.now())
    value, said = penstock("upkeep", "--json", dsn=dsn), penstock("upkeep", dsn=dsn)
    assert value.json["parts"]["promoted"] == 1
    assert all(isinstance(rows, int) for rows in value.json["parts"].values())
    assert said.out.splitlines()[0].split() == ["part", "rows"]


def test_a_rehearsal_answers_and_changes_nothing(dsn: str, queue: Queue, clock: Clock) -> None:
    queue.push_many([{"n": 1}, {"n": 2}])
    queue.push(due=clock.now())
    rehearsed = penstock("claim", "work", "--limit", "5", "--dry-run", "--json", dsn=dsn).json
    assert [task["payload"] for task in rehearsed["tasks"]] == [{"n": 1}, {"n": 2}, {}]
    assert rehearsed["token"] is None
    assert penstock("upkeep", "--dry-run", "--json", dsn=dsn).json["parts"]["promoted"] == 1
    assert (queue.status().planned, queue.status().pending, queue.status().active) == (1, 2, 0)
    claim = queue.claim()
    settle = ("settle", "work", str(claim.token), str(claim.ids[0]))
    assert penstock(*settle, "--dry-run", "--json", dsn=dsn).json["would"] == {str(claim.ids[0]): "done"}
    assert queue.status().active == 1
    assert penstock(*settle, "--json", dsn=dsn).json == {"settled": {str(claim.ids[0]): "done"}}


@pytest.mark.unbalanced
def test_verify_repairs(dsn: str, queue: Queue, sql: Connection) -> None:
    queue.push_many([{}, {}])
    wrong = "insert into penstock.counter_log (queue_id, metric, delta) select id, 'pending', 5 from penstock.queue"
    sql.execute(wrong)
    assert penstock("verify", dsn=dsn).code == 1
    rehearsed = penstock("verify", "work", "--repair", "--dry-run", "--json", dsn=dsn)
    assert (rehearsed.code, [one["what"] for one in rehearsed.json["would"]]) == (1, ["counter pending corrected"])
    ran = penstock("verify", "work", "--repair", "--json", dsn=dsn)
    assert ran.code == 0
    assert ran.json["repaired"] == [{"queue": "work", "what": "counter pending corrected", "rows": 5}]
    assert (ran.json["drift"], ran.json["findings"]) == (0, [])
    sql.execute(wrong)
    said = penstock("verify", "--repair", dsn=dsn)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("work: counter pending corrected: ")
    assert "all is well" in said.out
    nothing, missing = each(("verify", "--repair", "--json"), ("verify", "wrok", "--repair"), dsn=dsn)
    assert (nothing.code, nothing.json["repaired"]) == (0, [])
    refused(missing, "Did you mean 'work'?", code=1)


def test_init_without_roles(make_database: Callable[..., str]) -> None:
    dsn = make_database("template0")
    full, lean = each(("init", "--sql"), ("init", "--sql", "--no-roles"))
    assert "create role" in full.out.lower()
    assert len(lean.out) < len(full.out)
    plan = penstock("init", "--no-roles", "--plan", "--json", dsn=dsn)
    assert plan.json == {"planned": ["0001_heart.sql", "functions"]}
    ran = penstock("init", "--no-roles", "--json", dsn=dsn)
    assert ran.json == {"applied": ["0001_heart.sql", "functions"]}


# --- psql -------------------------------------------------------------------------------------------------------------

ASK = ("--", "-XAtc", "select current_database()")


def test_psql_on_path(dsn: str, tmp_path: Path) -> None:
    """A psql of our own tells what it is given: the password in a variable, nothing on the command line."""
    program = tmp_path / "psql"
    program.write_text('#!/bin/sh\necho "args $*"\nenv | grep ^PG | sort\nexit 7\n')
    program.chmod(0o755)
    given = "postgresql://ann:s3kr3t@db.example:5433/mail?sslmode=require"
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PGSERVICE": "other"}
    ran = penstock("psql", "--dsn", given, "--", "-c", "select 1", env=env)
    assert ran.code == 7
    assert ran.out.splitlines() == [
        "args -c select 1", "PGDATABASE=mail", "PGHOST=db.example", "PGPASSWORD=s3kr3t", "PGPORT=5433",
        "PGSSLMODE=require", "PGUSER=ann",
    ]  # fmt: skip
    none = penstock("psql", dsn=dsn, env={"PATH": str(tmp_path / "nowhere")})
    refused(none, "PS3001", "no psql is found", code=3)


def test_psql_of_the_embedded_server(server_dsn: str) -> None:
    home = Path(str(conninfo_to_dict(server_dsn)["passfile"])).parent
    server = Server.running(home)
    assert server is not None
    ran = penstock("psql", *ASK, env={"PENSTOCK_HOME": str(home), "PATH": "/nonexistent"})
    assert (ran.code, ran.out.strip(), ran.err) == (0, conninfo_to_dict(server.dsn)["dbname"], "")


def test_psql_is_told_in_libpqs_own_words() -> None:
    for option in pq.Conninfo.get_defaults():
        if option.envvar is not None:
            assert variable(option.keyword.decode()) == option.envvar.decode()
    parts: dict[str, Any] = conninfo_to_dict(make_conninfo("service=mail", dbname="other", password="s3kr3t"))
    assert flags(parts) == ["--dbname=other"], "a service would win over a variable"
    assert psql_environment(parts, {"PGSERVICE": "x"}) == {
        "PGSERVICE": "mail", "PGDATABASE": "other", "PGPASSWORD": "s3kr3t",
    }  # fmt: skip
    assert psql_environment({}, {"PGSERVICE": "x"}) == {"PGSERVICE": "x"}


# --- the question -----------------------------------------------------------------------------------------------------


def at_terminal(*arguments: str, dsn: str, typed: bytes = b"", after: bytes = b"[y/N] ") -> Ran:
    """A command with a terminal for its questions and answers; standard output is still a pipe. What is typed comes
    after the question; if nothing is, no question is waited for."""
    ours, theirs = os.openpty()
    # A session without a terminal gets the first one it opens: Ctrl-C in it is a real one.
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
        said = heard(ours, until=after) if typed else b""
        os.write(ours, typed)
        out, _ = process.communicate(timeout=30)
        said += heard(ours)
    os.close(ours)
    os.close(theirs)
    assert b"Traceback" not in said
    return Ran(process.returncode, out.decode(), said.decode())


def heard(terminal: int, until: bytes | None = None) -> bytes:
    """What was written on it: up to a question, or what is there."""
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


def test_nobody_is_asked_about_nothing(dsn: str, queue: Queue) -> None:
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
    """No bar: it would write over what is typed."""
    invitation = b"reading tasks, one JSON object a line; Ctrl-D ends\r\n"
    ran = at_terminal("push", "work", dsn=dsn, typed=b'{"payload": {}}\n\x04', after=invitation)
    assert (ran.code, ran.out) == (0, "1 created\n")
    assert ran.err.replace("^D\b\b", "") == invitation.decode() + '{"payload": {}}\r\n'
    ran = at_terminal("push", "work", dsn=dsn, typed=b"\x03", after=invitation)
    assert ran.code == 130
    assert ran.err.endswith("interrupted; nothing was pushed\r\n")


def test_half_a_terminal_is_none(dsn: str, queue: Queue) -> None:
    """With standard input from a pipe nobody could answer, whatever it says."""
    queue.push()
    with nothing_changes(queue):
        ran = penstock("queues", "purge", "work", dsn=dsn, stdin="y\n")
    refused(ran, "no terminal", "--yes")


# --- manners ----------------------------------------------------------------------------------------------------------


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
        shown = path[:-1] if path == ("penstock", "scale", "run") else path  # it is what `scale` does by itself
        assert f"Example: {' '.join(shown)}" in text, path


def test_a_read_only_server_changes_nothing(dsn: str, queue: Queue) -> None:
    (dead,) = bury(queue, "x")
    replica = make_conninfo(dsn, options="-c default_transaction_read_only=on")
    with nothing_changes(queue):
        ran, listed = each(("dead", "redrive", "work", str(dead)), ("dead", "ls", "work"), dsn=replica)
    refused(ran, "PS4001", "primary", code=4)
    assert listed.code == 0


def test_a_long_purge_may_be_interrupted(dsn: str, queue: Queue) -> None:
    """It waits behind somebody's lock, as a long one would work; Ctrl-C ends it, and nothing is half gone."""
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
            waiting = "select from pg_locks where not granted and relation = 'penstock.task'::regclass"
            while not sql.execute(waiting).rowcount:
                assert process.poll() is None
            process.send_signal(2)
            out, err = process.communicate(timeout=30)
        other.rollback()
    assert (process.returncode, out, err) == (130, b"", b"")
