"""`penstock up`, `down`, `init`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from penstock import embedded, migrate
from penstock.app import Penstock
from penstock.cli.output import AsJson, Debug, Dsn, Quiet, Verbose, connected, emit, say


def up(json: AsJson = False, quiet: Quiet = False, debug: Debug = False) -> None:  # noqa: ARG001
    """Start the embedded PostgreSQL of this directory ($PENSTOCK_HOME, else ./.penstock), and run init on it."""
    server = embedded.Server.start(embedded.home(os.environ), environ=os.environ)
    with Penstock(server.dsn) as penstock:
        applied = penstock.init()
    if json:
        emit(
            {
                "dsn": server.dsn,
                "dsn_tcp": server.dsn_tcp,
                "home": str(server.home),
                "pid": server.pid,
                "version": server.version,
                "applied": applied,
            }
        )
        return
    say(f"PostgreSQL {server.version} is up in {server.home}", quiet=quiet)
    say(f"  dsn  {server.dsn}", quiet=quiet)
    say("  stop it with `penstock down`", quiet=quiet)


def down(json: AsJson = False, quiet: Quiet = False, debug: Debug = False) -> None:  # noqa: ARG001
    """Stop the embedded PostgreSQL of this directory. Its data stays."""
    home = embedded.home(os.environ)
    server = embedded.Server.running(home)
    if server is not None:
        server.stop()
    if json:
        emit({"home": str(home), "stopped": server is not None})
    else:
        say(f"PostgreSQL in {home} is {'stopped' if server else 'not running'}", quiet=quiet)


def init(
    *,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be applied, change nothing.")] = False,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the whole schema as SQL, change nothing; needs no database.")
    ] = False,
    json: AsJson = False,
    quiet: Quiet = False,
    dsn: Dsn = None,
    verbose: Verbose = False,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Create the schema `penstock`, or bring it up to date. Safe to repeat, and to run from many processes at once."""
    if sql:
        say(migrate.script())
        return
    with connected(dsn, verbose=verbose) as penstock:
        steps = penstock.plan() if plan else penstock.init()
    if json:
        emit({"planned" if plan else "applied": steps})
    elif not steps:
        say("the schema is up to date", quiet=quiet)
    else:
        say(f"{'would apply' if plan else 'applied'}: {', '.join(steps)}", quiet=quiet)
