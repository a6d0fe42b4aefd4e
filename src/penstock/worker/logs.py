"""The log of a worker: one event and its facts per line, never a payload.

A terminal, and `--dev`, show the message of an error; other logs, which are collected and kept elsewhere, have only its
class.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from penstock.errors import printable

SUMMARY, DETAILS = "summary", "traceback"  # facts at the end of a line, and below it
PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Facts(logging.Formatter):
    """Formats a record as `12:00:01 warning failed task=42 queue=mail KeyError: 'to'`, or as JSON."""

    def __init__(self, *, as_json: bool, messages: bool) -> None:
        super().__init__()
        self._as_json = as_json
        self._messages = messages

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line of a record."""
        facts = {key: value for key, value in vars(record).items() if key not in PLAIN}
        at = datetime.fromtimestamp(record.created, UTC)
        level, event = record.levelname.lower(), record.getMessage()
        summary = facts.pop(SUMMARY, None)
        if self._as_json:
            return json.dumps({"at": at.isoformat(timespec="milliseconds"), "level": level, "event": event, **facts})
        details = facts.pop(DETAILS, None)
        if not self._messages:
            summary = None
        if summary:
            facts.pop("error_class", None)
        said = "".join(f" {key}={value}" for key, value in facts.items())
        end = f" {printable(summary)}" if summary else ""
        below = "".join(f"\n  {printable(line)}" for line in (details or "").splitlines())
        return f"{at:%H:%M:%S} {level} {event}{said}{end}{below}"


def set_up(log_format: str, *, quiet: bool, dev: bool = False) -> None:
    """Sets up the log of Penstock on standard error. The logging of the application is not changed."""
    logger = logging.getLogger("penstock")
    handler = logging.StreamHandler(sys.stderr)
    as_json = log_format == "json"
    handler.setFormatter(Facts(as_json=as_json, messages=not as_json and (dev or sys.stderr.isatty())))
    logger.handlers[:] = [handler]
    logger.setLevel(logging.ERROR if quiet else logging.INFO)
    logger.propagate = False
