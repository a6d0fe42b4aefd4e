"""Traces that were recorded in CSV files."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, pairwise
from pathlib import Path
from random import Random

from penstock.errors import ValidationError, shown
from penstock.scaler.judge.synthetic import SYNTHETIC
from penstock.scaler.judge.trace import (
    MAX_DURATION,
    MAX_TASKS,
    MINUTE,
    Trace,
    check_between,
    draw_lognormal,
    poisson_arrivals,
    random_stream,
    transpose,
)
from penstock.validate import whole

LONE_PERIOD = MINUTE  # the length of a period that is the only one
FORMATS = "The first line is period,count or arrival,service or arrival,service,known; then one row a line."
MAX_MOMENT = 1e12  # seconds
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
    """Loads a recording: the count of each period, or each task with its service time. `start` (seconds from the
    beginning, or a timestamp) and `duration` select a part of it, on its own clock. `tasks` makes that part thinner
    or denser. `speed` then replays it faster. Service times that were not recorded are random."""
    whole(seed, "seed", 0, 2**63 - 1)
    check_between(service, "service", 1e-6, MAX_DURATION)
    check_between(cv, "cv", 0.0, 100.0)
    check_between(speed, "speed", 1e-6, 1e6)
    if tasks is not None:
        whole(tasks, "tasks", 1, MAX_TASKS)
    if duration is not None:
        check_between(duration, "duration", 1e-3, MAX_MOMENT)
    table = CsvTable.open(Path(path))
    if "count" in table.columns:
        periods = read_periods(table)
        window = TraceWindow.of(table, periods[0][0], periods[-1][1], start, duration)
        due = place_arrivals(table, window, periods, tasks, random_stream(seed, "arrivals"))
        found = [due, draw_lognormal(service, cv, len(due), random_stream(seed, "service")), due]
    else:
        rows = read_tasks(table)
        window = TraceWindow.of(table, rows[0][0], max(due + lasts for due, lasts, _ in rows), start, duration)
        found = transpose(select_tasks(table, window, rows, tasks, random_stream(seed, "arrivals")), 3)
    due, lasts, known = found
    if speed != 1.0:
        due, known = [one / speed for one in due], [one / speed for one in known]
    return Trace(Path(path).stem, due, lasts, list(known), (window.until - window.since) / speed)


@dataclass(frozen=True, slots=True)
class CsvTable:
    """A CSV file, and how its moments are written."""

    path: Path
    columns: dict[str, int]
    read: Read
    rows: Iterator[tuple[int, list[str]]]  # line numbers and cells

    @classmethod
    def open(cls, path: Path) -> CsvTable:
        """Reads the header, and the first row, which says how moments are written."""
        rows = read_lines(path)
        head = next(rows, None)
        if head is None:
            raise ValidationError(f"{path}: it is empty", hint=FORMATS, field="trace")
        names = [cell.lower() for cell in head[1]]
        if {"period", "count"} <= {*names} or {"arrival", "service"} <= {*names}:
            first = next(rows, None)
            if first is None:
                raise ValidationError(f"{path}: there are no rows below its header", hint=FORMATS, field="trace")
        elif len(names) == 2 and find_reader(head[1][0]):
            names, first = ["period", "count"], head
        else:
            raise cell_error(path, head[0], "header", ",".join(head[1]), "is not known")
        columns = {name: n for n, name in enumerate(names)}
        at = "period" if "count" in columns else "arrival"
        cells = [*first[1], *[""] * len(names)]
        return cls(
            path,
            columns,
            find_reader(cells[columns[at]]) or read_seconds,
            check_rows(path, chain([first], rows), names),
        )

    def cell_error(self, line: int, field: str, cells: list[str], why: str) -> ValidationError:
        return cell_error(self.path, line, field, cells[self.columns[field]], why)

    def moment(self, line: int, field: str, cells: list[str]) -> float:
        found = self.read(cells[self.columns[field]])
        if found is None:
            kind = "number of seconds" if self.read is read_seconds else "timestamp"
            raise self.cell_error(line, field, cells, f"is not a {kind}")
        return found

    def words(self, first: float, last: float) -> str:
        if self.read is read_seconds:
            return f"{first:.10g} to {last:.10g} seconds"
        return " to ".join(f"{datetime.fromtimestamp(one, UTC):%Y-%m-%d %H:%M:%S}" for one in (first, last))


def cell_error(path: Path, line: int, field: str, value: str, why: str) -> ValidationError:
    return ValidationError(f"{path}, line {line}: {field}: {shown(value)} {why}", hint=FORMATS, field=field)


def read_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the line number and the cells of each line that is not blank."""
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
        raise ValidationError(f"trace: {shown(str(path))} cannot be read: {why}", field="trace") from None


def check_rows(path: Path, rows: Iterable[tuple[int, list[str]]], names: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Checks the number of cells of each row: a number with a comma in it would be read as two."""
    for line, cells in rows:
        if len(cells) != len(names):
            raise cell_error(path, line, "row", ",".join(cells), f"does not have the columns {','.join(names)}")
        yield line, cells


def find_reader(text: str) -> Read | None:
    """Returns the function that reads moments, by an example; None: the example is not a moment."""
    try:
        float(text)
    except ValueError:
        return read_timestamp if read_timestamp(text) is not None else None
    return read_seconds


def read_seconds(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if abs(found) <= MAX_MOMENT else None


def read_timestamp(text: str) -> float | None:
    """Returns the seconds since 1970 of a timestamp, in UTC if it has no time zone; None: it is not a timestamp."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


@dataclass(frozen=True, slots=True)
class TraceWindow:
    """The selected part of a recording, on the clock of the recording."""

    since: float
    until: float

    @classmethod
    def of(
        cls, table: CsvTable, first: float, last: float, start: float | str | None, duration: float | None
    ) -> TraceWindow:
        since = first if start is None else find_beginning(table, first, start)
        until = last if duration is None else min(last, since + duration)
        if not first <= since < last:
            raise ValidationError(
                f"start: {shown(start)} is outside {table.path}, which has rows from {table.words(first, last)}",
                field="start",
            )
        return cls(since, until)

    def cut(self, begin: float, end: float) -> tuple[float, float]:
        return max(begin, self.since), min(end, self.until)


def find_beginning(table: CsvTable, first: float, start: float | str) -> float:
    moment = read_timestamp(start) if isinstance(start, str) and find_reader(start) is read_timestamp else None
    if moment is None:
        after = read_seconds(start) if isinstance(start, str) else start
        return first + check_between(start if after is None else after, "start", 0.0, MAX_MOMENT)
    if table.read is not read_timestamp:
        raise ValidationError(f"start: {shown(start)} is a timestamp, {table.path} counts seconds", field="start")
    return moment


def read_periods(table: CsvTable) -> list[tuple[float, float, int]]:
    """Returns (begin, end, count) of each period. All are as long as the first, unless the next one begins sooner."""
    found: list[tuple[float, int]] = []
    for line, cells in table.rows:
        at, count = table.moment(line, "period", cells), read_seconds(cells[table.columns["count"]])
        if found and at <= found[-1][0]:
            raise table.cell_error(line, "period", cells, "is not after the one before it")
        if count is None or count < 0 or count != int(count):
            raise table.cell_error(line, "count", cells, "is not a whole number of at least 0")
        found.append((at, int(count)))
    length = found[1][0] - found[0][0] if len(found) > 1 else LONE_PERIOD
    ends = [min(at + length, after) for (at, _), (after, _) in pairwise(found)]
    return [(at, end, count) for (at, count), end in zip(found, [*ends, found[-1][0] + length], strict=True)]


def place_arrivals(
    table: CsvTable,
    window: TraceWindow,
    periods: list[tuple[float, float, int]],
    tasks: int | None,
    random: Random,
) -> list[float]:
    """Returns arrivals at random moments of their periods, in seconds from the beginning of the window."""
    inside = [(begin, end, count) for begin, end, count in periods if begin < window.until and end > window.since]
    total = sum(count for _, _, count in inside)
    if not total:
        raise empty_window(table, window)
    if tasks is None:
        if total > MAX_TASKS:
            raise too_many_tasks(table, total)
        found = [
            at
            for begin, end, count in inside
            for at in sorted(random.uniform(begin, end) for _ in range(count))
            if window.since <= at < window.until
        ]
    else:
        shares = [(*window.cut(begin, end), count / (end - begin)) for begin, end, count in inside]
        scale = tasks / sum((end - begin) * rate for begin, end, rate in shares)
        found = poisson_arrivals([(begin, end, scale * rate * (end - begin)) for begin, end, rate in shares], random)
    return [at - window.since for at in found]


def read_tasks(table: CsvTable) -> list[tuple[float, float, float]]:
    """Returns (due, service, known) of each task, in the order of due times. The file may have any order."""
    found = []
    for line, cells in table.rows:
        due, lasts = table.moment(line, "arrival", cells), read_seconds(cells[table.columns["service"]])
        if lasts is None or not 0 < lasts <= MAX_DURATION:
            raise table.cell_error(
                line, "service", cells, f"is not a number of seconds above 0, and at most {MAX_DURATION:.0f}"
            )
        planned = "known" in table.columns and cells[table.columns["known"]]
        known = table.moment(line, "known", cells) if planned else due
        if known > due:
            raise table.cell_error(line, "known", cells, "is after its arrival")
        found.append((due, lasts, known))
        if len(found) > MAX_TASKS:
            raise too_many_tasks(table, len(found))
    return sorted(found)


def select_tasks(
    table: CsvTable,
    window: TraceWindow,
    rows: list[tuple[float, float, float]],
    tasks: int | None,
    random: Random,
) -> list[tuple[float, float, float]]:
    """Returns the tasks of the window, or a sample of them, in seconds from its beginning."""
    since = window.since
    inside = [(due - since, lasts, known - since) for due, lasts, known in rows if since <= due < window.until]
    if not inside:
        raise empty_window(table, window)
    if tasks is None or tasks == len(inside):
        return inside
    if tasks > len(inside):
        raise ValidationError(
            f"tasks: {tasks} are more than the {len(inside)} recorded",
            hint="A recording of tasks can be thinned out but not extended. A recording of counts can be scaled up.",
            field="tasks",
        )
    return [inside[n] for n in sorted(random.sample(range(len(inside)), tasks))]


def empty_window(table: CsvTable, window: TraceWindow) -> ValidationError:
    return ValidationError(
        f"{table.path}: nothing arrives from {table.words(window.since, window.until)}", field="start"
    )


def too_many_tasks(table: CsvTable, count: int) -> ValidationError:
    return ValidationError(
        f"{table.path}: {count:,} tasks are more than {MAX_TASKS:,}",
        hint="Take a part of it (start, duration), or scale it (tasks).",
        field="tasks",
    )
