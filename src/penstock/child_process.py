"""Starts modules of Penstock as processes, each with a pair of sockets between it and its parent. What is said over
them is up to the modules."""

from __future__ import annotations

import ctypes
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def start_child(module: str, end: socket.socket, *words: str, **options: Any) -> subprocess.Popen[bytes]:
    """Starts a module of Penstock as a process, which gets this end of a pair of sockets: its first argument is the
    file descriptor. `options` are those of Popen."""
    return subprocess.Popen(  # noqa: S603 - Penstock itself
        [sys.executable, "-P", "-m", module, str(end.fileno()), *words],
        pass_fds=[end.fileno()],
        stdin=subprocess.DEVNULL,
        **options,
    )


def become_child() -> socket.socket:
    """Makes this process a child that its parent alone ends, and returns its end of the sockets.

    Signals to a process group or a service are handled by the parent, which ends this process when necessary. Here they
    have an empty handler. They are not ignored, because programs that handlers start would inherit that.
    """
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, lambda *_: None)
    die_with_parent()
    return socket.socket(fileno=int(sys.argv[1]))


def die_with_parent() -> None:
    """Ends this process when its parent dies, where the system supports it (Linux).

    A handler must not continue when its task can no longer be settled.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
