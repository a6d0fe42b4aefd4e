"""Where the lake lies, and how it is read and changed: by its log, which names every file of every table.

    DIR/lake.json                                   what there is now: replaced as a whole, or not at all
    DIR/silver/attempts/day=2026-11-15/….parquet    written under a name of their own; never changed
    DIR/_staging, DIR/_lock                         of whoever writes

A change writes its files first, then `lake.json`, then removes the files it replaced. Killed before the second step
nothing has happened, and the next one to write clears away what is not named; killed after it all has. A reader sees
what the log named when he came: never a part of a day, never a day twice. If files go away under him, he gets an error.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.errors import ConfigError, Conflict, NotFound, SchemaVersionError, ValidationError, shown
from penstock.model import Horizon
from penstock.pipeline.schemas import DAY, TABLES, Table
from penstock.pipeline.schemas import table as named

FORMAT = 1
LOG = "lake.json"
WHOLE = ""  # the only "day" of a table that has none
GLOBS = frozenset("*?[]{}\\")  # Spark would take them for patterns


@dataclass(frozen=True, slots=True)
class File:
    """`path` is below the lake's directory."""

    path: str
    rows: int
    bytes: int
    digest: str


Files = Mapping[str, tuple[File, ...]]  # by day, as 2026-11-15


@dataclass(frozen=True, slots=True)
class Scope:
    """What the lake is of, for as long as it lives: these queues (none: all), finished at or after `since`."""

    queues: tuple[str, ...] = ()
    since: str | None = None


@dataclass(frozen=True, slots=True)
class State:
    """What the log says.

    `passed`: history and samples are here up to that horizon. `began`: the horizon when the lake began. `made`: of what
    a day of a layer was made, so that it is known when it must be made again. `reach`: the days that the attempts of a
    day of silver say something of."""

    id: str
    system: str
    database: int
    scope: Scope = Scope()
    number: int = 0
    began: Horizon | None = None
    passed: Horizon | None = None
    versions: Mapping[str, int] = field(default_factory=dict)
    tables: Mapping[str, Files] = field(default_factory=dict)
    made: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    reach: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def files(self, table: str, days: Collection[str] | None = None) -> list[File]:
        there = self.tables.get(table, {})
        return [file for day in sorted(there) if days is None or day in days for file in there[day]]

    def days(self, table: str) -> list[str]:
        return sorted(day for day, files in self.tables.get(table, {}).items() if files)

    def rows(self, table: str, days: Collection[str] | None = None) -> int:
        return sum(file.rows for file in self.files(table, days))

    @property
    def reader(self) -> str:
        """Its name among those who read history."""
        return f"lake {self.id}"


class Lake:
    """A directory of tables. Everybody who works with it, Spark's executors too, must reach it by the same path."""

    def __init__(self, place: Path | str) -> None:
        self.place = directory(place)
        self._state: State | None = None

    @property
    def exists(self) -> bool:
        return (self.place / LOG).exists()

    @property
    def state(self) -> State:
        """As of the first look, or of our own last change: one reader sees one lake."""
        if self._state is None:
            self._state = self._read()
        return self._state

    def refresh(self) -> State:
        self._state = None
        return self.state

    # --- reading --------------------------------------------------------------------------------------------------

    def days(self, table: str) -> list[date]:
        """Those that have rows."""
        return [date.fromisoformat(day) for day in self.state.days(named(table).name)]

    def read(self, spark: SparkSession, table: str, days: Iterable[date | str] | None = None) -> DataFrame:
        """A table, or some days of it. Every file is looked at before: one that is missing, or is not what was written,
        is an error that names it."""
        asked = named(table)
        self._check_version(asked)
        wanted = None if days is None else {str(day) for day in days}
        files = self.state.files(asked.name, wanted)
        for file in files:
            self._check(file)
        return self.frame(spark, asked, files)

    def frame(self, spark: SparkSession, table: Table, files: Iterable[File]) -> DataFrame:
        paths = [uri(self.place / file.path) for file in files]
        if not paths:
            return spark.createDataFrame([], table.schema)
        base = uri(self.place / table.name)
        return spark.read.schema(table.schema).option("basePath", base).parquet(*paths)

    def _check_version(self, table: Table) -> None:
        found = self.state.versions.get(table.name, table.version)
        if found > table.version:
            raise newer(f"{table.name} of {self.place} is of version {found}, this Penstock knows {table.version}")
        if found < table.version:
            raise SchemaVersionError(
                f"lake: {table.name} of {self.place} is of version {found}, this Penstock writes {table.version}",
                hint=f"penstock pipeline {table.layer} --lake {self.place}",
            )

    def _check(self, file: File) -> None:
        path = self.place / file.path
        try:
            size = path.stat().st_size
            found = digest(path) if size == file.bytes else f"{size:,} bytes, not {file.bytes:,}"
        except OSError as error:
            moved = self.exists and self._read().number != self.state.number
            hint = "The lake was changed meanwhile: read again." if moved else RESTORE
            raise Conflict(f"lake: {path} is missing or can not be read: {error.strerror}", hint=hint) from None
        if found != file.digest:
            said = found if size != file.bytes else "its content has changed"
            raise Conflict(f"lake: {path} is not what was written: {said}", hint=RESTORE)

    def _read(self) -> State:
        path = self.place / LOG
        try:
            found = orjson.loads(path.read_bytes())
        except FileNotFoundError:
            hint = f"penstock pipeline run --lake {self.place}"
            raise NotFound(f"lake: there is none in {self.place}", hint=hint) from None
        except OSError as error:
            raise ConfigError(f"lake: {path} can not be read: {error.strerror}") from None
        except orjson.JSONDecodeError as error:
            raise Conflict(f"lake: {path} is damaged: {error}", hint=RESTORE) from None
        return state_of(found, path)

    # --- changing -------------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Alone. What somebody who was killed left behind is cleared away first."""
        try:
            self.place.mkdir(parents=True, exist_ok=True)
            own = (self.place / "_lock").open("a+")
        except OSError as error:
            raise ConfigError(f"lake: {self.place} can not be written to: {error.strerror}") from None
        with own:
            try:
                fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                own.seek(0)
                who = own.read().strip() or "somebody"
                raise Conflict(f"lake: {who} is writing to {self.place}", hint="Wait until it has ended.") from None
            own.truncate(0)
            own.write(f"process {os.getpid()} on {socket.gethostname()}")
            own.flush()
            self._state = None
            self._tidy()
            yield

    def begin(self, state: State) -> None:
        """A lake that holds nothing yet."""
        self._write(replace(state, versions={name: table.version for name, table in TABLES.items()}))

    def stage(self, frame: DataFrame, table: Table) -> dict[str, tuple[File, ...]]:
        """A DataFrame's rows as files that nobody sees yet, by day."""
        room = self.place / "_staging" / uuid4().hex
        columns = [*table.names, DAY] if table.by_day else table.names
        typed = frame.select(*(f.col(name).cast(table.schema[name].dataType) for name in columns))
        writer = typed.write.mode("errorifexists")
        (writer.partitionBy(DAY) if table.by_day else writer).parquet(uri(room))
        staged: dict[str, list[File]] = {}
        for found in sorted(room.rglob("*.parquet")):
            day = found.parent.name.removeprefix(f"{DAY}=") if table.by_day else WHOLE
            rows = pq.read_metadata(found).num_rows
            if rows:  # Spark writes an empty file where there are no rows at all
                staged.setdefault(day, []).append(self._placed(found, table, day, rows))
        shutil.rmtree(room)
        return {day: tuple(files) for day, files in staged.items()}

    def _placed(self, found: Path, table: Table, day: str, rows: int) -> File:
        name = f"{self.state.number + 1:08}-{uuid4().hex[:12]}.parquet"
        path = self.place / table.name / (f"{DAY}={day}" if table.by_day else "") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        size, content = found.stat().st_size, digest(found)
        with found.open("rb") as written:
            os.fsync(written.fileno())
        found.rename(path)
        sync(path.parent)
        return File(str(path.relative_to(self.place)), rows, size, content)

    def commit(
        self,
        *,
        adds: Mapping[str, Files] | None = None,
        replaces: Mapping[str, Files] | None = None,
        **changes: Any,
    ) -> None:
        """Files join the days of their tables, or take the place of what those days had; with the rest of the state, at
        once. A day that is replaced by nothing is gone."""
        tables = {name: dict(days) for name, days in self.state.tables.items()}
        for name, days in (adds or {}).items():
            there = tables.setdefault(name, {})
            for day, files in days.items():
                there[day] = (*there.get(day, ()), *files)
        retired: list[File] = []
        for name, days in (replaces or {}).items():
            for day, files in days.items():
                retired += tables.setdefault(name, {}).pop(day, ())
                if files:
                    tables[name][day] = tuple(files)
        self._write(replace(self.state, number=self.state.number + 1, tables=tables, **changes))
        for file in retired:
            with suppress(OSError):
                (self.place / file.path).unlink()

    def _write(self, state: State) -> None:
        fresh = self.place / f"_{LOG}"
        with fresh.open("wb") as out:
            out.write(orjson.dumps({"format": FORMAT, **asdict(state)}, default=list, option=orjson.OPT_INDENT_2))
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(self.place / LOG)
        sync(self.place)
        self._state = state

    def _tidy(self) -> None:
        """Nobody else writes: what the log does not name was never seen by anybody."""
        shutil.rmtree(self.place / "_staging", ignore_errors=True)
        known = {file.path for name in TABLES for file in self.state.files(name)} if self.exists else set()
        for name in TABLES:
            for path in (self.place / name).rglob("*.parquet"):
                if str(path.relative_to(self.place)) not in known:
                    path.unlink(missing_ok=True)


RESTORE = "Restore it from a backup, or begin a new lake in another directory."


def directory(place: Path | str) -> Path:
    if not str(place).strip():
        raise ValidationError("lake: the directory's name is empty", field="lake")
    found = Path(place).expanduser().absolute()
    if GLOBS & {*str(found)}:
        raise ValidationError(f"lake: {shown(str(found))} has one of * ? [ ] {{ }} \\ in it", field="lake")
    if found.exists() and not found.is_dir():
        raise ValidationError(f"lake: {shown(str(found))} is not a directory", field="lake")
    return found


def uri(path: Path) -> str:
    """Else Spark would look for it in its default file system."""
    return f"file://{path}"


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def sync(directory: Path) -> None:
    """A new name is as durable as its directory."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def newer(said: str) -> SchemaVersionError:
    return SchemaVersionError(f"lake: {said}", hint="Upgrade Penstock.")


def state_of(found: Any, path: Path) -> State:
    """What was read, as a value; whatever is odd about it is an error."""
    try:
        form = found.pop("format")
        if form > FORMAT:
            raise newer(f"{path} is of format {form}, this Penstock knows {FORMAT}")
        state = State(**found)
        tables = {
            name: {day: tuple(File(**file) for file in files) for day, files in days.items()}
            for name, days in found["tables"].items()
        }
        return replace(
            state,
            scope=Scope(tuple(found["scope"]["queues"]), found["scope"]["since"]),
            began=horizon(state.began),
            passed=horizon(state.passed),
            tables=tables,
            reach={day: tuple(days) for day, days in state.reach.items()},
        )
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise Conflict(f"lake: {path} is damaged: {type(error).__name__}: {error}", hint=RESTORE) from None


def horizon(found: Any) -> Horizon | None:
    return None if found is None else Horizon(*found)


def day_of(moment: datetime) -> str:
    return moment.date().isoformat()
