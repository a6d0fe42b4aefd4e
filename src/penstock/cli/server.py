"""`penstock up`, `down`, `init`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from penstock import embedded, migrate
from penstock.app import Penstock
from penstock.cli.options import AsJson, Debug, Quiet, Shell, with_shell
from penstock.cli.output import emit, interrupted, say


def up(json: AsJson = False, quiet: Quiet = False, debug: Debug = False) -> None:  # noqa: ARG001 - read by main
    """Start the embedded PostgreSQL of this directory ($PENSTOCK_HOME, else ./.penstock), and run init on it.

    Example: penstock up
    """
    home = embedded.home(os.environ)
    try:
        server = embedded.Server.start(home, environ=os.environ)
        with Penstock(server.dsn) as penstock:
            applied = penstock.init()
    except KeyboardInterrupt:
        runs = embedded.Server.running(home) is not None
        interrupted(f"PostgreSQL runs in {home}: `penstock down` stops it" if runs else "")
        raise
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


def down(json: AsJson = False, quiet: Quiet = False, debug: Debug = False) -> None:  # noqa: ARG001 - read by main
    """Stop the embedded PostgreSQL of this directory. Its data stays.

    Example: penstock down
    """
    home = embedded.home(os.environ)
    server = embedded.Server.running(home)
    if server is not None:
        server.stop()
    if json:
        emit({"home": str(home), "stopped": server is not None})
    else:
        say(f"PostgreSQL in {home} is {'stopped' if server else 'not running'}", quiet=quiet)


@with_shell
def init(
    shell: Shell,
    *,
    plan: Annotated[bool, typer.Option("--plan", help="Say what would be applied, change nothing.")] = False,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the whole schema as SQL, change nothing; needs no database.")
    ] = False,
    no_roles: Annotated[
        bool, typer.Option("--no-roles", help="Create no roles: for those who may not, or have their own.")
    ] = False,
) -> None:
    """Create the schema `penstock`, or bring it up to date. Safe to repeat, and to run from many processes at once.

    Roles (penstock_producer, _worker, _reader, _admin) belong to the whole server; they say who may call what.

    Example: penstock init --plan
    """
    if sql:
        script = migrate.script(roles=not no_roles)
        if shell.json:
            emit({"sql": script})
        else:
            say(script)
        return
    with shell.connected() as penstock:
        steps = penstock.plan(roles=not no_roles) if plan else penstock.init(roles=not no_roles)
    said = f"{'would apply' if plan else 'applied'}: {', '.join(steps)}"
    shell.answer({"planned" if plan else "applied": steps}, said if steps else "the schema is up to date")
