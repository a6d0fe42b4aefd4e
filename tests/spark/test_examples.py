"""The example with Spark, run as a user would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import Penstock

EXAMPLE = Path(__file__).parents[2] / "examples/spark_stream.py"


@pytest.mark.slow
def test_loaded_once_and_drained(app: Penstock, dsn: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(tmp_path)],
        capture_output=True,
        text=True,
        env=os.environ | {"PENSTOCK_DSN": dsn},
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("10000 rows, 10000 created") == 2, done.stdout
    assert "9997 readings in" in done.stdout
    assert "9997 done, 3 to be tried again" in done.stdout
    assert app.queue("readings").status().totals["pushed"] == 10_000
