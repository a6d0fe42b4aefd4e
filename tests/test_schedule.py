"""Cron lines and time zones: their ticks, in gaps and folds too, and what becomes of missed ones. Without a
database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Schedule, ValidationError
from penstock.model import NewSchedule
from penstock.schedule import MAX_TICKS, check_schedule, cron_of, decide, distance, in_words, meaning, next_run

DAY = timedelta(days=1)
ROME, NEW_YORK, LORD_HOWE, APIA = "Europe/Rome", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"


def walls(line: str, tz: str, since: str, count: int) -> list[str]:
    """Returns the next runs in local time, with the offset."""
    after = datetime.fromisoformat(since).replace(tzinfo=ZoneInfo(tz))
    ticks = islice(cron_of(line, tz).ticks(after.astimezone(UTC)), count)
    return [f"{tick.astimezone(ZoneInfo(tz)):%m-%d %H:%M%z}" for tick in ticks]


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# --- refusals: B43, B44 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("60 * * * *", "minute '60' is not 0 to 59"),
        ("0 24 * * *", "hour '24' is not 0 to 23"),
        ("0 0 0 * *", "day-of-month '0'"),
        ("0 0 32 * *", "day-of-month '32'"),
        ("0 0 * 13 *", "month '13'"),
        ("0 0 * * 8", "day-of-week '8'"),
        ("0 0 * * MON#6", "day-of-week 'MON#6'"),
        ("*/0 * * * *", "minute '*/0'"),
        ("5-1 * * * *", "minute '5-1'"),
        ("-1 * * * *", "minute '-1'"),
        ("1.5 * * * *", "minute '1.5'"),
        ("* * 31 2 *", "'* * 31 2 *' never fires"),
        ("0 0 31 2 *", "'0 0 31 2 *' never fires"),
        ("0 0 30 FEB *", "never fires"),
        ("0 0 31 4,6,9,11 *", "never fires"),
        ("0 0 6 * * *", "has 6 fields, not 5"),
        ("* * * *", "has 4 fields, not 5"),
        ("@daily", "has 1 fields, not 5"),
        ("", "bytes are not between 1 and 200"),
        ("   ", "has 0 fields, not 5"),
        ("1," * 200 + "1 * * * *", "bytes are not between 1 and 200"),
        ("0 0 * * *\x00", "NUL"),
        ("\ud800 * * * *", "lone surrogate"),
        (None, "is not text"),
        (5, "is not text"),
        (["0 6 * * *"], "is not text"),
    ],
)
def test_a_line_that_makes_no_sense(line: Any, words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        cron_of(line)
    assert words in refused.value.message
    assert refused.value.message.startswith("cron: ")
    assert refused.value.field == "cron"


@pytest.mark.parametrize(
    ("tz", "hint"),
    [
        ("Mars/Phobos", "UTC or Europe/Rome"),
        ("Europe/Roma", "'Europe/Rome'"),
        ("europe/rome", "'Europe/Rome'"),
        ("America/NewYork", "'America/New_York'"),
        ("", "UTC"),
        ("../../etc/passwd", "UTC"),
        ("localtime", ""),
        ("America", ""),
        ("\x00", "UTC"),
        (None, "UTC"),
        (["UTC"], "UTC"),
    ],
)
def test_an_unknown_zone(tz: Any, hint: str) -> None:
    with pytest.raises(ValidationError, match=r"^tz: .* is not a time zone(\n|$)") as refused:
        cron_of("0 6 * * *", tz)
    assert hint in (refused.value.hint or "")


def test_blanks_and_letters_do_not_matter() -> None:
    assert cron_of("  0\t6  *  * mon-fri ").expression == "0 6 * * mon-fri"
    assert walls("0 6 * * mon", "UTC", "2026-11-15", 1) == walls("0 6 * * 1", "UTC", "2026-11-15", 1)


@given(st.text("0123456789*/,-LW#MONa ", max_size=30))
def test_any_line_is_read_or_refused(text: str) -> None:
    try:
        cron = cron_of(text)
    except ValidationError:
        return
    now = moment("2026-11-15")
    ticks = [*islice(cron.ticks(now), 3)]
    assert len(ticks) == 3
    assert ticks == sorted({*ticks})
    assert now < ticks[0]
    assert meaning(cron).endswith(", UTC")


# --- daylight saving --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "tz", "since", "expected"),
    [
        # The gap: in Rome 02:00 to 03:00 on 29 March, in New York on 8 March, half an hour on Lord Howe on 4 October.
        ("30 2 * * *", ROME, "2026-03-28T12:00", ["03-29 03:00+0200", "03-30 02:30+0200"]),
        ("0,30 2 * * *", ROME, "2026-03-28T12:00", ["03-29 03:00+0200", "03-30 02:00+0200", "03-30 02:30+0200"]),
        ("0 2,3 * * *", ROME, "2026-03-28T12:00", ["03-29 03:00+0200", "03-30 02:00+0200"]),
        ("*/15 2 * * *", ROME, "2026-03-28T12:00", ["03-29 03:00+0200", "03-30 02:00+0200"]),
        ("30 2 * * *", NEW_YORK, "2026-03-07T12:00", ["03-08 03:00-0400", "03-09 02:30-0400"]),
        ("15 2 * * *", LORD_HOWE, "2026-10-03T12:00", ["10-04 02:30+1100", "10-05 02:15+1100"]),
        ("0 0 * * *", "America/Havana", "2026-03-07T12:00", ["03-08 01:00-0400", "03-09 00:00-0400"]),
        # A whole day that did not exist: Apia went from 29 to 31 December 2011.
        ("0 6 * * *", APIA, "2011-12-29T12:00", ["12-31 00:00+1400", "12-31 06:00+1400"]),
        # The fold: 02:00 to 03:00 twice in Rome, 01:00 to 02:00 in New York, 01:30 to 02:00 on Lord Howe.
        ("30 2 * * *", ROME, "2026-10-24T12:00", ["10-25 02:30+0200", "10-26 02:30+0100"]),
        ("*/30 2 * * *", ROME, "2026-10-24T12:00", ["10-25 02:00+0200", "10-25 02:30+0200", "10-26 02:00+0100"]),
        ("30 1 * * *", NEW_YORK, "2026-10-31T12:00", ["11-01 01:30-0400", "11-02 01:30-0500"]),
        ("45 1 * * *", LORD_HOWE, "2026-04-04T12:00", ["04-05 01:45+1100", "04-06 01:45+1030"]),
        # Hours with a star follow elapsed time.
        ("0 * * * *", ROME, "2026-03-29T00:30", ["03-29 01:00+0100", "03-29 03:00+0200"]),
        ("0 * * * *", ROME, "2026-10-25T01:30", ["10-25 02:00+0200", "10-25 02:00+0100", "10-25 03:00+0100"]),
        ("*/30 * * * *", LORD_HOWE, "2026-04-05T01:00", ["04-05 01:30+1100", "04-05 01:30+1030", "04-05 02:00+1030"]),
        ("*/30 * * * *", LORD_HOWE, "2026-10-04T01:00", ["10-04 01:30+1030", "10-04 02:30+1100", "10-04 03:00+1100"]),
        ("0 */2 * * *", LORD_HOWE, "2026-04-05T00:30", ["04-05 02:00+1030", "04-05 04:00+1030"]),
    ],
)  # fmt: skip
def test_gaps_and_folds(line: str, tz: str, since: str, expected: list[str]) -> None:
    assert walls(line, tz, since, len(expected)) == expected


def test_a_tick_does_not_come_again_in_the_second_hour_of_a_fold() -> None:
    """02:30 has come, the clock goes back, and it is 02:10 again: the next 02:45 is tomorrow's."""
    second = datetime(2026, 10, 25, 2, 10, tzinfo=ZoneInfo(ROME), fold=1).astimezone(UTC)
    assert cron_of("45 2 * * *", ROME).next(second) == datetime(2026, 10, 26, 1, 45, tzinfo=UTC)
    theirs = next(CronSim("45 2 * * *", second.astimezone(ZoneInfo(ROME))))
    assert theirs.astimezone(UTC) < second, "cronsim alone returns a time that has passed"


LINES = ("0 * * * *", "*/20 * * * *", "7 */3 * * *", "* */5 * * *", "15 * * * SUN", "0 */2 L * *")
FIXED = ("30 2 * * *", "0,20,40 1-3 * * *", "*/25 2 * * *", "59 23 * * *", "0 0 * * *", "10 0-23 * * SUN")
ZONES = (ROME, NEW_YORK, LORD_HOWE, "America/Havana", "Africa/Casablanca", "Asia/Kathmandu", "UTC")
MOMENTS = st.integers(0, 4 * 365 * 86400).map(lambda seconds: moment("2024-01-01") + timedelta(seconds=seconds))


def matched(line: str, first: datetime, last: datetime) -> list[datetime]:
    """Returns the local times of a line, on a clock without changes."""
    return [*takewhile(lambda wall: wall <= last, CronSim(line, first))]


def wall_of(moment: datetime, tz: str) -> datetime:
    return moment.astimezone(ZoneInfo(tz)).replace(tzinfo=None, fold=0)


def around(data: st.DataObject, tz: str) -> datetime:
    """Draws a time, in half of the cases less than a day before a change of the clock."""
    found = data.draw(MOMENTS)
    zone = ZoneInfo(tz)
    for day in range(200 if data.draw(st.booleans()) else 0):
        here, there = (found + timedelta(days=day + n) for n in (0, 1))
        if here.astimezone(zone).utcoffset() != there.astimezone(zone).utcoffset():
            return here
    return found


@settings(deadline=None, max_examples=50)
@given(st.data(), st.sampled_from(LINES), st.sampled_from(ZONES))
def test_with_a_star_it_is_every_time_whose_local_time_matches(data: st.DataObject, line: str, tz: str) -> None:
    after = around(data, tz)
    until = after + timedelta(hours=30)
    meant = {*matched(line, wall_of(after, tz) - DAY, wall_of(until, tz) + DAY)}
    start = after.replace(second=0, microsecond=0) + timedelta(minutes=1)
    every = [start + timedelta(minutes=n) for n in range(30 * 60)]
    expected = [one for one in every if one <= until and wall_of(one, tz) in meant]
    assert [*takewhile(lambda tick: tick <= until, cron_of(line, tz).ticks(after))] == expected


@settings(deadline=None, max_examples=50)
@given(st.data(), st.sampled_from(FIXED), st.sampled_from(ZONES))
def test_with_fixed_hours_every_local_time_comes_once(data: st.DataObject, line: str, tz: str) -> None:
    """Each local time of the line comes once: itself, or the first moment after the gap that it is in."""
    after = around(data, tz)
    until = after + timedelta(hours=30)
    zone, expected = ZoneInfo(tz), set[datetime]()
    for wall in matched(line, wall_of(after, tz) - DAY, wall_of(until, tz) + DAY):
        there = wall
        while wall_of(there.replace(tzinfo=zone).astimezone(UTC), tz) != there:
            there += timedelta(minutes=1)
        expected.add(there.replace(tzinfo=zone).astimezone(UTC))
    found = [*takewhile(lambda tick: tick <= until, cron_of(line, tz).ticks(after))]
    assert found == sorted(one for one in expected if after < one <= until)


@settings(deadline=None, max_examples=50)
@given(st.data(), st.sampled_from(LINES + FIXED), st.sampled_from(ZONES), st.floats(0.01, 3))
def test_the_latest_is_the_last_of_all(data: st.DataObject, line: str, tz: str, days: float) -> None:
    until = around(data, tz)
    after = until - timedelta(days=days)
    cron = cron_of(line, tz)
    every = [*takewhile(lambda tick: tick <= until, cron.ticks(after))]
    assert cron.latest(after, until) == (every[-1] if every else None)


def test_years_of_minutes_are_not_walked_through() -> None:
    looked = datetime.now(UTC)
    assert cron_of("* * * * *").latest(moment("2000-01-01"), moment("2026-11-15")) == moment("2026-11-15")
    assert cron_of("0 0 29 2 *").latest(moment("2000-03-01"), moment("2026-11-15")) == moment("2024-02-29")
    assert datetime.now(UTC) - looked < timedelta(seconds=2)


# --- missed ticks -----------------------------------------------------------------------------------------------------


def stored(line: str, backfill: str, mark: str, at: str, *, tz: str = "UTC", size: int = 2) -> Schedule:
    now, then = moment(at), moment(mark)
    return Schedule(
        "s", "q", "k", {}, 5, line, tz, backfill, False, then, then, None, then, then, "me", size, now
    )  # fmt: skip


@pytest.mark.parametrize(
    ("backfill", "at", "ticks"),
    [
        ("none", "2026-11-15T06:00:00.5", ["06:00"]),
        ("none", "2026-11-15T06:00:59", ["06:00"]),
        ("none", "2026-11-15T06:01:00", []),
        ("none", "2026-11-15T09:30:00", []),
        ("none", "2026-11-15T09:00:30", ["09:00"]),
        ("last", "2026-11-15T09:30:00", ["09:00"]),
        ("last", "2026-11-15T05:59:59", []),
        ("all", "2026-11-15T09:30:00", ["06:00", "07:00", "08:00", "09:00"]),
        ("all", "2026-11-15T05:59:59", []),
    ],
)
def test_what_is_done_about_missed_ticks(backfill: str, at: str, ticks: list[str]) -> None:
    told = decide(stored("0 * * * *", backfill, "2026-11-15T05:00", at))
    assert [f"{tick:%H:%M}" for tick in told.ticks] == ticks
    assert told.decided == moment(at)
    assert told.next_at == cron_of("0 * * * *").next(moment(at))


def test_many_missed_ticks_come_in_rounds() -> None:
    mark, at, found = "2026-11-13T00:00", "2026-11-15T00:00:30", list[datetime]()
    for _ in range(3):
        told = decide(stored("* * * * *", "all", mark, at))
        found += told.ticks
        assert len(told.ticks) <= MAX_TICKS
        mark = told.decided.replace(tzinfo=None).isoformat()
    assert len(found) == len({*found}) == 2 * 24 * 60
    assert told.decided == moment(at)


def test_large_payloads_come_in_smaller_rounds() -> None:
    told = decide(stored("* * * * *", "all", "2026-11-13", "2026-11-15", size=5 << 20))
    assert len(told.ticks) == 3
    assert told.next_at == told.decided + timedelta(minutes=1)
    assert len(decide(stored("* * * * *", "all", "2026-11-13", "2026-11-15", size=64 << 20)).ticks) == 1


@pytest.mark.parametrize("backfill", ["none", "last", "all"])
def test_a_clock_that_was_put_back_decides_nothing_again(backfill: str) -> None:
    told = decide(stored("0 * * * *", backfill, "2026-11-15T09:00:01", "2026-11-15T08:59:00"))
    assert told[:3] == ([], moment("2026-11-15T09:00:01"), moment("2026-11-15T10:00"))


def test_the_next_run_is_the_first_that_is_not_decided() -> None:
    assert next_run(stored("0 6 * * *", "last", "2026-11-14", "2026-11-16", tz=ROME)) == moment("2026-11-14T05:00")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"queue": "No Queue"}, "queue"),
        ({"kind": ""}, "kind"),
        ({"priority": 101}, "priority"),
        ({"backfill": "some"}, "backfill"),
        ({"payload": {"when": moment("2026-01-01")}}, "payload"),
        ({"payload": [1]}, "payload"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"tz": "Mars/Phobos"}, "tz"),
    ],
)
def test_a_schedule_is_checked(change: dict[str, Any], field: str) -> None:
    good = NewSchedule("nightly", "work", "0  6 * * *", ROME)
    assert check_schedule(good) == good._replace(cron="0 6 * * *")
    with pytest.raises(ValidationError) as refused:
        check_schedule(good._replace(**change))
    assert refused.value.field == field


# --- descriptions -----------------------------------------------------------------------------------------------------


def test_in_words() -> None:
    cron, now = cron_of("0 6 * * *", ROME), moment("2026-11-15T17:00")
    assert meaning(cron) == "at 06:00 every day, Europe/Rome"
    assert in_words(cron.next(now), cron.zone, now) == "Mon 16 Nov 06:00 (in 12 h)"
    assert in_words(moment("2027-01-01T05:00"), cron.zone, now) == "Fri 1 Jan 2027 06:00 (in 46 d)"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "in 0 s"), (59, "in 59 s"), (90, "in 2 min"), (3600, "in 1 h"), (86400, "in 24 h"), (172800, "in 2 d")],
)  # fmt: skip
def test_distances(seconds: int, said: str) -> None:
    assert distance(timedelta(seconds=seconds)) == said
