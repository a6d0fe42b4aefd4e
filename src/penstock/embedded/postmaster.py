"""The postmaster as the system shows it: its pid file, its process, its socket."""

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
    pid: int
    port: int
    socket_dir: Path
    status: str  # starting, ready or stopping
    binaries: Path


def find(data: Path) -> Postmaster | None:
    """The living postmaster of this data directory. The pid file proves nothing: the number may be a stranger's."""
    pid, lines = pid_file(data)
    # PostgreSQL fills the file line by line while it starts.
    if len(lines) < 5 or not lines[4] or not (program := postmaster_program(pid, data)):
        return None
    status = lines[STATUS_LINE].strip() if len(lines) > STATUS_LINE else "starting"
    return Postmaster(pid, int(lines[3]), Path(lines[4]), status, program.parent)


def pid_file(data: Path) -> tuple[int, list[str]]:
    """The pid, 0 when there is none, and all lines."""
    try:
        lines = os.fsdecode((data / "postmaster.pid").read_bytes()).split("\n")
        return int(lines[0]), lines
    except (FileNotFoundError, NotADirectoryError, ValueError, IndexError):
        return 0, []


def postmaster_program(pid: int, data: Path) -> Path | None:
    """The program that runs as the postmaster of `data` under this pid; None when it is something else."""
    command = command_of(pid)
    program = Path(command.removesuffix(f" -D {data}"))
    return program if program.name == "postgres" and str(program) != command else None


def command_of(pid: int) -> str:
    """The command line of a living process; empty when there is none. A zombie is none.

    Not its working directory, which would need ptrace rights that root in a container does not have.
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
    """Take away the lock files of a server that has gone.

    PostgreSQL would believe them as long as anything has that pid: a stranger, or a zombie that nobody collects.
    Should processes of the old server still be there, the shared memory they hold keeps a new one out.
    """
    pid, _ = pid_file(data)
    if postmaster_program(pid, data) or (pid < 0 and command_of(-pid)):  # negative: a single-user session
        return
    (data / "postmaster.pid").unlink(missing_ok=True)
    for leftover in socket_dir.glob(".s.PGSQL.*"):
        leftover.unlink()


def reply(path: Path) -> bytes:
    """What is said to somebody who knocks at this socket: nothing when nobody is there, `?` when nobody speaks."""
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
    """Does anybody listen there: a server that we do not recognise, perhaps in another container?"""
    return any(reply(path) for path in socket_dir.glob(".s.PGSQL.*[0-9]"))


def accepts(found: Postmaster) -> bool:
    """The pid file says "ready" all through the recovery after a backend's crash: only asking tells."""
    if found.status != "ready":
        return False
    said = reply(found.socket_dir / f".s.PGSQL.{found.port}")
    return said[:1] in (b"R", b"E") and b"C57P03\0" not in said  # cannot_connect_now


def ready(pid: int, data: Path, within: float) -> bool:
    """Wait until this postmaster accepts connections; False when it ends instead."""
    deadline = time.monotonic() + within
    while command_of(pid):
        if (found := find(data)) and found.pid == pid and accepts(found):
            return True
        if time.monotonic() > deadline:
            raise Unavailable(f"PostgreSQL (pid {pid}) is not ready after {within:.0f} s; it may be in recovery")
        time.sleep(0.01)
    return False


def send(pid: int, data: Path, signal: int) -> None:
    if postmaster_program(pid, data):
        with suppress(ProcessLookupError):
            os.kill(pid, signal)


def gone(pid: int, data: Path, within: float) -> bool:
    deadline = time.monotonic() + within
    while postmaster_program(pid, data):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
