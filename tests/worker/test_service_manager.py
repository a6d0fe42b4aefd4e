"""What workers and scalers tell systemd, heard at a real datagram socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Queue
from shell import COMMAND, environment
from workers import eventually, free_port, probe, working, write_app

JOBS = """
@app.task(queue="work")
def tell() -> None:
    note(*sorted(name for name in os.environ if "NOTIFY" in name or "WATCHDOG" in name), "told")
"""
WATCHDOG = "400000"  # microseconds


class Manager:
    """The service manager's end of the socket, and what it has heard."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._end.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self.heard: list[str] = []
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        """Reads at once, as systemd does: a socket that is not read takes ten messages."""
        while (message := self._end.recv(4096).decode()) != "over":
            self.heard += message.splitlines()

    def forget(self) -> None:
        self.heard.clear()

    def environment(self, **more: str) -> dict[str, str]:
        return {"NOTIFY_SOCKET": self.address, "WATCHDOG_USEC": WATCHDOG, **more}

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"over", self._end.getsockname())
        self._listening.join()
        self._end.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest) -> Iterator[Manager]:
    with tempfile.TemporaryDirectory(prefix="penstock-notify-") as place:
        found = Manager(f"@penstock-test-{os.getpid()}" if request.param == "abstract" else f"{place}/socket")
        yield found
        found.close()


def test_a_worker_says_that_it_is_ready_lives_and_stops(
    queue: Queue, dsn: str, manager: Manager, tmp_path: Path
) -> None:
    port = free_port()
    with working(tmp_path, dsn, JOBS, "--health", str(port), env=manager.environment()) as worker:
        eventually(lambda: "READY=1" in manager.heard)
        eventually(lambda: manager.heard.count("WATCHDOG=1") >= 3)
        assert manager.heard.count("READY=1") == 1
        assert "STOPPING=1" not in manager.heard

        (runner,) = worker.runners
        os.kill(runner, signal.SIGSTOP)
        eventually(lambda: probe(port)[0] == 503)
        time.sleep(int(WATCHDOG) / 1e6)
        manager.forget()
        time.sleep(3 * int(WATCHDOG) / 1e6)
        assert manager.heard == [], "a worker that cannot work gives no sign of life"
        os.kill(runner, signal.SIGCONT)
        eventually(lambda: "WATCHDOG=1" in manager.heard)

        queue.push(kind="tell")
        eventually(lambda: worker.noted)
        assert worker.noted == ["told"], "programs that handlers start cannot speak for the worker"
        assert worker.stop() == 0
    eventually(lambda: "STOPPING=1" in manager.heard)


def test_a_worker_that_waits_for_its_database_asks_for_time(manager: Manager, tmp_path: Path) -> None:
    nowhere = f"postgresql://nobody@127.0.0.1:{free_port()}/nothing"
    write_app(tmp_path, JOBS)
    command = [*COMMAND, "work", "jobs:app", "--queues", "work", "--wait"]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment(nowhere, manager.environment()), stdout=said, stderr=said
        )
    try:
        eventually(lambda: "EXTEND_TIMEOUT_USEC=30000000" in manager.heard)
        assert "STATUS=waiting for PostgreSQL" in manager.heard
        assert "READY=1" not in manager.heard
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def test_a_watchdog_of_another_process_is_none_of_ours(
    queue: Queue, dsn: str, manager: Manager, tmp_path: Path
) -> None:
    with working(tmp_path, dsn, JOBS, env=manager.environment(WATCHDOG_PID="1")) as worker:
        eventually(lambda: "READY=1" in manager.heard)
        time.sleep(2 * int(WATCHDOG) / 1e6)
        assert "WATCHDOG=1" not in manager.heard
        assert worker.stop() == 0


def test_a_scaler_says_that_it_is_ready_lives_and_stops(
    queue: Queue, dsn: str, manager: Manager, tmp_path: Path
) -> None:
    queue.set(sla="30s")
    write_app(tmp_path, JOBS)
    command = [*COMMAND, "scale", "jobs:app", "--queues", "work", "--min-workers", "1"]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment(dsn, manager.environment()), stdout=said, stderr=said
        )
    try:
        eventually(lambda: "READY=1" in manager.heard)
        eventually(lambda: manager.heard.count("WATCHDOG=1") >= 3)
        queue.push(kind="tell")
        eventually((tmp_path / "effects").exists)  # a worker of the scaler has begun
        assert manager.heard.count("READY=1") == 1, "its workers do not speak for it"
        assert "NOTIFY" not in (tmp_path / "effects").read_text()
        assert "STOPPING=1" not in manager.heard
        process.send_signal(signal.SIGSTOP)
        time.sleep(int(WATCHDOG) / 1e6)
        manager.forget()
        time.sleep(3 * int(WATCHDOG) / 1e6)
        assert manager.heard == []
        process.send_signal(signal.SIGCONT)
        eventually(lambda: "WATCHDOG=1" in manager.heard)
        process.terminate()
        assert process.wait(40) == 0, (tmp_path / "said").read_text()
        eventually(lambda: "STOPPING=1" in manager.heard)
    finally:
        process.kill()
        process.wait()
