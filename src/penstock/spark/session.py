"""Makes a Spark session with the settings that Penstock needs: the same Python everywhere, a Java, UTC, Arrow, and no
password in plans."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from penstock.spark.java import Java, find_java

log = logging.getLogger("penstock.spark")

SECRET = "(?i)url|dsn|password|secret|token"  # noqa: S105 - names of options that plans do not show
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.redaction.options.regex": SECRET,
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|dsn",
}
chosen: Java | None = None  # the Java that our sessions run on


def session(app_name: str = "penstock", *, master: str | None = None, **conf: object) -> SparkSession:
    """Returns the present session, or a new one. Settings have their Spark names, `**{"spark.…": …}`. What spark-submit
    or the environment sets takes precedence over our defaults."""
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in conf.items()}
    if master is not None:
        given["spark.master"] = master
    if SparkSession.getActiveSession() is None:
        prepare(os.environ, master)
        # Jars and memory are needed when its Java starts; SparkConf knows the options of spark-submit only afterwards.
        with delay_interrupt():
            SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll([*given.items()]))  # noqa: SLF001 - no other way
    config = SparkConf().setAll([*given.items()])
    config.setIfMissing("spark.master", "local[*]")
    if app_name != "penstock" or not config.contains("spark.app.name"):
        config.setAppName(app_name)
    for name, value in SETTINGS.items():
        config.setIfMissing(name, value)
    found = SparkSession.builder.config(conf=config).getOrCreate()
    make_ready(found)
    return found


def prepare(environ: MutableMapping[str, str], master: str | None) -> None:
    """Sets what Spark reads from the environment before its Java starts. If its Java already runs, it does nothing."""
    global chosen  # noqa: PLW0603 - one process, one Java
    if "PYSPARK_GATEWAY_PORT" in environ:
        return
    chosen = find_java(environ)
    log.info("Spark runs on %s", chosen)
    if chosen.home is not None:
        environ["JAVA_HOME"] = chosen.home
    if (master or "local").startswith("local"):
        environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise Spark runs `python3` of PATH
        environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # otherwise local-cluster may use a wrong address


@contextmanager
def delay_interrupt() -> Iterator[None]:
    """Delays Ctrl-C until Java has started: a Java that is interrupted before it reports its port runs for ever."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            signal.raise_signal(signal.SIGINT)


def make_ready(spark: SparkSession) -> None:
    """Prepares a session for `format("penstock")`, in any thread. Spark looks for the format in the active session, and
    only the thread that made a session has one. It also hides our options in plans; Spark by default hides only
    `url`."""
    SparkSession._activeSession = spark  # noqa: SLF001 - as Spark does where it makes a DataFrame
    java: Any = spark._jvm  # noqa: SLF001 - the same
    java.SparkSession.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - the same
    name = "spark.sql.redaction.options.regex"
    pattern = spark.conf.get(name, "") or ""
    if "dsn" not in pattern:
        spark.conf.set(name, f"{pattern}|{SECRET}" if pattern.startswith("(?i)") else SECRET)
