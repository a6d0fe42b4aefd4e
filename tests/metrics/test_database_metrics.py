"""Metrics of a database: they agree with the status, cost one snapshot a second, and say when the server is away."""

from __future__ import annotations

import os
import signal
import socket
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from conftest import Clock
from decisions import as_reader, store_decision
from metrics_exporter import exporting
from penstock import NewTask, Outcome, Penstock, Queue
from penstock.client.session import OUR_CONTRACT
from penstock.metrics import MetricsSource
from penstock.metrics.source import open_database
from penstock.model import GAUGES
from prometheus import fetch, labels, promtool, read
from proxy import Lane
from shell import penstock, refused
from workers import eventually, free_port

CANARY = "canary-in-a-mine"
SOON = datetime.now(UTC) + timedelta(days=1)


def scrape(dsn: str) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """Runs the command once; promtool checks what it prints."""
    text = penstock("export", "metrics", dsn=dsn).out
    promtool("check", "metrics", stdin=text)
    return read(text)


def test_the_metrics_are_those_of_the_status(app: Penstock, dsn: str, clock: Clock) -> None:
    mail = app.create_queue("mail", sla="60s", max_attempts=3)
    app.create_queue("empty").pause()
    mail.push_many([NewTask({"secret": CANARY}, f"{CANARY}-{n}", kind="welcome") for n in range(7)])
    mail.push({}, due=clock.now() + timedelta(hours=1))
    claim = mail.claim(3)
    one, two, _ = claim.ids
    mail.settle(claim, {one: Outcome.done(), two: Outcome.dead(CANARY)})
    clock.advance(90)
    found = scrape(dsn)
    status = mail.status()
    for state in GAUGES:
        assert found["penstock_tasks"][labels(queue="mail", state=state)] == getattr(status, state), state
    for event, count in status.totals.items():
        assert found["penstock_tasks_total"][labels(queue="mail", event=event)] == count, event
    assert (status.pending, status.planned, status.totals["done"], status.dead) == (4, 1, 1, 1)
    assert found["penstock_oldest_age_seconds"] == {labels(queue="mail"): pytest.approx(90, abs=1)}
    assert found["penstock_time_to_breach_seconds"] == {labels(queue="mail"): pytest.approx(-30, abs=1)}
    assert found["penstock_sla_seconds"] == {labels(queue="mail"): 60}
    assert found["penstock_paused"] == {labels(queue="mail"): 0, labels(queue="empty"): 1}
    assert found["penstock_up"] == {labels(): 1}
    assert {*found["penstock_dead_rows"]} == {labels(table=one) for one in ("task", "agenda", "lease", "counter_log")}
    (info,) = found["penstock_info"]
    assert dict(info)["contract"] == str(OUR_CONTRACT)
    assert CANARY not in penstock("export", "metrics", dsn=dsn).out


def test_workers_and_decisions_are_counted_by_queue(app: Penstock, dsn: str, clock: Clock) -> None:
    app.create_queue("mail", sla="60s")
    app.create_queue("other")
    app.beat("a", ["mail"], slots=4, busy=3)
    app.beat("b", ["mail", "other"], slots=2, busy=0)
    store_decision(app, "mail", workers=5)
    clock.advance(4)
    found = scrape(dsn)
    workers = found["penstock_workers"]
    assert workers[labels(queue="mail", what="present")] == 2
    assert workers[labels(queue="other", what="present")] == 1
    assert workers[labels(queue="mail", what="wanted")] == 5
    assert labels(queue="other", what="wanted") not in workers, "no scaler ever wanted anything"
    assert found["penstock_slots"][labels(queue="mail")] == 6
    assert found["penstock_slots_busy"][labels(queue="mail")] == 3
    assert found["penstock_decision_age_seconds"] == {labels(queue="mail"): pytest.approx(4, abs=1)}
    clock.advance(20)
    workers = scrape(dsn)["penstock_workers"]
    assert workers[labels(queue="mail", what="present")] == 0, "they have not reported for 24 s"
    assert workers[labels(queue="mail", what="silent")] == 2


def test_what_is_not_known_has_no_line(app: Penstock, dsn: str) -> None:
    app.create_queue("mail")
    found = scrape(dsn)
    absent = ("oldest_age", "sla", "time_to_breach", "predicted_breach", "decision_age", "schedule_overdue")
    assert not {f"penstock_{name}_seconds" for name in absent} & {*found}
    assert "penstock_history_reader_lag_seconds" not in found
    assert "nan" not in penstock("export", "metrics", dsn=dsn).out.lower()


def test_a_breach_is_foreseen_from_the_samples(app: Penstock, dsn: str, clock: Clock) -> None:
    mail = app.create_queue("mail", sla="300s")
    for n in range(4):
        mail.push_many([{}] * (10 * n + 10))
        app.upkeep()  # takes a sample
        clock.advance(12)
    found = scrape(dsn)
    assert found["penstock_predicted_breach_seconds"][labels(queue="mail")] == pytest.approx(265, abs=30)


def test_schedules_and_readers_that_are_behind(app: Penstock, dsn: str, sql: psycopg.Connection, clock: Clock) -> None:
    app.create_queue("mail")
    app.set_schedule("hourly", "0 * * * *", queue="mail")
    app.set_schedule("paused", "* * * * *", queue="mail")
    app.pause_schedule("paused")
    app.run_schedules()
    assert scrape(dsn)["penstock_schedule_overdue_seconds"] == {labels(): 0}
    sql.execute("insert into penstock.history_reader values ('lake \"one\"', 'b', 0, penstock.clock())")
    sql.execute("update penstock.schedule set next_at = penstock.clock() where name = 'hourly'")
    clock.advance(100)
    found = scrape(dsn)
    assert found["penstock_schedule_overdue_seconds"] == {labels(): pytest.approx(100, abs=2)}
    assert found["penstock_history_reader_lag_seconds"] == {labels(reader=r"lake \"one\""): pytest.approx(100, abs=2)}


def test_a_held_snapshot_has_an_age_for_those_who_may_see_it(app: Penstock, dsn: str, sql: psycopg.Connection) -> None:
    app.create_queue("mail")
    login = f"viewer_{os.getpid()}"
    sql.execute(f"create role {login} login password 'p' in role penstock_reader")
    try:
        with psycopg.connect(dsn) as holder:
            holder.execute("set transaction isolation level repeatable read; select count(*) from penstock.task")
            time.sleep(1.1)
            (age,) = scrape(dsn)["penstock_oldest_snapshot_seconds"].values()
            assert age > 1
            hidden = scrape(make_conninfo(dsn, user=login, password="p"))
            assert "penstock_oldest_snapshot_seconds" not in hidden, "a number that may be wrong is not shown"
            assert labels(queue="mail", state="pending") in hidden["penstock_tasks"], "a reader sees the rest"
            sql.execute(f"grant pg_read_all_stats to {login}")
            (age,) = scrape(make_conninfo(dsn, user=login, password="p"))["penstock_oldest_snapshot_seconds"].values()
            assert age > 1
    finally:
        sql.execute(f"drop role {login}")


def test_readers_that_come_together_share_one_snapshot(app: Penstock, queue: Queue, dsn: str) -> None:
    with closing(open_database(dsn)) as database:
        source = MetricsSource(database, "0")
        first = source.text()
        began = time.monotonic()
        queue.push({})
        with ThreadPoolExecutor(20) as pool:
            same = [*pool.map(lambda _: source.text(), range(100))]
        if time.monotonic() - began < 1:
            assert {*same} == {first}
        time.sleep(1.1)
        assert source.text() != first


# --- the server -------------------------------------------------------------------------------------------------------


def test_the_exporter_serves_until_it_is_interrupted(app: Penstock, queue: Queue, dsn: str, tmp_path: Path) -> None:
    queue.push({})
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 0)):
        with exporting(dsn, tmp_path) as (url, process):
            text = fetch(url)
            promtool("check", "metrics", stdin=text)
            assert read(text)["penstock_tasks"][labels(queue="work", state="pending")] == 1
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(url.replace("/metrics", "/"), timeout=5)
            head = urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=5)
            assert (head.status, head.read()) == (200, b"")
            process.send_signal(number)
            assert process.wait(10) == code
            assert "Traceback" not in (tmp_path / "exporter").read_text()


def test_a_server_that_is_away_is_a_metric(app: Penstock, dsn: str, lane: Lane, tmp_path: Path) -> None:
    with exporting(lane.dsn(dsn), tmp_path) as (url, _):
        assert read(fetch(url))["penstock_up"] == {labels(): 1}
        lane.drop()
        eventually(lambda: read(fetch(url)) == {"penstock_up": {labels(): 0}})
        lane.heal()
        eventually(lambda: read(fetch(url))["penstock_up"] == {labels(): 1})
        lane.hang()
        eventually(lambda: read(fetch(url)) == {"penstock_up": {labels(): 0}})
        lane.heal()
        eventually(lambda: read(fetch(url))["penstock_up"] == {labels(): 1})
        assert "Traceback" not in (tmp_path / "exporter").read_text()


def test_an_exporter_may_start_before_its_server(dsn: str, app: Penstock, lane: Lane, tmp_path: Path) -> None:
    lane.drop()
    with exporting(lane.dsn(dsn), tmp_path) as (url, _):
        assert read(fetch(url)) == {"penstock_up": {labels(): 0}}
        lane.heal()
        eventually(lambda: read(fetch(url))["penstock_up"] == {labels(): 1})


def test_an_exporter_that_cannot_work_is_refused(app: Penstock, dsn: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused(penstock("export", "metrics", "--listen", port, dsn=dsn), "listen", port, code=3)
    for wrong in ("http", "127.0.0.1", "65536", "127.0.0.1:-1", ""):
        refused(penstock("export", "metrics", "--listen", wrong, dsn=dsn), "listen", "[HOST:]PORT")
    no_password = make_conninfo(dsn, user="nobody_at_all", password="wrong-secret")
    for options in ((), ("--listen", str(free_port()))):
        ran = penstock("export", "metrics", *options, dsn=no_password)
        assert ran.code == 3, ran
        assert "wrong-secret" not in ran.err


def test_the_metrics_need_only_the_rights_of_a_reader(app: Penstock, queue: Queue, sql: psycopg.Connection) -> None:
    with as_reader(sql):
        row = sql.execute("select penstock.metrics() -> 'board' -> 'queues' -> 0 ->> 'queue'").fetchone()
    assert row == ("work",)
