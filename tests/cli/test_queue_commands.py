"""Commands on queues and leases, run from outside."""

from __future__ import annotations

import json
import subprocess
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from psycopg import Connection

from penstock import Penstock, Queue
from penstock.cli.terminal.formatting import format_size
from penstock.cli.terminal.queue_settings import format_strategy
from penstock.formatting import format_age, format_length
from penstock.model import QueueSettings
from penstock.retry import parse
from shell import COMMAND, each, environment, nothing_changes, penstock, refused

CLAIMED = {"id", "kind", "subject", "payload", "priority", "attempt", "iterations", "due", "created"}
SETTINGS = {one.name for one in fields(QueueSettings)}
UNKNOWN_ID = 10**9


# --- queues -----------------------------------------------------------------------------------------------------------


def test_a_queue_is_created_shown_and_set(dsn: str, app: Penstock) -> None:
    created = penstock(
        *("queues", "create", "mail", "--keep-dead", "30d", "--keep-cancelled", "1d", "--max-payload", "2000"),
        *("--max-crashes", "7"),
        dsn=dsn,
    )
    assert created.code == 0, created.err
    value, said, missing = each(
        ("queues", "show", "mail", "--json"), ("queues", "show", "mail"), ("queues", "show", "mial"), dsn=dsn
    )
    assert set(value.json) == SETTINGS | {"status"}
    assert (value.json["keep_dead"], value.json["keep_cancelled"], value.json["max_payload"]) == (2592000, 86400, 2000)
    assert value.json["max_crashes"] == 7
    assert value.json["status"]["pending"] == 0
    shown = dict(line.split(maxsplit=1) for line in said.out.splitlines()[1:])
    assert (shown["keep_dead"], shown["lease"], shown["max_payload"]) == ("30d", "30s", "2,000 bytes")
    assert shown["retry"] == "exponential:5s,factor=2,cap=1h,jitter=0.1"
    assert "pending" in said.out
    refused(missing, "Did you mean 'mail'?", code=1)

    change = (
        "queues", "set", "mail", "--lease", "1m", "--max-attempts", "none", "--retry", "fixed:30s", "--sla", "1h30m",
        "--keep-done", "1d", "--keep-dead", "none", "--max-payload", "3000", "--max-crashes", "1",
    )  # fmt: skip
    with nothing_changes(app.queue("mail")):
        dry, told = each((*change, "--dry-run", "--json"), (*change, "--dry-run"), dsn=dsn)
    assert told.out.startswith("queue mail would be: lease 30s -> 1m, max_attempts 20 -> none, retry exponential:5s,")
    ran = penstock(*change, "--json", dsn=dsn)
    assert dry.json == ran.json | {"dry_run": True}
    assert set(ran.json) == SETTINGS
    assert (ran.json["lease"], ran.json["max_attempts"], ran.json["sla"]) == (60, None, 5400)
    assert ran.json["max_crashes"] == 1
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
        "delays:1m,5m,1h30m",
        "progressive:1d=5m,7d=1h",
    ],
)
def test_a_strategy_is_shown_as_one_writes_it(written: str) -> None:
    assert format_strategy(parse(written).to_json()) == written


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
    assert {seconds: format_age(seconds) for seconds in lengths} == lengths
    assert (format_age(None), format_length(None), format_length(timedelta(seconds=90.5))) == ("–", "–", "1m30.5s")
    sizes = {1 << 20: "1 MiB", 16 << 20: "16 MiB", 64 << 10: "64 KiB", 2000: "2,000 bytes"}
    assert {count: format_size(count) for count in sizes} == sizes


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
        word, error, both, payload, list_, naive, uuid, twice, unknown_id, missing = each(
            ("settle", "work", token, id_, "--outcome", "dnoe"),
            ("settle", "work", token, id_, "--error", "x"),
            ("settle", "work", token, id_, "--outcome", "again", "--due", "2027-01-01T00:00:00Z", "--delay", "5m"),
            ("settle", "work", token, id_, "--outcome", "again", "--payload", "{broken"),
            ("settle", "work", token, id_, "--outcome", "again", "--payload", "[1]"),
            ("settle", "work", token, id_, "--outcome", "again", "--due", "tomorrow"),
            ("settle", "work", "abc", id_),
            ("settle", "work", token, id_, id_),
            ("settle", "work", token, str(UNKNOWN_ID)),
            ("settle", "wrok", token, id_),
            dsn=dsn,
        )
    refused(word, "Did you mean done?")
    refused(error, "error: --error cannot be given with the outcome done")
    refused(both, "--due cannot be combined with --delay")
    refused(payload, "PS1002", "payload: it is not JSON")
    refused(list_, "PS1002", "not a JSON object")
    refused(naive, "due: 'tomorrow'")
    refused(uuid, "token: 'abc'")
    refused(twice, "twice")
    refused(unknown_id, "PS2001", "never in this lease", code=1)
    refused(missing, "Did you mean 'work'?", code=1)
    unknown = penstock("settle", "work", str(uuid4()), id_, "--json", dsn=dsn)
    assert (unknown.code, json.loads(unknown.err)["error"]["code"]) == (1, "PS2003")
    queue.settle(claim)


def test_a_claim_whose_output_cannot_be_written_is_given_back(dsn: str, queue: Queue) -> None:
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
