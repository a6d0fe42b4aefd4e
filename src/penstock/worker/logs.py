"""The log of a worker: one event and its facts per line, never a payload.

A terminal, `--dev` and `run_worker` show the message of an error; other logs, which are collected and kept elsewhere,
have only its class.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

from penstock.errors import printable
from penstock.handlers.tracebacks import SUMMARY, message_of, summarize, traceback_lines
from penstock.worker.task_log import NAMES, add_to_handlers

DETAILS = "traceback"  # the fact below a line, as SUMMARY is the one at its end
PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Facts(logging.Formatter):
    """Formats a record as `12:00:01 warning failed task=42 queue=mail KeyError: 'to'`, or as JSON."""

    def __init__(self, *, as_json: bool, messages: bool, tracebacks: bool) -> None:
        super().__init__()
        self.tracebacks = tracebacks
        self._as_json = as_json
        self._messages = messages

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line of a record."""
        facts = {key: value for key, value in vars(record).items() if key not in PLAIN}
        if not record.name.startswith("penstock"):
            facts = facts_of_application(record, facts)
        at = datetime.fromtimestamp(record.created, UTC)
        level, event = record.levelname.lower(), record.getMessage()
        summary = facts.pop(SUMMARY, None)
        if self._as_json:
            line = {"at": at.isoformat(timespec="milliseconds"), "level": level, "event": event, **facts}
            return json.dumps(line, default=str)
        details = facts.pop(DETAILS, None)
        if not self._messages:
            summary = None
        if summary:
            facts.pop("error_class", None)
        said = "".join(f" {key}={value}" for key, value in facts.items())
        end = f" {printable(summary)}" if summary else ""
        below = "".join(f"\n  {printable(line)}" for line in (details or "").splitlines())
        return f"{at:%H:%M:%S} {level} {event}{said}{end}{below}"


def facts_of_application(record: logging.LogRecord, facts: dict[str, Any]) -> dict[str, Any]:
    """Returns the facts of a record of the application: its logger, its task, and the traceback that it asks for."""
    known = {key: value for key, value in facts.items() if value is not None or key not in NAMES}
    if record.exc_info and record.exc_info[1] is not None:
        known[DETAILS] = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
    return {"logger": record.name, **known}


def correlate(log_format: str) -> None:
    """Lets the records that handlers log say which task they belong to.

    If the application has not set up logging, its warnings and errors are written as our own records are.
    """
    add_to_handlers()
    if logging.lastResort is not None:
        as_json = log_format == "json"
        logging.lastResort.setFormatter(Facts(as_json=as_json, messages=True, tracebacks=True))


def set_up_by_default(log_format: str, *, in_process: bool = False) -> None:
    """Sets up the log of Penstock, unless the program has set up logging itself.

    A worker that is only a part of the program (`in_process`) logs what goes wrong, with the messages of errors.
    """
    logger = logging.getLogger("penstock")
    if not logger.hasHandlers():
        set_up(log_format, quiet=False, messages=in_process)
        logger.setLevel(logging.WARNING if in_process else logging.INFO)


def set_up(log_format: str, *, quiet: bool, messages: bool = False, tracebacks: bool = False) -> None:
    """Sets up the log of Penstock on standard error. The logging of the application is not changed.

    With `messages=True`, text has the messages of errors even if standard error is not a terminal. With
    `tracebacks=True` it has their tracebacks too.
    """
    logger = logging.getLogger("penstock")
    handler = logging.StreamHandler(sys.stderr)
    as_json = log_format == "json"
    messages = not as_json and (messages or tracebacks or sys.stderr.isatty())
    handler.setFormatter(Facts(as_json=as_json, messages=messages, tracebacks=tracebacks))
    logger.handlers[:] = [handler]
    logger.setLevel(logging.ERROR if quiet else logging.INFO)
    logger.propagate = False


def facts_of(error: BaseException) -> dict[str, str | None]:
    """Returns what the log says about an error that is stored nowhere: its class, its message and, if the log shows
    them, its traceback."""
    name = type(error).__name__
    facts = {"error_class": name, SUMMARY: summarize(message_of(error), name)}
    formatters = [handler.formatter for handler in logging.getLogger("penstock").handlers]
    if any(isinstance(one, Facts) and one.tracebacks for one in formatters):
        facts[DETAILS] = "".join(traceback_lines(error))
    return facts
