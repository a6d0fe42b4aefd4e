"""Workers: beats, the search for work, and the leases of a supervisor."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

LEASE = "select extract(epoch from lease)::float8 from penstock.the_queue(%s)"
EXTEND_MANY = "select token::text, until, revoked from penstock.extend_many(%s::text[]::uuid[], %s)"
BEAT = """
    select queue, channel, quarantined, dismissed from penstock.beat(%s, %s::text[], %s, %s, %s, %s, %s, %s, %s)
"""
BEAT_ALL = """
    select b.channels::text, b.quarantined, b.dismissed, b.known, b.leases::text,
           w.waiting, w.next_due, w.next_schedule, w.upkeep
    from penstock.beat_all(%s::jsonb, %s::text[], %s, %s, %s, %s, %s) as b, penstock.find_work(%s::text[]) as w
"""
FIND_WORK = "select waiting, next_due, next_schedule, upkeep from penstock.find_work(%s::text[])"
PREPARE_WORK = "select queue, lease, paused from penstock.prepare_work(%s::text[], %s::jsonb)"
# If a crash undoes the wake-up, a task only waits a moment longer.
WAKE_ANOTHER = "select penstock.pass_on(%s, %s) from pg_catalog.set_config('synchronous_commit', 'off', true)"
LEAVE = "select penstock.leave(%s)"
TAKE_QUARANTINE = "select penstock.take_quarantine(%s, %s)"
EXPIRE_LEASES = "select penstock.expire_leases(%s::text[])"
END_LEASES = "select failed, dead from penstock.end_leases(%s::uuid[])"
END_LEASES_OF = "select failed, dead from penstock.end_leases_of(%s, %s)"
SET_KINDS = "select penstock.set_kinds(%s, %s::jsonb)"


class FoundWork(NamedTuple):
    """What a supervisor finds when it looks for work: the queues from which a claim would return tasks, the seconds
    until a task is due or a lease ends in the others, the seconds until a schedule is due, and whether upkeep is
    due."""

    waiting: list[str]
    next_due: float | None
    next_schedule: float | None
    upkeep: bool


class BeatAnswer(NamedTuple):
    """The answer to a beat for several workers: the channel of each worker, the queues in which a quarantined
    task waits, the workers that should stop, and the leases of queues in seconds if they differ from those that `known`
    stands for."""

    channels: dict[str, str]
    quarantined: list[str]
    dismissed: list[str]
    known: int
    leases: dict[str, float] | None


def read_beat(row: tuple[Any, ...]) -> tuple[BeatAnswer, FoundWork]:
    """Reads the answer of BEAT_ALL."""
    channels, quarantined, dismissed, known, leases, *found = row
    beaten = BeatAnswer(orjson.loads(channels), quarantined, dismissed, known, leases and orjson.loads(leases))
    return beaten, FoundWork(*found)
