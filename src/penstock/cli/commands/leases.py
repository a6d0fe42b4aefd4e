"""`penstock claim` and `penstock settle`, for a worker made of shell commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from penstock import validate
from penstock.cli.terminal.formatting import format_cell, format_json_line, to_iso
from penstock.cli.terminal.options import DryRun, QueueName, Shell, check_one_of, parse_json, parse_moment, with_shell
from penstock.cli.terminal.output import print_json, print_line, print_table
from penstock.errors import LeaseLost, PayloadError, ValidationError
from penstock.formatting import format_time
from penstock.model import Claim, Outcome

# The options that each outcome accepts.
ALLOWED_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "done": (),
    "again": ("due", "delay", "payload"),
    "failed": ("error", "delay"),
    "dead": ("error",),
    "release": ("delay",),
}


@with_shell
def claim(
    shell: Shell,
    queue: QueueName,
    *,
    limit: Annotated[int, typer.Option(help="The largest number of tasks.")] = 1,
    lease: Annotated[
        str | None,
        typer.Option(
            help="How long the tasks are yours, as 30s or 5m; default: the queue's lease.", show_default=False
        ),
    ] = None,
    worker: Annotated[str, typer.Option(help="The name of the worker, for history.")] = "shell",
    dry_run: DryRun = False,
) -> None:
    """Claim tasks. They are yours until the lease ends, and you settle them with its token.

    If there are no tasks, the exit code is 0 and there is no token.

    Example: penstock claim mail --limit 10 --lease 5m --json
    """
    with shell.connect(rehearse=dry_run) as penstock:
        target = penstock.queue(queue)
        claimed = target.claim(limit, lease=lease, worker=worker)
        if dry_run:
            print_claim(shell, replace(claimed, token=None, until=None))
            return
        try:
            print_claim(shell, claimed)
        except BaseException:
            # The token was not printed, so the tasks could not be settled before the lease ends.
            target.release(claimed)
            raise


@with_shell
def settle(
    shell: Shell,
    queue: QueueName,
    token: Annotated[str, typer.Argument(help="The token of the lease, from `penstock claim`.")],
    ids: Annotated[list[int], typer.Argument(metavar="ID", help="Tasks of the lease.")],
    *,
    outcome: Annotated[str, typer.Option(help="How the tasks ended: done, again, failed, dead or release.")] = "done",
    due: Annotated[
        str | None, typer.Option(help="again: the next due moment, as 2030-01-31T06:00:00Z.", show_default=False)
    ] = None,
    delay: Annotated[
        str | None, typer.Option(help="again, failed, release: how long to wait, as 5m.", show_default=False)
    ] = None,
    error: Annotated[str | None, typer.Option(help="failed, dead: what went wrong.", show_default=False)] = None,
    payload: Annotated[
        str | None, typer.Option(help="again: the payload of the next run, a JSON object.", show_default=False)
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Settle claimed tasks, and print the new state of each. Exits with 1 if the lease is lost.

    done: the task succeeded. again: it succeeded, and runs again. failed: the queue's strategy decides when it is tried
    again. dead: it is not tried again. release: it goes back as it was, and no attempt is counted.

    Example: penstock settle mail 0d7cdb5c-8a1e-4c7b-9d4e-6a2f0c1b9e55 42 --outcome failed --error "no route to host"
    """
    parsed = parse_outcome(outcome, due=due, delay=delay, error=error, payload=payload)
    outcomes = dict.fromkeys(validate.ids(ids), parsed)
    lease = validate.token(token)
    with shell.connect(rehearse=dry_run) as penstock:
        target = penstock.queue(queue)
        target.status()  # raises for a missing queue, which a settle does not notice
        try:
            settled = target.settle(lease, outcomes)
        except LeaseLost as lost:
            raise LeaseLost(
                lost.message, refused=lost.refused, revoked=lost.revoked, hint=name_unsettled(lost)
            ) from None
    by_id = {str(id_): state for id_, state in sorted(settled.items())}
    answer = {"would": by_id, "dry_run": True} if dry_run else {"settled": by_id}
    shell.answer(answer, "\n".join(f"{id_}: {state}" for id_, state in by_id.items()))


def print_claim(shell: Shell, claimed: Claim) -> None:
    if shell.json:
        print_json(claim_json(claimed))
    elif not claimed:
        print_line("no tasks", quiet=shell.quiet)
    elif not shell.quiet:
        print_line(f"token {claimed.token}, until {format_time(claimed.until)}" if claimed.token else "would be yours:")
        print_table(
            ("id", "kind", "subject", "priority", "attempt", "due", "payload"),
            [
                (
                    str(task.id),
                    format_cell(task.kind),
                    format_cell(task.subject),
                    str(task.priority),
                    str(task.attempt),
                    format_time(task.due),
                    format_cell(format_json_line(task.payload)),
                )
                for task in claimed.tasks
            ],
            words=("kind", "subject", "payload"),
        )


def claim_json(claimed: Claim) -> dict[str, Any]:
    return {
        "token": str(claimed.token) if claimed.token else None,
        "until": to_iso(claimed.until),
        "tasks": [
            {
                "id": task.id,
                "kind": task.kind,
                "subject": task.subject,
                "payload": task.payload,
                "priority": task.priority,
                "attempt": task.attempt,
                "iterations": task.iterations,
                "due": to_iso(task.due),
                "created": to_iso(task.created),
            }
            for task in claimed.tasks
        ],
    }


def parse_outcome(word: str, **given: str | None) -> Outcome:
    """Builds an outcome, and refuses options that it does not accept."""
    check_one_of(word, tuple(ALLOWED_OPTIONS), "outcome")
    strange = [name for name, value in given.items() if value is not None and name not in ALLOWED_OPTIONS[word]]
    if strange:
        allowed = ", ".join(f"--{name}" for name in ALLOWED_OPTIONS[word]) or "nothing else"
        raise ValidationError(
            f"{strange[0]}: --{strange[0]} cannot be given with the outcome {word}",
            hint=f"It accepts {allowed}.",
            field=strange[0],
        )
    if given["due"] is not None and given["delay"] is not None:
        raise ValidationError("due: --due cannot be combined with --delay", field="due")
    return Outcome(
        word,
        due=parse_moment(given["due"], "due"),
        delay=validate.delay(given["delay"]),
        payload=parse_payload(given["payload"]),
        error=given["error"],  # a long text is cut, never refused
    )


def parse_payload(given: str | None) -> dict[str, Any] | None:
    if given is None:
        return None
    try:
        value = parse_json(given.encode("utf-8", "surrogateescape"))
    except PayloadError as error:
        raise PayloadError(f"payload: {error.bare}", field="payload") from None
    validate.payload(value, validate.MAX_PAYLOAD)
    return dict(value)


def name_unsettled(lost: LeaseLost) -> str:
    refused = [str(id_) for id_ in sorted(lost.refused)]
    revoked = [f"{id_} (cancelled)" for id_ in sorted(lost.revoked)]
    return f"Not settled: {', '.join(refused + revoked)}. The others are settled."
