"""`penstock web` serves the dashboard."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.terminal.options import Shell, with_shell
from penstock.cli.terminal.output import print_json, print_line
from penstock.errors import ValidationError, shown

SECRET = "PENSTOCK_WEB_SECRET"  # noqa: S105 - the name of a variable


@with_shell
def web(
    shell: Shell,
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)] = 8080,
    auth: Annotated[
        str | None,
        typer.Option(
            help="How visitors log in: basic, token or proxy. Without it, and only on this machine, a random token "
            "is printed with the address.",
            show_default=False,
        ),
    ] = None,
    users: Annotated[
        Path | None,
        typer.Option(
            help="A file with a line name:level:secret for each user, which only its owner may read.",
            show_default=False,
        ),
    ] = None,
    level: Annotated[
        str,
        typer.Option(
            help="What the printed token may do, and users that only a proxy knows: none, reader, operator or admin."
        ),
    ] = "reader",
    proxy_header: Annotated[
        str, typer.Option(help="With --auth proxy: the header in which the proxy names the user.")
    ] = "X-Forwarded-User",
    root_path: Annotated[
        str, typer.Option(help="The path below which a proxy serves the dashboard, as /queues.", show_default=False)
    ] = "",
    host_name: Annotated[
        list[str] | None,
        typer.Option(help="A name of this server that requests may use; repeat it.", show_default=False),
    ] = None,
    hide: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND:PATH",
            help="A value of payloads that is never shown, as charge:card.number or *:*.token; repeat it.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve the dashboard: promises, queues, tasks, failures, workers and schedules, live, in a browser.

    On this machine it needs nothing: open the address that it prints. To be reached from elsewhere it needs --auth, and
    a proxy with TLS before it. What a visitor may do is a right of the PostgreSQL roles penstock_reader,
    penstock_operator and penstock_admin, of which the login has to be a member.

    PENSTOCK_WEB_SECRET signs the sessions. Set it if several servers serve the same visitors, or if sessions are to
    survive a restart.

    Example: penstock web --port 8080

    Example: penstock web --host 0.0.0.0 --auth token --users /etc/penstock/users
    """
    from penstock.web.access import check_level  # noqa: PLC0415 - the extra `web` may not be installed
    from penstock.web.server import Options, serve  # noqa: PLC0415

    secret = os.environ.get(SECRET)
    options = Options(
        host=host,
        port=port,
        auth=auth,
        users=users,
        level=check_level(level, "level"),
        proxy_header=proxy_header,
        root_path=check_root_path(root_path),
        hosts=tuple(host_name or ()),
        hide=parse_hidden(hide or []),
        secret=None if secret is None else secret.encode(),
    )

    def announce(address: str) -> None:
        if shell.json:
            print_json({"address": address})
        else:
            print_line(f"dashboard: {address}", quiet=shell.quiet)

    with shell.connect() as penstock:
        serve(penstock, options, announce)


def check_root_path(value: str) -> str:
    """Checks the path below which the dashboard is served."""
    found = value.rstrip("/")
    if found and not found.startswith("/"):
        raise ValidationError(f"root-path: {shown(value)} does not begin with /", field="root_path")
    return found


def parse_hidden(given: list[str]) -> dict[str, list[str]]:
    """Reads values such as `charge:card.number`."""
    found: dict[str, list[str]] = {}
    for one in given:
        kind, colon, path = one.rpartition(":")
        if not colon or not kind or not path:
            raise ValidationError(f"hide: {shown(one)} is not KIND:PATH, as charge:card.number", field="hide")
        found.setdefault(kind, []).append(path)
    return found
