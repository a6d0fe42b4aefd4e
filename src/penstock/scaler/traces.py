"""What arrives when: recorded, or made up with a seed."""

from __future__ import annotations

import csv
import difflib
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, pairwise
from pathlib import Path
from random import Random

from penstock.errors import ValidationError, shown
from penstock.validate import whole

MOST_TASKS = 20_000_000
LONGEST = 31 * 86_400.0
HOUR = 3600.0
MINUTE = 60.0
NAME_LIKE = re.compile(r"[\w-]{1,40}")
LONE_PERIOD = MINUTE  # how long a period is when there is only one
HEAVY_TAIL = 4.0  # standard deviation / mean
RETRIES = (60.0, 60.0, 120.0, 180.0, 300.0, 480.0, 780.0, 1260.0, 2040.0, 3300.0)  # what a failed task waits


@dataclass(frozen=True, slots=True)
class Trace:
    """Tasks in the order in which they fall due. Everything is given: every policy meets the same tasks."""

    name: str
    due: list[float]  # seconds from the beginning, ascending
    service: list[float]  # seconds each takes in a slot
    known: list[float]  # since when it was in our tables as planned; its due time: it came unannounced
    duration: float
    outages: tuple[tuple[float, float], ...] = ()  # (from, to) when no metrics could be read


def find(
    text: str,
    *,
    seed: int = 0,
    service: float = 2.0,
    cv: float = 1.0,
    start: float | str | None = None,
    duration: float | None = None,
    tasks: int | None = None,
    speed: float = 1.0,
) -> Trace:
    """A trace by what one writes in a shell: the name of a made-up one, or a file."""
    if text not in SYNTHETIC:
        if NAME_LIKE.fullmatch(text) and not Path(text).exists():
            raise unknown(text)
        return load(text, seed=seed, service=service, cv=cv, start=start, duration=duration, tasks=tasks, speed=speed)
    for field, value, usual in (("start", start, None), ("speed", speed, 1.0)):
        if value != usual:
            raise ValidationError(f"{field}: {text} is made up; only a recording has a {field}", field=field)
    hours = 6 * HOUR if duration is None else duration
    return named(text, seed=seed, service=service, cv=cv, duration=hours, tasks=100_000 if tasks is None else tasks)


def unknown(name: object) -> ValidationError:
    near = difflib.get_close_matches(str(name), SYNTHETIC, n=1, cutoff=0.4)
    meant = f"Did you mean {near[0]}? " if near else ""
    return ValidationError(
        f"trace: {shown(name)} is neither a name nor a file",
        hint=f"{meant}Names are {', '.join(SYNTHETIC)}.",
        field="trace",
    )


def between(value: object, field: str, least: float, most: float) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most:
        return float(value)
    raise ValidationError(f"{field}: {shown(value)} is not a number from {least:g} to {most:g}", field=field)


def stream(seed: int, use: str) -> Random:
    """Each use has random numbers of its own: asking for other service times leaves the arrivals as they are."""
    return Random(f"{seed} {use}")  # noqa: S311 - nothing secret


# --- made up ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for."""

    seed: int
    service: float
    cv: float
    duration: float
    tasks: int

    @property
    def rate(self) -> float:
        """Tasks a second, on average."""
        return self.tasks / self.duration

    @property
    def seconds(self) -> int:
        return math.ceil(self.duration)

    def stream(self, use: str) -> Random:
        return stream(self.seed, use)


Maker = Callable[[Wish], Trace]
Shape = Callable[[float], float]  # how busy it is at a moment; only the proportions count


def named(
    name: str,
    *,
    seed: int = 0,
    service: float = 2.0,
    cv: float = 1.0,
    duration: float = 6 * HOUR,
    tasks: int = 100_000,
) -> Trace:
    """A made-up trace of about so many tasks. The same seed makes the same one, everywhere."""
    if name not in SYNTHETIC:
        raise unknown(name)
    wish = Wish(
        seed=whole(seed, "seed", 0, 2**63 - 1),
        service=between(service, "service", 1e-6, LONGEST),
        cv=between(cv, "cv", 0.0, 100.0),
        duration=between(duration, "duration", 1.0, LONGEST),
        tasks=whole(tasks, "tasks", 1, MOST_TASKS),
    )
    return replace(SYNTHETIC[name](wish), name=name)


def diurnal(wish: Wish) -> Trace:
    """A day, from midnight to midnight, in the time there is: the busiest hour has about four times the quietest."""
    return unannounced(wish, daily(wish))


def spikes(wish: Wish) -> Trace:
    """Now and then everybody comes at once: five to eight times as many for one to three minutes."""
    random = wish.stream("shape")
    begins = [random.uniform(first, last) for first, last in parts(wish.duration, 40 * MINUTE)]
    found = [(one, random.uniform(60, 180), random.uniform(10, 20), random.uniform(5, 8)) for one in begins]

    def busy(t: float) -> float:
        begun = bisect_right(begins, t)
        return max(1.0, *(spike(t, *one) for one in found[max(0, begun - 2) : begun + 1]))  # two may overlap, not three

    return unannounced(wish, busy)


def spike(t: float, begin: float, lasts: float, ramp: float, height: float) -> float:
    inside = min(t - begin, begin + lasts - t)  # seconds to its nearer end
    return 1 + (height - 1) * min(1.0, max(0.0, inside / ramp))


def batches_known(wish: Wish) -> Trace:
    """A tick of the calendar every 15 to 30 minutes, at a full minute: hundreds of tasks, planned since long before."""
    random, planned = wish.stream("shape"), []
    for moment in ticks(wish, random):
        due, size = moment - moment % MINUTE, batch_size(wish, random, 65, 216)
        planned += [(due, due - random.uniform(10, 60) * MINUTE)] * size
    return with_batches(wish, planned)


def batches_unknown(wish: Wish) -> Trace:
    """The same, smaller, from somebody else's job: nobody says when, and a bulk push takes some seconds."""
    random, pushed = wish.stream("shape"), []
    for moment in ticks(wish, random):
        size, lasts = batch_size(wish, random, 22, 86), random.uniform(5, 20)
        dues = (moment + random.uniform(0, lasts) for _ in range(size))
        pushed += [(due, due) for due in dues if due < wish.duration]
    return with_batches(wish, pushed)


def steps(wish: Wish) -> Trace:
    """Another level every 20 to 40 minutes, from one moment to the next."""
    random = wish.stream("shape")
    edges, levels = edges_every(wish.duration, 20, 40, random), [2.0]
    for _ in edges:
        levels.append(random.choice([one for one in (1.0, 2.0, 3.0, 4.0, 5.0) if one != levels[-1]]))
    return unannounced(wish, lambda t: levels[bisect_right(edges, t)])


def heavy_tail(wish: Wish) -> Trace:
    """A day whose tasks are mostly short, and now and then take minutes."""
    return diurnal(replace(wish, cv=HEAVY_TAIL))


def on_off(wish: Wish) -> Trace:
    """Five to fifteen minutes of work, then five to fifteen of none at all."""
    edges = edges_every(wish.duration, 5, 15, wish.stream("shape"))
    return unannounced(wish, lambda t: float(bisect_right(edges, t) % 2 == 0))


def drift(wish: Wish) -> Trace:
    """Slow growth: four times as many in the end as in the beginning."""
    wobbly = wobble(wish)
    return unannounced(wish, lambda t: 4 ** (t / wish.duration) * wobbly(t))


def retry_storm(wish: Wish) -> Trace:
    """Now and then something that all tasks need is away for some minutes: each fails, and comes back by Fibonacci.
    Every attempt is a task here. A retry is known from the moment of the failure on."""
    away = [*chain(*moments(wish.duration, 2 * HOUR, wish.stream("shape"), 4 * MINUTE, 8 * MINUTE))]
    more = sum(len(attempts(float(t), wish.service, away)) for t in range(wish.seconds)) / wish.seconds
    first = shaped(wish, lambda _: 1.0, wish.tasks / more)
    tried = [
        (due, service, known)
        for begin, service in zip(first, services(wish, len(first)), strict=True)
        for due, known in attempts(begin, service, away)
        if due < wish.duration
    ]
    due, service_times, known = columns(sorted(tried), 3)
    return Trace("", due, service_times, known, wish.duration)


def metric_outage(wish: Wish) -> Trace:
    """The same day as diurnal, and a few times nobody can see it for half a minute to two."""
    return replace(diurnal(wish), outages=moments(wish.duration, 1.5 * HOUR, wish.stream("outages"), 30, 120))


SYNTHETIC: dict[str, Maker] = {
    "diurnal": diurnal,
    "spikes": spikes,
    "batches-known": batches_known,
    "batches-unknown": batches_unknown,
    "steps": steps,
    "heavy-tail": heavy_tail,
    "on-off": on_off,
    "drift": drift,
    "retry-storm": retry_storm,
    "metric-outage": metric_outage,
}


def unannounced(wish: Wish, shape: Shape) -> Trace:
    return with_batches(wish, [], shape)


def with_batches(wish: Wish, batches: list[tuple[float, float]], shape: Shape = lambda _: 1.0) -> Trace:
    """Load of that shape, and on top of it what is given as (due, known)."""
    single = shaped(wish, shape, max(0, wish.tasks - len(batches)))
    tasks = sorted([*zip(single, single, strict=True), *batches])
    due, known = columns(tasks, 2)
    return Trace("", due, services(wish, len(due)), known, wish.duration)


def columns(rows: Sequence[tuple[float, ...]], width: int) -> list[list[float]]:
    return [[row[n] for row in rows] for n in range(width)]


def arrivals(stretches: Iterable[tuple[float, float, float]], random: Random) -> list[float]:
    """A Poisson process from (begin, end, arrivals expected) after one another: one arrival a tick, on average, of a
    clock that ticks faster where more are expected."""
    found, clock, next_at = [], 0.0, random.expovariate(1.0)
    for begin, end, expected in stretches:
        while next_at < clock + expected:
            found.append(begin + (end - begin) * (next_at - clock) / expected)
            next_at += random.expovariate(1.0)
        clock += expected
    return found


def shaped(wish: Wish, shape: Shape, tasks: float) -> list[float]:
    """About so many arrivals, in proportion to the shape."""
    edges = [n * wish.duration / wish.seconds for n in range(wish.seconds + 1)]
    busy = [shape((begin + end) / 2) for begin, end in pairwise(edges)]
    scale = tasks / sum(busy)
    stretches = ((begin, end, scale * one) for (begin, end), one in zip(pairwise(edges), busy, strict=True))
    return arrivals(stretches, wish.stream("arrivals"))


def services(wish: Wish, count: int) -> list[float]:
    return lognormal(wish.service, wish.cv, count, wish.stream("service"))


def lognormal(mean: float, cv: float, count: int, random: Random) -> list[float]:
    if not cv:
        return [mean] * count
    variance = math.log1p(cv * cv)
    mu, sigma = math.log(mean) - variance / 2, math.sqrt(variance)
    return [random.lognormvariate(mu, sigma) for _ in range(count)]


def daily(wish: Wish) -> Shape:
    """Quiet at four in the morning, busy from ten on, a dip after lunch, a second summit in the early evening."""
    wobbly, day = wobble(wish), math.tau / wish.duration
    return lambda t: (
        (1 - 0.5 * math.cos(day * (t - wish.duration / 6)) - 0.15 * math.cos(2 * day * (t - wish.duration / 12)))
        * wobbly(t)
    )


def wobble(wish: Wish) -> Shape:
    """Nobody's load is smooth: some percent up and down within minutes."""
    random, every = wish.stream("wobble"), 3 * MINUTE
    heights = [random.uniform(0.92, 1.08) for _ in range(int(wish.duration / every) + 2)]

    def at(t: float) -> float:
        n, share = divmod(t / every, 1.0)
        return heights[int(n)] * (1 - share) + heights[int(n) + 1] * share

    return at


def parts(duration: float, length: float) -> list[tuple[float, float]]:
    """The duration in equal parts of about that length, at least one. What happens once in each is spread well."""
    count = max(1, round(duration / length))
    return [(n * duration / count, (n + 1) * duration / count) for n in range(count)]


def moments(
    duration: float, every: float, random: Random, least: float, most: float
) -> tuple[tuple[float, float], ...]:
    """Stretches of time between least and most, one in about `every` seconds, never two at once."""
    found = []
    for first, last in parts(duration, every):
        lasts = min(random.uniform(least, most), (last - first) / 2)
        begin = random.uniform(first, last - lasts)
        found.append((begin, begin + lasts))
    return tuple(found)


def edges_every(duration: float, least: float, most: float, random: Random) -> list[float]:
    """A moment after every so many minutes."""
    found, after = [], 0.0
    while (after := after + random.uniform(least, most) * MINUTE) < duration:
        found.append(after)
    return found


def ticks(wish: Wish, random: Random) -> list[float]:
    """A moment every 15 to 30 minutes, at least one."""
    return edges_every(wish.duration, 15, 30, random) or [wish.duration / 2]


def batch_size(wish: Wish, random: Random, least: float, most: float) -> int:
    """As many as else arrive in so many seconds: batches and load grow together."""
    return round(min(wish.rate * random.uniform(least, most), wish.tasks / 4))


def attempts(begin: float, service: float, away: Sequence[float]) -> list[tuple[float, float]]:
    """(due, known) of each attempt of a task: it fails when it begins while what it needs is away, from the first edge
    to the second, from the third to the fourth, …"""
    found = [(begin, begin)]
    for wait in RETRIES:
        due = found[-1][0]
        if bisect_right(away, due) % 2 == 0:
            break
        found.append((due + service + wait, due + service))
    return found


# --- recorded ---------------------------------------------------------------------------------------------------------

FORMATS = "The first line is period,count or arrival,service or arrival,service,known; then one row a line."
FARTHEST = 1e12  # seconds
Read = Callable[[str], float | None]


def load(
    path: str | Path,
    *,
    seed: int = 0,
    service: float = 2.0,
    cv: float = 1.0,
    start: float | str | None = None,
    duration: float | None = None,
    tasks: int | None = None,
    speed: float = 1.0,
) -> Trace:
    """A recording: how many in each period, or each task with its service time. `start` (seconds from its beginning, or
    a timestamp) and `duration` choose a part of it, in its own time; `tasks` makes that part thinner or denser; `speed`
    then replays it faster than it was. Service times that were not recorded are made up."""
    whole(seed, "seed", 0, 2**63 - 1)
    between(service, "service", 1e-6, LONGEST)
    between(cv, "cv", 0.0, 100.0)
    between(speed, "speed", 1e-6, 1e6)
    if tasks is not None:
        whole(tasks, "tasks", 1, MOST_TASKS)
    if duration is not None:
        between(duration, "duration", 1e-3, FARTHEST)
    table = Table.open(Path(path))
    if "count" in table.columns:
        periods = counted(table)
        window = Window.of(table, periods[0][0], periods[-1][1], start, duration)
        due = placed(table, window, periods, tasks, stream(seed, "arrivals"))
        found = [due, lognormal(service, cv, len(due), stream(seed, "service")), due]
    else:
        rows = recorded(table)
        window = Window.of(table, rows[0][0], max(due + lasts for due, lasts, _ in rows), start, duration)
        found = columns(chosen(table, window, rows, tasks, stream(seed, "arrivals")), 3)
    due, lasts, known = found
    if speed != 1.0:
        due, known = [one / speed for one in due], [one / speed for one in known]
    return Trace(Path(path).stem, due, lasts, list(known), (window.until - window.since) / speed)


@dataclass(frozen=True, slots=True)
class Table:
    """A file of comma-separated values, and how its moments are written."""

    path: Path
    columns: dict[str, int]
    read: Read
    rows: Iterator[tuple[int, list[str]]]  # with their line numbers

    @classmethod
    def open(cls, path: Path) -> Table:
        rows = lines(path)
        head = next(rows, None)
        if head is None:
            raise ValidationError(f"{path}: it is empty", hint=FORMATS, field="trace")
        names = [cell.lower() for cell in head[1]]
        if {"period", "count"} <= {*names} or {"arrival", "service"} <= {*names}:
            first = next(rows, None)
            if first is None:
                raise ValidationError(f"{path}: there are no rows below its header", hint=FORMATS, field="trace")
        elif len(names) == 2 and reader(head[1][0]):
            names, first = ["period", "count"], head
        else:
            raise wrong(path, head[0], "header", ",".join(head[1]), "is not known")
        columns = {name: n for n, name in enumerate(names)}
        at = "period" if "count" in columns else "arrival"
        cells = [*first[1], *[""] * len(names)]
        return cls(path, columns, reader(cells[columns[at]]) or in_seconds, checked(path, chain([first], rows), names))

    def wrong(self, line: int, field: str, cells: list[str], why: str) -> ValidationError:
        return wrong(self.path, line, field, cells[self.columns[field]], why)

    def moment(self, line: int, field: str, cells: list[str]) -> float:
        found = self.read(cells[self.columns[field]])
        if found is None:
            kind = "number of seconds" if self.read is in_seconds else "timestamp"
            raise self.wrong(line, field, cells, f"is not a {kind}")
        return found

    def words(self, first: float, last: float) -> str:
        if self.read is in_seconds:
            return f"{first:.10g} to {last:.10g} seconds"
        return " to ".join(f"{datetime.fromtimestamp(one, UTC):%Y-%m-%d %H:%M:%S}" for one in (first, last))


def wrong(path: Path, line: int, field: str, value: str, why: str) -> ValidationError:
    return ValidationError(f"{path}, line {line}: {field}: {shown(value)} {why}", hint=FORMATS, field=field)


def lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and cells of all lines that are not blank."""
    line = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            for row in rows:
                line = rows.line_num
                cells = [cell.strip() for cell in row]
                if any(cells):
                    yield line, cells
    except FileNotFoundError:
        hint = f"Name a file, or one of {', '.join(SYNTHETIC)}."
        raise ValidationError(f"trace: there is no file {shown(str(path))}", hint=hint, field="trace") from None
    except UnicodeDecodeError:
        raise ValidationError(f"{path}, after line {line}: it is not text in UTF-8", field="trace") from None
    except csv.Error as error:
        raise ValidationError(f"{path}, after line {line}: {error}", hint=FORMATS, field="trace") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ValidationError(f"trace: {shown(str(path))} can not be read: {why}", field="trace") from None


def checked(path: Path, rows: Iterable[tuple[int, list[str]]], names: list[str]) -> Iterator[tuple[int, list[str]]]:
    """A number with a comma in it would else be read as two."""
    for line, cells in rows:
        if len(cells) != len(names):
            raise wrong(path, line, "row", ",".join(cells), f"has not the columns {','.join(names)}")
        yield line, cells


def reader(text: str) -> Read | None:
    """How moments are written, by the first of them; None: it is no moment."""
    try:
        float(text)
    except ValueError:
        return in_time if in_time(text) is not None else None
    return in_seconds


def in_seconds(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if abs(found) <= FARTHEST else None


def in_time(text: str) -> float | None:
    """Seconds since 1970 of a timestamp; without a zone it means UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a recording that is wanted, on the recording's own clock."""

    since: float
    until: float

    @classmethod
    def of(cls, table: Table, first: float, last: float, start: float | str | None, duration: float | None) -> Window:
        since = first if start is None else beginning(table, first, start)
        until = last if duration is None else min(last, since + duration)
        if not first <= since < last:
            raise ValidationError(
                f"start: {shown(start)} is outside {table.path}, which has rows from {table.words(first, last)}",
                field="start",
            )
        return cls(since, until)

    def cut(self, begin: float, end: float) -> tuple[float, float]:
        return max(begin, self.since), min(end, self.until)


def beginning(table: Table, first: float, start: float | str) -> float:
    moment = in_time(start) if isinstance(start, str) and reader(start) is in_time else None
    if moment is None:
        after = in_seconds(start) if isinstance(start, str) else start
        return first + between(start if after is None else after, "start", 0.0, FARTHEST)
    if table.read is not in_time:
        raise ValidationError(f"start: {shown(start)} is a timestamp, {table.path} counts seconds", field="start")
    return moment


def counted(table: Table) -> list[tuple[float, float, int]]:
    """(begin, end, count) of each period. All are as long as the first, unless the next begins sooner."""
    found: list[tuple[float, int]] = []
    for line, cells in table.rows:
        at, count = table.moment(line, "period", cells), in_seconds(cells[table.columns["count"]])
        if found and at <= found[-1][0]:
            raise table.wrong(line, "period", cells, "is not after the one before it")
        if count is None or count < 0 or count != int(count):
            raise table.wrong(line, "count", cells, "is not a whole number of at least 0")
        found.append((at, int(count)))
    length = found[1][0] - found[0][0] if len(found) > 1 else LONE_PERIOD
    ends = [min(at + length, after) for (at, _), (after, _) in pairwise(found)]
    return [(at, end, count) for (at, count), end in zip(found, [*ends, found[-1][0] + length], strict=True)]


def placed(
    table: Table,
    window: Window,
    periods: list[tuple[float, float, int]],
    tasks: int | None,
    random: Random,
) -> list[float]:
    """Arrivals, anywhere within their periods, in seconds from the window's beginning."""
    inside = [(begin, end, count) for begin, end, count in periods if begin < window.until and end > window.since]
    total = sum(count for _, _, count in inside)
    if not total:
        raise nothing(table, window)
    if tasks is None:
        if total > MOST_TASKS:
            raise too_many(table, total)
        found = [
            at
            for begin, end, count in inside
            for at in sorted(random.uniform(begin, end) for _ in range(count))
            if window.since <= at < window.until
        ]
    else:
        shares = [(*window.cut(begin, end), count / (end - begin)) for begin, end, count in inside]
        scale = tasks / sum((end - begin) * rate for begin, end, rate in shares)
        found = arrivals([(begin, end, scale * rate * (end - begin)) for begin, end, rate in shares], random)
    return [at - window.since for at in found]


def recorded(table: Table) -> list[tuple[float, float, float]]:
    """(due, service, known) of each task, in the order in which they fell due, in whatever order they are written."""
    found = []
    for line, cells in table.rows:
        due, lasts = table.moment(line, "arrival", cells), in_seconds(cells[table.columns["service"]])
        if lasts is None or not 0 < lasts <= LONGEST:
            raise table.wrong(line, "service", cells, f"is not a number of seconds above 0, and at most {LONGEST:.0f}")
        planned = "known" in table.columns and cells[table.columns["known"]]
        known = table.moment(line, "known", cells) if planned else due
        if known > due:
            raise table.wrong(line, "known", cells, "is after its arrival")
        found.append((due, lasts, known))
        if len(found) > MOST_TASKS:
            raise too_many(table, len(found))
    return sorted(found)


def chosen(
    table: Table,
    window: Window,
    rows: list[tuple[float, float, float]],
    tasks: int | None,
    random: Random,
) -> list[tuple[float, float, float]]:
    """The tasks of the window, or some of them, in seconds from its beginning."""
    since = window.since
    inside = [(due - since, lasts, known - since) for due, lasts, known in rows if since <= due < window.until]
    if not inside:
        raise nothing(table, window)
    if tasks is None or tasks == len(inside):
        return inside
    if tasks > len(inside):
        raise ValidationError(
            f"tasks: {tasks} are more than the {len(inside)} recorded",
            hint="Single tasks can be left out, not made up. A recording of counts can be scaled up.",
            field="tasks",
        )
    return [inside[n] for n in sorted(random.sample(range(len(inside)), tasks))]


def nothing(table: Table, window: Window) -> ValidationError:
    return ValidationError(
        f"{table.path}: nothing arrives from {table.words(window.since, window.until)}", field="start"
    )


def too_many(table: Table, count: int) -> ValidationError:
    return ValidationError(
        f"{table.path}: {count:,} tasks are more than {MOST_TASKS:,}",
        hint="Take a part of it (start, duration), or scale it (tasks).",
        field="tasks",
    )
