"""`penstock dead redrive --canary`: a few tasks go first, and the rest follows only if all of them succeed."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg
from psycopg import Connection

from penstock import Outcome, Queue
from penstock.model import Task
from shell import COMMAND, WAITING, Ran, each, environment, is_one_block, penstock

UNKNOWN_ID = 10**9
DONE = Outcome.done()
EVERY = ("dead", "redrive", "work", "--all", "--yes")
STAYS = "nothing more is redriven: the rest is still dead\n"


def bury(queue: Queue, count: int, *, error: str = "boom", subject: str | None = None) -> list[int]:
    """Makes dead tasks, and returns their ids, the oldest first."""
    ids = []
    for _ in range(count):
        ids.append(queue.push({}, priority=0, subject=subject).id)
        queue.settle(queue.claim(), {ids[-1]: Outcome.dead(error)})
    return ids


@contextmanager
def worker(queue: Queue, say: Callable[[Task], Outcome]) -> Iterator[list[tuple[int, int]]]:
    """Runs tasks of the queue meanwhile. Returns the tasks that ran, each with the number of dead tasks then."""
    ran: list[tuple[int, int]] = []
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(0.01):
            if claim := queue.claim():
                ran.append((claim.ids[0], queue.status().dead))
                queue.settle(claim, {claim.ids[0]: say(claim.tasks[0])})

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield ran
    finally:
        ended.set()
        thread.join()


def done(task: Task) -> Outcome:
    return DONE


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def refused(ran: Ran, *words: str) -> None:
    assert (ran.code, ran.out) == (2, ""), ran
    assert is_one_block(ran.err), ran.err
    assert all(word in ran.err for word in words), ran.err


def redriven(*ids: int) -> dict[str, str]:
    return {str(id_): "redriven" for id_ in ids}


# --- they succeed -----------------------------------------------------------------------------------------------------


def test_the_rest_follows(dsn: str, queue: Queue) -> None:
    ids = bury(queue, 5)
    with worker(queue, done) as ran:
        value = penstock(*EVERY, "--canary", "2", "--json", dsn=dsn)
        until(lambda: len(ran) == 5)
    assert value.code == 0, value
    assert value.json == {
        "canary": {"succeeded": ids[:2], "failed": {}, "waiting": []},
        "tasks": redriven(*ids),
        "unknown_subjects": [],
    }
    assert ran[:2] == [(ids[0], 3), (ids[1], 3)], "the oldest go first, while the rest is still dead"


def test_for_people(dsn: str, queue: Queue) -> None:
    bury(queue, 3)
    with worker(queue, done):
        said = penstock("dead", "redrive", "work", "--error", "boom", "--canary", "1", dsn=dsn)
    assert (said.code, said.out, said.err) == (0, "3 redriven\ncanaries: 1 of 1 succeeded\n", "")


def test_one_that_runs_again_succeeded(dsn: str, queue: Queue) -> None:
    """This also holds for a task that ran before the command first looked, and for one whose document is kept."""
    queue.set(keep_done="1h")
    ids = bury(queue, 3)
    with worker(queue, lambda task: Outcome.again(delay="1h") if task.id == ids[0] else DONE):
        value = penstock(*EVERY, "--canary", "2", "--json", dsn=dsn)
        until(lambda: queue.status().done == 2)
    assert (value.code, sorted(value.json["canary"]["succeeded"])) == (0, ids[:2])
    assert queue.task(ids[0]).iterations == 1


def test_more_canaries_than_there_are(dsn: str, queue: Queue) -> None:
    ids = bury(queue, 2)
    with worker(queue, done):
        value = penstock(*EVERY, "--canary", "10", "--json", dsn=dsn)
    assert (value.code, value.json["tasks"]) == (0, redriven(*ids))
    assert sorted(value.json["canary"]["succeeded"]) == ids
    none = penstock(*EVERY, "--canary", "10", dsn=dsn)
    assert (none.code, none.out) == (0, "no tasks\n")


def test_a_limit_counts_the_canaries_too(dsn: str, queue: Queue) -> None:
    ids = bury(queue, 4)
    with worker(queue, done):
        value = penstock(
            "dead", "redrive", "work", "--error", "boom", "--limit", "3", "--canary", "2", "--json", dsn=dsn
        )
    assert (value.code, value.json["tasks"]) == (0, redriven(*ids[:3]))


def test_what_dies_meanwhile_was_not_chosen(dsn: str, queue: Queue) -> None:
    ids = bury(queue, 3)
    bury(queue, 2, error="bang")
    late: list[int] = []

    def say(task: Task) -> Outcome:
        late.extend(bury(queue, 1) if task.id == ids[0] else ())
        return DONE

    with worker(queue, say):
        value = penstock("dead", "redrive", "work", "--error", "boom", "--canary", "1", "--json", dsn=dsn)
    assert (value.code, value.json["tasks"]) == (0, redriven(*ids))
    assert [queue.task(id_).state for id_ in late] == ["dead"]


# --- one fails --------------------------------------------------------------------------------------------------------


def test_the_rest_stays_dead(dsn: str, queue: Queue) -> None:
    """One canary is to be tried again and one is dead: neither has succeeded."""
    ids = bury(queue, 5)
    with worker(queue, lambda task: Outcome.failed("still\x1b[31m broken", delay="1h") if task.id == ids[1] else DONE):
        said = penstock(*EVERY, "--canary", "2", dsn=dsn)
    assert said.code == 1
    assert said.out == f"2 redriven\ncanaries: 1 of 2 succeeded, 1 failed\n  {ids[1]}: still?[31m broken\n{STAYS}"
    assert [task.id for task in queue.tasks(state="dead")] == ids[2:]

    with worker(queue, lambda _: Outcome.dead("given up")):
        value = penstock(*EVERY, "--canary", "1", "--json", dsn=dsn)
    assert (value.code, value.json["tasks"]) == (1, redriven(ids[2]))
    assert value.json["canary"] == {"succeeded": [], "failed": {str(ids[2]): "given up"}, "waiting": []}
    assert [task.id for task in queue.tasks(state="dead")] == ids[2:]


def test_a_canary_that_is_cancelled_failed(dsn: str, queue: Queue) -> None:
    (id_,) = bury(queue, 1)
    command = [*COMMAND, *EVERY, "--canary", "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(dsn)) as process:
        until(lambda: queue.cancel([id_], reason="not today") == {id_: "cancelled"})
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert out.decode() == f"1 redriven\ncanaries: 0 of 1 succeeded, 1 failed\n  {id_}: not today\n", "there is no rest"


# --- no worker comes --------------------------------------------------------------------------------------------------


def test_the_wait_passes(dsn: str, queue: Queue) -> None:
    ids = bury(queue, 3)
    said = penstock(*EVERY, "--canary", "1", "--canary-wait", "300ms", dsn=dsn)
    assert said.code == 1
    late = "canaries: 0 of 1 succeeded, 1 not tried within 300ms\n"
    assert said.out == f"1 redriven\n{late}  no worker seems to serve queue work\n{STAYS}"
    value = penstock(*EVERY, "--canary", "1", "--canary-wait", "300ms", "--json", dsn=dsn)
    assert (value.code, value.json["tasks"]) == (1, redriven(ids[1]))
    assert value.json["canary"] == {"succeeded": [], "failed": {}, "waiting": [ids[1]]}
    assert [task.id for task in queue.tasks(state="dead")] == ids[2:]


def test_it_says_why_no_worker_came(dsn: str, queue: Queue) -> None:
    bury(queue, 2)
    queue.push({}, priority=0)
    assert queue.claim()
    wait = (*EVERY, "--canary", "1", "--canary-wait", "10ms")
    assert "  its workers are busy: give them longer with --canary-wait\n" in penstock(*wait, dsn=dsn).out
    queue.pause()
    assert "  queue work is paused: `penstock queues resume work`\n" in penstock(*wait, dsn=dsn).out


@contextmanager
def watching(dsn: str, queue: Queue) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Returns the command and the pid of its backend, while a lock blocks it at the query for its only canary."""
    command = [*COMMAND, *EVERY, "--canary", "1"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(dsn)) as process,
        psycopg.connect(dsn) as other,
        psycopg.connect(dsn, autocommit=True) as sql,
    ):
        until(lambda: queue.status().dead == 2)
        other.execute("lock table penstock.task in access exclusive mode")
        until(lambda: sql.execute(WAITING).rowcount == 1)
        yield process, sql.execute(WAITING).fetchall()[0][0]
        other.rollback()


def test_it_may_be_interrupted(dsn: str, queue: Queue) -> None:
    bury(queue, 3)
    with watching(dsn, queue) as (process, _):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, b"")
    assert err == b"interrupted; the canaries are redriven, the rest is not\n"
    assert (queue.status().dead, queue.status().pending) == (2, 1)


def test_an_error_says_what_was_already_done(dsn: str, queue: Queue, sql: Connection) -> None:
    bury(queue, 3)
    with watching(dsn, queue) as (process, backend):
        sql.execute("select pg_terminate_backend(%s)", (backend,))
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, is_one_block(err.decode())) == (4, b"", True)
    assert err.decode().endswith("The canaries are redriven, the rest is not.\n")


# --- named tasks ------------------------------------------------------------------------------------------------------


def test_named_tasks(dsn: str, queue: Queue) -> None:
    """The first named tasks that can be redriven are the canaries; the others get their answers."""
    old, new = bury(queue, 2)
    (subject,) = bury(queue, 1, subject="s")
    live = queue.push(subject="later", due=datetime.now(UTC) + timedelta(days=1)).id
    words = ("dead", "redrive", "work", str(UNKNOWN_ID), str(new), str(old))
    names = ("--subject", "later", "--subject", "s", "--subject", "gone")
    with worker(queue, done) as ran:
        value = penstock(*words, *names, "--canary", "1", "--json", dsn=dsn)
        until(lambda: len(ran) == 3)
    assert value.code == 1, "two of them are not there"
    assert value.json == {
        "canary": {"succeeded": [new], "failed": {}, "waiting": []},
        "tasks": redriven(new, old, subject) | {str(UNKNOWN_ID): "unknown", str(live): "live"},
        "unknown_subjects": ["gone"],
    }
    assert ran[0] == (new, 2), "the first named task runs while the others are dead"


def test_named_tasks_that_all_succeed(dsn: str, queue: Queue) -> None:
    """A subject whose task is done and removed still gets its answer: it was redriven."""
    first, second = bury(queue, 1, subject="a") + bury(queue, 1, subject="b")
    with worker(queue, done):
        said = penstock("dead", "redrive", "work", "--subject", "a", "--subject", "b", "--canary", "1", dsn=dsn)
        until(lambda: queue.status().queued + queue.status().active == 0)
    assert (said.code, said.out) == (0, "2 redriven\ncanaries: 1 of 1 succeeded\n")
    assert not queue.tasks()
    assert queue.status().totals["redriven"] == len({first, second})


def test_a_named_task_fails(dsn: str, queue: Queue) -> None:
    one, two, three = bury(queue, 3)
    with worker(queue, lambda task: Outcome.dead("no") if task.id == three else DONE):
        value = penstock("dead", "redrive", "work", str(three), str(one), str(two), "--canary", "2", "--json", dsn=dsn)
    assert value.code == 1
    assert str(two) not in value.json["tasks"]
    assert value.json["canary"]["failed"] == {str(three): "no"}
    assert queue.task(two).state == "dead"


def test_what_is_refused_changes_nothing(dsn: str, queue: Queue) -> None:
    """One of the named tasks is done: all are refused, as without canaries."""
    queue.set(keep_done="1h")
    finished = queue.push().id
    queue.settle(queue.claim())
    (dead,) = bury(queue, 1)
    ran = penstock("dead", "redrive", "work", str(dead), str(finished), "--canary", "1", dsn=dsn)
    assert (ran.code, is_one_block(ran.err)) == (1, True)
    assert f"{finished} is done" in ran.err
    assert queue.task(dead).state == "dead"


# --- refusals, and the rehearsal --------------------------------------------------------------------------------------


def test_bad_numbers_are_refused(dsn: str, queue: Queue) -> None:
    ids = bury(queue, 2)
    zero, less, word, wait, never, alone, unasked = each(
        (*EVERY, "--canary", "0"),
        ("dead", "redrive", "work", str(ids[0]), "--canary", "-1"),
        (*EVERY, "--canary", "few"),
        (*EVERY, "--canary", "1", "--canary-wait", "soon"),
        (*EVERY, "--canary", "1", "--canary-wait", "0s"),
        (*EVERY, "--canary-wait", "5m"),
        ("dead", "redrive", "work", "--all", "--canary", "1"),
        dsn=dsn,
    )
    refused(zero, "canary: 0 is not a whole number from 1 to ")
    refused(less, "canary: -1 is not a whole number from 1 to ")
    refused(word, "--canary", "'few' is not a whole number")
    refused(wait, "canary_wait: 'soon' is not a duration")
    refused(never, "canary_wait: '0s' is not more than 0")
    refused(alone, "canary_wait: without --canary")
    refused(unasked, "--yes")
    assert [task.id for task in queue.tasks(state="dead")] == ids


def test_a_rehearsal_names_the_canaries(dsn: str, queue: Queue) -> None:
    one, two, three = bury(queue, 3)
    value, said, named = each(
        (*EVERY, "--canary", "2", "--dry-run", "--json"),
        (*EVERY, "--canary", "2", "--dry-run"),
        ("dead", "redrive", "work", str(UNKNOWN_ID), str(three), str(one), "--canary", "1", "--dry-run"),
        dsn=dsn,
    )
    assert (value.code, value.json) == (
        0,
        {
            "canary": {"succeeded": [], "failed": {}, "waiting": [], "would": [one, two]},
            "tasks": {},
            "would": redriven(one, two, three),
            "dry_run": True,
            "unknown_subjects": [],
        },
    )
    assert (said.code, said.out) == (0, f"would be: 3 redriven\ncanaries: {one}, {two}\n")
    assert named.code == 1
    assert named.out == f"would be: 2 redriven, 1 unknown\n  {UNKNOWN_ID}: unknown\ncanaries: {three}\n"
    assert [task.id for task in queue.tasks(state="dead")] == [one, two, three]
