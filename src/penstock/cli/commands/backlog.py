"""`penstock backlog` drains adopted tables, and shows their state and failures."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from penstock.app import Penstock
from penstock.backlog import Backlog, BacklogStatus, PassReport, RecordFailure
from penstock.backlog import forget as forget_backlog
from penstock.backlog.drain import PassCounts
from penstock.cli.terminal.formatting import escape, format_cell
from penstock.cli.terminal.listing import print_traceback
from penstock.cli.terminal.options import DryRun, NoTracebacks, PageSize, Shell, with_shell
from penstock.cli.terminal.output import print_json, print_line, print_table, progress_bar
from penstock.errors import AuthError, NotFound, ValidationError, shown
from penstock.formatting import format_age, format_count, format_time
from penstock.handlers.registry import find_for_records
from penstock.worker import loading, logs

app = typer.Typer(help="Drain adopted tables, and show their state.", no_args_is_help=True)

MAX_ERROR_CLASSES = 5  # of errors that a summary names
MAX_ERROR_WIDTH = 200

BacklogName = Annotated[
    str, typer.Argument(metavar="NAME", help="The adopted table, by its own name or the name of the backlog.")
]
HandlerOption = Annotated[
    str, typer.Option("--handler", metavar="MODULE:FUNCTION", help="The function that is called for each record.")
]
RecordKey = Annotated[
    list[str] | None,
    typer.Option(
        "--key", help="The key of one record; repeat the option for each column of the key.", show_default=False
    ),
]
MaxAge = Annotated[str | None, typer.Option(help="Only records younger than this, as 360d.", show_default=False)]
NewestFirst = Annotated[bool, typer.Option("--newest-first", help="Handle the newest ready records first.")]
HandlerThreads = Annotated[
    int, typer.Option("--concurrency", "-c", help="How many handlers run at once, each in a thread.")
]


@app.command("pass")
@with_shell
def one_pass(
    shell: Shell,
    name: BacklogName,
    *,
    handler: HandlerOption,
    max_age: MaxAge = None,
    limit: Annotated[int | None, typer.Option(help="The largest number of records.", show_default=False)] = None,
    newest_first: NewestFirst = False,
    concurrency: HandlerThreads = 1,
    no_tracebacks: NoTracebacks = False,
    dry_run: DryRun = False,
) -> None:
    """Handle the records that are ready or due again, once, and stop. Use it from cron.

    The function is called with the record, a dict of its columns. If it has a second parameter, `transaction`, it gets
    the psycopg connection that holds the row. The exit code is 0 even if records fail: they are tried again.

    Example: penstock backlog pass backlog --handler myproject.jobs:handle --max-age 360d --limit 1000
    """
    function, tracebacks = load_handler(handler)
    logs.set_up("text", quiet=shell.quiet)
    with shell.connect() as penstock:
        backlog = penstock.backlog(name)
        backlog.tracebacks = tracebacks and not no_tracebacks
        if dry_run:
            status = backlog.status()
            shell.answer(
                status.to_json() | {"dry_run": True},
                f"would handle {format_count(status.ready + status.due, 'record')}",
            )
            return
        limits = {"max_age": max_age, "limit": limit, "newest_first": newest_first}
        report = run_pass(shell, backlog, function, concurrency, limits)
    shell.answer(report_json(report), format_report(report))
    print_warnings(backlog.name, report)


def run_pass(shell: Shell, backlog: Backlog, function: Any, concurrency: int, limits: dict[str, Any]) -> PassReport:
    quiet = shell.quiet or shell.json
    watched = not quiet and sys.stderr.isatty()
    status = backlog.status() if watched else None
    total = None if status is None else status.ready + status.due
    limit = limits["limit"]
    expected = total if total is None or limit is None else min(total, limit)
    with progress_bar(f"pass {backlog.name}", expected, quiet=quiet) as show:

        def progress(counts: PassCounts) -> None:
            show(counts.handled, expected)

        return backlog.process(function, concurrency=concurrency, progress=progress if watched else None, **limits)


@app.command("run")
@with_shell
def run(
    shell: Shell,
    name: BacklogName,
    *,
    handler: HandlerOption,
    max_age: MaxAge = None,
    newest_first: NewestFirst = False,
    concurrency: HandlerThreads = 8,
    no_tracebacks: NoTracebacks = False,
) -> None:
    """Run pass after pass, until SIGTERM (exit code 0) or Ctrl-C (exit code 130). Running handlers finish first.

    Example: penstock backlog run backlog --handler myproject.jobs:handle --concurrency 8
    """
    function, tracebacks = load_handler(handler)
    logs.set_up("text", quiet=shell.quiet)
    with shell.connect() as penstock:
        backlog = penstock.backlog(name)
        backlog.tracebacks = tracebacks and not no_tracebacks
        if not shell.json:
            print_line(f"{concurrency} at once for {backlog.name}", quiet=shell.quiet)
        report = backlog.run(function, concurrency=concurrency, max_age=max_age, newest_first=newest_first)
    shell.answer(report_json(report), format_report(report))
    print_warnings(backlog.name, report)
    if backlog.stopped_by == signal.SIGINT:
        raise typer.Exit(130)


@app.command("status")
@with_shell
def status(
    shell: Shell,
    name: Annotated[str | None, typer.Argument(help="One adopted table; default: all.", show_default=False)] = None,
) -> None:
    """Print the state of adopted tables: counts of records, the oldest age, the promise, and failures.

    Example: penstock backlog status backlog
    """
    with shell.connect() as penstock:
        chosen = penstock.backlogs() if name is None else [penstock.backlog(name)]
        found = [one.status() for one in chosen]
    if shell.json:
        print_json({"backlogs": [one.to_json() for one in found]})
    elif not found:
        print_line("no adopted tables; adopt one: penstock adopt TABLE", quiet=shell.quiet)
    elif not shell.quiet:
        print_backlogs(found)


@app.command("failures")
@with_shell
def show_failures(shell: Shell, name: BacklogName, *, limit: PageSize = 100, key: RecordKey = None) -> None:
    """List why records failed, the newest first: one line for each record whose last attempt failed.

    The newest 1,000 of each table are kept; a record that succeeds leaves the list. With --key, show one of them with
    its traceback; --json has the tracebacks of all.

    Example: penstock backlog failures backlog --key 33
    """
    with shell.connect() as penstock:
        backlog = penstock.backlog(name)
        found = backlog.failures(limit) if key is None else [find_failure(backlog, key)]
    if shell.json:
        print_json({"failures": [one.to_json() for one in found]})
    elif not found:
        print_line("no failures", quiet=shell.quiet)
    elif not shell.quiet and key is not None:
        print_failure(found[0])
    elif not shell.quiet:
        print_failures(found)


@app.command("forget")
@with_shell
def forget(shell: Shell, name: BacklogName, *, dry_run: DryRun = False) -> None:
    """Forget an adopted table: its terms, its progress and its failures.

    The table itself does not change, and its indexes stay.

    Example: penstock backlog forget backlog
    """
    with shell.connect() as penstock:
        found = forget_backlog(penstock.dsn, penstock.dsn_source, name, dry_run=dry_run)
    answer = {"name": found, "forgotten": not dry_run} | ({"dry_run": True} if dry_run else {})
    shell.answer(answer, f"{found} {'would be forgotten' if dry_run else 'is forgotten'}")


def find_backlogs(penstock: Penstock) -> list[BacklogStatus]:
    """Reads the adopted tables for `penstock status`. An error is printed and does not hide the queues."""
    try:
        return [one.status() for one in penstock.backlogs()]
    except AuthError:
        return []
    except (NotFound, ValidationError) as error:
        sys.stderr.write(f"adopted tables: {error.message}\n")
        return []


def print_backlogs(found: list[BacklogStatus]) -> None:
    print_table(
        ("backlog", "table", "mode", "ready", "due", "later", "done", "dead", "undeclared", "oldest", "sla", "used"),
        [
            (
                one.name,
                format_cell(one.table),
                one.mode,
                *(f"{value:,}" for value in (one.ready, one.due, one.later, one.done, one.dead)),
                f"{sum(one.undeclared.values()):,}",
                format_age(one.oldest_age),
                format_age(one.sla),
                "–" if one.sla_used is None else f"{one.sla_used:.0%}",
            )
            for one in found
        ],
        words=("table", "mode"),
    )

    for one in found:
        if one.last_error is not None:
            print_errors(one, one.last_error)


def print_errors(status: BacklogStatus, last: RecordFailure) -> None:
    """Prints a summary of the failures of an adopted table."""
    counts = [*status.errors.items()]
    named, rest = dict(counts[:MAX_ERROR_CLASSES]), counts[MAX_ERROR_CLASSES:]
    if rest:
        named["others"] = sum(count for _, count in rest)
    failed = format_count(sum(status.errors.values()), "record")
    print_line(f"{status.name}: {failed} failed: {format_counts(named)}")
    record = f"{format_cell(', '.join(last.key))}, at {format_time(last.last_at)}"
    print_line(f"  the last one, {record}: {escape(last.why, most=MAX_ERROR_WIDTH)}")
    print_line(f"  all of them: penstock backlog failures {status.name}")


def find_failure(backlog: Backlog, key: list[str]) -> RecordFailure:
    found = backlog.failure(*key)
    if found is None:
        raise NotFound(
            f"no failure of record {shown(', '.join(key))} of {backlog.name} is kept",
            hint=f"`penstock backlog failures {backlog.name}` lists them.",
        )
    return found


def print_failure(one: RecordFailure) -> None:
    """Prints everything about the failure of one record."""
    facts = {
        "key": ", ".join(one.key),
        "error_class": one.error_class,
        "message": one.message,
        "times": f"{one.times:,}",
        "first": format_time(one.first_at),
        "last": format_time(one.last_at),
        "then": format_future(one),
    }
    for name, value in facts.items():
        print_line(f"{name:<12} {escape(value)}")
    print_traceback(one.traceback, one.why)


def format_future(one: RecordFailure) -> str:
    return "status not written" if one.unwritten else "dead" if one.dead else "tried again"


def print_failures(found: list[RecordFailure]) -> None:
    print_table(
        ("key", "times", "last", "then", "why"),
        [
            (
                format_cell(", ".join(one.key)),
                f"{one.times:,}",
                format_time(one.last_at),
                format_future(one),
                escape(one.why, most=MAX_ERROR_WIDTH),
            )
            for one in found
        ],
        words=("last", "then", "why"),
    )


def load_handler(target: str) -> tuple[Any, bool]:
    """Returns the function, and whether its application stores tracebacks."""
    found = loading.resolve(target)
    spec = find_for_records(found)
    return found, spec is None or spec.tracebacks


def report_json(report: PassReport) -> dict[str, Any]:
    return report.to_json() | {"handled": report.handled, "rate": round(report.rate, 1)}


def format_report(report: PassReport) -> str:
    others = ", ".join(
        f"{value:,} {word}"
        for word, value in (("dead", report.dead), ("changed by the handler", report.changed), ("held", report.skipped))
        if value
    )
    took = f"in {report.seconds:.1f} s ({report.rate:,.0f}/s)"
    more = "; there is more" if report.more else ""
    beside = f", {others}" if others else ""
    return f"{report.done:,} done, {report.failed:,} failed{beside}, {report.later:,} for later {took}{more}"


def print_warnings(name: str, report: PassReport) -> None:
    if report.undeclared:
        sys.stderr.write(f"left alone, as their status is not declared: {format_counts(report.undeclared)}\n")
    if report.unwritten:
        sys.stderr.write(
            f"{format_count(report.unwritten, 'record')} kept the old status, since the new one could not be written;"
            f" why: penstock backlog failures {name}\n"
        )
    if not report.walked_ticks:
        sys.stderr.write("another run walks the ticks: failed records were left to it\n")


def format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{escape(word, most=40)} {count:,}" for word, count in counts.items())
