"""Acts: by whom, on what, in two steps, and what the audit notes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from dashboard import Answer, Visitor, serving, visit
from penstock import Outcome, Penstock, Queue
from penstock.web import plans

PEOPLE = "olga:operator:0123456789-o\nrita:reader:0123456789-r\nada:admin:0123456789-a\n"


@pytest.fixture
def address(dsn: str, tmp_path: Path) -> Iterator[str]:
    users = tmp_path / "users"
    users.write_text(PEOPLE)
    users.chmod(0o600)
    with serving(dsn, "--auth", "token", "--users", str(users)) as found:
        yield found


def enter(address: str, secret: str) -> Visitor:
    return visit(f"{address}?token=0123456789-{secret}")


@pytest.fixture
def operator(address: str) -> Visitor:
    return enter(address, "o")


def die(queue: Queue, *errors: str) -> list[int]:
    ids = [queue.push({}).id for _ in errors]
    queue.settle(queue.claim(len(ids)), {id_: Outcome.dead(error) for id_, error in zip(ids, errors, strict=True)})
    return ids


def states(app: Penstock, ids: list[int]) -> list[str]:
    return [app.find_task(id_).task.state for id_ in ids]


def send(visitor: Visitor, path: str, **fields: str) -> Answer:
    """Sends a form with the token of the session, and follows the redirect."""
    answer = visitor.post(path, {"form_token": token_of(visitor), **fields})
    return visitor.get(answer.headers["location"]) if answer.status == 303 else answer


def token_of(visitor: Visitor) -> str:
    found = re.search(r'name="form_token" value="([^"]+)"', visitor.get("/tasks/1").text)
    assert found, "task 1 has no form"
    return found[1]


def test_acts_on_one_task(app: Penstock, queue: Queue, operator: Visitor) -> None:
    one = queue.push({"n": 1})
    form = {"queue": "work"}
    assert "The act answered: rescheduled" in send(operator, f"/tasks/{one.id}/reschedule", argument="2h", **form).words
    assert app.find_task(one.id).task.state == "planned"
    assert "reprioritised" in send(operator, f"/tasks/{one.id}/reprioritise", argument="1", **form).words
    assert app.find_task(one.id).task.priority == 1
    assert "The act answered: cancelled" in send(operator, f"/tasks/{one.id}/cancel", **form).words
    assert "The act answered: ended" in send(operator, f"/tasks/{one.id}/cancel", **form).words
    assert "The act answered: redriven" in send(operator, f"/tasks/{one.id}/redrive", **form).words
    audit = operator.get("/audit?queue=work").words
    for verb in ("reschedule", "reprioritise", "cancel", "redrive"):
        assert re.search(rf"olga as \w+ web {verb} work", audit), verb


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("/tasks/1/reprioritise", {"queue": "work", "argument": "10"}, 400),
        ("/tasks/1/reprioritise", {"queue": "work", "argument": "-1"}, 400),
        ("/tasks/1/reschedule", {"queue": "work", "argument": "soon"}, 400),
        ("/tasks/1/reschedule", {"queue": "work", "argument": "20y"}, 400),
        ("/tasks/1/purge", {"queue": "work"}, 400),
        ("/tasks/1/cancel", {"queue": "nothing"}, 404),
        ("/tasks/1/cancel", {}, 400),
        ("/queues/work/drop", {}, 404),
        ("/queues/nothing/pause", {}, 404),
        ("/schedules/pause", {"name": "nothing"}, 404),
        ("/plans", {"queue": "work", "act": "purge", "scope": "all"}, 400),
        ("/plans", {"queue": "work", "act": "cancel"}, 400),
        ("/plans", {"queue": "work", "act": "cancel", "id:x": "1"}, 400),
        ("/plans", {"queue": "work", "act": "cancel", "scope": "all", "state": "dead"}, 404),
        ("/plans/nothing/apply", {}, 404),
    ],
)
def test_what_is_refused_changes_nothing(
    app: Penstock, queue: Queue, operator: Visitor, path: str, fields: dict[str, str], status: int
) -> None:
    one = queue.push({})
    assert one.id == 1
    answer = send(operator, path, **fields)
    assert answer.status == status, answer.words
    task = app.find_task(1).task
    assert (task.state, task.priority) == ("pending", 5)
    assert not queue.settings().paused


def test_a_plan_changes_nothing_until_it_is_applied(app: Penstock, queue: Queue, operator: Visitor) -> None:
    ids = die(queue, *(f"timed out after {n} s" for n in range(14)), "another cause")
    page = operator.get("/failures").text
    found = re.search(r'name="fingerprint" value="(\w+)"', page[page.index("timed out") :])
    assert found
    plan = send(operator, "/plans", queue="work", act="redrive", fingerprint=found[1], cause="timed out")
    assert "Redrive 14 tasks of work?" in plan.words
    assert len(set(re.findall(r'href="/tasks/(\d+)"', plan.text))) == 10
    assert states(app, ids) == ["dead"] * 15
    target = apply_of(plan)
    done = send(operator, target, first="0")
    assert "14 tasks redriven" in done.words
    assert states(app, ids) == ["pending"] * 14 + ["dead"]
    again = send(operator, target, first="0")
    assert again.status == 409


def apply_of(plan: Answer) -> str:
    found = re.search(r'action="(/plans/[^"]+/apply)"', plan.text)
    assert found, plan.words
    return found[1]


def test_what_has_changed_since_the_plan_is_reported(app: Penstock, queue: Queue, operator: Visitor) -> None:
    ids = [queue.push({}).id for _ in range(5)]
    chosen = {f"id:{id_}": "1" for id_ in ids}
    plan = send(operator, "/plans", queue="work", act="cancel", scope="chosen", **chosen)
    assert "Cancel 5 tasks of work?" in plan.words
    queue.cancel(ids[-2:])
    late = queue.push({}).id
    done = send(operator, apply_of(plan))
    assert "3 tasks cancelled" in done.words
    assert "2 tasks left as they are: ended before" in done.words
    assert states(app, [late]) == ["pending"]


def test_all_tasks_of_a_queue_need_its_name(app: Penstock, queue: Queue, operator: Visitor) -> None:
    ids = [queue.push({}).id for _ in range(3)]
    plan = send(operator, "/plans", queue="work", act="reprioritise", argument="9", scope="all", state="pending")
    refused = send(operator, apply_of(plan), typed="worrk")
    assert refused.status == 400
    assert {app.find_task(id_).task.priority for id_ in ids} == {5}
    assert "3 tasks reprioritised" in send(operator, apply_of(plan), typed="work").words
    filtered = send(operator, "/plans", queue="work", act="cancel", scope="all", kind="default")
    assert 'name="typed"' not in filtered.text


def test_some_go_first(app: Penstock, queue: Queue, operator: Visitor) -> None:
    ids = die(queue, *["no route"] * 12)
    plan = send(operator, "/plans", queue="work", act="redrive", scope="all", state="dead", error="no route")
    first = send(operator, apply_of(plan), first="10")
    assert "10 tasks went first" in first.words
    assert "They have not all ended" in first.words
    assert "Redrive the others" in first.words
    assert sorted(states(app, ids)) == ["dead"] * 2 + ["pending"] * 10
    claim = queue.claim(10)
    queue.settle(
        claim, {task.id: Outcome.done() if n else Outcome.dead("no route") for n, task in enumerate(claim.tasks)}
    )
    looked = operator.get(apply_of(first).removesuffix("/apply")).words
    assert "Some have failed again" in looked
    assert "12 tasks redriven" in send(operator, apply_of(first)).words


def test_a_plan_belongs_to_its_session_and_ends(app: Penstock, queue: Queue, address: str, operator: Visitor) -> None:
    queue.push({})
    plan = send(operator, "/plans", queue="work", act="cancel", **{"id:1": "1"})
    assert send(enter(address, "o"), apply_of(plan)).status == 404
    assert app.find_task(1).task.state == "pending"


def test_an_old_plan_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    known = plans.Plans()
    about = {"queue": "q", "act": "cancel", "argument": "", "what": "", "is_all": False, "more": False}
    plan = known.add("me", [1], **about)
    assert known.find(plan.id, "me") is plan
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + plans.VALID_SECONDS + 1)
    with pytest.raises(LookupError):
        known.find(plan.id, "me")


def test_a_queue_and_a_schedule_are_paused_and_resumed(app: Penstock, queue: Queue, operator: Visitor) -> None:
    queue.push({})
    app.set_schedule("daily", "0 6 * * *", queue="work")
    assert "work paused" in send(operator, "/queues/work/pause").words
    assert queue.settings().paused
    assert "Pause this queue" in send(operator, "/queues/work/resume").words
    assert not queue.settings().paused
    assert "none while it is paused" in send(operator, "/schedules/pause", name="daily").words
    assert "none while it is paused" not in send(operator, "/schedules/resume", name="daily").words


def test_a_reader_is_refused_by_postgresql(app: Penstock, queue: Queue, sql: psycopg.Connection, address: str) -> None:
    """No check of ours stands before: the answer is PostgreSQL's own."""
    one = queue.push({})
    app.set_schedule("daily", "0 6 * * *", queue="work")
    reader = enter(address, "r")
    page = reader.get("/tasks?queue=work&state=pending").text
    assert "<fieldset" not in page
    for path, fields in (
        (f"/tasks/{one.id}/cancel", {"queue": "work"}),
        (f"/tasks/{one.id}/reprioritise", {"queue": "work", "argument": "1"}),
        (f"/tasks/{one.id}/reschedule", {"queue": "work", "argument": "1h"}),
        (f"/tasks/{one.id}/redrive", {"queue": "work"}),
        ("/queues/work/pause", {}),
        ("/schedules/pause", {"name": "daily"}),
    ):
        answer = send(reader, path, **fields)
        assert answer.status == 403, path
        assert "permission denied for function" in answer.words, path
    plan = send(reader, "/plans", queue="work", act="cancel", **{f"id:{one.id}": "1"})
    assert "permission denied for function cancel" in send(reader, apply_of(plan)).words
    task = app.find_task(one.id).task
    assert (task.state, task.priority) == ("pending", 5)
    assert not queue.settings().paused
    assert sql.execute("select count(*) from penstock.audit where detail ? 'via'").fetchone() == (0,)
