"""Finds out the state of the postmaster from its pid file, its process and its socket."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from penstock.errors import Unavailable

STATUS_LINE = 7
PROC = Path("/proc")


class Postmaster(NamedTuple):
    """A running postmaster, as its pid file and its process describe it."""

    pid: int
    port: int
    socket_dir: Path
    status: str  # starting, ready or stopping
    binaries: Path


def find(data: Path) -> Postmaster | None:
    """Returns the running postmaster of this data directory, or None.

    The pid file alone proves nothing: its pid may belong to another program.
    """
    pid, lines = pid_file(data)
    # PostgreSQL fills the file line by line while it starts.
    if len(lines) < 5 or not lines[4] or not (program := postmaster_program(pid, data)):
        return None
    status = lines[STATUS_LINE].strip() if len(lines) > STATUS_LINE else "starting"
    return Postmaster(pid, int(lines[3]), Path(lines[4]), status, program.parent)


def pid_file(data: Path) -> tuple[int, list[str]]:
    """Returns the pid and all lines. The pid is 0 if there is no pid file."""
    try:
        lines = os.fsdecode((data / "postmaster.pid").read_bytes()).split("\n")
        return int(lines[0]), lines
    except (FileNotFoundError, NotADirectoryError, ValueError, IndexError):
        return 0, []


def postmaster_program(pid: int, data: Path) -> Path | None:
    """Returns the program that runs as the postmaster of `data` under this pid, or None if there is none."""
    command = command_of(pid)
    program = Path(command.removesuffix(f" -D {data}"))
    return program if program.name == "postgres" and str(program) != command else None


def command_of(pid: int) -> str:
    """Returns the command line of a running process, or an empty string if there is none.

    A zombie does not count as running. The working directory is not read: that would need ptrace rights, which root in
    a container does not have.
    """
    if not (PROC / "self").exists():
        ps = ["/bin/ps", "-o", "command=", "-p", str(pid)]
        return subprocess.run(ps, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603 - a number
    try:
        if (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X"):
            return ""
        return os.fsdecode((PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")) or "?"
    except OSError:
        return ""


def clear_stale(data: Path, socket_dir: Path) -> None:
    """Removes the lock files of a server that is gone.

    PostgreSQL would trust them as long as any process has that pid, such as another program, or a zombie whose parent
    does not collect it. If processes of the old server are still running, their shared memory prevents the start of a
    new one.
    """
    pid, _ = pid_file(data)
    if postmaster_program(pid, data) or (pid < 0 and command_of(-pid)):  # a negative pid is a single-user session
        return
    (data / "postmaster.pid").unlink(missing_ok=True)
    for leftover in socket_dir.glob(".s.PGSQL.*"):
        leftover.unlink()


def read_reply(path: Path) -> bytes:
    """Returns the first bytes that a server sends on this socket.

    The result is empty if no server listens there, and `?` if the server sends nothing.
    """
    knock = b"user\0penstock\0\0"
    said = b""
    with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
        client.settimeout(5)
        client.connect(str(path))
        said = b"?"
        client.sendall(struct.pack("!ii", len(knock) + 8, 3 << 16) + knock)
        said = client.recv(1024) or said
    return said


def answers(socket_dir: Path) -> bool:
    """Returns whether a server listens there that Penstock does not recognise, for example one in another container."""
    return any(read_reply(path) for path in socket_dir.glob(".s.PGSQL.*[0-9]"))


def accepts(found: Postmaster) -> bool:
    """Returns whether the server accepts connections.

    It asks the server, because the pid file says "ready" during the whole recovery after the crash of a backend.
    """
    if found.status != "ready":
        return False
    said = read_reply(found.socket_dir / f".s.PGSQL.{found.port}")
    return said[:1] in (b"R", b"E") and b"C57P03\0" not in said  # cannot_connect_now


def wait_until_ready(pid: int, data: Path, within: float) -> bool:
    """Waits until this postmaster accepts connections. Returns False if it ends instead."""
    deadline = time.monotonic() + within
    while command_of(pid):
        if (found := find(data)) and found.pid == pid and accepts(found):
            return True
        if time.monotonic() > deadline:
            raise Unavailable(f"PostgreSQL (pid {pid}) is not ready after {within:.0f} s; it may be in recovery")
        time.sleep(0.01)
    return False


def send(pid: int, data: Path, signal: int) -> None:
    """Sends a signal to the postmaster, if this pid is still the postmaster."""
    if postmaster_program(pid, data):
        with suppress(ProcessLookupError):
            os.kill(pid, signal)


def wait_until_gone(pid: int, data: Path, within: float) -> bool:
    """Waits until the postmaster has ended. Returns False if it still runs after `within` seconds."""
    deadline = time.monotonic() + within
    while postmaster_program(pid, data):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
