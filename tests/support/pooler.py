"""A PgBouncer in front of the test server: transaction mode, few connections, no prepared statements."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from penstock.embedded import Server
from penstock.embedded.cluster import ROLE
from penstock.embedded.identity import candidates, choose

# Clients share five connections, so that state left in a session would soon reach another client. Support for prepared
# statements came with 1.21, and is switched off.
CONFIGURATION = """\
[databases]
* = host={server.socket_dir} port={server.port}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {home}/users
pidfile = {home}/pid
pool_mode = transaction
default_pool_size = 5
max_client_conn = 1000
query_wait_timeout = 60
log_connections = 0
log_disconnections = 0
{prepared}
"""
START_SECONDS = 10


class Pooler:
    """A PgBouncer that runs until `stop`."""

    def __init__(self, server: Server) -> None:
        program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        if program is None:
            raise FileNotFoundError("PENSTOCK_TEST_POOLER is set, but there is no pgbouncer: run scripts/setup-compat")
        self.home = Path(tempfile.mkdtemp(prefix="penstock-pooler-"))
        self.port = free_port()
        prepared = "max_prepared_statements = 0" if version(program) >= (1, 21) else ""
        text = CONFIGURATION.format(server=server, port=self.port, home=self.home, prepared=prepared)
        (self.home / "conf").write_text(text)
        password = (server.home / "pgpass").read_text().strip().split(":", 4)[4]
        (self.home / "users").write_text(f'"{ROLE}" "{password}"\n')
        identity = choose(candidates(), server.data.stat().st_uid)  # it refuses root, as PostgreSQL does
        for path in (self.home, *self.home.iterdir()):
            identity.own(path)
        with (server.home / "pooler.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*identity.prefix, program, str(self.home / "conf")],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd="/",
                user=identity.uid if identity.borrowed else None,
                group=identity.gid if identity.borrowed else None,
            )
        self._await()

    def dsn(self, direct: str) -> str:
        """Returns the DSN of the same database through this pooler."""
        return psycopg.conninfo.make_conninfo(direct, host="127.0.0.1", port=self.port)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()
        shutil.rmtree(self.home, ignore_errors=True)

    def _await(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return


def version(program: str) -> tuple[int, ...]:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"PgBouncer (\d+)\.(\d+)", said)
    assert found, said
    return int(found[1]), int(found[2])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
