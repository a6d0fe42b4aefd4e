"""`penstock adopt` and `penstock backlog`, run from outside."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from psycopg import Connection

from backlogs import make_backlog
from conftest import Clock
from penstock import Penstock
from shell import COMMAND, environment, is_one_block, penstock

HANDLERS = """
def handle(record):
    if record["id"] == 1:
        raise RuntimeError("no")

def together(record, transaction):
    transaction.execute("insert into public.effect values (%s)", (record["id"],))
"""


@pytest.fixture
def seed(sql: Connection, clock: Clock, tmp_path: Path) -> Connection:
    make_backlog(sql)
    (tmp_path / "jobs.py").write_text(HANDLERS)
    return sql


def one(sql: Connection, query: str) -> Any:
    row = sql.execute(query.encode()).fetchone()
    return row[0] if row else None


def test_looking_changes_nothing(seed: Connection, dsn: str) -> None:
    ran = penstock("adopt", "public.backlog", "--json", dsn=dsn)
    assert ran.code == 0, ran.err
    told = ran.json
    assert told["terms"]["key"] == ["id"]
    assert (told["terms"]["ready"], told["terms"]["retry"]) == (["NEW"], ["ERROR"])
    assert (told["terms"]["done"], told["terms"]["dead"]) == ("SUCCESS", "DEAD")
    assert told["statuses"] == {"NEW": 4}
    assert told["oldest_age"] > 58 * 86400
    assert told["drain_seconds"]["1"] == pytest.approx(0.4)
    assert len(told["indexes"]) == 2
    assert all("create index concurrently" in index["statement"] for index in told["indexes"])
    assert all(plan["after"] for plan in told["plans"])
    assert one(seed, "select count(*) from penstock.adopted") == 0
    assert one(seed, "select count(*) from pg_indexes where tablename = 'backlog'") == 1
    text = penstock("adopt", "public.backlog", dsn=dsn).out
    assert "nothing is changed" in text
    assert "(guessed)" in text


def test_the_plans_use_the_proposed_indexes(seed: Connection, dsn: str) -> None:
    seed.execute(
        "insert into public.backlog select n,"
        " case when n % 50 = 0 then 'ERROR' when n % 50 = 1 then 'NEW' else 'SUCCESS' end,"
        " penstock.clock() - n * interval '1 minute' from generate_series(10, 50000) as n"
    )
    seed.execute("analyze public.backlog")
    looked = penstock("adopt", "public.backlog", "--json", dsn=dsn).json
    applied = penstock("adopt", "public.backlog", "--apply", "--json", dsn=dsn).json
    for told in (looked, applied):
        for plan in told["plans"]:
            assert any("Seq Scan" in line for line in plan["before"]), plan
            assert any("Index" in line and "penstock_backlog" in line for line in plan["after"]), plan
    assert applied["applied"]
    again = penstock("adopt", "public.backlog", "--apply", "--json", dsn=dsn).json
    assert all(index["exists"] for index in again["indexes"])


def test_adopt_pass_status(seed: Connection, dsn: str, tmp_path: Path, clock: Clock) -> None:
    assert "adopted as backlog" in penstock("adopt", "backlog", "--sla", "1h", "--apply", dsn=dsn).out
    dry = penstock("backlog", "pass", "backlog", "--handler", "jobs:handle", "--dry-run", dsn=dsn, cwd=tmp_path)
    assert dry.out == "would handle 4 records\n"
    ran = penstock("backlog", "pass", "public.backlog", "--handler", "jobs:handle", "--json", dsn=dsn, cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert (ran.json["done"], ran.json["failed"], ran.json["later"]) == (3, 1, 1)
    status = penstock("backlog", "status", "--json", dsn=dsn).json["backlogs"][0]
    assert (status["done"], status["later"], status["sla"], status["sla_used"]) == (3, 1, 3600, 0)
    assert penstock("status", "--json", dsn=dsn).json["backlogs"][0]["name"] == "backlog"
    assert "backlog" in penstock("status", dsn=dsn).out
    ran = penstock("backlog", "pass", "backlog", "--handler", "jobs:handle", "--limit", "5", dsn=dsn, cwd=tmp_path)
    assert ran.out.startswith("0 done, 0 failed, 1 for later")
    assert penstock("backlog", "forget", "backlog", dsn=dsn).out == "backlog is forgotten\n"
    assert one(seed, "select count(*) from penstock.adopted") == 0


def test_a_handler_in_the_transaction(seed: Connection, dsn: str, tmp_path: Path) -> None:
    seed.execute("create table public.effect (id int)")
    penstock("adopt", "backlog", "--strategy", "fibonacci:1m", "--apply", dsn=dsn)
    ran = penstock("backlog", "pass", "backlog", "--handler", "jobs:together", "-c", "2", dsn=dsn, cwd=tmp_path)
    assert ran.out.startswith("4 done, 0 failed"), ran.err
    assert one(seed, "select count(*) from public.effect") == 4


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_run_ends_with_a_signal(
    app: Penstock, seed: Connection, dsn: str, tmp_path: Path, number: int, code: int
) -> None:
    penstock("adopt", "backlog", "--apply", dsn=dsn)
    command = [*COMMAND, "backlog", "run", "backlog", "--handler", "jobs:handle", "--json"]
    running = subprocess.Popen(
        command, env=environment(dsn), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 30
    while one(seed, "select count(*) from public.backlog where status = 'NEW'") and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(number)
    out, err = running.communicate(timeout=20)
    assert running.returncode == code, err
    assert '"done": 3' in out


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("adopt", "nowhere"), 1),
        (("adopt", "backlog", "--status", "stat"), 2),
        (("adopt", "backlog", "--ready", "NEW", "--retry", "NEW"), 2),
        (("adopt", "backlog", "--strategy", "often"), 2),
        (("adopt", "backlog", "--takes", "0"), 2),
        (("backlog", "pass", "backlog", "--handler", "jobs:handle"), 1),
        (("backlog", "pass", "backlog"), 2),
        (("backlog", "status", "nowhere"), 1),
    ],
)
def test_errors_are_one_block(
    seed: Connection, dsn: str, tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    ran = penstock(*arguments, dsn=dsn, cwd=tmp_path)
    assert ran.code == code, ran.err
    assert is_one_block(ran.err), ran.err
    assert one(seed, "select count(*) from penstock.adopted") == 0


def test_undeclared_statuses_are_reported(seed: Connection, dsn: str, tmp_path: Path) -> None:
    seed.execute("insert into public.backlog values (9, 'ODD', now())")
    assert "undeclared: left alone" in penstock("adopt", "backlog", "--apply", dsn=dsn).out
    ran = penstock("backlog", "pass", "backlog", "--handler", "jobs:handle", dsn=dsn, cwd=tmp_path)
    assert "left alone, as their status is not declared: ODD 1" in ran.err


def test_columns_that_cannot_be_guessed_are_asked_for(seed: Connection, dsn: str) -> None:
    seed.execute("create table public.numbers (id int primary key, status int, date_inserted timestamptz)")
    seed.execute("insert into public.numbers values (1, 0, now()), (2, 7, now())")
    ran = penstock("adopt", "numbers", dsn=dsn)
    assert ran.code == 2
    assert "cannot be guessed (they are 0, 7)" in ran.err
    told = ("--ready", "0", "--retry", "7", "--done", "1", "--dead", "9")
    assert penstock("adopt", "numbers", *told, "--json", dsn=dsn).json["terms"]["ready"] == ["0"]
    seed.execute("create table public.bare (id int)")
    assert "--status COLUMN" in penstock("adopt", "bare", dsn=dsn).err
