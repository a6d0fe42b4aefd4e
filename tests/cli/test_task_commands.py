"""Commands that list and change tasks, run from outside."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from penstock import NewTask, Queue
from penstock.model import TaskInfo
from shell import COUNTS, Ran, bury, each, nothing_changes, penstock, refused

LISTED = {*TaskInfo._fields}
UNKNOWN_ID = 10**9


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
        ("tasks", "show", str(pushed.id), "--json"),
        ("tasks", "show", str(pushed.id)),
        ("tasks", "ls", "work"),
        ("tasks", "show", str(UNKNOWN_ID)),
        ("tasks", "show", "abc", "--json"),
        dsn=dsn,
    )
    details = {"message", "traceback", "worker", "claimed_at", "lease_until", "removed", "history", "progress"}
    assert set(value.json) == LISTED | details
    assert (value.json["id"], value.json["payload"]) == (pushed.id, {"to": "Ünï", "lines": [1]})
    assert 'payload\n{\n  "to": "Ünï",\n  "lines": [\n    1\n  ]\n}\n' in said.out
    assert "[red]\\x1b[31m\\n" in said.out
    assert "[red]\\x1b[31m\\n" in listed.out
    refused(unknown, "PS2001", f"no task {UNKNOWN_ID}", code=1)
    assert (strange.code, json.loads(strange.err)["error"]["code"]) == (2, "PS1001")


# --- tasks cancel, reschedule, reprioritise ---------------------------------------------------------------------------


def test_cancel(dsn: str, queue: Queue) -> None:
    queue.push_many([NewTask({}, f"s{n}") for n in range(4)])
    claimed, first, second, _ = (task.id for task in queue.tasks())
    assert queue.claim().ids == [claimed]
    words = (
        "tasks",
        "cancel",
        "work",
        str(claimed),
        str(first),
        str(UNKNOWN_ID),
        "--subject",
        "s2",
        "--subject",
        "gone",
    )
    fates = {str(claimed): "revoked", str(first): "cancelled", str(UNKNOWN_ID): "unknown", str(second): "cancelled"}
    with nothing_changes(queue):
        dry, said, unasked = each((*words, "--dry-run", "--json"), (*words, "--dry-run"), (*words, "--json"), dsn=dsn)
    assert dry.json == {"tasks": {}, "would": fates, "dry_run": True, "unknown_subjects": ["gone"]}
    assert dry.code == said.code == 1
    assert said.out == f"would be: 2 cancelled, 1 revoked, 2 unknown\n  {UNKNOWN_ID}: unknown\n  gone: unknown\n"
    assert (unasked.code, unasked.out) == (2, "")
    assert json.loads(unasked.err)["error"]["code"] == "PS1001"

    ran = penstock(*words, "--reason", "no longer", "--yes", "--json", dsn=dsn)
    assert (ran.code, ran.json) == (1, {"tasks": fates, "unknown_subjects": ["gone"]})
    assert {task.reason for task in queue.tasks(state="cancelled")} == {"no longer"}
    good = penstock("tasks", "cancel", "work", "--subject", "s3", "--reason", "x" * 9000 + "\udcff", "--yes", dsn=dsn)
    assert (good.code, good.out, good.err) == (0, "1 cancelled\n", "")
    assert str(queue.tasks(subject="s3")[0].reason).endswith("(cut)")


def test_names_that_are_not_valid(dsn: str, queue: Queue) -> None:
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
    refused(neither, "no ids and no subjects")
    refused(twice, "id: 5 is given twice")
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
    refused(both, "give one of --due and --in")
    refused(neither, "give one of --due and --in")
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
            ("tasks", "reprioritise", "work", str(one), "--priority", "101"),
            ("tasks", "reprioritise", "work", str(one)),
            dsn=dsn,
        )
    assert (dry.code, dry.out) == (1, f"would be: 1 ended, 1 reprioritised\n  {ended}: ended\n")
    refused(wrong, "priority: 101")
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


def test_redrive_of_named_tasks(dsn: str, queue: Queue) -> None:
    boom, _ = bury(queue, "boom", "bang")
    waiting = queue.push(subject="w").id
    words = ("dead", "redrive", "work", str(boom), str(UNKNOWN_ID), "--subject", "w")
    fates = {str(boom): "redriven", str(UNKNOWN_ID): "unknown", str(waiting): "live"}
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
    assert limited.json["would"] == {str(old): "redriven"}, "the oldest come first"
    refused(none, "add --all")
    refused(both, "--kind cannot be combined with named tasks")
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
    refused(both, "--limit cannot be combined with named tasks")

    ran = penstock(*purge, "--before", before.isoformat(), "--yes", "--json", dsn=dsn)
    assert (ran.code, ran.json) == (0, {"queue": "work", "purged": 1})
    ran = penstock(*purge, str(boom), str(old), "--yes", dsn=dsn)
    assert (ran.code, ran.out) == (1, "1 dead task of queue work removed\n")
    assert [task.id for task in queue.tasks(state="dead")] == [bang, last]
    assert penstock(*purge, "--yes", "-q", dsn=dsn) == Ran(0, "", "")
    assert [task.id for task in queue.tasks()] == [waiting]
