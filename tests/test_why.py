"""Why a task does not run: every reason, with its facts and its sentence."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg import Connection

from conftest import Clock
from penstock import AsyncPenstock, Explanation, NotFound, Outcome, Penstock, Queue, ValidationError
from penstock.client.statements import reasons
from shell import each, penstock, refused

UNKNOWN_ID = 10**9


def shown(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def facts(found: Explanation, *names: str) -> tuple[object, ...]:
    return tuple(found.facts[name] for name in names)


def quarantine(queue: Queue, clock: Clock) -> int:
    """Pushes a task that ends the lease that it has alone, so that it is quarantined."""
    pushed = queue.push()
    assert queue.claim(worker="crashing").ids == [pushed.id]
    clock.advance(11)
    put_back(queue)
    return pushed.id


def put_back(queue: Queue) -> None:
    """Claims, so that tasks of ended leases are put back, but not those that must run alone."""
    assert not queue.claim(quarantined=False)


# --- paused -----------------------------------------------------------------------------------------------------------


def test_its_queue_is_paused(app: Penstock, queue: Queue, clock: Clock, sql: Connection) -> None:
    pushed, planned = queue.push(), queue.push(due=clock.now() + timedelta(hours=10))
    queue.pause()
    queue.resume()
    clock.advance(60)
    queue.pause()
    began = clock.now()
    clock.advance(240)
    queue.set(paused=True, sla="1h")  # it was paused already
    found = queue.why(pushed.id)
    (user,) = sql.execute("select session_user").fetchone() or ()
    assert (found.reason, facts(found, "since", "actor", "later")) == ("paused", (began, user, False))
    assert found.at == clock.now()
    assert found.text == (
        f"task {pushed.id} waits because queue work is paused since {shown(began)}, for 4 min, by {user}"
    )
    assert str(found) == found.text
    later = queue.why(planned.id)
    assert later.reason == "paused"
    assert later.text.endswith(f"; it is due at {shown(later.facts['due'])}, in 9.92 h")


def test_its_queue_is_paused_and_the_audit_does_not_know_it(queue: Queue, sql: Connection) -> None:
    pushed = queue.push()
    queue.pause()
    queue.resume()
    sql.execute("update penstock.queue set paused = true")
    found = queue.why(pushed.id)
    assert (found.reason, facts(found, "since", "actor")) == ("paused", (None, None))
    assert found.text == f"task {pushed.id} waits because queue work is paused"


def test_a_pause_of_an_earlier_queue_of_its_name_does_not_count(app: Penstock, queue: Queue, sql: Connection) -> None:
    queue.pause()
    queue.drop()
    pushed = app.create_queue("work").push()
    sql.execute("update penstock.queue set paused = true")
    assert queue.why(pushed.id).facts["since"] is None


# --- planned ----------------------------------------------------------------------------------------------------------


def test_it_is_not_due_yet(queue: Queue, clock: Clock) -> None:
    due = clock.now() + timedelta(minutes=4)
    pushed = queue.push(due=due)
    found = queue.why(pushed.id)
    assert (found.reason, facts(found, "due", "failures", "last")) == ("planned", (due, 0, None))
    assert found.text == f"task {pushed.id} is due at {shown(due)}, in 4 min"


def test_it_is_tried_again_after_a_failure(queue: Queue, clock: Clock) -> None:
    id_ = queue.push().id
    queue.settle(queue.claim(worker="w"), {id_: Outcome.failed("x", error_class="KeyError", delay="90s")})
    found = queue.why(id_)
    assert (found.reason, facts(found, "failures", "max_attempts")) == ("planned", (1, 3))
    assert found.facts["last"] == {
        "attempt": 1, "outcome": "failed", "worker": "w", "finished_at": clock.now(), "error_class": "KeyError",
    }  # fmt: skip
    due = shown(clock.now() + timedelta(seconds=90))
    assert found.text == f"task {id_} is due at {due}, in 1.5 min; attempt 1 of 3 failed with KeyError"


def test_it_runs_later_for_another_reason(queue: Queue, clock: Clock) -> None:
    queue.set(max_attempts=None)
    again, released, reopened = (queue.push(subject=name).id for name in "abc")
    outcomes = {
        again: Outcome.again(delay="1h"), released: Outcome.release(delay="1h"), reopened: Outcome.dead("no")
    }  # fmt: skip
    queue.settle(queue.claim(3), outcomes)
    queue.push(subject="c", due=clock.now() + timedelta(hours=1), on_conflict="update")
    ends = [queue.why(id_).text.partition("in 1 h")[2] for id_ in (again, released, reopened)]
    assert ends == ["; its last run asked for another one", "; a worker put it back", ""]
    queue.set(max_attempts=3)
    claim_lost = queue.push().id
    for _ in range(2):  # the first loss quarantines it, and the second one delays it
        assert queue.claim(worker="w").ids == [claim_lost]
        clock.advance(10.5)
        put_back(queue)
    found = queue.why(claim_lost)
    assert found.reason == "planned"
    assert found.text.endswith("; attempt 2 of 3 ended with the lease of worker w")


def test_its_last_worker_had_no_handler_for_its_kind(queue: Queue, clock: Clock) -> None:
    id_ = queue.push(kind="look_up").id
    queue.settle(queue.claim(worker="w"), {id_: Outcome.release(delay="60s", error_class="UnknownKind")})
    found = queue.why(id_)
    assert (found.reason, facts(found, "kind")) == ("unknown_kind", ("look_up",))
    due = shown(clock.now() + timedelta(seconds=60))
    assert found.text == (
        f"task {id_} is due again at {due}, in 1 min: worker w put it back, with no handler for kind look_up"
    )


# --- due --------------------------------------------------------------------------------------------------------------


def test_no_worker_serves_its_queue(app: Penstock, queue: Queue, clock: Clock) -> None:
    app.create_queue("other")
    app.beat("w", ["other"], slots=5)
    first, second = queue.push().id, queue.push().id
    found = queue.why(first)
    assert (found.reason, facts(found, "workers", "slots", "free", "before")) == ("no_worker", (0, 0, 0, 0))
    said = f"task {first} waits for a worker: none that serves queue work has sent a beat in the last 10 s"
    assert found.text == said
    app.beat("v", ["work", "other"], slots=5)
    assert queue.why(first).reason == "next"
    clock.advance(11)
    found = queue.why(second)
    assert (found.reason, facts(found, "silent", "before")) == ("no_worker", (1, 1))
    assert found.text.endswith("in the last 10 s (1 silent); 1 task before it")


def test_a_worker_that_stops_serves_nothing(app: Penstock, queue: Queue, sql: Connection) -> None:
    pushed = queue.push()
    app.beat("w", ["work"])
    sql.execute("update penstock.worker set leaving = true")
    found = queue.why(pushed.id)
    assert (found.reason, facts(found, "leaving")) == ("no_worker", (1,))
    assert "(1 stopping)" in found.text


def test_it_waits_behind_others(app: Penstock, queue: Queue, clock: Clock) -> None:
    app.beat("w", ["work"], slots=5, busy=2)
    app.beat("v", ["work"], slots=1, busy=1)
    early, urgent, last = queue.push(), queue.push(priority=1), queue.push(priority=9)
    middle, late = queue.push(), queue.push(due=clock.now() + timedelta(seconds=1))
    before = {id_: queue.why(id_).facts["before"] for id_ in (urgent.id, early.id, middle.id, last.id)}
    assert before == {urgent.id: 0, early.id: 1, middle.id: 2, last.id: 3}
    clock.advance(1.5)
    assert queue.task(late.id).state == "planned", "no claim has promoted it yet"
    found = queue.why(last.id)
    assert (found.reason, facts(found, "before", "exact", "workers", "slots", "free")) == ("behind", (4, True, 2, 6, 3))
    assert found.text == (f"task {last.id} waits behind 4 tasks; 2 workers serve queue work, with 3 of 6 slots free")
    assert queue.why(late.id).facts["before"] == 3, "a task that is due waits, even if it is not promoted yet"
    app.beat("w", ["work"], slots=5, busy=5)
    assert queue.why(last.id).text.endswith("2 workers serve queue work, and all 6 slots are busy")


def test_it_is_next(app: Penstock, queue: Queue) -> None:
    pushed = queue.push()
    app.beat("w", ["work"], slots=2, busy=1)
    found = queue.why(pushed.id)
    assert found.reason == "next"
    assert found.text == (
        f"task {pushed.id} is next: no task is before it; 1 worker serves queue work, with 1 of 2 slots free"
    )
    app.beat("w", ["work"], slots=1, busy=1)
    found = queue.why(pushed.id)
    assert found.reason == "busy"
    assert found.text == (
        f"task {pushed.id} is next: no task is before it; 1 worker serves queue work, and its only slot is busy"
    )


def test_the_count_of_tasks_before_it_is_bounded(app: Penstock, queue: Queue, clock: Clock) -> None:
    app.beat("w", ["work"])
    queue.push_many([{}] * 10_000)
    exact, more = queue.push(priority=9).id, queue.push(priority=9).id
    assert facts(queue.why(exact), "before", "exact") == (10_000, True)
    assert facts(queue.why(more), "before", "exact") == (10_000, False)
    assert "waits behind at least 10,000 tasks" in queue.why(more).text


def test_the_count_follows_the_bounds_of_claims(app: Penstock, queue: Queue, clock: Clock, sql: Connection) -> None:
    """The bounds move forward, and a task may begin to wait before them."""
    app.beat("w", ["work"])
    for _ in range(3):
        queue.push()
        queue.settle(queue.claim())
        clock.advance(5)
        app.upkeep()
    early = queue.push(due=clock.now() - timedelta(days=1))
    last = queue.push()
    app.beat("w", ["work"])
    assert (queue.why(early.id).reason, queue.why(last.id).facts["before"]) == ("next", 1)


def test_it_is_quarantined(app: Penstock, queue: Queue, clock: Clock, sql: Connection) -> None:
    queue.set(max_attempts=20)
    id_ = quarantine(queue, clock)
    queue.push(priority=0)
    app.beat("w", ["work"], slots=5, busy=1)
    found = queue.why(id_)
    assert (found.reason, facts(found, "crashes", "max_crashes", "before")) == ("quarantined", (1, 20, 0))
    assert found.text == (
        f"task {id_} is quarantined after a crash and waits to run alone: no worker empties itself for that yet;"
        " 1 worker serves queue work, with 4 of 5 slots free; it crashed alone 1 of at most 20 times"
    )
    queue.set(max_crashes=3)
    assert sql.execute("select penstock.take_quarantine('work', 'w')").fetchone() == (True,)
    found = queue.why(id_)
    assert facts(found, "emptying", "emptying_until") == ("w", clock.now() + timedelta(seconds=30))
    assert "waits to run alone: worker w finishes its other tasks for that;" in found.text
    assert found.text.endswith("; it crashed alone 1 of at most 3 times")
    clock.advance(31)
    app.beat("w", ["work"], slots=5, busy=1)
    assert "emptying" not in queue.why(id_).facts, "the choice of a worker ends"


# --- running ----------------------------------------------------------------------------------------------------------


def test_it_runs(queue: Queue, clock: Clock) -> None:
    pushed = queue.push(subject="a")
    began = clock.now()
    claim = queue.claim(worker="w")
    clock.advance(4)
    found = queue.why(pushed.id)
    assert (found.reason, facts(found, "worker", "since", "attempt")) == ("running", ("w", began, 1))
    said = (
        f"task {pushed.id} runs on worker w since {shown(began)}, for 4 s, attempt 1;"
        f" its lease lasts until {shown(found.facts['until'])}, in 6 s"
    )
    assert (found.facts["until"], found.text) == (claim.until, said)
    queue.push(subject="a", on_conflict="update")
    found = queue.why(pushed.id)
    assert found.facts["renewed_to"] is not None
    assert found.text.startswith(f"{said}; it was updated meanwhile, and runs again from ")


def test_its_lease_has_ended(queue: Queue, clock: Clock) -> None:
    pushed = queue.push()
    queue.claim()
    clock.advance(13)
    found = queue.why(pushed.id)
    assert found.reason == "lease_ended"
    assert found.text.startswith(f"task {pushed.id} was on a worker since ")
    assert found.text.endswith("attempt 1; its lease ended 3 s ago, and the next claim puts it back")
    queue.pause()
    assert queue.why(pushed.id).text.endswith("and the next upkeep puts it back")
    queue.resume()
    put_back(queue)
    assert queue.why(pushed.id).reason == "no_worker"


# --- ended ------------------------------------------------------------------------------------------------------------


def test_it_is_done(queue: Queue, clock: Clock) -> None:
    removed = queue.push().id
    queue.settle(queue.claim(worker="w"))
    queue.set(keep_done="1d")
    kept = queue.push().id
    queue.settle(queue.claim())
    found = queue.why(removed)
    assert (found.reason, facts(found, "removed", "ended_at")) == ("done", (True, clock.now()))
    assert found.text == f"task {removed} was done at {shown(clock.now())} by worker w, and is removed"
    found = queue.why(kept)
    assert (found.reason, found.facts["removed"]) == ("done", False)
    assert found.text == f"task {kept} is done since {shown(clock.now())}"


def test_it_was_cancelled(queue: Queue, clock: Clock) -> None:
    ids = [queue.push().id for _ in range(2)]
    queue.claim(1)
    queue.cancel(ids, reason="customer\nleft")
    now = shown(clock.now())
    for id_ in ids:
        found = queue.why(id_)
        assert found.reason == "cancelled"
        assert found.text == f"task {id_} was cancelled at {now}: customer\\nleft"
    queue.purge("cancelled")
    assert queue.why(ids[0]).text == f"task {ids[0]} was cancelled at {now}, and is removed"
    assert queue.why(ids[1]).reason == "unknown", "it had no attempt"


def test_it_is_dead(queue: Queue, clock: Clock) -> None:
    queue.set(max_attempts=1)
    ids = [queue.push().id for _ in range(3)]
    outcomes = (Outcome.failed("'k'\nmore", error_class="KeyError"), Outcome.dead("no such address"), Outcome.dead(""))
    queue.settle(queue.claim(3), dict(zip(ids, outcomes, strict=True)))
    said = f"died at {shown(clock.now())} after 1 attempt"
    words = (": KeyError: 'k' more (attempts spent)", ": no such address", "")
    for id_, word in zip(ids, words, strict=True):
        found = queue.why(id_)
        assert (found.reason, found.text) == ("dead", f"task {id_} {said}{word}")
    queue.purge("dead")
    assert queue.why(ids[0]).text == f"task {ids[0]} {said}: KeyError: 'k' more; it is removed"


def test_a_long_error_is_cut(queue: Queue) -> None:
    id_ = queue.push().id
    queue.settle(queue.claim(), {id_: Outcome.dead("x" * 5000)})
    found = queue.why(id_)
    assert len(found.text) < 500
    assert len(found.facts["error"]) == 5000


def test_it_was_removed_before_it_ended(queue: Queue, clock: Clock) -> None:
    id_ = queue.push().id
    queue.settle(queue.claim(), {id_: Outcome.failed("x", error_class="KeyError", delay="1h")})
    queue.purge("planned")
    found = queue.why(id_)
    assert (found.reason, found.facts["last"]["outcome"]) == ("removed", "failed")
    assert found.text == (
        f"task {id_} is removed; its last attempt ended at {shown(clock.now())}; attempt 1 failed with KeyError"
    )


def test_nothing_is_known_of_it_or_it_is_elsewhere(app: Penstock, queue: Queue) -> None:
    other = app.create_queue("other")
    here, done = queue.push().id, queue.push().id
    queue.settle(queue.claim(2), [done])
    for id_ in (here, done):
        found = other.why(id_)
        assert (found.reason, found.facts, found.queue) == ("other_queue", {"found_in": "work"}, "other")
        assert found.text == f"task {id_} is not of queue other but of queue work"
    found = queue.why(UNKNOWN_ID)
    assert (found.reason, found.facts) == ("unknown", {})
    assert found.text.startswith(f"task {UNKNOWN_ID} is not known: it never existed, ")


@pytest.mark.unbalanced
def test_it_is_in_no_place(queue: Queue, sql: Connection) -> None:
    id_ = queue.push().id
    sql.execute("delete from penstock.agenda")
    found = queue.why(id_)
    assert (found.reason, "penstock verify --repair" in found.text) == ("stray", True)


# --- how it is asked --------------------------------------------------------------------------------------------------


def test_every_sentence_is_of_a_reason(sql: Connection) -> None:
    (text,) = sql.execute(
        "select string_agg(prosrc, ' ') from pg_proc where proname in ('why', '_why_gone', '_why_waiting')"
    ).fetchone() or ("",)
    ended = {"done", "dead", "cancelled"}  # the column `ended`
    assert all(f"'{reason}'" in text for reason in reasons.SENTENCES.keys() - ended)


def test_what_cannot_be_asked(queue: Queue, app: Penstock, sql: Connection) -> None:
    for bad in ("1", 1.5, True, 0, None, 2**63):
        with pytest.raises(ValidationError, match=r"id: .* is not a whole number"):
            queue.why(bad)  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="queue 'wrok' does not exist") as missing:
        app.queue("wrok").why(1)
    assert missing.value.hint == "Did you mean 'work'?"
    with pytest.raises(psycopg.Error, match="id: it is null") as null:
        sql.execute("select penstock.why('work', null)")
    assert null.value.sqlstate == "PS400"


def test_moments_do_not_depend_on_the_session(queue: Queue, sql: Connection, clock: Clock) -> None:
    id_ = queue.push(due=clock.now() + timedelta(days=1)).id
    sql.execute("set timezone = 'Asia/Kolkata'; set datestyle = 'SQL, DMY'")
    (found,) = sql.execute("select penstock.why('work', %s)", (id_,)).fetchone() or ({},)
    assert found["due"].endswith("+00:00")
    assert datetime.fromisoformat(found["due"]) == queue.why(id_).facts["due"]


def test_the_async_client_asks_too(queue: Queue, dsn: str) -> None:
    async def ask() -> Explanation:
        async with AsyncPenstock(dsn) as app:
            return await app.queue("work").why(id_)

    id_ = queue.push().id
    assert asyncio.run(ask()).reason == "no_worker"


def test_the_shell_asks(dsn: str, queue: Queue, clock: Clock) -> None:
    due = clock.now() + timedelta(minutes=4)
    id_ = queue.push(due=due).id
    queue.settle(queue.claim(), {})
    text, value, quiet, both, odd, missing = each(
        ("why", "work", "--task", str(id_)),
        ("why", "work", "--task", str(id_), "--json"),
        ("why", "work", "--task", str(id_), "-q"),
        ("why", "work", "--task", "1", "--at", "2030-01-01T00:00:00Z"),
        ("why", "work", "--task", "0"),
        ("why", "wrok", "--task", "1"),
        dsn=dsn,
    )
    assert text.out == f"task {id_} is due at {shown(due)}, in 4 min\n"
    assert quiet.out == ""
    found = value.json
    assert (found["task"], found["queue"], found["reason"], found["text"] + "\n") == (id_, "work", "planned", text.out)
    assert (datetime.fromisoformat(found["due"]), found["last"]) == (due, None)
    refused(both, "task: give one of --task and --at")
    refused(odd, "id: 0 is not a whole number")
    refused(missing, "Did you mean 'work'?", code=1)
    assert penstock("why", "work", "--task", "x", dsn=dsn).code == 2


def test_a_fact_that_is_an_object_is_plain_in_json(dsn: str, queue: Queue) -> None:
    id_ = queue.push().id
    queue.settle(queue.claim(), {id_: Outcome.failed("x", delay="1h")})
    found = penstock("why", "work", "--task", str(id_), "--json", dsn=dsn).json
    assert datetime.fromisoformat(found["last"]["finished_at"]).utcoffset() == timedelta()
