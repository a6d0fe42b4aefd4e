"""`penstock psql` starts PostgreSQL's own shell on the same database."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock import embedded
from penstock.cli.terminal.options import VERBOSE, Debug, Dsn, connect
from penstock.client.conninfo import check_dsn
from penstock.errors import ConfigError

# libpq's variable for a part of a DSN is PG and the name of the part, with these exceptions.
VARIABLES = {"dbname": "PGDATABASE", "application_name": "PGAPPNAME", "connect_timeout": "PGCONNECT_TIMEOUT"}
# A service overrides variables, but not these options.
FLAGS = {"host": "--host", "port": "--port", "user": "--username", "dbname": "--dbname"}


def psql(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="Arguments for psql itself.", show_default=False)
    ] = None,
    *,
    dsn: Dsn = None,
    verbose: Annotated[bool, typer.Option("--verbose", help=VERBOSE)] = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Open psql on the database: the embedded server's own psql, or the one on PATH. The exit code is psql's.

    Penstock reads its long options (--dsn, --verbose, --debug, --help) and passes all other options to psql. So -h and
    -v have their meaning in psql. Everything after `--` goes to psql.

    Example: penstock psql -v ON_ERROR_STOP=1 -c "select * from penstock.status()"
    """
    with connect(dsn, verbose=verbose) as penstock:
        found = penstock.dsn
    program = find_psql(found)
    parts = check_dsn(found)
    sys.stdout.flush()
    sys.stderr.flush()
    command = [program, *make_flags(parts), *(arguments or ())]
    os.execve(program, command, make_environment(parts, os.environ))  # noqa: S606 - psql replaces this process


def find_psql(dsn: str) -> str:
    server = embedded.Server.running(embedded.home(os.environ))
    own = server.binaries / "psql" if server is not None and server.dsn == dsn else None
    if own is not None and os.access(own, os.X_OK):
        return str(own)
    found = shutil.which("psql")
    if found is None:
        raise ConfigError("psql is not found", hint="Install PostgreSQL's client, or put its psql on PATH.")
    return str(Path(found).absolute())


def make_environment(parts: Mapping[str, Any], inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns psql's environment. It holds the password, since every user of this machine can read a command line."""
    # A service that is set for other programs would override the DSN.
    base = {name: value for name, value in inherited.items() if not (parts and name == "PGSERVICE")}
    return base | {name_variable(name): str(value) for name, value in parts.items()}


def name_variable(part: str) -> str:
    return VARIABLES.get(part) or "PG" + part.replace("_", "").upper()


def make_flags(parts: Mapping[str, Any]) -> list[str]:
    if "service" not in parts:
        return []
    return [f"{flag}={parts[name]}" for name, flag in FLAGS.items() if name in parts]
