"""A server and a warm Spark session, for benchmarks of Spark."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession

from bench.support.harness import Bench
from penstock import spark as ours

ROUNDS = 3
JDBC = Path(__file__).parent.parent.parent / "scripts/setup-jdbc"
SETTINGS = {
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
    "spark.log.level": "ERROR",
    "spark.driver.memory": "4g",
}


@dataclass(frozen=True)
class SparkBench:
    server: Bench

    @cached_property
    def spark(self) -> SparkSession:
        jar = subprocess.run([JDBC], capture_output=True, text=True, check=True).stdout.strip()
        return ours.session("bench", master="local[2]", **SETTINGS, **{"spark.jars": jar})

    def jdbc(self, dsn: str) -> dict[str, str]:
        """Returns the options for Spark's own writer. `stringtype` lets the server parse text as jsonb."""
        parts = conninfo_to_dict(dsn)
        password = (self.server.server.home / "pgpass").read_text("utf-8").strip().rsplit(":", 1)[1]
        url = f"jdbc:postgresql://127.0.0.1:{parts['port']}/{parts['dbname']}?stringtype=unspecified"
        return {"url": url, "user": str(parts["user"]), "password": password, "driver": "org.postgresql.Driver"}
