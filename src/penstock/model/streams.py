"""A queue as a stream: consumer groups and their batches."""

from __future__ import annotations

from typing import NamedTuple


class GroupHold(NamedTuple):
    """A consumer group that a driver holds, and the batch that the driver was given last."""

    stream: int
    epoch: int
    identity: str
    batch: int


class Batch(NamedTuple):
    """One batch of a consumer group; `early` counts the tasks that were due by the requested moment."""

    number: int
    tasks: int
    early: int
