"""What workers say while they run: an event and its facts, one a line, never a payload or an error's text."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Facts(logging.Formatter):
    """`12:00:01 warning failed task=42 queue=mail`, or the same as JSON."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        facts = {key: value for key, value in vars(record).items() if key not in PLAIN}
        at = datetime.fromtimestamp(record.created, UTC)
        level, event = record.levelname.lower(), record.getMessage()
        if self._as_json:
            return json.dumps({"at": at.isoformat(timespec="milliseconds"), "level": level, "event": event, **facts})
        said = "".join(f" {key}={value}" for key, value in facts.items())
        return f"{at:%H:%M:%S} {level} {event}{said}"


def set_up(log_format: str, *, quiet: bool) -> None:
    """Ours alone, on standard error: how the application logs is its own affair."""
    logger = logging.getLogger("penstock")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Facts(as_json=log_format == "json"))
    logger.handlers[:] = [handler]
    logger.setLevel(logging.ERROR if quiet else logging.INFO)
    logger.propagate = False
