"""`penstock psql`: PostgreSQL's own shell, on the same database."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock import embedded
from penstock.cli.options import Debug, Dsn, Verbose, connected
from penstock.errors import ConfigError
from penstock.wire import check_dsn

# libpq's variable for a part of a DSN is PG and its name, but for these.
VARIABLES = {"dbname": "PGDATABASE", "application_name": "PGAPPNAME", "connect_timeout": "PGCONNECT_TIMEOUT"}
# What a service says goes before variables, but not before these.
FLAGS = {"host": "--host", "port": "--port", "user": "--username", "dbname": "--dbname"}


def psql(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="For psql itself.", show_default=False)
    ] = None,
    *,
    dsn: Dsn = None,
    verbose: Verbose = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Open psql on the database: the embedded server's own, or the one on PATH. The exit code is psql's.

    Example: penstock psql -- -c "select * from penstock.status()"
    """
    with connected(dsn, verbose=verbose) as penstock:
        found = penstock.dsn
    program = find_psql(found)
    parts = check_dsn(found)
    sys.stdout.flush()
    sys.stderr.flush()
    command = [program, *flags(parts), *(arguments or ())]
    os.execve(program, command, environment(parts, os.environ))  # noqa: S606 - it takes our place


def find_psql(dsn: str) -> str:
    server = embedded.Server.running(embedded.home(os.environ))
    own = server.binaries / "psql" if server is not None and server.dsn == dsn else None
    if own is not None and os.access(own, os.X_OK):
        return str(own)
    found = shutil.which("psql")
    if found is None:
        raise ConfigError("no psql is found", hint="Install PostgreSQL's client, or put its psql on PATH.")
    return str(Path(found).absolute())


def environment(parts: Mapping[str, Any], inherited: Mapping[str, str]) -> dict[str, str]:
    """Where to connect, password included: a command line could be read by everybody on this machine."""
    # A service that somebody set for other programs would win over the DSN.
    base = {name: value for name, value in inherited.items() if not (parts and name == "PGSERVICE")}
    return base | {variable(name): str(value) for name, value in parts.items()}


def variable(part: str) -> str:
    return VARIABLES.get(part) or "PG" + part.replace("_", "").upper()


def flags(parts: Mapping[str, Any]) -> list[str]:
    if "service" not in parts:
        return []
    return [f"{flag}={parts[name]}" for name, flag in FLAGS.items() if name in parts]
