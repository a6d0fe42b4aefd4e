"""`penstock pipeline report`: from a lake to one page, in its place as a whole or not at all."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from pyspark.sql import SparkSession

from penstock.errors import ValidationError, shown
from penstock.pipeline.content import content
from penstock.pipeline.figures import Figures
from penstock.pipeline.gather import collect
from penstock.pipeline.lake import Lake
from penstock.pipeline.page import page, verdict

PAGE = "report.html"
HEAD = 2000  # bytes, in which the page says what it was made of


@dataclass(frozen=True, slots=True)
class Report:
    path: Path
    bytes: int
    figures: Figures

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        return verdict(self.figures.queues) if self.figures.queues else "There is nothing to report yet."

    def to_json(self) -> dict[str, Any]:
        queues = {one.queue: {**asdict(one.summary), "breaches": one.all_breaches} for one in self.figures.queues}
        return {"path": str(self.path), "bytes": self.bytes, "verdict": self.verdict, "queues": queues}


def make_report(
    spark: SparkSession,
    lake: Lake,
    out: Path | str | None = None,
    *,
    since: datetime | None = None,
    queues: Sequence[str] = (),
) -> Report:
    """The page of a lake, next to its tables if nobody says where."""
    path = writable(lake.place / PAGE if out is None else Path(out).expanduser())
    figures = collect(spark, lake, since=since, queues=queues, made=time.time())
    whole = out is None and since is None and not queues
    return Report(path, write(path, page(figures, content(lake) if whole else "")), figures)


def up_to_date(lake: Lake) -> bool:
    """The page of the whole lake is there, and was made of what the lake holds now."""
    try:
        with (lake.place / PAGE).open("rb") as file:
            return content(lake).encode() in file.read(HEAD)
    except OSError:
        return False


def writable(path: Path) -> Path:
    """Told before minutes are spent."""
    if path.is_dir():
        raise ValidationError(f"out: {shown(str(path))} is a directory", hint="Name a file in it.", field="out")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        why = "may not be written to" if path.parent.is_dir() else "is not there"
        raise ValidationError(f"out: {shown(str(path.parent))} {why}", hint="Name a file elsewhere.", field="out")
    return path


def write(path: Path, text: str) -> int:
    """Whoever reads it meanwhile sees the old page or the new one."""
    data = text.encode()
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).chmod(path.stat().st_mode & 0o777 if path.exists() else 0o644)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
    return len(data)
