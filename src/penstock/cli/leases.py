"""`penstock claim`, `settle`: a worker made of shell commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from penstock import validate
from penstock.cli.options import DryRun, QueueName, Shell, json_value, moment, one_of, with_shell
from penstock.cli.output import cell, clock, compact, emit, iso, say, table
from penstock.errors import LeaseLost, PayloadError, ValidationError
from penstock.model import Claim, Outcome

# What an outcome may be told with.
WITH: Mapping[str, tuple[str, ...]] = {
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
    limit: Annotated[int, typer.Option(help="At most so many.")] = 1,
    lease: Annotated[
        str | None,
        typer.Option(help="How long they are yours, as 30s or 5m; default: the queue's.", show_default=False),
    ] = None,
    worker: Annotated[str, typer.Option(help="Your name, for the history.")] = "shell",
    dry_run: DryRun = False,
) -> None:
    """Take tasks to work on. They are yours until the lease ends; its token proves it to `penstock settle`.

    No tasks is no error: exit 0, and no token.

    Example: penstock claim mail --limit 10 --lease 5m --json
    """
    with shell.connected(rehearse=dry_run) as penstock:
        target = penstock.queue(queue)
        claimed = target.claim(limit, lease=lease, worker=worker)
        if dry_run:
            print_claim(shell, replace(claimed, token=None, until=None))
            return
        try:
            print_claim(shell, claimed)
        except BaseException:
            # Nobody saw the token: the tasks would be lost to others until the lease ends.
            target.release(claimed)
            raise


@with_shell
def settle(
    shell: Shell,
    queue: QueueName,
    token: Annotated[str, typer.Argument(help="The lease, as `penstock claim` told it.")],
    ids: Annotated[list[int], typer.Argument(metavar="ID", help="Tasks of the lease.")],
    *,
    outcome: Annotated[str, typer.Option(help="What became of them: done, again, failed, dead or release.")] = "done",
    due: Annotated[
        str | None, typer.Option(help="again: at this moment, as 2030-01-31T06:00:00Z.", show_default=False)
    ] = None,
    delay: Annotated[
        str | None, typer.Option(help="again, failed, release: after so long, as 5m.", show_default=False)
    ] = None,
    error: Annotated[str | None, typer.Option(help="failed, dead: what went wrong.", show_default=False)] = None,
    payload: Annotated[
        str | None, typer.Option(help="again: the payload of the next run, a JSON object.", show_default=False)
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Say what became of claimed tasks, and hear the state each is in now. Exit 1 when the lease is lost.

    done: it succeeded. again: it did, and shall run again. failed: the queue's strategy decides when it is tried again.
    dead: it never shall be. release: put back as it was, no attempt burned.

    Example: penstock settle mail 0d7cdb5c-8a1e-4c7b-9d4e-6a2f0c1b9e55 42 --outcome failed --error "no route to host"
    """
    told = told_outcome(outcome, due=due, delay=delay, error=error, payload=payload)
    outcomes = dict.fromkeys(validate.ids(ids), told)
    lease = validate.token(token)
    with shell.connected(rehearse=dry_run) as penstock:
        target = penstock.queue(queue)
        target.status()  # a token alone would not tell that there is no such queue
        try:
            settled = target.settle(lease, outcomes)
        except LeaseLost as lost:
            raise LeaseLost(lost.message, refused=lost.refused, revoked=lost.revoked, hint=which(lost)) from None
    by_id = {str(id_): state for id_, state in sorted(settled.items())}
    answer = {"would": by_id, "dry_run": True} if dry_run else {"settled": by_id}
    shell.answer(answer, "\n".join(f"{id_}: {state}" for id_, state in by_id.items()))


def print_claim(shell: Shell, claimed: Claim) -> None:
    if shell.json:
        emit(claim_json(claimed))
    elif not claimed:
        say("no tasks", quiet=shell.quiet)
    elif not shell.quiet:
        say(f"token {claimed.token}, until {clock(claimed.until)}" if claimed.token else "would be yours:")
        table(
            ("id", "kind", "subject", "priority", "attempt", "due", "payload"),
            [
                (
                    str(task.id),
                    cell(task.kind),
                    cell(task.subject),
                    str(task.priority),
                    str(task.attempt),
                    clock(task.due),
                    cell(compact(task.payload)),
                )
                for task in claimed.tasks
            ],
            words=("kind", "subject", "payload"),
        )


def claim_json(claimed: Claim) -> dict[str, Any]:
    return {
        "token": str(claimed.token) if claimed.token else None,
        "until": iso(claimed.until),
        "tasks": [
            {
                "id": task.id,
                "kind": task.kind,
                "subject": task.subject,
                "payload": task.payload,
                "priority": task.priority,
                "attempt": task.attempt,
                "iterations": task.iterations,
                "due": iso(task.due),
                "created": iso(task.created),
            }
            for task in claimed.tasks
        ],
    }


def told_outcome(word: str, **given: str | None) -> Outcome:
    """An outcome, and only what belongs to it."""
    one_of(word, tuple(WITH), "outcome")
    strange = [name for name, value in given.items() if value is not None and name not in WITH[word]]
    if strange:
        allowed = ", ".join(f"--{name}" for name in WITH[word]) or "nothing else"
        raise ValidationError(
            f"{strange[0]}: the outcome {word} has none", hint=f"It is told with {allowed}.", field=strange[0]
        )
    if given["due"] is not None and given["delay"] is not None:
        raise ValidationError("due: give either --due or --delay", field="due")
    return Outcome(
        word,
        due=moment(given["due"], "due"),
        delay=validate.delay(given["delay"]),
        payload=told_payload(given["payload"]),
        error=given["error"],  # cut, never refused
    )


def told_payload(given: str | None) -> dict[str, Any] | None:
    if given is None:
        return None
    try:
        value = json_value(given.encode("utf-8", "surrogateescape"))
    except PayloadError as error:
        raise PayloadError(f"payload: {error.bare}", field="payload") from None
    validate.payload(value, validate.LARGEST_EVER)
    return dict(value)


def which(lost: LeaseLost) -> str:
    refused = [str(id_) for id_ in sorted(lost.refused)]
    revoked = [f"{id_} (cancelled)" for id_ in sorted(lost.revoked)]
    return f"Not settled: {', '.join(refused + revoked)}. The others, if any, are."
