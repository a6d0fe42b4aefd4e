"""Runs handlers in a child process beside Spark's Python worker, so that a handler that ends its process does not end
the worker. Spark would repeat the whole Spark task, four times by default, and lose the results of the other tasks."""

from __future__ import annotations

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

from penstock.child_process import become_child, start_child
from penstock.errors import ConfigError, PenstockError

SIZE = struct.Struct("!Q")
STOP_SECONDS = 5.0


class ProcessEnded(Exception):
    """The process ended during a call. The next call starts a new process."""

    def __init__(self, code: int) -> None:
        how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        super().__init__(f"its handler ended the process: {how}")


class ChildProcess:
    """Calls a pickled function in a child process, with one argument after the other."""

    def __init__(self, function: bytes) -> None:
        self._function = function
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(patience=0.0 if kind else STOP_SECONDS)

    def call(self, argument: Any) -> Any:
        """Returns the answer of the function. Raises ProcessEnded if the process ended, and PenstockError if the
        function raised."""
        channel = self._channel or self._start()
        try:
            send(channel, argument)
            word, answer = receive(channel)
        except (EOFError, ConnectionError):
            raise ProcessEnded(self._end(patience=STOP_SECONDS)) from None
        if word == "raised":
            raise PenstockError(str(answer))
        return answer

    def _start(self) -> socket.socket:
        """Starts the process with the modules that Spark gave to this process. What handlers print goes to standard
        error."""
        self._channel, other = socket.socketpair()
        with other:
            path = os.pathsep.join(filter(None, sys.path))
            self._process = start_child(
                "penstock.spark.subprocess_call", other, env=os.environ | {"PYTHONPATH": path}, stdout=sys.__stderr__
            )
        try:
            self._channel.sendall(SIZE.pack(len(self._function)) + self._function)
            word, answer = receive(self._channel)
        except (EOFError, ConnectionError):
            word, answer = "raised", f"the process ended: {self._end(patience=STOP_SECONDS)}"
        if word == "raised":
            raise ConfigError(f"handler: it cannot be loaded on the executor: {answer}")
        assert self._channel is not None
        return self._channel

    def _end(self, patience: float) -> int:
        """Returns the exit code of the process. It ends by itself when the socket is closed; if it does not, it is
        killed."""
        process, channel = self._process, self._channel
        self._process = self._channel = None
        if channel is not None:
            channel.close()
        if process is None:
            return 0
        with suppress(subprocess.TimeoutExpired):
            return process.wait(patience)
        process.kill()
        return process.wait()


def send(channel: socket.socket, value: Any) -> None:
    data = pickle.dumps(value)
    channel.sendall(SIZE.pack(len(data)) + data)


def receive(channel: socket.socket) -> Any:
    (size,) = SIZE.unpack(receive_exactly(channel, SIZE.size))
    return pickle.loads(receive_exactly(channel, size))  # noqa: S301 - from our own process, over a private socket


def receive_exactly(channel: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        some = channel.recv(min(size - len(data), 1 << 20))
        if not some:
            raise EOFError
        data += some
    return bytes(data)


# --- in the child process ---------------------------------------------------------------------------------------------


def main() -> None:
    """Answers calls until the socket is closed."""
    channel = become_child()
    with suppress(EOFError, ConnectionError):
        try:
            function: Callable[[Any], Any] = receive(channel)
        except EOFError:
            return
        except BaseException as error:  # noqa: BLE001 - a module that is missing, or fails at its import
            send(channel, ("raised", f"{type(error).__name__}: {error}"))
            return
        send(channel, ("ready", None))
        while True:
            send(channel, answer(function, receive(channel)))


def answer(function: Callable[[Any], Any], argument: Any) -> tuple[str, Any]:
    try:
        return "answer", function(argument)
    except Exception as error:  # noqa: BLE001 - reported to the parent
        return "raised", f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main()
