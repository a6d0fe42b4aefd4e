"""Adds up what the processes of a worker have measured, and renders it for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from penstock.prometheus_text import Histogram, format_family, format_histograms
from penstock.worker.measures import Key, Kinds, Series, Slas, edges_of


class MemberMeasures:
    """What one process has reported."""

    def __init__(self) -> None:
        self.series: dict[Key, Series] = {}
        self.losses: Counter[str] = Counter()
        self.reconnects = 0

    def note(self, news: dict[str, Any], slas: Slas) -> None:
        """Takes over the news of the process."""
        for queue, kind, outcome, counts, total in news["series"]:
            key = (queue, kind, outcome)
            self.series[key] = Series(edges_of(key, slas), counts, total)
        self.losses = Counter(news["losses"])
        self.reconnects = news["reconnects"]

    def add(self, other: MemberMeasures, kinds: Kinds) -> None:
        """Adds what another process has measured."""
        for (queue, kind, outcome), series in other.series.items():
            key = (queue, kinds.fold(queue, kind), outcome)
            self.series.setdefault(key, Series(series.edges)).merge(series)
        self.losses.update(other.losses)
        self.reconnects += other.reconnects


class MeasureSums:
    """The sums of all processes of a worker, also of those that ended."""

    def __init__(self) -> None:
        self.slas: Slas = {}
        self._kinds = Kinds()
        self._past = MemberMeasures()

    def end(self, member: MemberMeasures) -> None:
        """Keeps what a process measured that has ended."""
        self._past.add(member, self._kinds)

    def render(self, members: Iterable[MemberMeasures], state: dict[str, Any], reconnects: int) -> str:
        """Returns the metrics of the worker. `state` is the answer of its probe, and `reconnects` those of its
        supervisor."""
        total = MemberMeasures()
        for one in (self._past, *members):
            total.add(one, self._kinds)
        losses = {**dict.fromkeys(self.slas, 0), **total.losses}
        families = (
            format_histograms(
                "penstock_wait_seconds",
                "How long a task was due before its handler began. The SLA of the queue is an edge.",
                histograms(total, waits=True),
            ),
            format_histograms(
                "penstock_run_seconds",
                "How long a handler ran. Each task of a batch counts with its share.",
                histograms(total, waits=False),
            ),
            format_family(
                "penstock_lease_losses_total",
                "counter",
                "Leases that the worker lost before it had settled their tasks.",
                (({"queue": queue}, count) for queue, count in losses.items()),
            ),
            format_family(
                "penstock_reconnects_total",
                "counter",
                "How often a process of the worker had to connect to PostgreSQL again.",
                [({}, total.reconnects + reconnects)],
            ),
            format_family("penstock_worker_processes", "gauge", "Processes with handlers.", [({}, state["processes"])]),
            format_family(
                "penstock_worker_healthy", "gauge", "Whether the liveness probe succeeds.", [({}, int(state["ok"]))]
            ),
        )
        return "".join(families)


def histograms(measured: MemberMeasures, *, waits: bool) -> Iterator[Histogram]:
    """Yields the histograms of waits, or those of runs."""
    for (queue, kind, outcome), series in sorted(measured.series.items(), key=lambda one: tuple(map(str, one[0]))):
        if (outcome is None) == waits:
            labels = {"queue": queue, "kind": kind} | ({} if outcome is None else {"outcome": outcome})
            yield Histogram(labels, series.edges, series.counts, series.total)
