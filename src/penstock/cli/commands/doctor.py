"""`penstock doctor` prints problems of a database, and how to fix them."""

from __future__ import annotations

import os
from collections import Counter
from itertools import groupby
from typing import Annotated, Any

import typer

from penstock.cli.terminal.formatting import escape
from penstock.cli.terminal.options import Shell, with_shell
from penstock.cli.terminal.output import print_json, print_line
from penstock.client.database import Database
from penstock.doctor import Finding, examine
from penstock.formatting import format_count

SIGNS = {"ok": "✓", "info": "i", "warning": "!", "error": "✗"}


@with_shell
def doctor(
    shell: Shell,
    *,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Leave out the checks that read whole tables: the recount and unknown kinds."),
    ] = False,
) -> None:
    """Check the connection, the schema, the server, the tables, the queues and the counters, and print how to
    fix what is wrong.

    It changes nothing. It exits with 1 if any finding is an error.

    Example: penstock doctor --quick
    """
    with shell.connect() as penstock:
        database = Database(penstock.dsn, source=penstock.dsn_source)
    findings = examine(database, environ=os.environ, quick=quick)
    healthy = all(one.level != "error" for one in findings)
    if shell.json:
        print_json({"ok": healthy, "findings": [finding_json(one) for one in findings]})
    else:
        print_findings([one for one in findings if one.level == "error" or not shell.quiet])
        print_line(format_summary(findings), quiet=shell.quiet)
    if not healthy:
        raise typer.Exit(1)


def print_findings(findings: list[Finding]) -> None:
    for group, members in groupby(findings, key=lambda one: one.group):
        print_line(group)
        for one in members:
            print_line(f"  {SIGNS[one.level]} {one.level:<7}  {one.check}: {escape(one.what)}")
            if one.fix is not None:
                print_line(f"             {escape(one.fix)}")


def format_summary(findings: list[Finding]) -> str:
    counts = Counter(one.level for one in findings)
    problems = (format_count(counts["warning"], "warning"), format_count(counts["error"], "error"))
    return ", ".join((f"{counts['ok']} ok", f"{counts['info']} info", *problems))


def finding_json(one: Finding) -> dict[str, Any]:
    return {
        "check": one.check,
        "level": one.level,
        "what": one.what,
        "fix": one.fix,
        "numbers": dict(one.numbers),
    }
