"""All stages on real tables, from history to profile and page. The second run finds nothing to do."""

from __future__ import annotations

from pathlib import Path

import psycopg
from pyspark.sql import SparkSession

from penstock.client import profiles
from penstock.pipeline.learn.evidence import find_evidence, present_plans
from penstock.pipeline.run import STAGES, run
from penstock.pipeline.work import working
from pipeline.conftest import Story


def test_all_stages_and_again(
    story: Story, spark: SparkSession, sql: psycopg.Connection, lake: Path, direct_dsn: str
) -> None:
    story.app.create_queue("silent")
    story.live(40)
    with working(spark, lake, dsn=direct_dsn) as work:
        first = {one.stage: one.answer for one in run(work, STAGES)}
        assert [*first] == ["bronze", "silver", "gold", "profile", "reconcile", "report"]
        assert first["reconcile"]["differences"] == []
        stored = {one.queue: one.data for one in profiles.find_profiles(work.database)}
        ended: dict[str, int] = dict(
            sql.execute(
                "select q.name, count(*) filter (where outcome in ('done', 'again', 'failed', 'dead'))"
                " from penstock.history as h join penstock.queue as q on q.id = h.queue_id group by 1"
            ).fetchall()
        )
        for queue, count in ended.items():
            data = stored[queue]
            assert data is not None
            assert (data["service"] or {"ended": 0})["ended"] == count
        assert {*first["profile"]["without"]} == {name for name, data in stored.items() if data is None}
        page = lake / "report.html"
        text = page.read_text("utf-8")
        for queue in ended:
            assert f">{queue}</h2>" in text
        evidence = find_evidence(spark, work.lake, present_plans(work.database))
        tries = sql.execute(
            "select count(*) from penstock.history where outcome in ('done', 'again', 'failed', 'dead', 'expired')"
        ).fetchone()
        assert tries is not None
        assert sum(one.first.tries + one.retries.tries for one in evidence) == tries[0]
        assert all(one.advice.present is not None for one in evidence if one.retries.tries)

        before = page.stat().st_mtime_ns
        again = {one.stage: one.answer for one in run(work, STAGES)}
        assert (again["profile"], again["report"]) == ({}, {})
        assert page.stat().st_mtime_ns == before
