"""Runs shell commands without starting an interpreter for each: they are forked from a process that has
imported all modules.

The imports take ten times as long as most commands run, and the tests run more than a thousand commands. Each command
is still a process of its own: its pipes, environment, directory, exit code and end are those that `python -m
penstock.cli` has. `make test-all` starts an interpreter for each (PENSTOCK_TEST_COLD=1).
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

MAX_REQUEST = 1 << 18  # bytes: arguments, environment and directory of a command

# --- in the tests' process --------------------------------------------------------------------------------------------


def run(
    arguments: Sequence[str], stdin: bytes, env: Mapping[str, str], cwd: Path | None, within: float
) -> subprocess.CompletedProcess[bytes]:
    """Runs `penstock` with these arguments to its end, as `subprocess.run` does when it captures the output."""
    request = json.dumps({"arguments": arguments, "env": dict(env), "cwd": str(cwd or Path.cwd())})
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    (read_in, write_in), (read_out, write_out), (read_err, write_err) = os.pipe(), os.pipe(), os.pipe()
    with ours, ThreadPoolExecutor(3) as pool:
        with theirs:
            socket.send_fds(start_parent(), [request.encode()], [read_in, write_out, write_err, theirs.fileno()])
        for end in (read_in, write_out, write_err):
            os.close(end)
        pool.submit(write_all, write_in, stdin)
        out, err = pool.submit(read_all, read_out), pool.submit(read_all, read_err)
        ours.settimeout(within)
        pid = int(ours.recv(32))
        try:
            code = int(ours.recv(32))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired([*arguments], within) from None
        return subprocess.CompletedProcess(arguments, code, out.result(), err.result())


def write_all(end: int, data: bytes) -> None:
    with suppress(BrokenPipeError), open(end, "wb") as file:
        file.write(data)


def read_all(end: int) -> bytes:
    with open(end, "rb") as file:
        return file.read()


@cache
def start_parent() -> socket.socket:
    """Starts the process that commands are forked from, and returns a socket to it. It ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,  # pipes, as commands have them: their stream objects are made here
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
        )
    if ours.recv(1) != b"!":
        raise RuntimeError(process.communicate()[1].decode())

    @atexit.register
    def stop() -> None:
        ours.close()
        process.communicate()

    return ours


# --- in the process that commands are forked from ---------------------------------------------------------------------


def main() -> None:
    from typer.main import get_command

    from penstock import cli

    with get_command(cli.tree()).make_context("penstock", ["status"]):  # imports the commands and all that typer needs
        gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as tests:
        tests.send(b"!")
        become_command(tests)
    cli.main()


def become_command(tests: socket.socket) -> None:
    """Returns once for each request, each time in a new process."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the processes that report are not waited for
    while True:
        request, ends, _, _ = socket.recv_fds(tests, MAX_REQUEST, 4)
        if not request:
            os._exit(0)  # the tests are over
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            break
        for end in ends:
            os.close(end)
    *standard, report = ends
    if pid := os.fork():
        report_end(pid, socket.socket(fileno=report), standard)
    os.close(report)
    for number, end in enumerate(standard):
        os.dup2(end, number)
        os.close(end)
    told = json.loads(request)
    os.environ.clear()
    os.environ.update(told["env"])
    os.chdir(told["cwd"])
    sys.path[0] = told["cwd"]  # as after `python -m`
    sys.argv[1:] = told["arguments"]


def report_end(pid: int, tests: socket.socket, standard: Sequence[int]) -> None:
    """Sends the pid of the command to the tests, and its exit code when it ends."""
    for end in standard:
        os.close(end)
    tests.send(str(pid).encode())
    _, status = os.waitpid(pid, 0)
    tests.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
