"""A Spark session in which all of ours works: the same Python everywhere, a Java, UTC, Arrow, no password shown."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from penstock.spark.java import Java, find_java

log = logging.getLogger("penstock.spark")

SECRET = "(?i)url|dsn|password|secret|token"  # noqa: S105 - of options that are not shown in plans
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.redaction.options.regex": SECRET,
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|dsn",
}
chosen: Java | None = None  # the Java that our sessions run on


def session(app_name: str = "penstock", *, master: str | None = None, **conf: Any) -> SparkSession:
    """The session: the one that is there, or a new one. Settings by their Spark names, `**{"spark.…": …}`; what
    spark-submit or the environment says stays as it is."""
    if SparkSession.getActiveSession() is None:
        prepare(os.environ, master)
        SparkContext._ensure_initialized()  # noqa: SLF001 - only then SparkConf knows what spark-submit was told
    told = SparkConf()
    if master is not None:
        told.setMaster(master)
    told.setIfMissing("spark.master", "local[*]")
    if app_name != "penstock" or not told.contains("spark.app.name"):
        told.setAppName(app_name)
    for name, value in SETTINGS.items():
        told.setIfMissing(name, value)
    for name, value in conf.items():
        told.set(name, str(value).lower() if isinstance(value, bool) else str(value))
    found = SparkSession.builder.config(conf=told).getOrCreate()
    hide_secrets(found)
    return found


def prepare(environ: MutableMapping[str, str], master: str | None) -> None:
    """What Spark takes from the environment, before its Java starts. A Java that runs already has it from elsewhere."""
    global chosen  # noqa: PLW0603 - one process, one Java
    if "PYSPARK_GATEWAY_PORT" in environ:
        return
    chosen = find_java(environ)
    log.info("Spark runs on %s", chosen)
    if chosen.home is not None:
        environ["JAVA_HOME"] = chosen.home
    if (master or "local").startswith("local"):
        environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else `python3`, whichever that is
        environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else local-cluster may look for itself at a wrong address


def hide_secrets(spark: SparkSession) -> None:
    """The options of plans, in any session: somebody else's hides only what is called a url."""
    name = "spark.sql.redaction.options.regex"
    pattern = spark.conf.get(name, "") or ""
    if "dsn" not in pattern:
        spark.conf.set(name, f"{pattern}|{SECRET}" if pattern.startswith("(?i)") else SECRET)
