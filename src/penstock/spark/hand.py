"""A process for handlers, beside Spark's Python worker: a handler that ends its process ends only that. Spark would
repeat the whole Spark task, four times by default, and forget what it had said of the others."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from penstock.errors import ConfigError, PenstockError

SIZE = struct.Struct("!Q")
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
STOP_SECONDS = 5.0


class Ended(Exception):
    """The process did not come back from a call; the next one begins a new process."""

    def __init__(self, code: int) -> None:
        how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        super().__init__(f"its handler ended the process: {how}")


class Hand:
    """Calls a pickled function elsewhere, with one argument after the other."""

    def __init__(self, function: bytes) -> None:
        self._function = function
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._let_go(patience=0.0 if kind else STOP_SECONDS)

    def call(self, argument: Any) -> Any:
        """What it answers. Ended: the process is no more. PenstockError: what it raised."""
        line = self._line or self._start()
        try:
            send(line, argument)
            word, answer = receive(line)
        except (EOFError, ConnectionError):
            raise Ended(self._let_go(patience=STOP_SECONDS)) from None
        if word == "raised":
            raise PenstockError(str(answer))
        return answer

    def _start(self) -> socket.socket:
        """With the modules that Spark gave this process; what handlers print goes where errors go."""
        self._line, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "penstock.spark.hand", str(other.fileno())],
                pass_fds=[other.fileno()],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__,
            )
        try:
            self._line.sendall(SIZE.pack(len(self._function)) + self._function)
            word, answer = receive(self._line)
        except (EOFError, ConnectionError):
            word, answer = "raised", f"the process ended: {self._let_go(patience=STOP_SECONDS)}"
        if word == "raised":
            raise ConfigError(f"handler: it can not be loaded where it shall run: {answer}")
        assert self._line is not None
        return self._line

    def _let_go(self, patience: float) -> int:
        """Its exit code. It goes by itself when nobody is there to ask; one that does not is ended."""
        process, line = self._process, self._line
        self._process = self._line = None
        if line is not None:
            line.close()
        if process is None:
            return 0
        with suppress(subprocess.TimeoutExpired):
            return process.wait(patience)
        process.kill()
        return process.wait()


def send(line: socket.socket, value: Any) -> None:
    data = pickle.dumps(value)
    line.sendall(SIZE.pack(len(data)) + data)


def receive(line: socket.socket) -> Any:
    (size,) = SIZE.unpack(exactly(line, SIZE.size))
    return pickle.loads(exactly(line, size))  # noqa: S301 - from our own process, over a private line


def exactly(line: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        some = line.recv(min(size - len(data), 1 << 20))
        if not some:
            raise EOFError
        data += some
    return bytes(data)


# --- inside -----------------------------------------------------------------------------------------------------------


def main() -> None:
    """Until nobody asks any more. A signal to the whole group is the parent's affair."""
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, lambda *_: None)
    with suppress(OSError, AttributeError):  # where the system can do that (Linux)
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    line = socket.socket(fileno=int(sys.argv[1]))
    with suppress(EOFError, ConnectionError):
        try:
            function: Callable[[Any], Any] = receive(line)
        except EOFError:
            return
        except BaseException as error:  # noqa: BLE001 - a module that is not here, or fails at its import
            send(line, ("raised", f"{type(error).__name__}: {error}"))
            return
        send(line, ("ready", None))
        while True:
            send(line, answered(function, receive(line)))


def answered(function: Callable[[Any], Any], argument: Any) -> tuple[str, Any]:
    try:
        return "answer", function(argument)
    except Exception as error:  # noqa: BLE001 - told to whoever asked
        return "raised", f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
