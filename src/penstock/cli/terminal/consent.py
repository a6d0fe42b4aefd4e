"""Asks before something that cannot be undone. Without a terminal, --yes is required."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock.errors import ValidationError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Required without a terminal.")]


def check_consent(*, yes: bool, dry_run: bool) -> None:
    """Refuses to begin without a terminal to ask on, unless --yes or --dry-run is given."""
    if not (yes or dry_run or (sys.stdin.isatty() and sys.stderr.isatty())):
        raise ValidationError(
            "yes: this cannot be undone, and there is no terminal to ask on",
            hint="Add --yes, or look with --dry-run first.",
            field="yes",
        )


def ask(question: str) -> None:
    """Asks on standard error, and exits with 1 unless the reply is yes."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        sys.stderr.write("nothing is changed\n")
        raise typer.Exit(1)
