"""Compares the lake with `truth.sql`, which has a view for each table: every row and every column, in any order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import SparkSession

from penstock.pipeline.lake import Lake
from penstock.pipeline.lake.schemas import TABLES

TRUTH = Path(__file__).with_suffix(".sql")
TOLD = ("silver/attempts", "gold/minutes", "gold/breaches", "gold/kinds", "gold/errors", "gold/chances")


def check(spark: SparkSession, sql: psycopg.Connection, lake: Path) -> dict[str, int]:
    """Compares every column of every table that has a view, and returns how many rows were compared."""
    sql.execute("drop view if exists samples, attempts, shaped cascade")
    sql.execute(TRUTH.read_bytes())
    return {name: compare(spark, sql, lake, name) for name in TOLD}


def compare(spark: SparkSession, sql: psycopg.Connection, lake: Path, name: str) -> int:
    columns = TABLES[name].schema.names
    true = sql.execute(f"select {', '.join(columns)} from pg_temp.{name.partition('/')[2]}".encode()).fetchall()
    found = [tuple(row) for row in Lake(lake).read(spark, name).select(*columns).collect()]
    assert len(found) == len(true), (name, len(found), len(true))
    for mine, theirs in zip(ordered(found), ordered(true), strict=True):
        for column, one, other in zip(columns, mine, theirs, strict=True):
            assert equal(one, other), (name, column, one, other, mine, theirs)
    return len(true)


def ordered(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Sorts rows by their exact columns. Spark's times are in UTC and do not say so."""
    plain = [tuple(utc(value) for value in row) for row in rows]
    return sorted(plain, key=lambda row: [str(value) for value in row if not isinstance(value, float)])


def utc(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and other is not None:
        return math.isclose(one, float(other), rel_tol=1e-9, abs_tol=1e-9)
    return bool(one == other)
