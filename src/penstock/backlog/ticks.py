"""Computes when a failed record is retried, as bounds for the SQL of `claim`. Pure: it does no I/O.

The strategy Progressive retries a record at fixed ages: the multiples of the period of its tier. These ages are the
rungs of a ladder, and the moment at which a record reaches one is a tick. A record is due if its last tick is later
than the mark, up to which passes have worked. The records whose last tick is at a given rung were inserted between two
moments, so that an index finds them, and the table needs no column for this.

All other strategies look at the number of failures of a record: each number has its waiting time.

Python subtracts two datetimes of the same zone by their wall clocks, which is an hour wrong across a change to summer
time. So `now` is in UTC. The other moments are in the zone of the session, and are only subtracted from moments in UTC.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from penstock.errors import ValidationError
from penstock.retry import Progressive, Strategy

MAX_RUNGS = 5000
MAX_COUNTED_FAILURES = 1000
EARLIEST = datetime(1, 1, 2, tzinfo=UTC)
INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Mark:
    """How far the ticks were walked: up to `tick`, and at that one up to `key`. No key: all of it."""

    tick: datetime
    key: tuple[str, ...] | None = None


START = Mark(EARLIEST)


@dataclass(frozen=True, slots=True)
class TickWindow:
    """Records inserted in (after, until] have their last tick at this age."""

    after: datetime
    until: datetime
    age: timedelta


def to_micros(seconds: float) -> int:
    return round(seconds * 1e6)


def build_ladder(strategy: Progressive) -> list[timedelta]:
    """Returns the ages at which a record is retried, the youngest first."""
    rungs: list[int] = []
    begin = 0
    for until, every in strategy.tiers:
        end, step = to_micros(until), to_micros(every)
        first = max(-(-begin // step), 1)
        count = max(-(-end // step) - first, 0)
        if len(rungs) + count > MAX_RUNGS:
            raise ValidationError(
                f"strategy: its tiers try a record more than {MAX_RUNGS} times",
                hint="Give them longer periods: adopted tables are searched once for each.",
                field="strategy",
            )
        rungs += [step * k for k in range(first, first + count)]
        begin = end
    if not rungs:
        raise ValidationError("strategy: no tier is as long as its period: nothing would be tried", field="strategy")
    return [timedelta(microseconds=rung) for rung in rungs]


def find_last_tick(rungs: list[timedelta], inserted: datetime, now: datetime) -> datetime | None:
    """Returns the last tick up to now. None: there was none yet."""
    age = now - inserted
    n = bisect_right(rungs, age)
    return now - (age - rungs[n - 1]) if n else None


def has_ended(rungs: list[timedelta], inserted: datetime, now: datetime) -> bool:
    """Returns whether no further tick comes."""
    return now - inserted >= rungs[-1]


def find_windows(rungs: list[timedelta], mark: Mark, now: datetime) -> list[TickWindow]:
    """Returns one window for each rung: together they contain the records whose last tick is at the mark or later. For
    records at the mark itself, the key decides. Records older than the last rung had their last tick there."""
    found, walked = [], mark.tick - EARLIEST
    for n, rung in enumerate(rungs):
        older = now - rungs[n + 1] if n + 1 < len(rungs) else EARLIEST
        reached = EARLIEST + (walked - rung - INSTANT) if walked > rung + INSTANT else EARLIEST
        after = max(older, reached)
        if after < now - rung:
            found.append(TickWindow(after, now - rung, rung))
    return found


# --- by failures ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waits:
    """How long records wait after 0, 1, 2, … failures. With more failures they wait as long as the last entry, unless
    `ends`."""

    by_failures: tuple[timedelta, ...]
    ends: bool  # with more failures, records are dead

    def after(self, failures: int) -> timedelta | None:
        """Returns the wait after this many failures. None: the record is dead."""
        if failures < len(self.by_failures):
            return self.by_failures[max(failures, 0)]
        return None if self.ends else self.by_failures[-1]


def compute_waits(strategy: Strategy, max_attempts: int | None) -> Waits:
    found = [timedelta()]  # a record without failures does not wait
    most = MAX_COUNTED_FAILURES if max_attempts is None else min(max_attempts - 1, MAX_COUNTED_FAILURES)
    for failures in range(1, most + 1):
        wait = strategy.delay(failures)
        if wait is None:
            return Waits(tuple(found), ends=True)
        found.append(wait)
    ends = max_attempts is not None and max_attempts - 1 <= MAX_COUNTED_FAILURES
    return Waits(tuple(found if ends else drop_tail(found)), ends)


def drop_tail(found: list[timedelta]) -> list[timedelta]:
    """Shortens a tail of equal waits to one."""
    while len(found) > 2 and found[-1] == found[-2]:
        found.pop()
    return found
