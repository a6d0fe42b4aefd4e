"""Every screen by real HTTP: a real server process, a real PostgreSQL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta

import psycopg
import pytest

from dashboard import Visitor, serving, visit
from penstock import NewTask, Outcome, Penstock, Queue

SCREENS = ("/", "/tasks", "/failures", "/workers", "/schedules", "/adopted", "/doctor", "/audit")
TRACEBACK = 'Traceback (most recent call last):\n  File "tasks.py", line 7, in send\nTimeoutError: timed out'


@pytest.fixture
def reader(dsn: str) -> Iterator[Visitor]:
    with serving(dsn) as address:
        yield visit(address)


@pytest.fixture
def operator(dsn: str) -> Iterator[Visitor]:
    with serving(dsn, "--level", "operator", "--hide", "charge:card.number", "--hide", "*:*.token") as address:
        yield visit(address)


def fail(queue: Queue, *errors: str) -> list[int]:
    """Lets a task die of each error."""
    ids = [queue.push({"n": n}, kind="send").id for n in range(len(errors))]
    claim = queue.claim(len(errors), worker="w1")
    queue.settle(claim, {id_: Outcome.dead(error) for id_, error in zip(ids, errors, strict=True)})
    return ids


def test_every_screen_of_an_empty_database_says_what_to_do_first(app: Penstock, reader: Visitor) -> None:
    for path in SCREENS:
        answer = reader.get(path)
        assert answer.status == 200, path
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "penstock queues create mail --sla 30s" in reader.get("/").words
    assert "penstock work MODULE:APP" in reader.get("/workers").words
    assert reader.get("/healthz").text == "ok\n"


def test_the_first_screen_names_the_broken_promise_its_cause_and_the_remedy(
    app: Penstock, sql: psycopg.Connection, reader: Visitor
) -> None:
    app.create_queue("mail", sla="30s").push({"to": "ann"})
    app.create_queue("calm", sla="1h").push({"to": "bob"})
    app.create_queue("free")
    assert "All 2 promises are kept" in reader.get("/").words
    sql.execute("update penstock.agenda set due = due - interval '45 s' where queue_id = 1")
    app.beat("w1", ["calm"])
    sql.execute("update penstock.chore set done_at = null")
    reader.get("/tasks")
    words = wait_for(reader, "/", "1 of 2 promises is broken")
    assert re.search(r"mail late The oldest task has waited 4\ds; a task may wait 30s\.", words), words
    assert "Why No worker serves this queue. Do Start one: penstock work MODULE:APP --queues mail" in words
    rows = re.findall(r'<th scope="row"><a href="/queues/(\w+)">', reader.get("/").text)
    assert rows == ["mail", "calm", "free"]


def wait_for(visitor: Visitor, path: str, text: str) -> str:
    """Loads a page again until it says so: what it shows may be a second old."""
    import time

    for _ in range(100):
        words = visitor.get(path).words
        if text in words:
            return words
        time.sleep(0.1)
    raise AssertionError(words)


def test_a_paused_queue_and_its_remedy(queue: Queue, reader: Visitor) -> None:
    queue.pause()
    words = reader.get("/queues/work").words
    assert "work paused" in words
    assert "penstock queues resume work" in words


def test_the_screen_of_a_queue_draws_its_samples_with_units(
    app: Penstock, sql: psycopg.Connection, reader: Visitor
) -> None:
    app.create_queue("mail", sla="30s")
    now = datetime.now().astimezone()
    for n in range(90):
        sql.execute(
            "insert into penstock.sample (queue_id, at, planned, pending, active, done, dead, cancelled, oldest_age,"
            " sla, workers, totals) values (1, %s, 0, %s, 2, 0, 0, 0, %s, '30 s', 2, %s)",
            (now - timedelta(seconds=10 * n), 90 - n, timedelta(seconds=90 - n), json.dumps({"done": 5 * (90 - n)})),
        )
    sql.execute(
        "insert into penstock.decision (queue, at, epoch, policy, workers, actual, wanted, urgency, bound_by, reason,"
        " inputs, rules) select 'mail', now() - n * interval '1 min', 1, 'deadline', case when n > 3 then 2 else 5 end,"
        " 2, 5, 'NORMAL', 'arrivals', '5: because of this', '{}', '{}' from generate_series(1, 6) as n"
    )
    page = reader.get("/queues/mail?span=15m")
    assert page.text.count('class="plot"') == 4
    for unit in ("how long the oldest task has waited", "tasks that are due and wait", "processes", "per second"):
        assert unit in page.words
    assert ">100 s</text>" in page.text
    assert re.search(r"2 → 5 workers normal, decided by arrivals, for 2m because of this", page.words)
    assert "1m30s" in page.words  # the highest age, in the table behind the chart
    now_s = now.timestamp()
    zoomed = reader.get(f"/queues/mail?from={now_s - 300:.0f}&to={now_s - 60:.0f}")
    assert zoomed.status == 200
    assert "1m30s" not in zoomed.words


@pytest.mark.parametrize(
    "query", ["span=1y", "from=1&to=2", "from=a&to=b", "from=nan&to=1", "from=0&to=1e99", "from=-1&to=99"]
)
def test_a_period_that_is_not_accepted(queue: Queue, reader: Visitor, query: str) -> None:
    answer = reader.get(f"/queues/work?{query}")
    assert answer.status == 400
    assert "PS1001" in answer.words


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/queues/nothing", 404),
        ("/queues/A%20B", 400),
        ("/tasks/1", 404),
        ("/tasks/99999999999999999999", 400),
        ("/tasks/abc", 404),
        ("/tasks?state=dead", 400),
        ("/tasks?queue=work&state=dead&after=!!!", 400),
        ("/tasks?queue=work&state=pending&after=WzUsImEiLDFd", 400),
        ("/tasks?id=1e9", 400),
        ("/audit?before=x", 400),
        ("/live?topic=nothing", 400),
        ("/nothing", 404),
    ],
)
def test_what_does_not_exist_or_is_not_accepted(queue: Queue, reader: Visitor, path: str, status: int) -> None:
    answer = reader.get(path)
    assert answer.status == status, answer.text
    assert "Traceback" not in answer.text


@pytest.mark.parametrize("state", ["pending", "planned", "dead", ""])
def test_the_pages_of_a_list_have_every_task_once(queue: Queue, reader: Visitor, state: str) -> None:
    ids = set()
    for n in range(120):
        ids.add(queue.push({}, delay="1h" if state == "planned" else None, priority=n % 3).id)
    if state == "dead":
        queue.settle(queue.claim(120), {id_: Outcome.dead("no") for id_ in ids})
    path, seen, pages = f"/tasks?queue=work&state={state}", [], 0
    while path:
        page = reader.get(path).text
        seen += re.findall(r'href="/tasks/(\d+)"', page)
        following = re.search(r'rel="next" href="([^"]+)"', page)
        path = following[1].replace("&amp;", "&") if following else ""
        pages += 1
    assert sorted(map(int, seen)) == sorted(ids)
    assert pages == 3


def test_a_list_that_finds_little_says_how_far_it_looked(
    queue: Queue, sql: psycopg.Connection, reader: Visitor
) -> None:
    queue.push_many([NewTask({}, kind="rare" if n == 10 else "common") for n in range(25_000)])
    page = reader.get("/tasks?queue=work&state=pending&kind=rare")
    assert "looked at 20,000 tasks; others may follow" in page.words
    assert page.text.count('href="/tasks/') == 1
    rest = reader.get(f"/tasks?queue=work&state=pending&kind=rare&after={last(page.text)}").words
    assert "No task is found here. Looked at 5,000 tasks." in rest
    assert "This is the end of the list" in rest


def last(page: str) -> str:
    found = re.search(r"after=([\w-]+)", page)
    assert found
    return found[1]


def test_the_screen_of_a_task_says_why_it_does_not_run_and_shows_exact_numbers(
    queue: Queue, sql: psycopg.Connection, operator: Visitor
) -> None:
    one = queue.push({"n": 1}, subject="order:7", kind="charge", delay="2h")
    sql.execute(
        """update penstock.task set payload = '{"big": 123456789012345678901234567890, "small": 0.10000000000000000001,
           "card": {"number": "4111-1111", "name": "Ann"}, "api": [{"token": "sesame"}], "none": null, "yes": true}'"""
    )
    words = operator.get(f"/tasks/{one.id}").words
    assert "is planned" in words or "is due" in words
    for shown in ("123456789012345678901234567890", "0.10000000000000000001", "Ann", "null", "true", "order:7"):
        assert shown in words
    assert "4111" not in words
    assert "sesame" not in words
    assert words.count("hidden") == 2


def test_the_life_of_a_task(queue: Queue, operator: Visitor) -> None:
    (id_,) = fail(queue, f"timed out\n{TRACEBACK}")
    page = operator.get(f"/tasks/{id_}")
    assert re.search(r"dead attempt 1 on w1, waited [\d.]+ \w+, ran [\d.]+ \w+ timed out", page.words.replace("µ", ""))
    assert "line 7, in send" in page.words
    claim_and_finish = queue.push({"x": 1})
    queue.settle(queue.claim(1))
    gone = operator.get(f"/tasks/{claim_and_finish.id}").words
    assert "this is what history knows of it" in gone


def test_a_reader_sees_a_payload_only_on_request_and_the_audit_notes_it(queue: Queue, reader: Visitor) -> None:
    one = queue.push({"secret": "abracadabra"})
    path = f"/tasks/{one.id}"
    assert "abracadabra" not in reader.get(path).text
    token = reader.form_token(path)
    revealed = reader.post(f"{path}/reveal", {"form_token": token})
    assert "abracadabra" in revealed.words
    audit = reader.get("/audit").words
    assert "reveal work" in audit
    assert f"task {one.id}" in audit
    assert "web" in audit


def test_failures_are_one_line_for_each_cause(queue: Queue, app: Penstock, reader: Visitor) -> None:
    fail(
        queue,
        *(f"timed out after {n} s: mx{n}.example.com" for n in range(5)),
        "user 'ann' has no address",
        "user 'bob' has no address",
        "no route to 5f0c1f6e-7a3b-4b0e-9b70-0d6a8f0c2b11",
    )
    words = reader.get("/failures?queue=work").words
    assert "8 dead tasks in work" in words
    assert "5 timed out after N s: mxN.example.com work send" in words
    assert "2 user … has no address" in words
    assert "1 no route to …" in words


def test_workers_and_schedules(app: Penstock, sql: psycopg.Connection, reader: Visitor) -> None:
    app.create_queue("mail")
    app.beat("alive-1", ["mail"], slots=4, busy=3)
    app.beat("lost-1", ["mail"], slots=4)
    sql.execute("update penstock.worker set beat = now() - interval '1 min' where name = 'lost-1'")
    words = reader.get("/workers").words
    assert "2 workers, 1 silent" in words
    assert re.search(r"lost-1 silent for (1m|59s|1m\ds)", words)
    assert "alive-1 busy 3 of 4 mail" in words
    app.set_schedule("report", "0 6 * * 1-5", queue="mail", tz="Europe/Rome")
    page = reader.get("/schedules")
    assert "06:00" in page.words
    assert "Europe/Rome" in page.words
    assert page.text.count("<li>") >= 5  # the next runs, beside the navigation


def test_the_doctor_and_adopted_tables(app: Penstock, sql: psycopg.Connection, reader: Visitor) -> None:
    sql.execute("create table jobs (id int primary key, status text, date_inserted timestamptz)")
    app.adopt("jobs", mode="observe", sla="1h")
    assert "public.jobs" in reader.get("/adopted").words
    words = reader.get("/doctor").words
    assert "findings" in words
    assert "fsync" in words  # off in the tests: the doctor says so


def test_the_database_refuses_what_a_role_may_not(app: Penstock, sql: psycopg.Connection, queue: Queue) -> None:
    """The rights of the new role, by bare SQL."""
    one = queue.push({})
    sql.execute("set role penstock_operator")
    sql.execute("select penstock.set_paused('work', true)")
    sql.execute("select penstock.set_paused('work', false)")
    sql.execute("select penstock.cancel('work', array[%s])", (one.id,))
    sql.execute("select penstock.redrive('work', array[%s])", (one.id,))
    for refused in (
        "select penstock.set_queue('work', '{\"sla\": \"1 s\"}')",
        "select penstock.purge('work', array['dead'])",
        "select penstock.drop_queue('work', true)",
        "select penstock.create_queue('other')",
        "select penstock.claim('work')",
        "select penstock.push('work', '{}')",
        "select penstock.set_retention('audit', null)",
        "select penstock.drop_schedule('x')",
        "delete from penstock.task",
        "select token from penstock.lease",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            sql.execute(refused)
    sql.execute("reset role")
