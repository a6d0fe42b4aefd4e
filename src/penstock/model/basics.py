"""Types and words that every topic uses."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

Json = dict[str, Any]
"""A payload, or another JSON object."""
State = Literal["waiting", "planned", "pending", "active", "done", "dead", "cancelled"]
"""The state of a task."""
OnConflict = Literal["skip", "update", "error"]
"""What a push does with a subject that its queue has: nothing, an update of the task, or an error."""
Backfill = Literal["none", "last", "all"]
"""Which missed ticks of a schedule are pushed later."""
Duration = str | int | float | timedelta
"""A length of time: a text such as `1m30s`, seconds, or a timedelta."""
GAUGES = ("waiting", "planned", "pending", "active", "done", "dead", "cancelled")
