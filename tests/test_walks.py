"""The walks of data from end to end. They are the specification."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg

from penstock import Outcome, Penstock

EXAMPLES = Path(__file__).parent.parent / "examples"


def python(dsn: str, *words: str, stdin: str = "") -> str:
    done = subprocess.run(
        [sys.executable, *words],
        input=stdin,
        capture_output=True,
        text=True,
        check=True,
        cwd=EXAMPLES.parent,
        env=os.environ | {"PENSTOCK_DSN": dsn},
    )
    return done.stdout


def shell(dsn: str, *words: str, stdin: str = "") -> str:
    return python(dsn, "-m", "penstock.cli", *words, stdin=stdin)


def test_push_and_run_through_shell_python_and_sql(app: Penstock, dsn: str) -> None:
    """The shell creates and pushes, Python claims, SQL settles, and all three report the same."""
    shell(dsn, "queues", "create", "mail", "--sla", "30s", "--max-attempts", "5", "--retry", "fibonacci:1m")
    lines = "\n".join(json.dumps({"payload": {"n": n}, "subject": f"s{n}"}) for n in range(5))
    assert json.loads(shell(dsn, "push", "mail", "--file", "-", "--json", stdin=lines))["created"] == 5

    claim = app.queue("mail").claim(3, worker="walk")
    assert [task.payload["n"] for task in claim.tasks] == [0, 1, 2]
    with psycopg.connect(dsn, autocommit=True) as sql:
        settled = sql.execute(
            "select result from penstock.settle(%s, %s, array['done', 'failed', 'release'])", (claim.token, claim.ids)
        ).fetchall()
        assert sorted(row[0] for row in settled) == ["done", "pending", "planned"]
        retried = sql.execute("select due - penstock.clock() from penstock.tasks where state = 'planned'").fetchone()
        assert retried is not None
        assert 50 < retried[0].total_seconds() <= 60

    (status,) = json.loads(shell(dsn, "status", "mail", "--json"))["queues"]
    assert (status["planned"], status["pending"], status["active"]) == (1, 3, 0)
    assert status["totals"]["done"] == status["totals"]["failed"] == status["totals"]["released"] == 1
    assert json.loads(shell(dsn, "verify", "--json"))["drift"] == 0


def test_the_calendar_walk(app: Penstock, dsn: str) -> None:
    """A task that settles `again` keeps its row, subject and payload and counts an iteration."""
    queue = app.create_queue("calendar")
    queue.push({"check": "disk"}, subject="disk")
    for round_ in range(3):
        claim = queue.claim()
        assert claim.tasks[0].iterations == round_
        queue.settle(claim, {claim.ids[0]: Outcome.again()})
    assert queue.status().totals["again"] == 3


def test_the_schedule_walk(app: Penstock, dsn: str) -> None:
    """The shell sets it, upkeep fires it once, and the subject names the tick."""
    queue = app.create_queue("reports")
    added = json.loads(shell(dsn, "schedules", "add", "nightly", "0 6 * * *", "--queue", "reports", "--json"))
    with psycopg.connect(dsn, autocommit=True) as sql:
        sql.execute("update penstock_test.clock set shift = %s::timestamptz - now()", (added["next_at"],))
        sql.execute("update penstock_test.clock set shift = shift + '1 second'")
        assert json.loads(shell(dsn, "upkeep", "--json"))["parts"]["scheduled"] == 1
        assert app.run_schedules().pushed == 0
        (subject,) = sql.execute("select subject from penstock.tasks").fetchone() or (None,)
    assert str(subject) == f"nightly@{added['next_at'].replace('+00:00', 'Z')}"
    assert len(queue.claim(10)) == 1


def test_the_quickstart_runs_twice(app: Penstock, dsn: str) -> None:
    for expected in ("'created': 1000", "'skipped': 1"):
        said = python(dsn, str(EXAMPLES / "quickstart.py"))
        assert expected in said
        assert "1 to be tried again, counters verified: True" in said


def test_the_adopted_table_runs_twice(app: Penstock, dsn: str) -> None:
    for expected in ("2 done, 2 failed, 2 for later", "0 done, 0 failed, 2 for later"):
        assert expected in python(dsn, str(EXAMPLES / "backlog.py"))


def test_the_sql_example_runs(app: Penstock, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as sql:
        statements = [part for part in (EXAMPLES / "plain.sql").read_text().split(";") if part.strip()]
        answers = [sql.execute(statement.encode()) for statement in statements]
        rows = [answer.fetchall() for answer in answers if answer.description]
    assert rows[-1] == [("sql-mail", 0, 0, "3")]


def test_the_application_runs(app: Penstock, dsn: str) -> None:
    """The application pushes its tasks, and a worker runs them: sync, async, in a transaction, `again`, in batches."""
    app.create_queue("shop")
    assert "'created': 250" in python(dsn, str(EXAMPLES / "tasks.py"))
    said = shell(dsn, "work", "examples.tasks:app", "--until-empty")
    assert "invoice for order 42" in said
    assert "asked the bank about order 42, attempt 1" in said
    assert "254 done, 0 failed, 1 task planned for later" in said
    with psycopg.connect(dsn) as sql:
        assert sql.execute("select order_id, cents from booking").fetchall() == [(42, 1999)]
        assert sql.execute("select iterations from penstock.tasks where subject = 'stock'").fetchone() == (1,)
