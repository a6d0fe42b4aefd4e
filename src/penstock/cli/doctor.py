"""`penstock doctor`."""

from __future__ import annotations

import os
from collections import Counter
from itertools import groupby
from typing import Annotated, Any

import typer

from penstock.cli.options import Shell, with_shell
from penstock.cli.output import emit, many, say
from penstock.database import Database
from penstock.doctor import Finding, examine

SIGNS = {"ok": "✓", "info": "i", "warning": "!", "error": "✗"}


@with_shell
def doctor(
    shell: Shell,
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out what reads whole tables: the recount, unknown kinds.")
    ] = False,
) -> None:
    """Look at the connection, the schema, the server, our tables, queues and books, and say what to do.

    Changes nothing. Exit 1 when anything is an error.

    Example: penstock doctor --quick
    """
    with shell.connected() as penstock:
        database = Database(penstock.dsn, source=penstock.dsn_source)
    findings = examine(database, environ=os.environ, quick=quick)
    healthy = all(one.level != "error" for one in findings)
    if shell.json:
        emit({"ok": healthy, "findings": [as_json(one) for one in findings]})
    else:
        print_findings([one for one in findings if one.level == "error" or not shell.quiet])
        say(summary(findings), quiet=shell.quiet)
    if not healthy:
        raise typer.Exit(1)


def print_findings(findings: list[Finding]) -> None:
    for group, members in groupby(findings, key=lambda one: one.group):
        say(group)
        for one in members:
            say(f"  {SIGNS[one.level]} {one.level:<7}  {one.check}: {printable(one.what)}")
            if one.fix is not None:
                say(f"             {printable(one.fix)}")


def summary(findings: list[Finding]) -> str:
    counts = Counter(one.level for one in findings)
    problems = (many(counts["warning"], "warning"), many(counts["error"], "error"))
    return ", ".join((f"{counts['ok']} ok", f"{counts['info']} info", *problems))


def printable(text: str) -> str:
    """Names of roles, indexes and transactions are anybody's: none of them shall command the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def as_json(one: Finding) -> dict[str, Any]:
    return {
        "check": one.check,
        "level": one.level,
        "what": one.what,
        "fix": one.fix,
        "numbers": dict(one.numbers),
    }
