"""The scaler: its hold of queues, its decisions, and the snapshot that it decides on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from penstock.client.binary import TextArray
from penstock.client.statements.texts import number_array
from penstock.model import (
    Board,
    BoardWorker,
    QueueQuestion,
    QueueStatus,
    Sampled,
    Scaled,
    ScalerSnapshot,
    ScalingHold,
    SeenQueue,
    SeenWorker,
    StoredDecision,
)

HOLD_SCALING = (
    "select queue, epoch, memory::text, target from penstock.hold_scaling(%s::text[], %s, %s, %s, %s::text[])"
)
SCALERS = "select queue, holder, policy, until, target, decided_at from penstock.scalers(%s::text[])"
DECIDE = "select penstock.decide(%s, %s, %s::jsonb)"
LEAVE_SCALING = "select penstock.leave_scaling(%s)"
DECISIONS = """
    select id, queue, at, epoch, policy, workers, actual, wanted, urgency, bound_by, reason, time_to_breach,
           predicted_breach, inputs::text, rules::text
    from penstock.decisions(%s, %s, %s)
"""
TARGET_WORKERS = "select penstock.target_workers(%s), extract(epoch from penstock.target_age(%s))::float8"
DISMISS = "select penstock.dismiss(%s::text[])"
BOARD = "select penstock.board(%s, %s, %s)::text"
SCALER_SNAPSHOT = "select penstock.scaler_snapshot(%s::text[], %s::float8[], %s::int[], %s::float8[])::text"


def read_holds(rows: list[tuple[Any, ...]]) -> list[ScalingHold]:
    """Reads the answer of HOLD_SCALING."""
    return [ScalingHold(queue, epoch, memory and orjson.loads(memory), target) for queue, epoch, memory, target in rows]


def read_decisions(rows: list[tuple[Any, ...]]) -> list[StoredDecision]:
    """Reads the answer of DECISIONS."""
    return [StoredDecision(*(*row[:-2], orjson.loads(row[-2]), orjson.loads(row[-1]))) for row in rows]


def snapshot_parameters(about: Sequence[QueueQuestion]) -> tuple[Any, ...]:
    """Returns the parameters of SCALER_SNAPSHOT."""
    return (
        TextArray([one.queue.encode() for one in about]),
        number_array([one.horizon for one in about]),
        number_array([one.rows for one in about]),
        number_array([one.bin for one in about]),
    )


def read_snapshot(raw: str) -> ScalerSnapshot:
    """Reads the answer of SCALER_SNAPSHOT."""
    found = orjson.loads(raw)
    return ScalerSnapshot(
        at=found["at"],
        queues=tuple(SeenQueue(**{**one, **read_pairs(one)}) for one in found["queues"]),
        workers=tuple(SeenWorker(**{**one, "queues": tuple(one["queues"])}) for one in found["workers"]),
        connections=int(found["connections"][0] or 0),
        most_connections=int(found["connections"][1]),
        schedule=found["schedule"],
    )


def read_board(raw: str) -> Board:
    """Reads the answer of BOARD."""
    return board_of(orjson.loads(raw))


def board_of(found: dict[str, Any]) -> Board:
    """Returns the board that JSON describes."""
    at = datetime.fromtimestamp(found["at"], UTC)
    samples = {one["queue"]: tuple(Sampled(*row) for row in one.pop("samples") or ()) for one in found["queues"]}
    return Board(
        at=found["at"],
        queues=tuple(QueueStatus(**one, at=at) for one in found["queues"]),
        scaling={one["queue"]: Scaled(**one) for one in found["scaling"]},
        workers=tuple(BoardWorker(**{**one, "queues": tuple(one["queues"])}) for one in found["workers"]),
        decisions=tuple(map(read_decision, found["decisions"])),
        latest={one["queue"]: read_decision(one) for one in found["latest"]},
        samples=samples,
    )


def read_decision(one: dict[str, Any]) -> StoredDecision:
    """Reads one decision of a board."""
    return StoredDecision(**{**one, "at": datetime.fromtimestamp(one["at"], UTC)})


def read_pairs(one: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the lists of pairs of a queue in a look as tuples."""
    return {name: tuple(map(tuple, one[name])) if one[name] else () for name in ("waiting", "ahead", "running")}
