"""The source of metrics: reads a database at most once a second, however many readers there are."""

from __future__ import annotations

import logging
import threading
import time

from penstock.client.database import Database
from penstock.client.metrics import metrics
from penstock.errors import PenstockError
from penstock.metrics.render import render_metrics

LOG = logging.getLogger("penstock.metrics")
FRESH = 1.0  # seconds
CONNECT_WITHIN = 2.0  # seconds
ANSWER_WITHIN = 5.0  # seconds; a scrape of Prometheus waits for ten


def open_database(dsn: str, source: str = "dsn") -> Database:
    """Opens a database for metrics: one connection, which gives up soon enough for a scrape."""
    return Database(dsn, source=source, max_connections=1, timeout=CONNECT_WITHIN, deadline=ANSWER_WITHIN)


class MetricsSource:
    """The metrics of a database as text. It is thread-safe: readers that come together share one snapshot."""

    def __init__(self, database: Database, version: str) -> None:
        self._database = database
        self._version = version
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._text = ""
        self._reported = ""  # the code of the error that the log has

    def read(self) -> str:
        """Returns the metrics, which are at most a second old. An error is raised."""
        with self._lock:
            return self._read()

    def text(self) -> str:
        """Returns the metrics, or `penstock_up 0` if PostgreSQL does not answer or refuses."""
        with self._lock:
            try:
                return self._read()
            except PenstockError as error:
                return self._note_error(error)

    def _read(self) -> str:
        if time.monotonic() - self._read_at > FRESH:
            self._text = render_metrics(metrics(self._database), self._version)
            self._read_at = time.monotonic()
            if self._reported:
                LOG.info("PostgreSQL answers again")
                self._reported = ""
        return self._text

    def _note_error(self, error: PenstockError) -> str:
        """Remembers for a second that PostgreSQL did not answer, and logs the reason once."""
        if error.code != self._reported:
            LOG.warning("no metrics: %s", error.message, extra={"code": error.code})
            self._reported = error.code
        self._text = render_metrics(None, self._version)
        self._read_at = time.monotonic()
        return self._text
