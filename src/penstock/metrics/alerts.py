"""The rules that Prometheus evaluates: six alerts to begin with, and what graphs ask for again and again. Pure.

docs/metrics.md says what each alert means in the middle of the night.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Alert(NamedTuple):
    """An alert: when it fires, and what it says then."""

    name: str
    when: str
    lasting: str  # for how long it has to be true
    severity: str  # page: wake a person; ticket: the next working day is early enough
    summary: str
    action: str


ALERTS = (
    Alert(
        "PenstockUnreachable",
        "penstock_up == 0 or absent(penstock_up)",
        "2m",
        "page",
        "No metrics of Penstock: PostgreSQL does not answer, or the exporter is gone",
        "Look whether PostgreSQL accepts connections (penstock doctor --quick), then whether the exporter runs.",
    ),
    Alert(
        "PenstockPromiseBroken",
        "penstock_time_to_breach_seconds < 0 and penstock_paused == 0",
        "1m",
        "page",
        "Queue {{ $labels.queue }} has broken its promise: its oldest task is late",
        "Run penstock why {{ $labels.queue }}: it says how many workers there are, how many are needed, and why.",
    ),
    Alert(
        "PenstockPromiseInDanger",
        "(penstock_oldest_age_seconds / penstock_sla_seconds > 0.8 or penstock_predicted_breach_seconds < 600)"
        " and penstock_paused == 0",
        "5m",
        "ticket",
        "Queue {{ $labels.queue }} will break its promise at the present pace",
        "Run penstock why {{ $labels.queue }}. If its workers are at their maximum, raise --max-workers.",
    ),
    Alert(
        "PenstockWorkersMissing",
        '(penstock_workers{what="present"} < ignoring (what) penstock_workers{what="wanted"})'
        ' or (penstock_workers{what="present"} == 0 and ignoring (what, state) penstock_tasks{state="pending"} > 0'
        " and ignoring (what) penstock_paused == 0 and ignoring (what) penstock_sla_seconds)",
        "5m",
        "page",
        "Queue {{ $labels.queue }} has {{ $value }} workers, which is fewer than it needs",
        "Look at the log of the scaler and of the workers: new ones cannot start, or those that start end at once.",
    ),
    Alert(
        "PenstockTasksDie",
        'increase(penstock_tasks_total{event="dead"}[15m]) > 0',
        "0s",
        "ticket",
        "{{ $value | humanize }} tasks of queue {{ $labels.queue }} died in the last 15 minutes",
        "Run penstock dead ls {{ $labels.queue }}, and after the fix penstock dead redrive {{ $labels.queue }}.",
    ),
    Alert(
        "PenstockVacuumHeldBack",
        "penstock_oldest_snapshot_seconds > 3600",
        "5m",
        "ticket",
        "A transaction has been open for {{ $value | humanizeDuration }}: tables grow, because vacuum removes nothing",
        "Run penstock doctor: it names the session. End it, and set idle_in_transaction_session_timeout.",
    ),
)
RECORDS = {
    "queue:penstock_tasks_in:rate5m": 'sum by (queue) (rate(penstock_tasks_total{event=~"pushed|redriven"}[5m]))',
    "queue:penstock_tasks_done:rate5m": 'sum by (queue) (rate(penstock_tasks_total{event="done"}[5m]))',
    "queue:penstock_tasks_failed:rate5m": (
        'sum by (queue) (rate(penstock_tasks_total{event=~"failed|dead|expired"}[5m]))'
    ),
    "queue:penstock_wait_seconds:p95": (
        "histogram_quantile(0.95, sum by (queue, le) (rate(penstock_wait_seconds_bucket[5m])))"
    ),
    "queue_kind:penstock_run_seconds:p95": (
        "histogram_quantile(0.95, sum by (queue, kind, le) (rate(penstock_run_seconds_bucket[5m])))"
    ),
}


def make_rules() -> dict[str, Any]:
    """Makes the content of a file of rules."""
    records = [{"record": name, "expr": expression} for name, expression in RECORDS.items()]
    return {
        "groups": [
            {"name": "penstock-records", "rules": records},
            {"name": "penstock-alerts", "rules": [make_alert(one) for one in ALERTS]},
        ]
    }


def make_alert(one: Alert) -> dict[str, Any]:
    """Makes the rule of an alert."""
    return {
        "alert": one.name,
        "expr": one.when,
        "for": one.lasting,
        "labels": {"severity": one.severity},
        "annotations": {"summary": one.summary, "description": one.action},
    }
