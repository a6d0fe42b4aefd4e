"""Serves the dashboard while the demo runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec

from penstock.cli.commands.demo.view import Viewer

STOP_TIMEOUT = 10.0  # seconds
NEEDS = ("starlette", "jinja2", "uvicorn")


@contextmanager
def serve_dashboard(dsn: str, viewer: Viewer) -> Iterator[None]:
    """Runs `penstock web` on a free port, and tells its address. The demo goes on without it if it cannot start."""
    if any(find_spec(name) is None for name in NEEDS):
        viewer.tell("no dashboard: pip install 'penstock[web]'")
        yield
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "web", "--port", "0", "--level", "operator"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PENSTOCK_DSN": dsn},
        start_new_session=True,  # so that Ctrl-C reaches only the demo
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline().decode().strip()
        viewer.tell(f"look at it live: {said.removeprefix('dashboard: ')}" if said else "the dashboard did not start")
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT)
        process.kill()
        process.wait()
