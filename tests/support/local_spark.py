"""The Spark session of the tests: small, quiet and quick to warm up."""

from __future__ import annotations

from pyspark.sql import SparkSession

from penstock import spark as ours

# It runs two tasks at once and tries each up to four times; `local[2]` would never retry one.
MASTER = "local[2,4]"
SETTINGS = {
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
    "spark.sql.shuffle.partitions": 2,
    "spark.log.level": "OFF",
    # Java compiles quickly instead of well, and collects garbage in one thread: these tests are over before the
    # optimising compiler has earned its cost.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def start_session() -> SparkSession:
    """Returns the session of this process. Its Java takes ten seconds to start, so all tests share it."""
    return ours.session("tests", master=MASTER, **SETTINGS)
