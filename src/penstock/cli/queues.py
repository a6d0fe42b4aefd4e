"""`penstock queues …`"""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import retry as strategies
from penstock.cli.output import AsJson, Debug, DryRun, Dsn, Quiet, Verbose, age, connected, emit, say, table
from penstock.errors import ValidationError
from penstock.model import QueueSettings
from penstock.validate import lease as checked_lease
from penstock.validate import positive, queue_name, whole

app = typer.Typer(help="Create and list queues.", no_args_is_help=True)


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="1 to 63 of a-z, 0-9, _ . -")],
    *,
    lease: Annotated[str, typer.Option(help="How long a worker may be silent before its tasks go to others.")] = "30s",
    max_attempts: Annotated[
        str, typer.Option(help="Tries before a task is dead; `none`: the strategy decides.")
    ] = "20",
    retry: Annotated[str, typer.Option(help=strategies.GRAMMAR)] = "exponential:5s,factor=2,cap=1h,jitter=0.1",
    sla: Annotated[
        str | None, typer.Option(help="The promise: no task waits longer than this.", show_default=False)
    ] = None,
    keep_done: Annotated[
        str | None,
        typer.Option(help="Keep done tasks that long; default: they are deleted at once.", show_default=False),
    ] = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="No error if it exists; it is left as it is.")] = False,
    dry_run: DryRun = False,
    json: AsJson = False,
    quiet: Quiet = False,
    dsn: Dsn = None,
    verbose: Verbose = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Create a queue.

    Example: penstock queues create mail --sla 30s --lease 30s --max-attempts 5 --retry fibonacci:1m
    """
    strategy = strategies.parse(retry)
    attempts = None if max_attempts == "none" else whole(number(max_attempts), "max_attempts", 1, 32767)
    queue_name(name)
    checked_lease(lease)
    if sla is not None:
        positive(sla, "sla")
    if keep_done is not None:
        positive(keep_done, "keep_done")
    if dry_run:
        say(f"queue {name} would be created", quiet=quiet or json)
        if json:
            emit({"queue": name, "created": False, "dry_run": True})
        return
    with connected(dsn, verbose=verbose) as penstock:
        before = {one.queue for one in penstock.queues()} if exist_ok else set()
        penstock.create_queue(
            name, lease=lease, max_attempts=attempts, retry=strategy, sla=sla, keep_done=keep_done, exist_ok=exist_ok
        )
    created = name not in before
    if json:
        emit({"queue": name, "created": created})
    else:
        say(f"queue {name} created" if created else f"queue {name} was there already", quiet=quiet)


@app.command("ls")
def ls(
    *,
    json: AsJson = False,
    quiet: Quiet = False,
    dsn: Dsn = None,
    verbose: Verbose = False,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """List the queues and their settings."""
    with connected(dsn, verbose=verbose) as penstock:
        found = penstock.queues()
    if json:
        emit({"queues": [as_json(one) for one in found]})
    elif not quiet:
        table(
            ("queue", "lease", "max attempts", "retry", "sla", "keeps done", "paused"),
            [
                (
                    one.queue,
                    age(one.lease.total_seconds()),
                    "strategy" if one.max_attempts is None else str(one.max_attempts),
                    str(one.retry["type"]),
                    age(one.sla.total_seconds() if one.sla else None),
                    age(one.keep_done.total_seconds() if one.keep_done else None),
                    "paused" if one.paused else "",
                )
                for one in found
            ],
        )


def as_json(one: QueueSettings) -> dict[str, object]:
    return {
        "queue": one.queue,
        "lease": one.lease.total_seconds(),
        "max_attempts": one.max_attempts,
        "retry": dict(one.retry),
        "sla": one.sla.total_seconds() if one.sla else None,
        "keep_done": one.keep_done.total_seconds() if one.keep_done else None,
        "paused": one.paused,
        "created": one.created.isoformat(),
    }


def number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValidationError(f"max_attempts: {text!r} is not a number", hint="Write 1 to 32767, or none.") from None
