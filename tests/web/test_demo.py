"""The demo prints the address of a dashboard that shows it."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from dashboard import visit
from penstock.cli.commands.demo.load import QUEUE
from penstock.embedded import Server
from shell import COMMAND, environment

SAID = "look at it live: "


def test_the_dashboard_of_the_demo(tmp_path: Path) -> None:
    home = tmp_path / "home"
    process = subprocess.Popen(
        [*COMMAND, "demo", "--no-spark", "--tasks", "100000"],
        env=environment(more={"PENSTOCK_HOME": str(home)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = next(text for raw in process.stdout if SAID in (text := raw.decode()))
        visitor = visit(line.partition(SAID)[2].strip())
        page = visitor.get("/")
        assert f'href="/queues/{QUEUE}"' in page.text
        assert "operator" in page.words
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        if server := Server.running(home):
            server.stop("immediate")
    assert process.returncode == 130
    with pytest.raises(ConnectionRefusedError):
        visitor.get("/")
