"""The lake is a directory of Parquet files. Its log, `lake.json`, names every file of every table.

    DIR/lake.json                                   the present state: replaced as a whole
    DIR/silver/attempts/day=2026-11-15/….parquet    each file has a unique name and never changes
    DIR/_staging, DIR/_lock                         used by the process that writes

A change writes its files first, then `lake.json`, then removes the files that it replaced. If the process is killed
before `lake.json` is written, nothing has changed, and the next writer removes the files that the log does not name. If
it is killed afterwards, the change is complete. A reader sees the files that the log named when it opened the lake:
never a part of a day, never a day twice. If files disappear while it reads, it gets an error.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.errors import ConfigError, Conflict, NotFound, SchemaVersionError, ValidationError, shown
from penstock.pipeline.lake.schemas import DAY, TABLES, LakeTable
from penstock.pipeline.lake.schemas import find_table as named
from penstock.pipeline.lake.state import FORMAT, RESTORE, File, Files, LakeState, make_newer_error, parse_state

LOG = "lake.json"
WHOLE_TABLE = ""  # the only "day" of a table without days
FORBIDDEN_CHARACTERS = frozenset("*?[]{}\\")  # Spark would read them as patterns


class Lake:
    """A directory of tables. Every process that works with it, Spark's executors included, must reach it by the same
    path."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = check_directory(directory)
        self._state: LakeState | None = None

    @property
    def exists(self) -> bool:
        """Whether the lake has been begun."""
        return (self.directory / LOG).exists()

    @property
    def state(self) -> LakeState:
        """The state when it was first read, or after our own last change: a reader sees one version of the lake."""
        if self._state is None:
            self._state = self._read()
        return self._state

    def refresh(self) -> LakeState:
        """Reads the state again."""
        self._state = None
        return self.state

    # --- reading --------------------------------------------------------------------------------------------------

    def days(self, table: str) -> list[date]:
        """Returns the days of a table that have rows."""
        return [date.fromisoformat(day) for day in self.state.days(named(table).name)]

    def read(self, spark: SparkSession, table: str, days: Iterable[date | str] | None = None) -> DataFrame:
        """Returns a table, or some days of it, as a DataFrame. Every file is checked first: if one is missing or was
        changed, the error names it."""
        asked = named(table)
        self._check_version(asked)
        wanted = None if days is None else {str(day) for day in days}
        files = self.state.files(asked.name, wanted)
        for file in files:
            self._check(file)
        return self.frame(spark, asked, files)

    def frame(self, spark: SparkSession, table: LakeTable, files: Iterable[File]) -> DataFrame:
        """Returns files of a table as a DataFrame, without checking them."""
        paths = [to_uri(self.directory / file.path) for file in files]
        if not paths:
            return spark.createDataFrame([], table.schema)
        base = to_uri(self.directory / table.name)
        return spark.read.schema(table.schema).option("basePath", base).parquet(*paths)

    def _check_version(self, table: LakeTable) -> None:
        found = self.state.versions.get(table.name, table.version)
        if found > table.version:
            raise make_newer_error(
                f"{table.name} of {self.directory} is of version {found}, this Penstock knows {table.version}"
            )
        if found < table.version:
            raise SchemaVersionError(
                f"lake: {table.name} of {self.directory} is of version {found}, this Penstock writes {table.version}",
                hint=f"penstock pipeline {table.layer} --lake {self.directory}",
            )

    def _check(self, file: File) -> None:
        path = self.directory / file.path
        try:
            size = path.stat().st_size
            found = hash_file(path) if size == file.bytes else f"{size:,} bytes, not {file.bytes:,}"
        except OSError as error:
            moved = self.exists and self._read().number != self.state.number
            hint = "The lake was changed meanwhile: read again." if moved else RESTORE
            raise Conflict(f"lake: {path} is missing or cannot be read: {error.strerror}", hint=hint) from None
        if found != file.digest:
            said = found if size != file.bytes else "its content has changed"
            raise Conflict(f"lake: {path} is not what was written: {said}", hint=RESTORE)

    def _read(self) -> LakeState:
        path = self.directory / LOG
        try:
            found = orjson.loads(path.read_bytes())
        except FileNotFoundError:
            hint = f"penstock pipeline run --lake {self.directory}"
            raise NotFound(f"lake: there is none in {self.directory}", hint=hint) from None
        except OSError as error:
            raise ConfigError(f"lake: {path} cannot be read: {error.strerror}") from None
        except orjson.JSONDecodeError as error:
            raise Conflict(f"lake: {path} is damaged: {error}", hint=RESTORE) from None
        return parse_state(found, path)

    # --- changing -------------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Locks the lake for writing. First it removes what a killed process left behind."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            own = (self.directory / "_lock").open("a+")
        except OSError as error:
            raise ConfigError(f"lake: {self.directory} cannot be written to: {error.strerror}") from None
        with own:
            try:
                fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                own.seek(0)
                writer = own.read().strip() or "another process"
                raise Conflict(
                    f"lake: {writer} is writing to {self.directory}", hint="Wait until it has ended."
                ) from None
            own.truncate(0)
            own.write(f"process {os.getpid()} on {socket.gethostname()}")
            own.flush()
            self._state = None
            self._tidy()
            yield

    def begin(self, state: LakeState) -> None:
        """Writes the log of an empty lake."""
        self._write(replace(state, versions={name: table.version for name, table in TABLES.items()}))

    def stage(self, frame: DataFrame, table: LakeTable) -> dict[str, tuple[File, ...]]:
        """Writes the rows of a DataFrame to files, by day. No reader sees them before `commit`."""
        staging = self.directory / "_staging" / uuid4().hex
        columns = [*table.names, DAY] if table.by_day else table.names
        typed = frame.select(*(f.col(name).cast(table.schema[name].dataType) for name in columns))
        writer = typed.write.mode("errorifexists")
        (writer.partitionBy(DAY) if table.by_day else writer).parquet(to_uri(staging))
        staged: dict[str, list[File]] = {}
        for found in sorted(staging.rglob("*.parquet")):
            day = found.parent.name.removeprefix(f"{DAY}=") if table.by_day else WHOLE_TABLE
            rows = pq.read_metadata(found).num_rows
            if rows:  # Spark writes an empty file if there are no rows
                staged.setdefault(day, []).append(self._place_file(found, table, day, rows))
        shutil.rmtree(staging)
        return {day: tuple(files) for day, files in staged.items()}

    def _place_file(self, found: Path, table: LakeTable, day: str, rows: int) -> File:
        name = f"{self.state.number + 1:08}-{uuid4().hex[:12]}.parquet"
        path = self.directory / table.name / (f"{DAY}={day}" if table.by_day else "") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        size, fingerprint = found.stat().st_size, hash_file(found)
        with found.open("rb") as written:
            os.fsync(written.fileno())
        found.rename(path)
        sync_directory(path.parent)
        return File(str(path.relative_to(self.directory)), rows, size, fingerprint)

    def commit(
        self,
        *,
        adds: Mapping[str, Files] | None = None,
        replaces: Mapping[str, Files] | None = None,
        **changes: Any,
    ) -> None:
        """Adds files to days of their tables, or replaces the files of those days, and changes the rest of the state,
        all at once. A day that is replaced by no files is removed."""
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
                (self.directory / file.path).unlink()

    def _write(self, state: LakeState) -> None:
        fresh = self.directory / f"_{LOG}"
        with fresh.open("wb") as out:
            out.write(orjson.dumps({"format": FORMAT, **asdict(state)}, default=list, option=orjson.OPT_INDENT_2))
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(self.directory / LOG)
        sync_directory(self.directory)
        self._state = state

    def _tidy(self) -> None:
        """Removes all files that the log does not name. Only the process that holds the lock may call it."""
        shutil.rmtree(self.directory / "_staging", ignore_errors=True)
        known = {file.path for name in TABLES for file in self.state.files(name)} if self.exists else set()
        for name in TABLES:
            for path in (self.directory / name).rglob("*.parquet"):
                if str(path.relative_to(self.directory)) not in known:
                    path.unlink(missing_ok=True)


def check_directory(directory: Path | str) -> Path:
    """Returns the absolute path of the lake. Raises ValidationError if it cannot be a lake."""
    if not str(directory).strip():
        raise ValidationError("lake: the directory's name is empty", field="lake")
    found = Path(directory).expanduser().absolute()
    if FORBIDDEN_CHARACTERS & {*str(found)}:
        raise ValidationError(f"lake: {shown(str(found))} has one of * ? [ ] {{ }} \\ in it", field="lake")
    if found.exists() and not found.is_dir():
        raise ValidationError(f"lake: {shown(str(found))} is not a directory", field="lake")
    return found


def to_uri(path: Path) -> str:
    """Returns a URI. Without the scheme, Spark would look in its default file system."""
    return f"file://{path}"


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def sync_directory(directory: Path) -> None:
    """Makes new names in a directory durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
