"""Every column of silver and gold equals SQL over the same history, in a database whose time zone is Rome, on the night
in which its clocks go back."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from penstock.pipeline.lake import Lake
from penstock.pipeline.run import run
from penstock.pipeline.work import working
from pipeline.conftest import Story
from pipeline.truth import check


@pytest.mark.slow
def test_every_column_is_what_sql_says(
    spark: SparkSession, story: Story, sql: psycopg.Connection, direct_dsn: str, lake: Path
) -> None:
    """This holds after a first run, and after a second one that adds to the same days and to a new one."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")  # as `collect` shows times
    for part in range(2):
        story.live(110)
        with working(spark, lake, dsn=direct_dsn) as work:
            outcomes = run(work)
        assert all(one.ok for one in outcomes), outcomes[-1].answer
        compared = check(spark, sql, lake)
        assert min(compared.values()) > 10, (part, compared)
    rows = Lake(lake).read(spark, "silver/attempts").collect()
    told = Counter(row.outcome for row in rows)
    assert {*told} == {"done", "again", "failed", "dead", "released", "expired", "revoked"}
    assert min(told.values()) > 5, told
    assert len({row.day for row in rows}) == 2
    assert {row.late for row in rows} == {True, False, None}
    zone = sql.execute("show timezone").fetchone()
    assert zone == ("Europe/Rome",)
