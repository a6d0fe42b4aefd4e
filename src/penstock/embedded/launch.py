"""Starts a server that accepts connections, whatever an earlier server left behind.

The caller holds the lock of the home.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from penstock.embedded import cluster, layout, postmaster
from penstock.embedded.binaries import major_version, make_reachable
from penstock.embedded.identity import Identity
from penstock.embedded.settings import queue_settings, render
from penstock.errors import ConfigError, Unavailable

READY_SECONDS = 60
STOPPING_SECONDS = 30
RETRY_SECONDS = 10  # time in which the processes of a killed server notice it and exit
PASSING = re.compile(r"is still in use|lock file .* already exists|Address already in use")
# The shell exits and leaves PostgreSQL without a parent, so the starting process has no zombie and no exit code to
# collect.
DETACHED = '"$@" >&2 & echo $!'


def bring_up(home: Path, identity: Identity, program: Path, port: int | None, settings: Mapping[str, str]) -> None:
    """Creates the cluster if there is none, and starts the server unless it already runs."""
    state = layout.load_state(home)
    server_dir = layout.find_server_dir(home, state, identity)
    socket_dir = layout.find_socket_dir(server_dir, state, identity)
    layout.save_state(home, state)
    major = major_version(program)
    binaries = make_reachable(program, identity, server_dir)
    data = server_dir / "data"
    if not data.exists():
        cluster.create(home, server_dir, binaries, identity)
    cluster.check_version(data, major, program)
    patience = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            if attach_or_clear(data, socket_dir):
                return
            state["port"] = free_port(state.get("port")) if port is None else free_port(port, must=True)
            layout.save_state(home, state)
            wanted = {**queue_settings(socket_dir, state["port"]), **settings}
            layout.write(server_dir / "penstock.conf", render(wanted), 0o644)
            launch(home, data, binaries, identity)
        except Unavailable:
            if time.monotonic() > patience:
                raise
            time.sleep(0.2)
        else:
            return


def attach_or_clear(data: Path, socket_dir: Path) -> bool:
    """Returns True if a server is already there and becomes ready.

    Otherwise removes stale files and returns False, so that a server can be started.
    """
    found = postmaster.find(data)
    if found and found.status != "stopping":
        return postmaster.wait_until_ready(found.pid, data, READY_SECONDS)
    if found:
        postmaster.wait_until_gone(found.pid, data, STOPPING_SECONDS)
    elif postmaster.answers(socket_dir):
        raise Unavailable(
            f"a server answers in {socket_dir}, but its process cannot be seen from here",
            hint="stop it where it runs: in another container, perhaps",
        )
    postmaster.clear_stale(data, socket_dir)
    return False


def launch(home: Path, data: Path, binaries: Path, identity: Identity) -> None:
    """Starts the server and waits until it is ready, or raises an error with the last lines of the log."""
    with layout.open_log(home) as log:
        mark = log.tell()
        done = identity.run("/bin/sh", "-c", DETACHED, "sh", str(binaries / "postgres"), "-D", str(data), log=log)
        if done.stdout.strip() and postmaster.wait_until_ready(int(done.stdout), data, READY_SECONDS):
            return
        said = layout.read_log_since(log, mark)
    message = f"PostgreSQL did not start. The last lines of {log.name}:\n{said}"
    if PASSING.search(said):
        raise Unavailable(message, hint="processes of the server before may still be at work: wait, or end them")
    raise ConfigError(message)


def free_port(wanted: int | None, *, must: bool = False) -> int:
    """Returns the wanted loopback port if it is free, or else any other. With `must`, no other port is accepted."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted or 0))
        except (OSError, OverflowError) as error:
            if must:
                raise ConfigError(f"port {wanted} of 127.0.0.1 cannot be used: {error}") from error
            return free_port(None, must=True)
        return int(probe.getsockname()[1])
