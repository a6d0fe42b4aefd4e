"""`penstock demo` with Spark: as `make demo` runs it, and Ctrl-C while its Java is up."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.embedded import Server
from shell import interrupted_demo, penstock


@pytest.mark.slow
def test_the_whole_demo(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for _ in range(2):  # the second demo finds the database of the first
        ran = penstock("demo", "--tasks", "2000", env={"PENSTOCK_HOME": str(home)}, within=200)
        assert (ran.code, ran.err) == (0, ""), ran.out
        assert f"2,000 tasks loaded by Spark from {home / 'demo/tasks.parquet'}" in ran.out
        ten = ran.out.splitlines()[-10:]
        assert ten[0] == "pushed 3,000 = done 2,988 + dead 12 + waiting 0"
        assert ten[6] == f"the lake is in {home / 'demo/lake'}"
        assert ten[7] == f"the report is {home / 'demo/lake/report.html'}: open it in a browser"
        assert "<svg" in (home / "demo/lake/report.html").read_text("utf-8")
    assert Server.running(home) is None


@pytest.mark.parametrize("after", [b"PostgreSQL 18 is up", pytest.param(b"Spark 4", marks=pytest.mark.slow)])
def test_ctrl_c_leaves_nothing_running(tmp_path: Path, after: bytes) -> None:
    assert interrupted_demo(tmp_path / "home", after, "--tasks", "100000")[0] == 130
