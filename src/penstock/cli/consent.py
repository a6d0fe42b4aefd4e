"""What can not be undone is asked about: of a person on a terminal, or by --yes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock.errors import ValidationError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where there is no terminal.")]


def check_consent(*, yes: bool, dry_run: bool) -> None:
    """Before anything is done: if nobody can be asked, --yes must be there."""
    if not (yes or dry_run or (sys.stdin.isatty() and sys.stderr.isatty())):
        raise ValidationError(
            "yes: this can not be undone, and there is no terminal to ask on",
            hint="Say --yes, or look with --dry-run first.",
            field="yes",
        )


def ask(question: str) -> None:
    """Goes on after a yes. On standard error: standard output is for the answer."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        sys.stderr.write("nothing is changed\n")
        raise typer.Exit(1)
