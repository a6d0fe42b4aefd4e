"""Runs shell commands without starting an interpreter for each: they are forked from a process that has
imported all modules.

The imports take ten times as long as most commands run, and the tests run more than a thousand commands. Each command
is still a process of its own: its pipes, environment, directory, exit code and end are those that `python -m
penstock.cli` has. The workers of `penstock scale` and the runners of `penstock work` are forked too, as children of the
command that starts them, and run the `main` of their module. `make test-all` starts an interpreter for each of them
(PENSTOCK_TEST_COLD=1).
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MAX_REQUEST = 1 << 18  # bytes: arguments, environment and directory of a command
STARTERS = (["work"], ["drain"], ["scale"])  # commands that start processes of Penstock

# --- in the tests' process --------------------------------------------------------------------------------------------


class Process:
    """A command that runs, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, reports: socket.socket, arguments: Sequence[str]) -> None:
        self._reports = reports
        self.args = arguments
        self.pid = int(reports.recv(32))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._reports.settimeout(timeout)
            try:
                self.returncode = int(self._reports.recv(32))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired([*self.args], timeout or 0) from None
            self._reports.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(arguments: Sequence[str], standard: Sequence[int], env: Mapping[str, str], cwd: Path | None) -> Process:
    """Starts `penstock` with these arguments and these files as its standard input, output and error."""
    request = json.dumps({"arguments": arguments, "env": dict(env), "cwd": str(cwd or Path.cwd())})
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        socket.send_fds(start_parent(), [request.encode()], [*standard, theirs.fileno()])
    return Process(ours, arguments)


def run(
    arguments: Sequence[str], stdin: bytes, env: Mapping[str, str], cwd: Path | None, within: float
) -> subprocess.CompletedProcess[bytes]:
    """Runs `penstock` with these arguments to its end, as `subprocess.run` does when it captures the output."""
    (read_in, write_in), (read_out, write_out), (read_err, write_err) = os.pipe(), os.pipe(), os.pipe()
    with ThreadPoolExecutor(3) as pool:
        process = start(arguments, [read_in, write_out, write_err], env, cwd)
        for end in (read_in, write_out, write_err):
            os.close(end)
        pool.submit(write_all, write_in, stdin)
        out, err = pool.submit(read_all, read_out), pool.submit(read_all, read_err)
        try:
            code = process.wait(within)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
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
            [sys.executable, __file__, str(theirs.fileno()), "-" * 2000],  # room for the command lines of the others
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
    from penstock.worker.__main__ import main as run_runner

    with get_command(cli.tree()).make_context("penstock", ["status"]):  # imports the commands and all that typer needs
        gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as tests:
        tests.send(b"!")
        become_command(tests)
    set_command_line([sys.executable, "-m", "penstock.cli", *sys.argv[1:]])
    while sys.argv[1:2] in STARTERS and platform.machine() in CLONE:
        module = fork_children()
        if module == "penstock.worker":
            run_runner()
        if module is None:
            break
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
    with suppress(BrokenPipeError):  # the tests do not wait for it
        tests.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        tests.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


# --- in a command that starts processes of Penstock -------------------------------------------------------------------

CLONE = {"x86_64": 56, "aarch64": 220}  # the number of the system call
CLONE_PARENT = 0x8000
MODULES = ("penstock.worker", "penstock.cli")  # a runner; a worker of a scaler


class Child:
    """A process that this command started, with the methods of `subprocess.Popen` that Penstock uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork_children() -> str | None:
    """Forks a process that forks the children of this command, before this command does anything.

    Returns None in the command. In each of its children, returns the module that it is to run.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        return become_child(theirs)
    theirs.close()
    start_other = subprocess.Popen

    def start_process(words: list[str], *, pass_fds: Sequence[int] = (), **options: Any) -> Any:
        if words[1:3] != ["-P", "-m"] or words[3] not in MODULES:
            return start_other(words, pass_fds=pass_fds, **options)
        quiet = options.get("stdout") == subprocess.DEVNULL
        request = {"words": words, "env": options.get("env") or dict(os.environ), "quiet": quiet}
        socket.send_fds(ours, [json.dumps(request).encode()], [*pass_fds])
        return Child(int(ours.recv(32)))

    from penstock import child_process
    from penstock.scaler.run import fleet

    for module in (child_process, fleet):
        vars(module)["subprocess"] = SimpleNamespace(**{**vars(subprocess), "Popen": start_process})
    return None


def become_child(command: socket.socket) -> str:
    """Returns once for each child of the command, each time in a new process."""
    os.closerange(3, command.fileno())
    os.closerange(command.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    while True:
        request, ends, _, _ = socket.recv_fds(command, MAX_REQUEST, 1)
        if not request:
            os._exit(0)  # the command has ended
        if (pid := fork_sibling()) == 0:
            break
        for end in ends:
            os.close(end)
        command.send(str(pid).encode())
    command.close()
    os.setpgid(0, 0)
    told = json.loads(request)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1) if told["quiet"] else (0,):
        os.dup2(null, number)
    os.close(null)
    os.environ.clear()
    os.environ.update(told["env"])
    if sys.path[0] == str(Path.cwd()):
        sys.path.pop(0)  # as after `python -P`
    start, words = told["words"][:4], told["words"][4:]
    sys.argv[1:] = [*map(str, ends), *words[len(ends) :]]  # a runner is given the number of its socket
    set_command_line([*start, *sys.argv[1:]])
    return str(start[3])


def fork_sibling() -> int:
    """Forks a process that is a child of this one's parent, as `os.fork` forks a child of this one."""
    kernel, python = ctypes.PyDLL(None), ctypes.pythonapi
    kernel.syscall.restype = ctypes.c_long
    numbers = (CLONE[platform.machine()], CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    python.PyOS_BeforeFork()
    pid = kernel.syscall(*(ctypes.c_long(number) for number in numbers))
    (python.PyOS_AfterFork_Child if pid == 0 else python.PyOS_AfterFork_Parent)()
    return int(pid)


def set_command_line(words: Sequence[str]) -> None:
    """Shows these words in the process list, as far as there is room."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = (int(field) for field in fields[45:47])
    text = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


if __name__ == "__main__":
    main()
