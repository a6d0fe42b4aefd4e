"""One Spark session for all tests of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from penstock import spark as ours


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    settings = {"spark.ui.enabled": False, "spark.sql.shuffle.partitions": 2, "spark.log.level": "OFF"}
    session = ours.session("tests", master="local[2,4]", **settings)
    yield session
    session.stop()
