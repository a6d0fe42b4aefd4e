"""`penstock work` and `penstock drain`: workers."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, Any

import typer

from penstock import validate
from penstock.cli.options import QueueName, Shell, moment, one_of, text, with_shell
from penstock.cli.output import many, progress_bar, say
from penstock.errors import ValidationError, shown
from penstock.handlers import Registry
from penstock.model import QueueStatus
from penstock.wire import described
from penstock.worker import logs, orders
from penstock.worker.supervisor import Plan, Progress, Report
from penstock.worker.supervisor import work as supervise

Concurrency = Annotated[int, typer.Option("--concurrency", "-c", help="Handlers at once in each process.")]
ProcessCount = Annotated[int, typer.Option("--processes", "-p", help="Processes.")]
MaxTasks = Annotated[int | None, typer.Option(help="A process is replaced after so many tasks.", show_default=False)]
MaxRss = Annotated[
    str | None, typer.Option(help="A process is replaced when it holds more memory: 500M, 2G.", show_default=False)
]
Grace = Annotated[str, typer.Option(help="How long what runs may go on after SIGTERM or Ctrl-C.")]
Health = Annotated[
    str | None,
    typer.Option(help="A liveness probe: a port that answers, or a file written every second.", show_default=False),
]
LogFormat = Annotated[str, typer.Option(help="text or json; default: text on a terminal.", show_default=False)]
RequestedAt = Annotated[str | None, typer.Option(hidden=True, help="When whoever starts this decided to.")]
StartedBy = Annotated[str | None, typer.Option(hidden=True, help="The scaler that started this, and its number there.")]
OwnDsn = Annotated[
    bool, typer.Option("--own-dsn/--given-dsn", hidden=True, help="Whether the application's DSN comes first.")
]


@with_shell
def work(
    shell: Shell,
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the Penstock with the handlers is.")],
    *,
    queues: Annotated[
        str | None,
        typer.Option(
            help="Which queues, with weights: mail,invoices:3; default: all with handlers.", show_default=False
        ),
    ] = None,
    concurrency: Concurrency = 10,
    processes: ProcessCount = 1,
    until_empty: Annotated[bool, typer.Option("--until-empty", help="Stop when nothing is due any more.")] = False,
    max_tasks: MaxTasks = None,
    max_rss: MaxRss = None,
    grace: Grace = "30s",
    health: Health = None,
    log_format: LogFormat = "",
    requested_at: RequestedAt = None,
    started_by: StartedBy = None,
    own_dsn: OwnDsn = True,
) -> None:
    """Run tasks: claim, call their handlers, settle, until stopped.

    SIGTERM and Ctrl-C: nothing new is begun, what runs may finish within --grace, the rest goes back unharmed; a second
    one does not wait. Anything may be killed at any moment: nothing is lost.

    Example: penstock work myproject.tasks:app --queues mail,invoices:3 --concurrency 20 --processes 2
    """
    registry, own = orders.load(app)
    weights = weights_of(queues) if queues is not None else dict.fromkeys(registry.queues(), 1)
    plan = Plan(
        target=app,
        dsn=found_dsn(shell, own if own_dsn else None),
        queues=weights,
        until_empty=until_empty,
        health=health,
        requested_at=moment(requested_at, "requested_at"),
        started_by=text(started_by, "started_by", 200),
        **checked(shell, concurrency, processes, max_tasks, max_rss, grace, log_format),
    )
    report = run(shell, plan, registry)
    finish(shell, report)


@with_shell
def drain(
    shell: Shell,
    queue: QueueName,
    *,
    handler: Annotated[str, typer.Option(metavar="MODULE:FUNCTION", help="What is called for each task.")],
    concurrency: Concurrency = 10,
    processes: ProcessCount = 1,
    max_tasks: MaxTasks = None,
    max_rss: MaxRss = None,
    grace: Grace = "30s",
    log_format: LogFormat = "",
) -> None:
    """Empty one queue with one function, and stop: a progress bar with rate and time left meanwhile.

    The function is called with the payload's keys as named arguments, or with the payload as a whole if its only
    parameter is called `payload`. Tasks that failed and are tried later do not hold it up; the last line counts them.

    Example: penstock drain mail --handler myproject.mail:send --concurrency 20
    """
    registry, own = orders.load(handler, queue)
    plan = Plan(
        target=handler,
        dsn=found_dsn(shell, own),
        queues={validate.queue_name(queue): 1},
        until_empty=True,
        handler_of=queue,
        **checked(shell, concurrency, processes, max_tasks, max_rss, grace, log_format),
    )
    with bar(f"drain {queue}", quiet=shell.quiet or shell.json) as progress:
        report = run(shell, plan, registry, progress)
        progress([], report)
    finish(shell, report)


def checked(  # noqa: PLR0917 - as many as the commands have
    shell: Shell,
    concurrency: int,
    processes: int,
    max_tasks: int | None,
    max_rss: str | None,
    grace: str,
    log_format: str,
) -> dict[str, Any]:
    """The options that both commands have."""
    words = one_of(log_format, ("text", "json"), "log_format") if log_format else None
    return {
        "concurrency": validate.whole(concurrency, "concurrency", 1, 10_000),
        "processes": validate.whole(processes, "processes", 1, 1000),
        "max_tasks": None if max_tasks is None else validate.whole(max_tasks, "max_tasks", 1, 2**31),
        "max_rss": None if max_rss is None else bytes_of(max_rss),
        "grace": grace_of(grace),
        "log_format": words or ("text" if sys.stderr.isatty() else "json"),
        "quiet": shell.quiet,
    }


def weights_of(text: str) -> dict[str, int]:
    """`a,b:3`"""
    found: dict[str, int] = {}
    for part in text.split(","):
        name, colon, weight = part.strip().partition(":")
        if colon and not (weight.isdecimal() and 1 <= int(weight) <= 1000):
            raise ValidationError(
                f"queues: {shown(part)}: a weight is a whole number from 1 to 1000",
                hint="Write mail,invoices:3.",
                field="queues",
            )
        if validate.queue_name(name) in found:
            raise ValidationError(f"queues: {name!r} is there twice", field="queues")
        found[name] = int(weight) if colon else 1
    return found


def grace_of(text: str) -> float:
    length = validate.duration(text, "grace")
    if not timedelta() <= length <= validate.LONGEST_DELAY:
        raise ValidationError(f"grace: {shown(text)} is not between 0 and 10 years", field="grace")
    return length.total_seconds()


UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def bytes_of(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None or not 1 << 20 <= int(match[1]) * UNITS[match[2].upper()] <= 1 << 50:
        raise ValidationError(
            f"max_rss: {shown(text)} is not a size of at least 1M", hint="Write 500M or 2G.", field="max_rss"
        )
    return int(match[1]) * UNITS[match[2].upper()]


def found_dsn(shell: Shell, own: str | None) -> str:
    """The one given, else the application's, else what every command uses."""
    if shell.dsn is None and own is not None:
        if shell.verbose:
            sys.stderr.write(f"database: {described(own)}, from the application\n")
        return own
    with shell.connected() as penstock:
        return penstock.dsn


def run(shell: Shell, plan: Plan, registry: Registry, progress: Progress | None = None) -> Report:
    logs.set_up(plan.log_format, quiet=plan.quiet)

    def begun() -> None:
        if not shell.json:
            queues = ", ".join(f"{name}:{weight}" if weight > 1 else name for name, weight in plan.queues.items())
            count = "1 process" if plan.processes == 1 else f"{plan.processes} processes"
            say(f"{count} × {plan.concurrency} for {queues}", quiet=shell.quiet)

    return supervise(plan, registry, progress, begun)


@contextmanager
def bar(label: str, *, quiet: bool) -> Iterator[Progress]:
    """How far a drain is, on a terminal."""
    with progress_bar(label, None, quiet=quiet) as show:

        def progress(found: list[QueueStatus], report: Report) -> None:
            show(report.done, report.done + sum(one.pending + one.active for one in found))

        yield progress


def finish(shell: Shell, report: Report) -> None:
    counts = report.counts
    told = {
        "done": report.done,
        "failed": counts["failed"],
        "dead": counts["died"],
        "released": counts["release"],
        "planned": report.planned,
        "seconds": round(report.seconds, 3),
        "rate": round(report.done / report.seconds, 1) if report.seconds else 0.0,
    }
    later = f", {many(report.planned)} planned for later" if report.planned else ""
    died = f", {counts['died']:,} dead" if counts["died"] else ""
    took = f"in {report.seconds:.1f} s ({told['rate']:,.0f}/s)"
    shell.answer(told, f"{report.done:,} done, {counts['failed']:,} failed{died}{later} {took}")
    if report.signal == signal.SIGINT:
        raise typer.Exit(130)
