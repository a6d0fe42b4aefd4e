"""Cron expressions: which moments they mean in a time zone, and which missed ticks are made up for. No I/O.

cronsim parses an expression and walks the wall clock, always without a time zone; this module decides what daylight
saving does to the result. An expression with fixed hours means wall-clock times: a time in a gap fires once, at the
first moment after the gap, and a time in a fold fires at the first of its two moments. Hours that begin with a star
follow elapsed time: every moment whose wall-clock time matches fires, so both moments in a fold do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice, takewhile
from typing import get_args
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from penstock import validate
from penstock.errors import ValidationError, shown
from penstock.model import Backfill, Duration, Firing, NewSchedule, Schedule

SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
GRACE = MINUTE  # for so long after its moment a tick is on time
MAX_TICKS = 1000  # in one transaction
MAX_BYTES = 16 << 20  # of payloads in one transaction
MAX_EXPRESSION, MAX_NAME = 200, 200
NEXT_TICK = "next tick"  # the `expires` of a schedule whose tasks start before its next tick, or not at all
LONG_AGO = datetime(2000, 1, 1)  # noqa: DTZ001 - a wall-clock time
FIELDS = (
    ("minute", "0 to 59"),
    ("hour", "0 to 23"),
    ("day-of-month", "1 to 31, L or LW"),
    ("month", "1 to 12 or JAN to DEC"),
    ("day-of-week", "0 to 7 or SUN to SAT, 5L or MON#1"),
)
HINT = "Five fields: minute, hour, day of month, month, day of week. 0 6 * * MON-FRI: at 06:00 on working days."


@dataclass(frozen=True, slots=True)
class Cron:
    """A checked cron expression and its time zone. Use `cron_of` to make one."""

    expression: str
    zone: ZoneInfo

    @property
    def tz(self) -> str:
        """The name of the time zone."""
        return self.zone.key

    def ticks(self, after: datetime) -> Iterator[datetime]:
        """Yields the moments of the expression after this one, in order, in UTC."""
        hours = self.expression.split()[1]
        return self._elapsed_ticks(after) if hours.startswith("*") else self._wall_clock_ticks(after)

    def next(self, after: datetime) -> datetime:
        """Returns the first moment of the expression after this one."""
        for tick in self.ticks(after):
            return tick
        raise make_never_error(self.expression)

    def latest(self, after: datetime, until: datetime) -> datetime | None:
        """Returns the last moment in (after, until]. It searches from the end, because years of minutes may lie between
        them."""
        length = HOUR
        while True:
            start = max(after, until - length)
            found = deque(takewhile(lambda tick: tick <= until, self.ticks(start)), maxlen=1)
            if found or start == after:
                return found[0] if found else None
            length *= 24

    def _wall_clock_ticks(self, after: datetime) -> Iterator[datetime]:
        """Yields the moments of wall-clock times. It never goes backwards: in a fold cronsim would return a moment that
        has passed."""
        last = after
        for wall in CronSim(self.expression, after.astimezone(self.zone).replace(tzinfo=None, fold=0)):
            moment = self._moment(wall)
            if moment > last:
                last = moment
                yield moment

    def _moment(self, wall: datetime) -> datetime:
        """Returns the first moment with this wall-clock time or, if there is none, the first moment after the gap."""
        moment = wall.replace(tzinfo=self.zone).astimezone(UTC)
        if moment.astimezone(self.zone).replace(tzinfo=None, fold=0) == wall:
            return moment
        return self._find_exact_change(wall.replace(tzinfo=self.zone, fold=1).astimezone(UTC), moment)

    def _elapsed_ticks(self, after: datetime) -> Iterator[datetime]:
        """Yields every moment whose wall-clock time matches. Between two changes of the offset, time passes as on the
        wall clock."""
        start = after.astimezone(UTC).replace(microsecond=0) + SECOND
        while True:
            offset = self._offset(start)
            wall = next(CronSim(self.expression, (start + offset - SECOND).replace(tzinfo=None)), None)
            if wall is None:
                return
            moment = wall.replace(tzinfo=UTC) - offset
            change = self._find_change(start, moment)
            if change is None:
                yield moment
            start = change or moment + SECOND

    def _find_change(self, low: datetime, until: datetime) -> datetime | None:
        """Returns the first change of the offset in (low, until]. No time zone has two changes within a day."""
        while low < until:
            high = min(low + DAY, until)
            if self._offset(low) != self._offset(high):
                return self._find_exact_change(low, high)
            low = high
        return None

    def _find_exact_change(self, low: datetime, high: datetime) -> datetime:
        """Returns the first second at which the offset is that of `high` and not that of `low`."""
        offset = self._offset(high)
        while high - low > SECOND:
            middle = low + timedelta(seconds=(high - low) // SECOND // 2)
            low, high = (low, middle) if self._offset(middle) == offset else (middle, high)
        return high

    def _offset(self, moment: datetime) -> timedelta:
        return moment.astimezone(self.zone).utcoffset() or timedelta()


# --- checks -----------------------------------------------------------------------------------------------------------


def cron_of(expression: str, tz: str = "UTC") -> Cron:
    """Returns a checked cron expression, which fires at some time, in a time zone that exists."""
    return parse_expression(validate.text(expression, "cron", MAX_EXPRESSION), zone_of(tz))


@lru_cache(maxsize=1024)
def parse_expression(expression: str, zone: ZoneInfo) -> Cron:
    """Parses a cron expression."""
    fields = expression.split()
    if len(fields) != len(FIELDS):
        raise ValidationError(f"cron: {shown(expression)} has {len(fields)} fields, not 5", hint=HINT, field="cron")
    joined = " ".join(fields)
    try:
        first = next(CronSim(joined, LONG_AGO), None)
    except CronSimError as error:
        raise make_refusal(fields, str(error)) from None
    if first is None:
        raise make_never_error(joined)
    return Cron(joined, zone)


def make_refusal(fields: list[str], said: str) -> ValidationError:
    """Returns the error for an expression that cronsim refuses. cronsim says `Bad minute`; it also says `Bad
    day-of-month` for a day that none of the months has."""
    expression = " ".join(fields)
    for number, (name, allowed) in enumerate(FIELDS):
        if said != f"Bad {name}":
            continue
        if name == "day-of-month" and is_accepted([*fields[:3], "*", fields[4]]):
            return make_never_error(expression)
        return ValidationError(
            f"cron: {shown(expression)}: its {name} {shown(fields[number])} is not {allowed}, "
            "or a list or range of them",
            hint=HINT,
            field="cron",
        )
    return ValidationError(f"cron: {shown(expression)} cannot be read", hint=HINT, field="cron")


def is_accepted(fields: list[str]) -> bool:
    """Returns whether cronsim accepts these fields."""
    try:
        CronSim(" ".join(fields), LONG_AGO)
    except CronSimError:
        return False
    return True


def make_never_error(expression: str) -> ValidationError:
    """Returns the error for an expression that never fires."""
    hint = "No month that it names has such a day."
    return ValidationError(f"cron: {shown(expression)} never fires", hint=hint, field="cron")


def zone_of(tz: object) -> ZoneInfo:
    """Returns a time zone by name, and suggests the nearest name if there is none."""
    known = zones()
    if isinstance(tz, str) and tz in known:
        return ZoneInfo(tz)
    if not known:
        raise ValidationError("tz: this machine knows no time zones", hint="pip install tzdata", field="tz")
    hint = "Such as UTC or Europe/Rome."
    if isinstance(tz, str):
        by_lower = {name.lower(): name for name in sorted(known)}
        near = get_close_matches(tz.lower()[:80], by_lower, 1)
        hint = f"Did you mean {by_lower[near[0]]!r}?" if near else hint
    raise ValidationError(f"tz: {shown(tz)} is not a time zone", hint=hint, field="tz")


@lru_cache(maxsize=1)
def zones() -> frozenset[str]:
    """Returns the names of the time zones of this machine."""
    return frozenset(available_timezones() - {"localtime", "Factory"})  # they differ by machine


def schedule_name(value: object) -> str:
    """Checks the name of a schedule."""
    return validate.text(value, "name", MAX_NAME)


def check_schedule(new: NewSchedule) -> NewSchedule:
    """Checks a new schedule before anything is written."""
    backfill = new.backfill
    if backfill not in get_args(Backfill):
        raise ValidationError(f"backfill: {shown(backfill)} is not none, last or all", field="backfill")
    validate.payload(new.payload, validate.MAX_PAYLOAD)
    if new.key is not None:
        validate.text(new.key, "key", validate.MAX_KEY)
    if new.expires is not None and new.expires != NEXT_TICK:
        check_expires(new.expires)
    return new._replace(
        name=schedule_name(new.name),
        queue=validate.queue_name(new.queue),
        kind=validate.text(new.kind, "kind", validate.MAX_KIND),
        priority=validate.check_priority(new.priority),
        cron=cron_of(new.cron, new.tz).expression,
    )


def check_expires(value: Duration) -> timedelta:
    """Checks how long after its tick a task may start."""
    try:
        return validate.positive(value, "expires")
    except ValidationError as error:
        hint = f"{validate.DURATION_HINT} Or say {NEXT_TICK!r}."
        raise ValidationError(error.bare, hint=hint, field="expires") from None


# --- due ticks --------------------------------------------------------------------------------------------------------


def next_run(schedule: Schedule) -> datetime:
    """Returns the first tick that is not decided."""
    return cron_of(schedule.cron, schedule.tz).next(schedule.mark)


def decide(schedule: Schedule) -> Firing:
    """Decides which ticks of (mark, now] are pushed: with `none` those that are on time, with `last` the most recent
    one, with `all` each of them, in rounds."""
    cron = cron_of(schedule.cron, schedule.tz)
    now = max(schedule.at, schedule.mark)  # after the clock is put back, no tick is decided twice
    if schedule.backfill == "all":
        most = max(1, min(MAX_TICKS, MAX_BYTES // max(schedule.size, 1)))
        ticks = [*islice(takewhile(lambda tick: tick <= now, cron.ticks(schedule.mark)), most)]
        decided = ticks[-1] if len(ticks) == most else now
    else:
        since = schedule.mark if schedule.backfill == "last" else max(schedule.mark, now - GRACE)
        found = cron.latest(since, now)
        ticks = [] if found is None else [found]
        decided = now
    return Firing(ticks, decided, cron.next(decided), ends_of(schedule, cron, ticks))


def ends_of(schedule: Schedule, cron: Cron, ticks: list[datetime]) -> list[datetime] | None:
    """Returns when the tasks of these ticks expire; None if they never do."""
    if schedule.until_next:
        return [cron.next(tick) for tick in ticks]
    return None if schedule.expires is None else [tick + schedule.expires for tick in ticks]


# --- descriptions -----------------------------------------------------------------------------------------------------


def meaning(cron: Cron) -> str:
    """Describes an expression in words: `at 06:00 every day, Europe/Rome`."""
    said = CronSim(cron.expression, LONG_AGO).explain()
    return f"{said[0].lower()}{said[1:]}, {cron.tz}"


def in_words(moment: datetime, zone: ZoneInfo, now: datetime) -> str:
    """Describes a moment in words: `Mon 16 Nov 06:00 (in 12 h)`."""
    there, here = moment.astimezone(zone), now.astimezone(zone)
    year = "" if there.year == here.year else f" {there.year}"
    return f"{there:%a} {there.day} {there:%b}{year} {there:%H:%M} ({distance(moment - now)})"


def distance(length: timedelta) -> str:
    """Describes a length of time in words: `in 12 h` or `12 h ago`."""
    seconds = abs(length.total_seconds())
    steps = ((172800, 86400, "d"), (3600, 3600, "h"), (60, 60, "min"), (0, 1, "s"))
    size, unit = next((size, unit) for least, size, unit in steps if seconds >= least)
    said = f"{seconds / size:.0f} {unit}"
    return f"in {said}" if length >= timedelta() else f"{said} ago"
