"""`penstock up`, `down` and `init`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from penstock import embedded, migrate
from penstock.app import Penstock
from penstock.cli.terminal.options import AsJson, Debug, Quiet, Shell, with_shell
from penstock.cli.terminal.output import print_interrupted, print_json, print_line


def up(json: AsJson = False, quiet: Quiet = False, debug: Debug = False) -> None:  # noqa: ARG001 - read by main
    """Start the embedded PostgreSQL of this directory ($PENSTOCK_HOME, or ./.penstock), and run `init` on it.

    Example: penstock up
    """
    home = embedded.home(os.environ)
    try:
        server = embedded.Server.start(home, environ=os.environ)
        with Penstock(server.dsn) as penstock:
            applied = penstock.init()
    except KeyboardInterrupt:
        runs = embedded.Server.running(home) is not None
        print_interrupted(f"PostgreSQL runs in {home}: `penstock down` stops it" if runs else "")
        raise
    if json:
        print_json(
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
    print_line(f"PostgreSQL {server.version} is up in {server.home}", quiet=quiet)
    print_line(f"  dsn  {server.dsn}", quiet=quiet)
    print_line("  stop it with `penstock down`", quiet=quiet)


def down(json: AsJson = False, quiet: Quiet = False, debug: Debug = False) -> None:  # noqa: ARG001 - read by main
    """Stop the embedded PostgreSQL of this directory. Its data stays.

    Example: penstock down
    """
    home = embedded.home(os.environ)
    server = embedded.Server.running(home)
    if server is not None:
        server.stop()
    if json:
        print_json({"home": str(home), "stopped": server is not None})
    else:
        print_line(f"PostgreSQL in {home} is {'stopped' if server else 'not running'}", quiet=quiet)


@with_shell
def init(
    shell: Shell,
    *,
    plan: Annotated[bool, typer.Option("--plan", help="Print what would be applied, but change nothing.")] = False,
    sql: Annotated[bool, typer.Option("--sql", help="Print the whole schema as SQL. It needs no database.")] = False,
    no_roles: Annotated[
        bool, typer.Option("--no-roles", help="Create no roles, if you may not create any or have your own.")
    ] = False,
) -> None:
    """Create the schema `penstock`, or bring it up to date. It is safe to repeat, and to run from many
    processes at once.

    The roles penstock_producer, _worker, _reader and _admin belong to the whole server. They grant the right to call
    the functions of Penstock.

    Example: penstock init --plan
    """
    if sql:
        script = migrate.script(roles=not no_roles)
        if shell.json:
            print_json({"sql": script})
        else:
            print_line(script)
        return
    with shell.connect() as penstock:
        steps = penstock.plan(roles=not no_roles) if plan else penstock.init(roles=not no_roles)
    said = f"{'would apply' if plan else 'applied'}: {', '.join(steps)}"
    shell.answer({"planned" if plan else "applied": steps}, said if steps else "the schema is up to date")
