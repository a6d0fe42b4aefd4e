"""The flows of the example of a declarative pipeline run one after the other, and again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from made_lake import World, usual
from penstock.pipeline.lake import Lake

EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative" / "run.py"

pytest.importorskip("grpc", reason='needs pip install "pyspark[pipelines]"')


def run(lake: Lake, warehouse: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE, lake.directory, warehouse], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_flows_run_and_run_again(spark: SparkSession, made: Lake, world: World, tmp_path: Path) -> None:
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    for _ in range(2):
        run(made, warehouse)
        days = spark.read.parquet(str(warehouse / "promises_by_day")).groupBy("queue").sum("kept", "late").collect()
        told = {row.queue: (row[1], row[2]) for row in days}
        for queue in usual():
            rows = [row["late"] for row in world.of(queue.name)]
            assert told[queue.name] == (rows.count(False), rows.count(True))
        costs = spark.read.parquet(str(warehouse / "costs_of_errors")).where("queue = 'orders'").collect()
        assert sum(row.share for row in costs) == pytest.approx(1.0)
        spent = sum(row["run_s"] for row in world.of("orders") if row["fingerprint"]) / 3600
        assert sum(row.hours for row in costs) == pytest.approx(spent)
        assert {row.queue for row in spark.read.parquet(str(warehouse / "dear_promises")).collect()} == {
            "orders",
            "mail",
        }
