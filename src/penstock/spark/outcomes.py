"""What a sink says of single tasks of a batch. What it says nothing of is done when Spark asks for the next batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.errors import LeaseLost, ValidationError, shown
from penstock.model import Outcome
from penstock.queue import Queue
from penstock.spark.options import Place
from penstock.spark.place import opened


def note_outcomes(said: Iterable[tuple[Any, Outcome]], *, dsn: str | None = None) -> dict[int, str]:
    """Settles tasks of a stream's batch, given as rows with `id`, `queue` and `token`, before the batch is: failed,
    dead, again, release or done. Answers the state each is in now; raises LeaseLost, after the rest is applied, for
    those that are no longer this driver's.

        def sink(df, batch_id):
            bad = [(row, Outcome.failed(why)) for row, why in ...]
            note_outcomes(bad)
    """
    told: dict[tuple[str, str], dict[int, Outcome]] = {}
    for row, outcome in said:
        queue, token, id_ = (part(row, name) for name in ("queue", "token", "id"))
        told.setdefault((token, queue), {})[id_] = outcome
    states: dict[int, str] = {}
    refused: list[int] = []
    revoked: list[int] = []
    if not told:
        return states
    with opened(Place(dsn)) as database:
        for (token, queue), outcomes in sorted(told.items(), key=lambda one: one[0]):
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


def part(row: Any, name: str) -> Any:
    try:
        return row[name]
    except (KeyError, ValueError, TypeError, IndexError):
        raise ValidationError(
            f"{name}: {shown(type(row).__name__)} has no such column",
            hint="Give rows of the stream, with their id, queue and token.",
            field=name,
        ) from None
