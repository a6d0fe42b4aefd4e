"""One Spark session for all tests that need one, because its Java takes ten seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from penstock import spark as ours


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session that runs two tasks at once and tries each up to four times; `local[2]` would never retry one."""
    settings = {"spark.ui.enabled": False, "spark.sql.shuffle.partitions": 2, "spark.log.level": "OFF"}
    session = ours.session("tests", master="local[2,4]", **settings)
    yield session
    session.stop()
