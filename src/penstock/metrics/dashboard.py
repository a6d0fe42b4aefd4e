"""The dashboard for Grafana: the five graphs to look at first, then what explains them. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

WIDTH, HEIGHT = 12, 8  # of a graph; the dashboard is 24 wide
SOURCE = {"type": "prometheus", "uid": "${source}"}
QUEUE = 'queue=~"$queue"'


class Graph(NamedTuple):
    """A graph: its title, what it shows, its unit, and its expressions with the legend of each."""

    title: str
    about: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def p95(what: str, by: str) -> str:
    """Returns the expression for the time within which 95 % of the tasks wait or run."""
    return f"histogram_quantile(0.95, sum by ({by}, le) (rate(penstock_{what}_seconds_bucket{{{QUEUE}}}[5m])))"


FIRST = (
    Graph(
        "Promises: share of the SLA that the oldest task has used",
        "Above 100 % a promise is broken.",
        "percentunit",
        ((f"penstock_oldest_age_seconds{{{QUEUE}}} / penstock_sla_seconds", "{{queue}}"),),
    ),
    Graph(
        "Backlog: tasks that wait or run",
        "A line that only rises means that more arrives than is done.",
        "short",
        ((f'sum by (queue) (penstock_tasks{{{QUEUE},state=~"pending|active"}})', "{{queue}}"),),
    ),
    Graph(
        "Flow: tasks in and out per second",
        "Out below in for long means a growing backlog.",
        "ops",
        (
            (f'sum by (queue) (rate(penstock_tasks_total{{{QUEUE},event=~"pushed|redriven"}}[5m]))', "{{queue}} in"),
            (f'sum by (queue) (rate(penstock_tasks_total{{{QUEUE},event="done"}}[5m]))', "{{queue}} done"),
        ),
    ),
    Graph(
        "Workers: present, wanted and silent",
        "Present below wanted for long means that workers cannot start.",
        "short",
        ((f"penstock_workers{{{QUEUE}}}", "{{queue}} {{what}}"),),
    ),
    Graph(
        "Failures: attempts per second that failed, died or lost their worker",
        "Dead tasks do not run again by themselves.",
        "ops",
        ((f'rate(penstock_tasks_total{{{QUEUE},event=~"failed|dead|expired"}}[5m])', "{{queue}} {{event}}"),),
    ),
)
MORE = (
    Graph(
        "Wait until the start, 95 % of the tasks",
        "Measured by the workers.",
        "s",
        ((p95("wait", "queue"), "{{queue}}"),),
    ),
    Graph(
        "Run time by kind, 95 % of the tasks",
        "Measured by the workers.",
        "s",
        ((p95("run", "queue, kind"), "{{queue}} {{kind}}"),),
    ),
    Graph(
        "Slots that are busy",
        "At 100 % more workers help; below that, the database or the handlers of other queues hold tasks up.",
        "percentunit",
        ((f"penstock_slots_busy{{{QUEUE}}} / (penstock_slots > 0)", "{{queue}}"),),
    ),
    Graph(
        "Planned and dead tasks",
        "Planned tasks wait for their time or for a retry.",
        "short",
        ((f'penstock_tasks{{{QUEUE},state=~"planned|dead"}}', "{{queue}} {{state}}"),),
    ),
    Graph(
        "Age of the last decision",
        "More than a few seconds means that no scaler runs.",
        "s",
        ((f"penstock_decision_age_seconds{{{QUEUE}}}", "{{queue}}"),),
    ),
    Graph(
        "Leases lost and connections made again",
        "Both should be rare.",
        "short",
        (
            (f"sum by (queue) (increase(penstock_lease_losses_total{{{QUEUE}}}[5m]))", "{{queue}} leases"),
            ("sum (increase(penstock_reconnects_total[5m]))", "reconnections"),
        ),
    ),
    Graph(
        "Oldest snapshot, and schedules and readers that are behind",
        "An old snapshot keeps vacuum from removing rows.",
        "s",
        (
            ("penstock_oldest_snapshot_seconds", "oldest snapshot"),
            ("penstock_schedule_overdue_seconds", "schedules"),
            ("penstock_history_reader_lag_seconds", "reader {{reader}}"),
        ),
    ),
    Graph("Dead rows", "Vacuum removes them.", "short", (("penstock_dead_rows", "{{table}}"),)),
)


def make_dashboard() -> dict[str, Any]:
    """Makes the dashboard, as Grafana imports it."""
    panels = [make_panel(one, number) for number, one in enumerate((*FIRST, *MORE))]
    return {
        "title": "Penstock",
        "uid": "penstock",
        "tags": ["penstock"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [make_source_variable(), make_queue_variable()]},
        "panels": panels,
    }


def make_source_variable() -> dict[str, Any]:
    """Makes the variable by which a person chooses the Prometheus to ask."""
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def make_queue_variable() -> dict[str, Any]:
    """Makes the variable by which a person chooses queues."""
    return {
        "name": "queue",
        "label": "Queue",
        "type": "query",
        "datasource": SOURCE,
        "query": "label_values(penstock_paused, queue)",
        "refresh": 2,  # whenever the time range changes
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def make_panel(graph: Graph, number: int) -> dict[str, Any]:
    """Makes a panel. There are two in a row."""
    row, column = divmod(number, 2)
    targets = [
        {"refId": chr(ord("A") + n), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
        for n, (expression, legend) in enumerate(graph.queries)
    ]
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": graph.title,
        "description": graph.about,
        "datasource": SOURCE,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": graph.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }
