"""`penstock demo` with Spark: as `make demo` runs it, and Ctrl-C while its Java is up."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from penstock.embedded import Server
from shell import COMMAND, environment, penstock


def test_tasks_come_from_parquet(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for _ in range(2):  # the second finds what the first left
        ran = penstock("demo", "--tasks", "2000", env={"PENSTOCK_HOME": str(home)})
        assert (ran.code, ran.err) == (0, "")
        pushed = f"Spark pushed 2,000 tasks from {home / 'demo-tasks.parquet'}"
        assert all(line in ran.out for line in (pushed, "drained 2,000 tasks", "verified: "))
    assert Server.running(home) is None


@pytest.mark.parametrize("after", [b"PostgreSQL 18 is up", b"Spark 4"])
def test_ctrl_c_leaves_nothing_running(tmp_path: Path, after: bytes) -> None:
    home = tmp_path / "home"
    with subprocess.Popen(
        [*COMMAND, "demo", "--tasks", "300000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(more={"PENSTOCK_HOME": str(home)}),
        start_new_session=True,
    ) as process:
        assert process.stdout
        while not process.stdout.readline().startswith(after):
            assert process.poll() is None
        time.sleep(1.0)
        started = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert Server.running(home) is None
    assert not psutil.wait_procs(started, timeout=20)[1]
