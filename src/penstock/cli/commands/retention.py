"""`penstock retention` shows and sets how long upkeep keeps rows."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.terminal.formatting import to_seconds
from penstock.cli.terminal.options import DryRun, Shell, with_shell
from penstock.cli.terminal.output import print_json, print_table
from penstock.errors import ValidationError
from penstock.formatting import format_length


@with_shell
def retention(
    shell: Shell,
    what: Annotated[
        str | None, typer.Argument(help="history, samples, decisions, ledger, rejects or audit.", show_default=False)
    ] = None,
    keep: Annotated[
        str | None, typer.Argument(help="How long, as 7d, and at least 1d; `none`: for ever.", show_default=False)
    ] = None,
    *,
    dry_run: DryRun = False,
) -> None:
    """Show or set how long upkeep keeps history, samples, decisions, the ledger, rejects and the audit.

    The setting is stored in the database, so the upkeep of every worker and scaler follows it. History that a lake has
    not read yet is kept longer. `penstock queues set` sets how long a queue keeps ended tasks.

    Example: penstock retention history 7d
    """
    if what is not None and keep is None:
        raise ValidationError("keep: no length is given", hint=f"penstock retention {what} 7d", field="keep")
    with shell.connect(rehearse=dry_run) as penstock:
        found = penstock.retentions()
        if what is not None:
            length = None if keep == "none" else keep
            penstock.set_retention(what, length)
            found = found | ({} if dry_run else penstock.retentions())
    if shell.json:
        print_json(
            {"retention": {name: to_seconds(one) for name, one in found.items()}}
            | ({"dry_run": True} if dry_run else {})
        )
    elif not shell.quiet:
        print_table(
            ("what", "kept"),
            [(name, format_length(one) if one is not None else "for ever") for name, one in found.items()],
        )
