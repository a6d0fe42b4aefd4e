"""`penstock export metrics --listen` in a process of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shell import COMMAND, environment
from workers import eventually, free_port


@contextmanager
def exporting(dsn: str, home: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serves metrics by a process of its own, and returns their address."""
    port = free_port()
    command = [*COMMAND, "export", "metrics", "--listen", str(port)]
    with (home / "exporter").open("w") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment(dsn), text=True
        )
    try:
        eventually(lambda: process.poll() is not None or "metrics at" in (home / "exporter").read_text())
        assert process.poll() is None, (home / "exporter").read_text()
        yield f"http://127.0.0.1:{port}/metrics", process
    finally:
        process.kill()
        process.wait()
