"""One Spark session for all tests of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from made_lake import World, make_lake, usual
from penstock import spark as ours
from penstock.pipeline.lake import Lake


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    settings = {"spark.ui.enabled": False, "spark.sql.shuffle.partitions": 2, "spark.log.level": "OFF"}
    session = ours.session("tests", master="local[2,4]", **settings)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def world() -> World:
    """Thirteen hours, over a midnight."""
    return World(13.0, usual())


@pytest.fixture(scope="session")
def made(spark: SparkSession, world: World, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return make_lake(spark, tmp_path_factory.mktemp("made") / "lake", world)
