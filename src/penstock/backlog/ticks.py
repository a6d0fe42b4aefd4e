"""When a record that failed is tried again. Pure: the SQL of `claim` gets bounds that are computed here.

Progressive, without a column of its own: a record has ticks at the ages k × period of the tier it is in, and is due in
a pass if its last tick lies after the mark. All ages at which a tick may be are the ladder; the records whose last tick
is at one of its rungs were inserted between two moments, which an index finds.

Everything else, by failures: so many failures wait so long.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from penstock.errors import ValidationError
from penstock.retry import Progressive, Strategy

MOST_RUNGS = 5000
MOST_FAILURES = 1000
EARLIEST = datetime(1, 1, 2, tzinfo=UTC)
INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Mark:
    """How far the ticks were walked: up to `tick`, and at that one up to `key`; no key: all of it."""

    tick: datetime
    key: tuple[str, ...] | None = None


START = Mark(EARLIEST)


@dataclass(frozen=True, slots=True)
class Window:
    """Records inserted in (after, until] have their last tick at this age."""

    after: datetime
    until: datetime
    age: timedelta


def micros(seconds: float) -> int:
    return round(seconds * 1e6)


def ladder(strategy: Progressive) -> list[timedelta]:
    """The ages at which a record is tried, the youngest first."""
    rungs: list[int] = []
    begin = 0
    for until, every in strategy.tiers:
        end, step = micros(until), micros(every)
        first = max(-(-begin // step), 1)
        count = max(-(-end // step) - first, 0)
        if len(rungs) + count > MOST_RUNGS:
            raise ValidationError(
                f"strategy: its tiers try a record more than {MOST_RUNGS} times",
                hint="Give them longer periods: adopted tables are searched once for each.",
                field="strategy",
            )
        rungs += [step * k for k in range(first, first + count)]
        begin = end
    if not rungs:
        raise ValidationError("strategy: no tier is as long as its period: nothing would be tried", field="strategy")
    return [timedelta(microseconds=rung) for rung in rungs]


def last_tick(rungs: list[timedelta], inserted: datetime, now: datetime) -> datetime | None:
    """The last moment up to now at which a record was to be tried; None: there was none yet."""
    n = bisect_right(rungs, now - inserted)
    return inserted + rungs[n - 1] if n else None


def ended(rungs: list[timedelta], inserted: datetime, now: datetime) -> bool:
    """No tick comes any more."""
    return now - inserted >= rungs[-1]


def windows(rungs: list[timedelta], mark: Mark, now: datetime) -> list[Window]:
    """Where the records are whose last tick is at the mark or later, one window for each rung. Who is at the mark
    itself, its key decides. What is older than the last rung had its last tick there."""
    found = []
    for n, rung in enumerate(rungs):
        older = now - rungs[n + 1] if n + 1 < len(rungs) else EARLIEST
        reached = mark.tick - rung - INSTANT if mark.tick - EARLIEST > rung + INSTANT else EARLIEST
        after = max(older, reached)
        if after < now - rung:
            found.append(Window(after, now - rung, rung))
    return found


# --- by failures ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waits:
    """How long records wait after 0, 1, 2, … failures. With more: as long as the last, unless that is the end."""

    by_failures: tuple[timedelta, ...]
    ends: bool  # with more failures nothing is tried any more

    def after(self, failures: int) -> timedelta | None:
        """None: it is given up."""
        if failures < len(self.by_failures):
            return self.by_failures[max(failures, 0)]
        return None if self.ends else self.by_failures[-1]


def waits(strategy: Strategy, max_attempts: int | None) -> Waits:
    found = [timedelta()]  # whoever has not failed does not wait
    most = MOST_FAILURES if max_attempts is None else min(max_attempts - 1, MOST_FAILURES)
    for failures in range(1, most + 1):
        wait = strategy.delay(failures)
        if wait is None:
            return Waits(tuple(found), ends=True)
        found.append(wait)
    ends = max_attempts is not None and max_attempts - 1 <= MOST_FAILURES
    return Waits(tuple(found if ends else without_tail(found)), ends)


def without_tail(found: list[timedelta]) -> list[timedelta]:
    """Of a tail that no longer changes, one is enough."""
    while len(found) > 2 and found[-1] == found[-2]:
        found.pop()
    return found
