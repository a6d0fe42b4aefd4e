"""`penstock work` and `penstock drain` run workers."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated

import typer

from penstock import validate
from penstock.cli.terminal.options import (
    NoTracebacks,
    QueueName,
    Shell,
    check_text,
    parse_moment,
    with_shell,
)
from penstock.cli.terminal.output import print_line, progress_bar
from penstock.client.conninfo import describe_dsn
from penstock.errors import ValidationError, shown
from penstock.formatting import format_count
from penstock.handlers import Registry
from penstock.model import QueueStatus
from penstock.service_manager import ServiceManager
from penstock.worker import loading, logs, start
from penstock.worker.plan import SILENCE, Plan, WorkerOptions, WorkerReport, parse_weights
from penstock.worker.progress import Progress
from penstock.worker.shutdown import UNSETTLED

Concurrency = Annotated[int, typer.Option("--concurrency", "-c", help="How many handlers run at once in each process.")]
ProcessCount = Annotated[int, typer.Option("--processes", "-p", help="The number of processes.")]
MaxTasks = Annotated[int | None, typer.Option(help="Replace a process after so many tasks.", show_default=False)]
MaxRss = Annotated[
    str | None,
    typer.Option(help="Replace a process that uses more memory than this, as 500M or 2G.", show_default=False),
]
Grace = Annotated[str, typer.Option(help="How long running handlers may go on after SIGTERM or Ctrl-C.")]
Health = Annotated[
    str | None,
    typer.Option(
        help="A liveness probe: a port that answers, also with metrics at /metrics, or a file that is written every "
        "second.",
        show_default=False,
    ),
]
LogFormat = Annotated[str, typer.Option(help="text or json; default: text on a terminal.", show_default=False)]
Wait = Annotated[
    bool | None,
    typer.Option(
        "--wait/--no-wait",
        help="If PostgreSQL accepts no writes at the start, wait until it does, or exit with 4. "
        "Default: wait when run by systemd or Kubernetes, not at a terminal.",
        show_default=False,
    ),
]
MaxWait = Annotated[
    str | None,
    typer.Option(help="The longest wait, as 10m; it implies --wait. Default: for ever.", show_default=False),
]
Dev = Annotated[
    bool,
    typer.Option(
        "--dev",
        help="For development: run one process, print whole tracebacks, and reload the code when a .py file of the "
        "application below this directory changes. For breakpoint() use drain_inline or run_worker.",
    ),
]
RequestedAt = Annotated[str | None, typer.Option(hidden=True, help="When the scaler decided to start this worker.")]
StartedBy = Annotated[
    str | None, typer.Option(hidden=True, help="The scaler that started this worker, and the worker's number there.")
]
Silence = Annotated[float, typer.Option(hidden=True, help="Seconds without progress after which the probe fails.")]
OwnDsn = Annotated[
    bool,
    typer.Option("--own-dsn/--given-dsn", hidden=True, help="Whether the DSN of the application takes precedence."),
]


@with_shell
def work(
    shell: Shell,
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The Penstock application with the handlers.")],
    *,
    queues: Annotated[
        str | None,
        typer.Option(
            help="The queues, with weights, as mail,invoices:3; default: all queues with handlers.", show_default=False
        ),
    ] = None,
    concurrency: Concurrency = 10,
    processes: ProcessCount = 1,
    until_empty: Annotated[bool, typer.Option("--until-empty", help="Stop when no task is due any more.")] = False,
    max_tasks: MaxTasks = None,
    max_rss: MaxRss = None,
    grace: Grace = "30s",
    health: Health = None,
    wait: Wait = None,
    max_wait: MaxWait = None,
    log_format: LogFormat = "",
    dev: Dev = False,
    requested_at: RequestedAt = None,
    started_by: StartedBy = None,
    own_dsn: OwnDsn = True,
    silence: Silence = SILENCE,
) -> None:
    """Run tasks: claim them, call their handlers and settle them, until stopped.

    After SIGTERM or Ctrl-C the worker claims nothing more, running handlers may finish within --grace, and the rest
    goes back to the queue; a second signal does not wait. You can kill a worker at any moment: no task is lost. With
    --wait, a worker that starts while there is no primary waits for one.

    With --dev, running handlers may finish within --grace when a file changes; then the new code runs. Code that cannot
    be loaded is reported, and tried again when it changes. New queues and schedules need a restart. The process has no
    terminal: to stop at a breakpoint(), run the task by app.drain_inline() or app.run_worker().

    Example: penstock work myproject.tasks:app --queues mail,invoices:3 --concurrency 20 --processes 2
    """
    patience = find_max_wait(wait, max_wait, os.environ)
    if dev and processes != 1:
        raise ValidationError("processes: --dev runs one process", hint="Leave out one of them.", field="processes")
    options: WorkerOptions = {
        "concurrency": concurrency,
        "processes": processes,
        "until_empty": until_empty,
        "max_tasks": max_tasks,
        "max_rss": max_rss,
        "grace": grace,
        "health": health,
        "log_format": log_format or ("text" if dev else None),
    }
    registry, own = loading.load(app)
    plan = Plan.of(
        app,
        choose_dsn(shell, own if own_dsn else None),
        parse_weights(registry.queues() if queues is None else queues.split(",")),
        options,
        requested_at=parse_moment(requested_at, "requested_at"),
        started_by=check_text(started_by, "started_by", 200),
        dev=dev,
        silence=silence,
        quiet=shell.quiet,
    )
    report = run_worker(shell, plan, registry, patience)
    print_report(shell, report, until_empty=until_empty)


@with_shell
def drain(
    shell: Shell,
    queue: QueueName,
    *,
    handler: Annotated[str, typer.Option(metavar="MODULE:FUNCTION", help="The function that is called for each task.")],
    concurrency: Concurrency = 10,
    processes: ProcessCount = 1,
    max_tasks: MaxTasks = None,
    max_rss: MaxRss = None,
    grace: Grace = "30s",
    no_tracebacks: NoTracebacks = False,
    wait: Wait = None,
    max_wait: MaxWait = None,
    log_format: LogFormat = "",
) -> None:
    """Drain one queue with one function, show a progress bar, and stop.

    The keys of the payload are the named arguments of the function; if its only parameter is called `payload`, it gets
    the whole payload. It does not wait for failed tasks that are tried later; the last line counts them. The exit code
    is 1 if nothing was done and something failed or died.

    Example: penstock drain mail --handler myproject.mail:send --concurrency 20
    """
    patience = find_max_wait(wait, max_wait, os.environ)
    options: WorkerOptions = {
        "concurrency": concurrency,
        "processes": processes,
        "until_empty": True,
        "max_tasks": max_tasks,
        "max_rss": max_rss,
        "grace": grace,
        "log_format": log_format,
    }
    registry, own = loading.load(handler, queue)
    plan = Plan.of(
        handler,
        choose_dsn(shell, own),
        {validate.queue_name(queue): 1},
        options,
        handler_of=queue,
        tracebacks=not no_tracebacks,
        quiet=shell.quiet,
    )
    with show_progress(f"drain {queue}", quiet=shell.quiet or shell.json) as progress:
        report = run_worker(shell, plan, registry, patience, progress)
    print_report(shell, report, until_empty=True)


EXIT_NOTHING_DONE = 1  # exit code of a drain in which every task failed or has no handler
SUPERVISORS = ("INVOCATION_ID", "NOTIFY_SOCKET", "KUBERNETES_SERVICE_HOST")  # variables that systemd and Kubernetes set


def find_max_wait(wait: bool | None, max_wait: str | None, environ: Mapping[str, str]) -> float | None:
    """Returns how many seconds to wait for PostgreSQL at the start, or None to fail at once.

    By default a command at a terminal fails at once, even on a desktop that systemd has started.
    """
    if max_wait is not None:
        length = validate.duration(max_wait, "max_wait")
        if wait is False or length < timedelta():
            wrong = "it contradicts --no-wait" if wait is False else f"{shown(max_wait)} is negative"
            raise ValidationError(f"max_wait: {wrong}", hint="Write --max-wait 10m.", field="max_wait")
        return length.total_seconds()
    if wait is None:
        wait = any(environ.get(name) for name in SUPERVISORS) and not sys.stderr.isatty()
    return math.inf if wait else None


def choose_dsn(shell: Shell, own: str | None) -> str:
    """Returns the DSN of --dsn, or the application's, or the default of all commands."""
    if shell.dsn is None and own is not None:
        if shell.verbose:
            sys.stderr.write(f"database: {describe_dsn(own)}, from the application\n")
        return own
    with shell.connect() as penstock:
        return penstock.dsn


def run_worker(
    shell: Shell, plan: Plan, registry: Registry, patience: float | None, progress: Progress | None = None
) -> WorkerReport:
    """Runs the worker until it ends, and logs in the chosen format."""

    def begun() -> None:
        if not shell.json:
            queues = ", ".join(f"{name}:{weight}" if weight > 1 else name for name, weight in plan.queues.items())
            count = format_count(plan.processes, "process", "processes")
            print_line(f"{count} × {plan.concurrency} for {queues}", quiet=shell.quiet)

    logs.set_up(plan.log_format, quiet=plan.quiet, tracebacks=plan.dev)
    manager = ServiceManager.take(os.environ)
    return start.work(plan, registry, patience=patience, progress=progress, begun=begun, manager=manager)


@contextmanager
def show_progress(label: str, *, quiet: bool) -> Iterator[Progress]:
    """Shows a progress bar: done tasks, of all that were due. A failed task is not done."""
    total = 0
    with progress_bar(label, None, quiet=quiet) as show:

        def progress(found: list[QueueStatus], report: WorkerReport) -> None:
            nonlocal total
            if found:  # otherwise PostgreSQL does not answer, and the last total stays
                waiting = sum(one.pending + one.active for one in found)
                failed = min(
                    report.failed, sum(one.planned for one in found)
                )  # attempts, of tasks that are tried later
                total = report.done + report.dead + waiting + failed
            show(report.done, max(total, report.done))

        yield progress


def print_report(shell: Shell, report: WorkerReport, *, until_empty: bool) -> None:
    """Prints what the worker did, and exits with the code for it."""
    counts = report.counts
    answer = {
        "done": report.done,
        "failed": report.failed,
        "dead": report.dead,
        "released": counts["release"],
        "unknown_kind": report.unknown,
        "unsettled": report.unsettled,
        "planned": report.planned,
        "seconds": round(report.seconds, 3),
        "rate": round(report.done / report.seconds, 1) if report.seconds else 0.0,
    }
    later = f", {format_count(report.planned)} planned for later" if report.planned else ""
    died = f", {report.dead:,} dead" if report.dead else ""
    unknown = f", {report.unknown:,} put back (unknown kind)" if report.unknown else ""
    unsettled = f", {report.unsettled:,} not settled (they run again)" if report.unsettled else ""
    took = f"in {report.seconds:.1f} s ({answer['rate']:,.0f}/s)"
    shell.answer(answer, f"{report.done:,} done, {report.failed:,} failed{died}{unknown}{unsettled}{later} {took}")
    if report.unsettled:
        raise typer.Exit(UNSETTLED)
    if report.signal == signal.SIGINT:
        raise typer.Exit(130)
    if until_empty and report.signal is None and not report.done and (report.failed or report.dead or report.unknown):
        raise typer.Exit(EXIT_NOTHING_DONE)
