"""Outcomes of single tasks of a stream's batch. Tasks without an outcome are done when Spark asks for the next
batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.client.queue import Queue
from penstock.errors import LeaseLost, ValidationError, shown
from penstock.model import Outcome
from penstock.spark.connection import open_database
from penstock.spark.options import Address


def note_outcomes(said: Iterable[tuple[Any, Outcome]], *, dsn: str | None = None) -> dict[int, str]:
    """Settles tasks of a stream's batch before the batch ends. The tasks are given as rows with `id`, `queue` and
    `token`, each with its outcome: failed, dead, again, release or done. Returns the new state of each. Raises
    LeaseLost for tasks whose lease this driver has lost, after the others are settled.

        def sink(df, batch_id):
            bad = [(row, Outcome.failed(why)) for row, why in ...]
            note_outcomes(bad)
    """
    by_lease: dict[tuple[str, str], dict[int, Outcome]] = {}
    for row, outcome in said:
        queue, token, id_ = (read_column(row, name) for name in ("queue", "token", "id"))
        by_lease.setdefault((token, queue), {})[id_] = outcome
    states: dict[int, str] = {}
    refused: list[int] = []
    revoked: list[int] = []
    if not by_lease:
        return states
    with open_database(Address(dsn)) as database:
        for (token, queue), outcomes in sorted(by_lease.items(), key=lambda one: one[0]):
            try:
                states |= Queue(database, queue).settle(token, outcomes)
            except LeaseLost as error:
                refused += error.refused
                revoked += error.revoked
    if refused or revoked:
        raise LeaseLost(
            f"{len(refused)} refused, {len(revoked)} cancelled: they are no longer this driver's",
            refused=refused,
            revoked=revoked,
        )
    return states


def read_column(row: Any, name: str) -> Any:
    try:
        return row[name]
    except (KeyError, ValueError, TypeError, IndexError):
        raise ValidationError(
            f"{name}: {shown(type(row).__name__)} has no such column",
            hint="Give rows of the stream, with their id, queue and token.",
            field=name,
        ) from None
