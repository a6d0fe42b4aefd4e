"""`penstock adopt` and `penstock backlog …`: tables that are not ours."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from penstock import validate
from penstock.app import Penstock
from penstock.backlog import Backlog, BacklogStatus, PassReport
from penstock.backlog.drain import Counts
from penstock.backlog.propose import Inspection, inspect
from penstock.cli.options import DryRun, Shell, with_shell
from penstock.cli.output import age, cell, emit, harmless, many, progress_bar, say, table
from penstock.errors import AuthError, NotFound, ValidationError
from penstock.worker import orders

app = typer.Typer(help="Drain adopted tables, and look at them.", no_args_is_help=True)

Words = list[str] | None
Target = Annotated[str, typer.Argument(metavar="NAME", help="The adopted table, by its name or its table's.")]
HandlerOption = Annotated[
    str, typer.Option("--handler", metavar="MODULE:FUNCTION", help="What is called for each record.")
]
MaxAge = Annotated[str | None, typer.Option(help="Only records younger than this: 360d.", show_default=False)]
NewestFirst = Annotated[bool, typer.Option("--newest-first", help="Of what is ready the newest first.")]
AtOnce = Annotated[int, typer.Option("--concurrency", "-c", help="Handlers at once, each in a thread.")]


def option(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, show_default=False)


@with_shell
def adopt(
    shell: Shell,
    table: Annotated[str, typer.Argument(help="table, schema.table, or as SQL writes it.")],
    *,
    key: Annotated[Words, option("A column of the key; repeat it for more. Default: the primary key.")] = None,
    status: Annotated[str | None, option("The column with the status.")] = None,
    inserted: Annotated[str | None, option("The column that says when a record came.")] = None,
    ready: Annotated[Words, option("A status that is to be handled; may be repeated.")] = None,
    retry: Annotated[Words, option("A status that is to be handled again later; may be repeated.")] = None,
    done: Annotated[str | None, option("The status after a success.")] = None,
    failed: Annotated[str | None, option("The status after a failure; default: the first --retry.")] = None,
    dead: Annotated[str | None, option("The status after the last failure.")] = None,
    strategy: Annotated[str, typer.Option(help="When what failed is tried again: progressive, fibonacci:1m, …")] = "",
    failures: Annotated[str | None, option("A column that counts failures.")] = None,
    last_failure: Annotated[str | None, option("A column with the moment of the last.")] = None,
    max_attempts: Annotated[int | None, option("Tries before a record is dead.")] = None,
    mode: Annotated[str | None, option("observe, sidecar or columns; default: what the table allows.")] = None,
    sla: Annotated[str | None, option("The promise: nothing waits longer than this.")] = None,
    name: Annotated[str | None, option("What we call it; default: the table's name.")] = None,
    tz: Annotated[str | None, option("The zone of moments that have none; default: the session's.")] = None,
    takes: Annotated[str, typer.Option(help="How long one record takes, for the estimate.")] = "100ms",
    apply: Annotated[bool, typer.Option("--apply", help="Adopt it and make the indexes.")] = False,
    index: Annotated[bool, typer.Option("--index/--no-index", help="Whether to propose and make indexes.")] = True,
) -> None:
    """Look at a table that somebody has already, and say how it could be drained where it is.

    Guesses which column is which and what the statuses mean; counts; proposes indexes, with the plans before and after.
    Nothing is changed without --apply, which notes the terms and makes the indexes.

    Example: penstock adopt public.backlog --strategy fibonacci:1m --apply
    """
    told = {
        "key": key or None,
        "status": status,
        "inserted": inserted,
        "ready": ready or None,
        "retry": retry or None,
        "done": done,
        "failed": failed,
        "dead": dead,
        "strategy": strategy or None,
        "failures": failures,
        "last_failure": last_failure,
        "max_attempts": max_attempts,
        "mode": mode,
        "sla": sla,
        "name": name,
        "tz": tz,
    }
    given = {word: value for word, value in told.items() if value is not None}
    seconds = validate.positive(takes, "takes").total_seconds()
    with shell.connected() as penstock:
        found, _ = inspect(penstock.dsn, penstock.dsn_source, table, given, apply=apply, index=index)
    if shell.json:
        emit(inspection_json(found, seconds))
    elif not shell.quiet:
        print_inspection(found, seconds)


def inspection_json(found: Inspection, takes: float) -> dict[str, Any]:
    terms = found.terms
    return {
        "table": str(terms.table),
        "name": terms.name,
        "mode": terms.mode,
        "terms": terms.to_json(),
        "strategy": terms.strategy.to_json(),
        "guessed": sorted(found.guessed),
        "statuses": dict(found.statuses),
        "undeclared": dict(found.undeclared),
        "ready": found.ready,
        "due": found.due,
        "later": found.later,
        "oldest_age": found.oldest_age,
        "writable": found.writable,
        "drain_seconds": {str(n): found.drain_seconds(takes, n) for n in (1, 8)},
        "indexes": [{"name": one.name, "statement": one.statement, "exists": one.exists} for one in found.indexes],
        "plans": [
            {"what": one.what, "before": list(one.before), "after": None if one.after is None else list(one.after)}
            for one in found.plans
        ],
        "applied": found.applied,
    }


def print_inspection(found: Inspection, takes: float) -> None:
    terms = found.terms
    say(f"table {harmless(str(terms.table))}, {'adopted' if found.applied else 'to be adopted'} as {terms.name}")
    print_terms(found)
    say("")
    roles = {one: word for word in ("ready", "retry") for one in getattr(terms, word)}
    roles |= {terms.done: "done", **({terms.dead: "dead"} if terms.dead is not None else {})}
    table(
        ("status", "records", "means"),
        [(cell(one), f"{count:,}", roles.get(one, "undeclared: left alone")) for one, count in found.statuses.items()],
        words=("means",),
    )
    say("")
    say(f"to do now: {many(found.waiting, 'record')}, the oldest {age(found.oldest_age)}; later: {found.later:,}")
    one, eight = (age(found.drain_seconds(takes, n)) for n in (1, 8))
    say(f"a drain at {age(takes)} a record: {one}, with 8 at once {eight}")
    print_indexes(found)
    if not found.writable and terms.mode != "observe":
        say(f"this role may not update {', '.join(one.name for one in terms.written)}: only --mode observe will do")
    if not found.applied:
        say("nothing is changed; --apply adopts it and makes the indexes")


def print_terms(found: Inspection) -> None:
    terms, stored = found.terms, found.terms.to_json()
    for name, value in stored.items():
        if value is None or name == "tz":
            continue
        shown = ", ".join(value) if isinstance(value, list) else value
        say(f"  {name:<13}{harmless(shown)}{'  (guessed)' if name in found.guessed else ''}")
    say(f"  {'strategy':<13}{terms.strategy.to_json()['type']}, {terms.mode}")


def print_indexes(found: Inspection) -> None:
    for one in found.indexes:
        state = "exists" if one.exists else "made" if found.applied else "proposed"
        say(f"index {state}: {harmless(one.statement)};")
    for plan in found.plans:
        say(f"  {plan.what}, before: {harmless('; '.join(plan.before))}")
        if plan.after is not None:
            where = " (on a sample)" if found.sampled else ""
            say(f"  {plan.what}, after{where}: {harmless('; '.join(plan.after))}")


# --- penstock backlog -------------------------------------------------------------------------------------------------


@app.command("pass")
@with_shell
def one_pass(
    shell: Shell,
    name: Target,
    *,
    handler: HandlerOption,
    max_age: MaxAge = None,
    max_records: Annotated[int | None, typer.Option(help="At most so many.", show_default=False)] = None,
    newest_first: NewestFirst = False,
    concurrency: AtOnce = 1,
    dry_run: DryRun = False,
) -> None:
    """Handle once what is ready and what is due again, then stop. For cron.

    The function is called with the record, a dict of its columns. One with a second parameter, `transaction`, gets the
    psycopg connection that holds the row. Exit 0 even if records failed: they are tried again.

    Example: penstock backlog pass backlog --handler myproject.jobs:handle --max-age 360d --max-records 1000
    """
    function = function_of(handler)
    with shell.connected() as penstock:
        backlog = penstock.backlog(name)
        if dry_run:
            status = backlog.status()
            shell.answer(
                status.to_json() | {"dry_run": True}, f"would handle {many(status.ready + status.due, 'record')}"
            )
            return
        limits = {"max_age": max_age, "max_records": max_records, "newest_first": newest_first}
        report = with_bar(shell, backlog, function, concurrency, limits)
    shell.answer(report_json(report), said(report))
    warn(report)


def with_bar(shell: Shell, backlog: Backlog, function: Any, concurrency: int, limits: dict[str, Any]) -> PassReport:
    quiet = shell.quiet or shell.json
    watched = not quiet and sys.stderr.isatty()
    status = backlog.status() if watched else None
    total = None if status is None else status.ready + status.due
    most = limits["max_records"]
    expected = total if total is None or most is None else min(total, most)
    with progress_bar(f"pass {backlog.name}", expected, quiet=quiet) as show:

        def progress(counts: Counts) -> None:
            show(counts.handled, expected)

        return backlog.process(function, concurrency=concurrency, progress=progress if watched else None, **limits)


@app.command("run")
@with_shell
def run(
    shell: Shell,
    name: Target,
    *,
    handler: HandlerOption,
    max_age: MaxAge = None,
    newest_first: NewestFirst = False,
    concurrency: AtOnce = 8,
) -> None:
    """Pass after pass, until SIGTERM or Ctrl-C: what has begun is finished, then exit 0.

    Example: penstock backlog run backlog --handler myproject.jobs:handle --concurrency 8
    """
    function = function_of(handler)
    with shell.connected() as penstock:
        backlog = penstock.backlog(name)
        if not shell.json:
            say(f"{concurrency} at once for {backlog.name}", quiet=shell.quiet)
        report = backlog.run(function, concurrency=concurrency, max_age=max_age, newest_first=newest_first)
    shell.answer(report_json(report), said(report))
    warn(report)


@app.command("status")
@with_shell
def status(
    shell: Shell, name: Annotated[str | None, typer.Argument(help="One; default: all.", show_default=False)] = None
) -> None:
    """How adopted tables stand: what is ready, due again, waiting for its time; the oldest; the promise.

    Example: penstock backlog status backlog
    """
    with shell.connected() as penstock:
        chosen = penstock.backlogs() if name is None else [penstock.backlog(name)]
        found = [one.status() for one in chosen]
    if shell.json:
        emit({"backlogs": [one.to_json() for one in found]})
    elif not found:
        say("no adopted tables; adopt one: penstock adopt TABLE", quiet=shell.quiet)
    elif not shell.quiet:
        print_backlogs(found)


@app.command("forget")
@with_shell
def forget(shell: Shell, name: Target, *, dry_run: DryRun = False) -> None:
    """Forget an adopted table. Nothing in the table itself is changed; indexes stay.

    Example: penstock backlog forget backlog
    """
    with shell.connected() as penstock:
        backlog = penstock.backlog(name)
        if not dry_run:
            backlog.abandon()
    told = {"name": backlog.name, "forgotten": not dry_run} | ({"dry_run": True} if dry_run else {})
    shell.answer(told, f"{backlog.name} {'would be forgotten' if dry_run else 'is forgotten'}")


def backlogs_of(penstock: Penstock) -> list[BacklogStatus]:
    """For `penstock status`: what can not be looked at does not hide the queues."""
    try:
        return [one.status() for one in penstock.backlogs()]
    except AuthError:
        return []
    except (NotFound, ValidationError) as error:
        sys.stderr.write(f"adopted tables: {error.message}\n")
        return []


def print_backlogs(found: list[BacklogStatus]) -> None:
    table(
        ("backlog", "table", "mode", "ready", "due", "later", "done", "dead", "undeclared", "oldest", "sla", "used"),
        [
            (
                one.name,
                cell(one.table),
                one.mode,
                *(f"{value:,}" for value in (one.ready, one.due, one.later, one.done, one.dead)),
                f"{sum(one.undeclared.values()):,}",
                age(one.oldest_age),
                age(one.sla),
                "–" if one.sla_used is None else f"{one.sla_used:.0%}",
            )
            for one in found
        ],
        words=("table", "mode"),
    )


def function_of(target: str) -> Any:
    found = orders.resolve(target)
    spec = getattr(found, "spec", None)
    return found if spec is None else spec.function


def report_json(report: PassReport) -> dict[str, Any]:
    return report.to_json() | {"handled": report.handled, "rate": round(report.rate, 1)}


def said(report: PassReport) -> str:
    others = ", ".join(
        f"{value:,} {word}"
        for word, value in (("dead", report.dead), ("changed by the handler", report.changed), ("held", report.skipped))
        if value
    )
    took = f"in {report.seconds:.1f} s ({report.rate:,.0f}/s)"
    more = "; there is more" if report.more else ""
    beside = f", {others}" if others else ""
    return f"{report.done:,} done, {report.failed:,} failed{beside}, {report.later:,} for later {took}{more}"


def warn(report: PassReport) -> None:
    if report.undeclared:
        sys.stderr.write(f"left alone, as nobody declared their status: {listed(report.undeclared)}\n")
    if not report.alone:
        sys.stderr.write("another run walks the ticks: failed records were left to it\n")


def listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{harmless(word, most=40)} {count:,}" for word, count in counts.items())
