"""A new cluster, whole or not at all: it is made beside its place and renamed."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path

from penstock.embedded.identity import Identity
from penstock.embedded.layout import appending, open_log, said_since, write
from penstock.errors import ConfigError

ROLE = DATABASE = "penstock"


def create(home: Path, place: Path, binaries: Path, who: Identity) -> None:
    fresh = place / "data.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(0o700)
    who.own(fresh)
    initdb, postgres = str(binaries / "initdb"), str(binaries / "postgres")
    password = secrets.token_urlsafe(24)
    with tempfile.NamedTemporaryFile("w", dir=place) as file:
        file.write(password)
        file.flush()
        who.own(Path(file.name))
        # --encoding, because under LANG=C initdb would choose SQL_ASCII. The sync comes once, at the end.
        options = ("--username", ROLE, "--pwfile", file.name, "--encoding", "UTF8", "--locale", "C", "--no-sync")
        auth = ("--auth-local=scram-sha-256", "--auth-host=scram-sha-256")
        step(home, who, initdb, "-D", str(fresh), *options, *auth)
    single = ("--single", "-F", "-D", str(fresh), "-c", "exit_on_error=on", "template1")
    step(home, who, postgres, *single, text=f"create database {DATABASE}\n")
    with appending(fresh / "postgresql.conf") as conf:
        conf.write(b"\ninclude_if_exists = '../penstock.conf'\n")
    step(home, who, initdb, "--sync-only", "-D", str(fresh))
    write(home / "pgpass", f"*:*:*:{ROLE}:{password}\n")
    fresh.rename(place / "data")
    sync(place)


def step(home: Path, who: Identity, *command: str, text: str | None = None) -> None:
    with open_log(home) as log:
        mark = log.tell()
        if who.run(*command, text=text, log=log).returncode:
            said = said_since(log, mark)
            raise ConfigError(f"{Path(command[0]).name} could not make a new database:\n{said}")


def sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def version(data: Path) -> int:
    return int((data / "PG_VERSION").read_text())


def check_version(data: Path, major: int, binaries: Path) -> None:
    if (made_by := version(data)) != major:
        raise ConfigError(
            f"{data} was made by PostgreSQL {made_by}, but the binaries in {binaries} are PostgreSQL {major}",
            hint=f"set PENSTOCK_PG_BIN to the bin directory of a PostgreSQL {made_by}, use another PENSTOCK_HOME, "
            "or carry the data over with pg_dump or pg_upgrade",
        )
