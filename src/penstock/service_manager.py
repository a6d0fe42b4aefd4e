"""What a service manager is told by a process that it has started: that it is ready, that it lives, and that it stops.

This is the protocol of systemd for `Type=notify`: datagrams of text to the socket in NOTIFY_SOCKET.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Self

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
SENT_WITHIN = 0.5  # seconds that a message may wait while the manager has many others to read
PATIENCE = 30.0  # seconds that the manager is asked for while a process waits before it is ready


class ServiceManager:
    """The service manager of this process. Without one, it says nothing."""

    def __init__(self, address: str | None = None, watchdog: float | None = None) -> None:
        self._address = address
        self._watchdog = watchdog  # seconds without a sign of life after which the manager ends the process
        self._ready = False

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> Self:
        """Takes the variables of the service manager out of the environment. Programs that this process starts must not
        speak for it."""
        address, microseconds, pid = (environ.pop(name, "") for name in VARIABLES)
        ours = microseconds.isdecimal() and int(microseconds) > 0 and pid in ("", str(os.getpid()))
        return cls(address or None, int(microseconds) / 1e6 if ours else None)

    @property
    def interval(self) -> float | None:
        """Seconds between two signs of life. None: the manager wants none."""
        return None if self._address is None or self._watchdog is None else self._watchdog / 2

    def ready(self) -> None:
        """Says that the process does its work now. Only the first call counts."""
        if not self._ready:
            self._ready = True
            self._send("READY=1\nSTATUS=working")

    def waiting(self, reason: str) -> None:
        """Says why the process is not ready yet, and asks for time."""
        self._send(f"STATUS={reason}\nEXTEND_TIMEOUT_USEC={int(PATIENCE * 1e6)}")

    def alive(self) -> None:
        """Gives a sign of life."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Says that the process stops."""
        self._send("STOPPING=1\nSTATUS=stopping")

    def watch(self, is_well: Callable[[], bool]) -> None:
        """Gives signs of life from a thread as long as all is well."""
        interval = self.interval
        if interval is not None:
            threading.Thread(target=self._watch, args=(interval, is_well), name="watchdog", daemon=True).start()

    def _watch(self, interval: float, is_well: Callable[[], bool]) -> None:
        pause = threading.Event()
        while True:
            if is_well():
                self.alive()
            pause.wait(interval)

    def _send(self, message: str) -> None:
        if self._address is None:
            return
        # A first @ stands for the null byte of an abstract socket.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:  # the work is more important
            end.settimeout(SENT_WITHIN)
            end.sendto(message.encode(), address)
