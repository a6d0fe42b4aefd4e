"""A real Prometheus scrapes a real worker and the exporter, answers the dashboard, and lets alerts fire."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from metrics_exporter import exporting
from penstock import NewTask, Penstock
from penstock.metrics.alerts import ALERTS, RECORDS
from penstock.metrics.dashboard import FIRST
from prometheus import Prometheus, promtool, running, settle
from shell import penstock
from workers import free_port, working

JOBS = """
@app.task(queue="mail")
def welcome(n: int) -> None:
    time.sleep(0.002)

@app.task(queue="mail", max_attempts=1)
def dies() -> None:
    raise ValueError("dies")
"""
DURATION = re.compile('for: ".*"')


def test_the_rules_are_valid(tmp_path: Path) -> None:
    text = penstock("export", "alerts").out
    (tmp_path / "rules.yml").write_text(text, "utf-8")
    promtool("check", "rules", str(tmp_path / "rules.yml"))
    as_json = penstock("export", "alerts", "--json").json
    (tmp_path / "rules.json").write_text(json.dumps(as_json), "utf-8")
    promtool("check", "rules", str(tmp_path / "rules.json"))
    alerts = [rule for group in as_json["groups"] for rule in group["rules"] if "alert" in rule]
    assert len(alerts) == 6
    assert {one["labels"]["severity"] for one in alerts} == {"page", "ticket"}


def dashboard() -> list[dict[str, Any]]:
    board = penstock("export", "grafana").json
    assert {one["name"] for one in board["templating"]["list"]} == {"source", "queue"}
    return list(board["panels"])


def test_the_dashboard_has_a_place_for_each_graph() -> None:
    panels = dashboard()
    assert [one["title"] for one in panels[:5]] == [one.title for one in FIRST]
    assert len({(one["gridPos"]["x"], one["gridPos"]["y"]) for one in panels}) == len(panels)
    assert len({one["id"] for one in panels}) == len(panels)
    assert all(one["datasource"]["uid"] == "${source}" for one in panels)


@contextmanager
def a_shop(app: Penstock, dsn: str, home: Path) -> Iterator[tuple[Prometheus, Any]]:
    """A worker for mail, an exporter, and a Prometheus that scrapes both; `late` has no worker."""
    mail = app.create_queue("mail", sla="60s")
    app.create_queue("late", sla="1s").push()
    mail.push_many(NewTask({"n": n}, kind="welcome") for n in range(200))
    rules = DURATION.sub('for: "0s"', penstock("export", "alerts").out)
    port = free_port()
    with (
        exporting(dsn, home) as (url, exporter),
        working(home, dsn, JOBS, "--queues", "mail", "--health", str(port)),
        running(home / "prometheus", {"database": int(urlsplit(url).port or 0), "worker": port}, rules) as found,
    ):
        yield found, exporter


def test_prometheus_scrapes_records_and_fires(app: Penstock, dsn: str, tmp_path: Path) -> None:
    with a_shop(app, dsn, tmp_path) as (prometheus, exporter):
        targets = settle(
            lambda: [one for one in prometheus.ask("targets")["activeTargets"] if one["health"] == "up"][1:]
        )
        assert len(targets) == 1, "both are up"
        settle(lambda: prometheus.query('increase(penstock_tasks_total{queue="mail",event="dead"}[5m])'))
        app.queue("mail").push_many([NewTask({"n": n}, kind="welcome") for n in range(50)])
        app.queue("mail").push(kind="dies")

        states = settle(lambda: both(prometheus, "PenstockPromiseBroken", "PenstockTasksDie"))
        assert states["PenstockPromiseBroken"] == states["PenstockTasksDie"] == "firing"
        assert "PenstockUnreachable" not in states
        (broken,) = prometheus.query('ALERTS{alertname="PenstockPromiseBroken"}')
        assert (broken["metric"]["queue"], broken["metric"]["severity"]) == ("late", "page")

        rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
        assert len(rules) == len(RECORDS) + len(ALERTS)
        assert {rule["health"] for rule in rules} == {"ok"}, rules
        for record in RECORDS:
            settle(lambda record=record: prometheus.query(record))  # type: ignore[misc]

        empty = []
        for number, panel in enumerate(dashboard()):
            for target in panel["targets"]:
                rows = prometheus.query(target["expr"].replace("$queue", ".*"))  # an error fails
                empty += [target["expr"]] if not rows and number < 5 else []
        assert empty == [], "each of the first five graphs shows something"

        exporter.send_signal(signal.SIGINT)
        settle(lambda: prometheus.alerts().get("PenstockUnreachable") == "firing")


def both(prometheus: Prometheus, *names: str) -> dict[str, str]:
    states = prometheus.alerts()
    return states if {*names} <= {*states} else {}


@pytest.mark.parametrize(
    ("series", "fires"),
    [
        ({"penstock_up": "0+0x20"}, "PenstockUnreachable"),
        ({'penstock_time_to_breach_seconds{queue="a"}': "-1+0x20"}, "PenstockPromiseBroken"),
        ({'penstock_oldest_age_seconds{queue="a"}': "9+0x20", 'penstock_sla_seconds{queue="a"}': "10+0x20"},
         "PenstockPromiseInDanger"),
        ({'penstock_predicted_breach_seconds{queue="a"}': "500+0x20"}, "PenstockPromiseInDanger"),
        ({'penstock_workers{queue="a",what="present"}': "1+0x20",
          'penstock_workers{queue="a",what="wanted"}': "3+0x20"}, "PenstockWorkersMissing"),
        ({'penstock_workers{queue="a",what="present"}': "0+0x20", 'penstock_tasks{queue="a",state="pending"}': "4+0x20",
          'penstock_sla_seconds{queue="a"}': "10+0x20"}, "PenstockWorkersMissing"),
        ({'penstock_tasks_total{queue="a",event="dead"}': "7+1x20"}, "PenstockTasksDie"),
        ({"penstock_oldest_snapshot_seconds": "4000+0x20"}, "PenstockVacuumHeldBack"),
    ],
)  # fmt: skip
def test_each_alert_fires_when_it_has_lasted(tmp_path: Path, series: dict[str, str], fires: str) -> None:
    """promtool lets minutes pass: the alert is not there too early, and no other one fires."""
    (tmp_path / "rules.yml").write_text(penstock("export", "alerts").out, "utf-8")
    usual = {"penstock_up": "1+0x20", 'penstock_paused{queue="a"}': "0+0x20"} | series
    given = [{"series": name, "values": values} for name, values in usual.items()]
    test: dict[str, Any] = {"interval": "1m", "input_series": given, "promql_expr_test": []}
    for minute, expected in ((0, 0), (10, 1)):
        for one in ALERTS:
            query = f'count(ALERTS{{alertname="{one.name}",alertstate="firing"}}) or vector(0)'
            number = expected if one.name == fires else 0
            test["promql_expr_test"].append(
                {"expr": query, "eval_time": f"{minute}m", "exp_samples": [{"labels": "{}", "value": number}]}
            )
    (tmp_path / "test.json").write_text(
        json.dumps({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]}), "utf-8"
    )
    promtool("test", "rules", str(tmp_path / "test.json"))
