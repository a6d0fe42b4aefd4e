"""Traces are as described and the same for the same seed; a bad recording is refused by file, line, field and value."""

from __future__ import annotations

import statistics
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ValidationError
from penstock.scaler.judge import recorded, synthetic
from penstock.scaler.judge.traces import SYNTHETIC, Trace, find, load, named

HOURS = 3600.0
NAMES = sorted(SYNTHETIC)


def per_minute(trace: Trace) -> list[int]:
    counts = Counter(int(due // 60) for due in trace.due)
    return [counts[minute] for minute in range(round(trace.duration / 60))]


def smooth(counts: list[int], width: int = 10) -> list[float]:
    return [sum(counts[n : n + width]) / width for n in range(0, len(counts) - width + 1, width)]


def sound(trace: Trace) -> None:
    assert len(trace.due) == len(trace.service) == len(trace.known)
    assert trace.due == sorted(trace.due)
    assert all(0 <= due <= trace.duration for due in trace.due)
    assert all(service > 0 for service in trace.service)
    assert all(known <= due for due, known in zip(trace.due, trace.known, strict=True))


# -- Synthetic --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_synthetic_trace_has_about_as_many_tasks_as_asked_for(name: str) -> None:
    trace = named(name)
    sound(trace)
    assert trace.name == name
    assert trace.duration == 6 * HOURS
    assert 97_000 < len(trace.due) < 103_000
    assert statistics.fmean(trace.service) == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_makes_the_same_trace(name: str) -> None:
    assert named(name, seed=7, tasks=5000) == named(name, seed=7, tasks=5000)
    assert named(name, seed=7, tasks=5000).due != named(name, seed=8, tasks=5000).due


@pytest.mark.parametrize("name", NAMES)
def test_other_service_times_leave_the_arrivals_as_they_are(name: str) -> None:
    one, other = named(name, tasks=5000), named(name, tasks=5000, cv=0.3)
    first, second = (
        [due for due, known in zip(trace.due, trace.known, strict=True) if name != "retry-storm" or due == known]
        for trace in (one, other)
    )
    assert first == second


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    seed=st.integers(0, 2**63 - 1),
    service=st.floats(0.001, 1000),
    cv=st.floats(0, 5),
    duration=st.floats(1, 7200),
    tasks=st.integers(1, 1000),
)
def test_any_options_are_met(name: str, seed: int, service: float, cv: float, duration: float, tasks: int) -> None:
    trace = named(name, seed=seed, service=service, cv=cv, duration=duration, tasks=tasks)
    sound(trace)
    assert len(trace.due) <= 2 * tasks + 50
    assert all(0 <= since < until <= duration for since, until in trace.outages)


@pytest.mark.parametrize(("mean", "cv"), [(2.0, 0.0), (2.0, 1.0), (0.1, 0.5), (30.0, 2.0)])
def test_service_times_have_the_mean_and_spread_asked_for(mean: float, cv: float) -> None:
    service = named("diurnal", service=mean, cv=cv).service
    assert statistics.fmean(service) == pytest.approx(mean, rel=0.05)
    assert statistics.pstdev(service) / mean == pytest.approx(cv, rel=0.1)
    assert cv > 0 or set(service) == {mean}


def test_a_day_has_a_quiet_night_and_a_busy_day() -> None:
    hours = smooth(per_minute(named("diurnal")), 15)  # 24 of them
    assert 3 < max(hours) / min(hours) < 5.5
    assert hours.index(min(hours)) < 7
    assert 9 <= hours.index(max(hours)) <= 21


def test_spikes_are_short_and_high() -> None:
    counts = per_minute(named("spikes"))
    base = statistics.median(counts)
    high = [n for n, count in enumerate(counts) if count > 3.5 * base]
    starts = [n for n in high if n - 1 not in high]
    assert 5 <= len(starts) <= 10
    assert len(high) <= 3.5 * len(starts)
    assert max(counts) < 9 * base


def test_known_batches_are_planned_and_fall_due_at_one_instant() -> None:
    trace = named("batches-known")
    batches = {due: size for due, size in Counter(trace.due).items() if size > 1}
    assert 12 <= len(batches) <= 24
    assert all(200 <= size <= 1100 and due % 60 == 0 for due, size in batches.items())
    assert all(14 * 60 <= after - before <= 31 * 60 for before, after in pairwise(sorted(batches)))
    for due, known in zip(trace.due, trace.known, strict=True):
        assert due - known >= 600 if due in batches else due == known


def test_unknown_batches_come_over_some_seconds_unannounced() -> None:
    trace = named("batches-unknown")
    assert trace.due == trace.known
    assert max(Counter(trace.due).values()) == 1
    in_20_s = Counter(int(due // 20) for due in trace.due)
    usual = statistics.median(in_20_s.values())
    assert 10 <= sum(count > 1.8 * usual for count in in_20_s.values()) <= 48


def test_steps_stay_on_a_level_and_jump() -> None:
    levels = smooth(per_minute(named("steps")), 5)
    changes = [abs(after - before) / statistics.fmean(levels) for before, after in pairwise(levels)]
    assert sum(change < 0.15 for change in changes) > 0.6 * len(changes)
    assert sum(change > 0.3 for change in changes) >= 5


def test_a_heavy_tail_ignores_the_spread_asked_for() -> None:
    trace = named("heavy-tail", cv=0.0)
    assert 3 < statistics.pstdev(trace.service) / statistics.fmean(trace.service) < 5
    assert trace.due == named("diurnal").due
    assert trace.service == named("heavy-tail").service


def test_off_means_nothing_at_all() -> None:
    due = named("on-off").due
    gaps = [after - before for before, after in pairwise(due) if after - before > 60]
    assert 10 <= len(gaps) <= 25
    assert all(5 * 60 - 1 <= gap <= 15 * 60 + 10 for gap in gaps)


def test_drift_grows_fourfold() -> None:
    counts = smooth(per_minute(named("drift")), 12)
    assert counts[-1] / counts[0] == pytest.approx(4, rel=0.25)


def test_a_storm_of_retries_is_known_from_the_failure_on() -> None:
    trace = named("retry-storm", cv=0.0)
    ahead = Counter(round(due - known) for due, known in zip(trace.due, trace.known, strict=True) if known < due)
    assert set(ahead) <= {60, 120, 180, 300, 480}
    assert ahead[60] > ahead[120] > ahead[180] > 500
    counts = per_minute(trace)
    assert max(counts) > 2.5 * statistics.median(counts)


def test_a_retry_follows_its_failure_by_fibonacci() -> None:
    away = [100.0, 460.0]
    assert synthetic.list_attempts(50.0, 2.0, away) == [(50.0, 50.0)]
    assert synthetic.list_attempts(460.0, 2.0, away) == [(460.0, 460.0)]
    found = synthetic.list_attempts(100.0, 2.0, away)
    assert [due for due, _ in found] == [100.0, 162.0, 224.0, 346.0, 528.0]
    assert [due - known for due, known in found] == [0.0, 60.0, 60.0, 120.0, 180.0]


def test_an_outage_of_metrics_hides_the_same_day() -> None:
    trace, day = named("metric-outage", seed=3), named("diurnal", seed=3)
    assert (trace.due, trace.service) == (day.due, day.service)
    assert 2 <= len(trace.outages) <= 6
    assert all(30 <= until - since <= 120 for since, until in trace.outages)
    assert all(before[1] <= after[0] for before, after in pairwise(trace.outages))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("seed", -1),
        ("seed", 0.5),
        ("service", 0),
        ("service", float("nan")),
        ("service", "2"),
        ("cv", -0.1),
        ("cv", float("inf")),
        ("duration", 0.5),
        ("duration", 1e9),
        ("tasks", 0),
        ("tasks", 20_000_001),
        ("tasks", True),
    ],
)
def test_an_option_that_cannot_be_met_is_named(option: str, value: object) -> None:
    with pytest.raises(ValidationError, match=f"^{option}: ") as caught:
        named("spikes", **{option: value})  # type: ignore[arg-type]
    assert caught.value.field == option


# -- Names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "near"),
    [("diurnl", "diurnal"), ("spike", "spikes"), ("retry_storm", "retry-storm"), ("batches", "batches-known")],
)
def test_an_unknown_name_hints_at_the_nearest(text: str, near: str) -> None:
    for ask in (find, named):
        with pytest.raises(ValidationError, match=f"trace: '{text}' is neither a name nor a file") as caught:
            ask(text)
        assert caught.value.hint is not None
        assert caught.value.hint.startswith(f"Did you mean {near}? ")


def test_a_name_like_nothing_lists_the_names() -> None:
    with pytest.raises(ValidationError) as caught:
        find("xyzzy")
    assert caught.value.hint == f"Names are {', '.join(SYNTHETIC)}."


def test_names_go_before_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("diurnal", "mine"):
        Path(name).write_text("0,1\n60,2\n", "utf-8")
    assert len(find("diurnal", tasks=500, duration=600).due) > 300
    assert len(find("./diurnal").due) == 3
    assert len(find("mine").due) == 3


@pytest.mark.parametrize("options", [{"start": 60.0}, {"start": "1998-04-30"}, {"speed": 2.0}])
def test_only_a_recording_has_a_start_and_a_speed(options: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="only a recording has a"):
        find("diurnal", **options)  # type: ignore[arg-type]


# -- Recorded ---------------------------------------------------------------------------------------------------------

COUNTS = "period,count\n1998-04-30 21:30:00,2\n1998-04-30 21:31:00,11\n1998-04-30 21:32:00,0\n1998-04-30 21:33:00,7\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "recorded.csv"


def written(file: Path, text: str) -> Path:
    file.write_text(text, "utf-8")
    return file


def test_counts_become_arrivals_within_their_periods(file: Path) -> None:
    trace = load(written(file, COUNTS))
    sound(trace)
    assert per_minute(trace) == [2, 11, 0, 7]
    assert trace.due == trace.known
    assert (trace.name, trace.duration) == ("recorded", 240.0)
    assert trace == load(file) == find(str(file))
    assert trace.due != load(file, seed=1).due
    assert trace.due == load(file, service=5.0, cv=0.0).due
    assert set(load(file, service=5.0, cv=0.0).service) == {5.0}


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + COUNTS,
        COUNTS.replace("\n", "\r\n"),
        COUNTS.replace("\n", "\n\n \n , \n"),
        COUNTS.removeprefix("period,count\n"),
        "Count , PERIOD\n2,0\n11, 60\n0.0,120\n7,180\n",
        "period,note,count\n100,a,2\n160,b,11\n280,c,7\n",  # a missing period is empty
        "1998-04-30T21:30Z,2\n1998-04-30T23:31+02:00,11\n1998-04-30 21:33,7",
    ],
)
def test_a_recording_of_counts_may_be_written_in_many_ways(file: Path, text: str) -> None:
    assert per_minute(load(written(file, text))) == [2, 11, 0, 7]


def test_a_part_of_a_recording(file: Path) -> None:
    written(file, COUNTS)
    assert per_minute(load(file, start=60)) == [11, 0, 7]
    assert per_minute(load(file, start="60", duration=120)) == [11, 0]
    assert per_minute(load(file, start="1998-04-30 21:31:00", duration=60.0)) == [11]
    assert per_minute(load(file, start="1998-04-30T21:33:00Z", duration=1e6)) == [7]  # it ends when the recording ends
    half = load(written(file, "0,1000\n60,1000\n"), start=30, duration=60)
    sound(half)
    assert half.duration == 60
    assert 850 < len(half.due) < 1150


def test_a_recording_is_scaled(file: Path) -> None:
    written(file, "period,count\n" + "".join(f"{60 * n},{100_000 * (1 + n % 2)}\n" for n in range(60)))
    trace = load(file, tasks=30_000)
    sound(trace)
    assert 29_000 < len(trace.due) < 31_000
    counts = per_minute(trace)
    assert sum(counts[1::2]) / sum(counts[::2]) == pytest.approx(2, rel=0.05)
    part = load(file, tasks=3000, start=90, duration=120)
    assert 2700 < len(part.due) < 3300
    assert part.duration == 120
    assert 5000 < len(load(written(file, COUNTS), tasks=6000).due) < 7000


def test_a_recording_is_replayed_faster(file: Path) -> None:
    slow, fast = load(written(file, COUNTS), start=60), load(file, start=60, speed=10)
    assert fast.duration == 18
    assert fast.due == pytest.approx([due / 10 for due in slow.due])
    assert fast.service == slow.service
    assert fast.known == fast.due


TASKS = "arrival,service,known\n110,2.5,\n100,1,40\n130,0.5,130\n"


def test_tasks_are_as_recorded(file: Path) -> None:
    trace = load(written(file, TASKS))
    assert trace == Trace("recorded", [0.0, 10.0, 30.0], [1.0, 2.5, 0.5], [-60.0, 10.0, 30.0], 30.5)
    assert load(file, start=10, duration=15).due == [0.0]
    assert load(file, speed=2).known == [-30.0, 5.0, 15.0]
    timed = "service,arrival\n1,1998-04-30 21:30:00\n2.5,1998-04-30 21:30:10.5\n"
    assert load(written(file, timed)).due == [0.0, 10.5]


def test_tasks_are_thinned_and_never_made_up(file: Path) -> None:
    written(file, "arrival,service\n" + "".join(f"{n},{n + 1}\n" for n in range(1000)))
    trace = load(file, tasks=100)
    sound(trace)
    assert len(trace.due) == 100
    assert all(service == due + 1 for due, service in zip(trace.due, trace.service, strict=True))
    with pytest.raises(ValidationError, match="tasks: 1001 are more than the 1000 recorded"):
        load(file, tasks=1001)


@pytest.mark.parametrize(
    ("text", "line", "field", "value"),
    [
        ("period,count\n0,1\n60,-2\n", 3, "count", "'-2'"),
        ("period,count\n0,many\n", 2, "count", "'many'"),
        ("period,count\n0,1.5\n", 2, "count", "'1.5'"),
        ("period,count\n0,nan\n", 2, "count", "'nan'"),
        ("period,count\n0,inf\n", 2, "count", "'inf'"),
        ("period,count\n0,\n", 2, "count", "''"),
        ("period,count\n\n\nnan,1\n", 4, "period", "'nan'"),
        ("period,count\nsoon,1\n", 2, "period", "'soon'"),
        ("period,count\n60,1\n0,1\n", 3, "period", "'0'"),
        ("period,count\n0,1\n0,1\n", 3, "period", "'0'"),
        ("0,1\n1998-04-30 21:30:00,1\n", 2, "period", "'1998-04-30 21:30:00'"),
        ("1998-04-30 21:30:00,1\n60,1\n", 2, "period", "'60'"),
        ("period,count\n0,1,234\n", 2, "row", "'0,1,234'"),
        ("period,count\n0\n", 2, "row", "'0'"),
        ("when,what\n0,1\n", 1, "header", "'when,what'"),
        ("0,1,2\n", 1, "header", "'0,1,2'"),
        ("arrival,service\n0,0\n", 2, "service", "'0'"),
        ("arrival,service\n0,1\n1,-1\n", 3, "service", "'-1'"),
        ("arrival,service\n0,nan\n", 2, "service", "'nan'"),
        ("arrival,service\n1e300,1\n", 2, "arrival", "'1e300'"),
        ("arrival,service,known\n10,1,11\n", 2, "known", "'11'"),
        ("arrival,service,known\n10,1,x\n", 2, "known", "'x'"),
    ],
)
def test_a_bad_row_is_refused_by_file_line_field_and_value(
    file: Path, text: str, line: int, field: str, value: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        load(written(file, text))
    assert str(caught.value).startswith(f"{file}, line {line}: {field}: {value} ")
    assert caught.value.field == field


@pytest.mark.parametrize("text", ["", "\n\n", "\ufeff", "period,count\n", "arrival,service\n\n"])
def test_a_file_without_rows_is_refused(file: Path, text: str) -> None:
    with pytest.raises(ValidationError, match=r"recorded\.csv: (it is empty|there are no rows)"):
        load(written(file, text))


def test_a_file_that_cannot_be_read_is_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="there is no file"):
        find(str(file))
    with pytest.raises(ValidationError, match="cannot be read: Is a directory"):
        load(tmp_path)
    for odd in ("a\0b.csv", "x" * 5000):
        with pytest.raises(ValidationError, match="cannot be read"):
            find(odd)
    file.write_bytes(b"period,count\n0,1\n60,\xff\n")
    with pytest.raises(ValidationError, match="not text in UTF-8"):
        load(file)
    file.write_bytes(b'period,count\n0,"' + b"1" * 200_000)
    with pytest.raises(ValidationError, match="after line 1: field larger than"):
        load(file)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"start": 240}, "start: 240 is outside .* 1998-04-30 21:30:00 to 1998-04-30 21:34:00"),
        ({"start": "1998-04-30 21:29:00"}, "start: '1998-04-30 21:29:00' is outside"),
        ({"start": -1}, "start: -1 is not a number"),
        ({"start": "noon"}, "start: 'noon' is not a number"),
        ({"start": 120, "duration": 60}, "nothing arrives from 1998-04-30 21:32:00 to 1998-04-30 21:33:00"),
        ({"start": 120, "duration": 60, "tasks": 5}, "nothing arrives from"),
        ({"duration": 0}, "duration: 0 is not"),
        ({"tasks": 0}, "tasks: 0 is not"),
        ({"speed": 0}, "speed: 0 is not"),
        ({"speed": float("nan")}, "speed: nan is not"),
        ({"service": -1}, "service: -1 is not"),
    ],
)
def test_a_part_that_is_not_there_is_refused(file: Path, options: dict[str, float], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        load(written(file, COUNTS), **options)  # type: ignore[arg-type]


def test_a_gap_between_rows_is_an_empty_window(file: Path) -> None:
    with pytest.raises(ValidationError, match="nothing arrives from 200 to 300 seconds"):
        load(written(file, "0,1\n60,1\n600,1\n"), start=200, duration=100)


def test_a_timestamp_is_no_start_among_seconds(file: Path) -> None:
    with pytest.raises(ValidationError, match="is a timestamp"):
        load(written(file, "0,1\n60,1\n"), start="1998-04-30 21:30:00")


def test_too_many_tasks_are_refused_before_they_are_made(file: Path) -> None:
    written(file, "0,20000001\n60,5\n")
    with pytest.raises(ValidationError, match="20,000,006 tasks are more than 20,000,000") as caught:
        load(file)
    assert "tasks" in (caught.value.hint or "")
    assert len(load(file, start=60).due) == 5
    assert 400 < len(load(file, tasks=500).due) < 600


def test_too_many_rows_are_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "MAX_TASKS", 2)
    with pytest.raises(ValidationError, match="3 tasks are more than 2"):
        load(written(file, TASKS))


def test_a_single_period_is_a_minute(file: Path) -> None:
    assert load(written(file, "0,5\n")).duration == 60
