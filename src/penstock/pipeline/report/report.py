"""`penstock pipeline report`: renders a lake as one page, and writes the page as a whole or not at all."""

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
from penstock.pipeline.lake.fingerprint import fingerprint_lake
from penstock.pipeline.lake.lake import Lake
from penstock.pipeline.report.figures import Figures
from penstock.pipeline.report.gather import gather_figures
from penstock.pipeline.report.page import render_page, state_verdict

PAGE_NAME = "report.html"
HEAD_BYTES = 2000  # the fingerprint of the lake is in the first bytes of the page


@dataclass(frozen=True, slots=True)
class Report:
    """A report that was written, and its figures."""

    path: Path
    bytes: int
    figures: Figures

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        return state_verdict(self.figures.queues) if self.figures.queues else "There is nothing to report yet."

    def to_json(self) -> dict[str, Any]:
        """Returns the path, the verdict and the summary of each queue as JSON."""
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
    """Renders the report of a lake. By default it is written next to the lake's tables."""
    path = check_path(lake.directory / PAGE_NAME if out is None else Path(out).expanduser())
    figures = gather_figures(spark, lake, since=since, queues=queues, made=time.time())
    whole = out is None and since is None and not queues
    return Report(path, write_page(path, render_page(figures, fingerprint_lake(lake) if whole else "")), figures)


def up_to_date(lake: Lake) -> bool:
    """Returns whether the report of the whole lake exists and was made of what the lake holds now."""
    try:
        with (lake.directory / PAGE_NAME).open("rb") as file:
            return fingerprint_lake(lake).encode() in file.read(HEAD_BYTES)
    except OSError:
        return False


def check_path(path: Path) -> Path:
    """Raises ValidationError if the report cannot be written there. It is called before the lake is read, which takes
    minutes."""
    if path.is_dir():
        raise ValidationError(f"out: {shown(str(path))} is a directory", hint="Name a file in it.", field="out")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        why = "may not be written to" if path.parent.is_dir() else "is not there"
        raise ValidationError(f"out: {shown(str(path.parent))} {why}", hint="Name a file elsewhere.", field="out")
    return path


def write_page(path: Path, text: str) -> int:
    """Replaces the page at once: a reader sees the old page or the new one. Returns its size."""
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
