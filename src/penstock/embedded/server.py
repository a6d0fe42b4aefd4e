"""The embedded server: start it, attach to it, stop it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal
from urllib.parse import quote

from penstock.embedded import cluster, layout, postmaster
from penstock.embedded.binaries import find_binaries
from penstock.embedded.identity import Identity, candidates, choose
from penstock.embedded.launch import bring_up
from penstock.errors import ConfigError, Unavailable

STOP_SECONDS = 30
KILL_SECONDS = 10
NOTHING: Mapping[str, str] = MappingProxyType({})
SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. Its password is in the passfile, never in this object."""

    home: Path
    data: Path
    socket_dir: Path
    port: int
    pid: int
    version: int
    binaries: Path

    @classmethod
    def start(
        cls,
        home: Path,
        *,
        binaries: Path | None = None,
        environ: Mapping[str, str] = NOTHING,
        port: int | None = None,
        settings: Mapping[str, str] = NOTHING,
        identities: Iterable[Identity] | None = None,
    ) -> Server:
        """Starts the server of this home, or attaches if it already runs.

        An attached server keeps its port and settings. Any number of processes may call this at the same time: one
        starts the server, and the others wait for it.
        """
        home = home.resolve()
        try:
            if (found := postmaster.find(layout.data_of(home))) and postmaster.accepts(found):
                return cls._of(home, found)
            program = find_binaries(environ, binaries)
            identity = choose(candidates() if identities is None else identities, layout.owner(home))
            layout.make_home(home, identity)
            with layout.hold_lock(home):
                bring_up(home, identity, program, port, settings)
                found = postmaster.find(layout.data_of(home))
        except OSError as error:
            raise ConfigError(f"cannot keep a server in {home}: {error}") from error
        if found is None:
            raise Unavailable(f"the server in {home} was stopped as soon as it was up")
        return cls._of(home, found)

    @classmethod
    def running(cls, home: Path) -> Server | None:
        """Returns the server of this home if it runs, also during recovery. This method never starts a server."""
        home = home.resolve()
        found = postmaster.find(layout.data_of(home))
        return cls._of(home, found) if found and found.status != "stopping" else None

    @classmethod
    def _of(cls, home: Path, found: postmaster.Postmaster) -> Server:
        data = layout.data_of(home)
        return cls(home, data, found.socket_dir, found.port, found.pid, cluster.version(data), found.binaries)

    @property
    def dsn(self) -> str:
        """The DSN for connections by the Unix socket."""
        return self._dsn("", f"host={quote(os.fsencode(self.socket_dir))}&port={self.port}&")

    @property
    def dsn_tcp(self) -> str:
        """The DSN for connections by TCP on loopback."""
        return self._dsn(f"127.0.0.1:{self.port}", "")

    def _dsn(self, address: str, options: str) -> str:
        passfile = quote(os.fsencode(self.home / "pgpass"))
        return f"postgresql://{cluster.ROLE}@{address}/{cluster.DATABASE}?{options}passfile={passfile}"

    @property
    def log(self) -> Path:
        """The path of the log of PostgreSQL."""
        return self.home / "log"

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stops this server and waits until it has ended. If it has already ended, this does nothing."""
        postmaster.send(self.pid, self.data, SIGNALS[mode])
        if postmaster.wait_until_gone(self.pid, self.data, STOP_SECONDS):
            return
        postmaster.send(self.pid, self.data, signal.SIGQUIT)
        if not postmaster.wait_until_gone(self.pid, self.data, KILL_SECONDS):
            raise Unavailable(f"PostgreSQL (pid {self.pid}) does not stop", hint=f"see {self.log}")

    def kill(self) -> None:
        """Sends SIGKILL to the postmaster, as in a crash. Its child processes notice it and exit by themselves."""
        postmaster.send(self.pid, self.data, signal.SIGKILL)
        postmaster.wait_until_gone(self.pid, self.data, KILL_SECONDS)
