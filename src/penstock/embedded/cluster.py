"""Creates a new cluster. It is built in a temporary directory and renamed, so it exists completely or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path

from penstock.embedded.identity import Identity
from penstock.embedded.layout import open_log, open_to_append, read_log_since, write
from penstock.errors import ConfigError

ROLE = DATABASE = "penstock"


def create(home: Path, server_dir: Path, binaries: Path, identity: Identity) -> None:
    """Creates the cluster, its database and its password file."""
    fresh = server_dir / "data.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(0o700)
    identity.own(fresh)
    initdb, postgres = str(binaries / "initdb"), str(binaries / "postgres")
    password = secrets.token_urlsafe(24)
    with tempfile.NamedTemporaryFile("w", dir=server_dir) as file:
        file.write(password)
        file.flush()
        identity.own(Path(file.name))
        # Without --encoding, initdb would choose SQL_ASCII under LANG=C. The sync is done once, at the end.
        options = ("--username", ROLE, "--pwfile", file.name, "--encoding", "UTF8", "--locale", "C", "--no-sync")
        auth = ("--auth-local=scram-sha-256", "--auth-host=scram-sha-256")
        step(home, identity, initdb, "-D", str(fresh), *options, *auth)
    single = ("--single", "-F", "-D", str(fresh), "-c", "exit_on_error=on", "template1")
    step(home, identity, postgres, *single, text=f"create database {DATABASE}\n")
    with open_to_append(fresh / "postgresql.conf") as conf:
        conf.write(b"\ninclude_if_exists = '../penstock.conf'\n")
    step(home, identity, initdb, "--sync-only", "-D", str(fresh))
    write(home / "pgpass", f"*:*:*:{ROLE}:{password}\n")
    fresh.rename(server_dir / "data")
    sync(server_dir)


def step(home: Path, identity: Identity, *command: str, text: str | None = None) -> None:
    """Runs one command of the creation, and raises an error with the log if it fails."""
    with open_log(home) as log:
        mark = log.tell()
        if identity.run(*command, text=text, log=log).returncode:
            said = read_log_since(log, mark)
            raise ConfigError(f"{Path(command[0]).name} could not make a new database:\n{said}")


def sync(directory: Path) -> None:
    """Syncs a directory to disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def version(data: Path) -> int:
    """Returns the major version of PostgreSQL that created this data directory."""
    return int((data / "PG_VERSION").read_text())


def check_version(data: Path, major: int, binaries: Path) -> None:
    """Refuses binaries of another major version than that of the data directory."""
    if (made_by := version(data)) != major:
        raise ConfigError(
            f"{data} was made by PostgreSQL {made_by}, but the binaries in {binaries} are PostgreSQL {major}",
            hint=f"set PENSTOCK_PG_BIN to the bin directory of a PostgreSQL {made_by}, use another PENSTOCK_HOME, "
            "or carry the data over with pg_dump or pg_upgrade",
        )
