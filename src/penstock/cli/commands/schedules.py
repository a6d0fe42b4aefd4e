"""`penstock schedules` manages cron schedules, which push tasks."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any, cast

import typer

from penstock.app import Penstock
from penstock.cli.terminal.consent import Yes, ask, check_consent
from penstock.cli.terminal.formatting import escape, format_cell, to_iso
from penstock.cli.terminal.options import DryRun, Shell, check_one_of, parse_json, with_shell
from penstock.cli.terminal.output import print_json, print_line, print_table
from penstock.errors import NotFound, ValidationError
from penstock.formatting import format_time
from penstock.model import Backfill, Schedule
from penstock.schedule import Cron, cron_of, in_words, meaning, schedule_name, zone_of

app = typer.Typer(help="Manage cron schedules, which push tasks at fixed times.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The schedule.")]
Tz = Annotated[str, typer.Option(help="The time zone of the cron expression, as Europe/Rome.")]
SHOWN_RUNS = 5


@app.command("ls")
@with_shell
def ls(shell: Shell) -> None:
    """List the schedules: the tasks that they push, their next run, and the last tick that they pushed.

    Example: penstock schedules ls
    """
    with shell.connect() as penstock:
        found = penstock.schedules()
    if shell.json:
        print_json({"schedules": [schedule_json(one) for one in found]})
    elif not found:
        print_line("no schedules; add one: penstock schedules add NAME '0 6 * * *' --queue QUEUE", quiet=shell.quiet)
    elif not shell.quiet:
        columns = ("schedule", "queue", "kind", "cron", "tz", "next", "last tick")
        print_table(columns, [format_row(one) for one in found], words=columns)


@app.command("add")
@with_shell
def add(
    shell: Shell,
    name: Annotated[str, typer.Argument(help="1 to 200 bytes; if the schedule exists, it is changed.")],
    cron: Annotated[str, typer.Argument(help="minute hour day-of-month month day-of-week, such as '0 6 * * *'.")],
    *,
    queue: Annotated[str, typer.Option(help="The queue of its tasks.")],
    kind: Annotated[str, typer.Option(help="The kind of its tasks.")] = "default",
    tz: Tz = "UTC",
    payload: Annotated[str, typer.Option(help="The payload of its tasks, a JSON object.")] = "{}",
    priority: Annotated[int, typer.Option(help="-100 to 100; smaller runs first.")] = 5,
    backfill: Annotated[str, typer.Option(help="Which missed ticks are pushed later: none, last or all.")] = "last",
    key: Annotated[str | None, typer.Option(help="The key of its tasks.", show_default=False)] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            help="When a task is cancelled that has not started: so long after its tick, as 10m, or 'next tick'.",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Add a schedule, or change one. A new cron expression or time zone applies from now on.

    Example: penstock schedules add nightly '0 6 * * *' --tz Europe/Rome --queue reports --kind report
    """
    line = cron_of(cron, tz)
    with shell.connect(rehearse=dry_run) as penstock:
        known = {one.name for one in penstock.schedules()}
        found = penstock.set_schedule(
            name,
            cron,
            queue=queue,
            kind=kind,
            tz=tz,
            payload=parse_json(payload.encode()),
            priority=priority,
            backfill=cast("Backfill", check_one_of(backfill, ("none", "last", "all"), "backfill")),
            key=key,
            expires=expires,
        )
    verb = "set" if name in known else "added"
    said = f"schedule {escape(name)} {'would be ' if dry_run else ''}{verb}: {format_runs(line, found.at, 1)}"
    shell.answer(schedule_json(found) | ({"dry_run": True} if dry_run else {}), said)


@app.command("rm")
@with_shell
def rm(shell: Shell, name: Name, *, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Remove a schedule. The tasks that it pushed stay. A schedule of your code returns when a worker starts.

    Example: penstock schedules rm nightly --yes
    """
    check_consent(yes=yes, dry_run=dry_run)
    with shell.connect(rehearse=dry_run) as penstock:
        if not (yes or dry_run):
            find_schedule(penstock, name)
            ask(f"Remove schedule {escape(name)}?")
        penstock.drop_schedule(name)
    answer = {"name": name, "removed": not dry_run} | ({"dry_run": True} if dry_run else {})
    shell.answer(answer, f"schedule {escape(name)} {'would be removed' if dry_run else 'removed'}")


@app.command("pause")
@with_shell
def pause(shell: Shell, name: Name, *, dry_run: DryRun = False) -> None:
    """Push nothing until `resume`. Ticks that pass meanwhile are never pushed, whatever the backfill.

    Example: penstock schedules pause nightly
    """
    with shell.connect(rehearse=dry_run) as penstock:
        found = penstock.pause_schedule(name)
    said = f"schedule {escape(name)} {'would be ' if dry_run else ''}paused"
    shell.answer(schedule_json(found) | ({"dry_run": True} if dry_run else {}), said)


@app.command("resume")
@with_shell
def resume(shell: Shell, name: Name, *, dry_run: DryRun = False) -> None:
    """Push tasks again after `pause`, from now on.

    Example: penstock schedules resume nightly
    """
    with shell.connect(rehearse=dry_run) as penstock:
        found = penstock.resume_schedule(name)
    said = f"schedule {escape(name)} {'would be ' if dry_run else ''}resumed; next: {format_next(found)}"
    shell.answer(schedule_json(found) | ({"dry_run": True} if dry_run else {}), said)


@app.command("next")
@with_shell
def next_(
    shell: Shell,
    name: Annotated[str | None, typer.Argument(help="A schedule.", show_default=False)] = None,
    *,
    cron: Annotated[
        str | None, typer.Option(help="A cron expression; it needs no database.", show_default=False)
    ] = None,
    tz: Tz = "UTC",
) -> None:
    """Describe a schedule or a cron expression in words, and print its next five runs.

    Example: penstock schedules next --cron '0 6 * * *' --tz Europe/Rome
    """
    if (name is None) == (cron is None):
        raise ValidationError("name: give a schedule, or an expression with --cron", hint="Write --cron '0 6 * * *'.")
    paused, now = False, datetime.now(UTC)
    if name is not None:
        with shell.connect() as penstock:
            found = find_schedule(penstock, name)
        parsed, paused, now = cron_of(found.cron, found.tz), found.paused, found.at
    else:
        parsed = cron_of(cron or "", tz)
    answer = {
        "cron": parsed.expression,
        "tz": parsed.tz,
        "meaning": meaning(parsed),
        "paused": paused,
        "next": [tick.astimezone(parsed.zone).isoformat() for tick in islice(parsed.ticks(now), SHOWN_RUNS)],
    }
    shell.answer(answer, ("paused; it would run " if paused else "") + format_runs(parsed, now))


def format_runs(parsed: Cron, now: datetime, runs: int = SHOWN_RUNS) -> str:
    """Describes a cron expression, and lists its next runs, each on a line of its own."""
    words = [in_words(tick, parsed.zone, now) for tick in islice(parsed.ticks(now), runs)]
    return f"{meaning(parsed)}; next: {words[0]}" if runs == 1 else "\n  ".join([meaning(parsed), *words])


def find_schedule(penstock: Penstock, name: str) -> Schedule:
    schedule_name(name)
    for one in penstock.schedules():
        if one.name == name:
            return one
    raise NotFound(f"schedule {escape(name, most=80)!r} does not exist", hint="`penstock schedules ls` lists them.")


def format_row(one: Schedule) -> tuple[str, ...]:
    return (
        format_cell(one.name),
        one.queue,
        format_cell(one.kind),
        format_cell(one.cron),
        format_cell(one.tz),
        format_next(one),
        format_time(one.last_tick),
    )


def format_next(one: Schedule) -> str:
    if one.paused:
        return "paused"
    if one.next_at <= one.at:
        return "now"
    try:
        return in_words(one.next_at, zone_of(one.tz), one.at)
    except ValidationError:  # the zone is known only where the schedule was set
        return format_time(one.next_at)


def schedule_json(one: Schedule) -> dict[str, Any]:
    moments = {key: to_iso(getattr(one, key)) for key in ("mark", "next_at", "last_tick", "created", "updated", "at")}
    expires = None if one.expires is None else one.expires.total_seconds()
    return {key: value for key, value in asdict(one).items() if key != "size"} | moments | {"expires": expires}
