"""`penstock up`, `down` and `init`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from penstock import embedded, migrate
from penstock.app import Penstock
from penstock.cli.terminal.options import AsJson, Debug, Quiet, Shell, with_shell
from penstock.cli.terminal.output import print_interrupted, print_json, print_line
from penstock.errors import ValidationError
from penstock.revisions import find_revision


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
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="VERSION",
            help="With --sql: print only what a database at this version lacks. A version is a revision, as `penstock "
            "doctor` prints it, or a release of Penstock.",
            show_default=False,
        ),
    ] = None,
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
    if since is not None and not sql:
        raise ValidationError("from: without --sql there is nothing to print", hint="Add --sql.", field="from")
    if sql:
        script = migrate.script(roles=not no_roles, since=find_revision(since) if since is not None else None)
        if shell.json:
            print_json({"sql": script})
        else:
            print_line(script)
        return
    with shell.connect() as penstock:
        act = migrate.find_upgrade if plan else migrate.upgrade
        found = act(penstock.dsn, penstock.dsn_source, roles=not no_roles)
    answer: dict[str, object] = {"planned" if plan else "applied": found.steps}
    if found.newer:
        answer["newer"] = found.newer
    shell.answer(answer, describe_upgrade(found, "would apply" if plan else "applied"))


def describe_upgrade(found: migrate.Upgrade, verb: str) -> str:
    """Returns what `init` did, or would do, in words."""
    if found.steps:
        return f"{verb}: {', '.join(found.steps)}"
    if found.newer:
        return f"the schema is left as it is: it {found.newer}"
    return "the schema is up to date"
