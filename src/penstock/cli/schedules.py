"""`penstock schedules …`: tasks at the ticks of cron lines."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any, cast

import typer

from penstock.app import Penstock
from penstock.cli.consent import Yes, ask, check_consent
from penstock.cli.options import DryRun, Shell, json_value, one_of, with_shell
from penstock.cli.output import cell, clock, emit, harmless, iso, say, table
from penstock.errors import NotFound, ValidationError
from penstock.model import Backfill, CronSchedule
from penstock.schedule import Cron, cron_of, in_words, meaning, schedule_name, zone_of

app = typer.Typer(help="Tasks at fixed times: cron schedules.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The schedule.")]
Tz = Annotated[str, typer.Option(help="The time zone of the line: Europe/Rome.")]
RUNS = 5


@app.command("ls")
@with_shell
def ls(shell: Shell) -> None:
    """List the schedules: what they push, when they run next, and the last tick they pushed.

    Example: penstock schedules ls
    """
    with shell.connected() as penstock:
        found = penstock.schedules()
    if shell.json:
        emit({"schedules": [schedule_json(one) for one in found]})
    elif not found:
        say("no schedules; add one: penstock schedules add NAME '0 6 * * *' --queue QUEUE", quiet=shell.quiet)
    elif not shell.quiet:
        columns = ("schedule", "queue", "kind", "cron", "tz", "next", "last tick")
        table(columns, [row(one) for one in found], words=columns)


@app.command("add")
@with_shell
def add(
    shell: Shell,
    name: Annotated[str, typer.Argument(help="1 to 200 bytes; one that exists is changed.")],
    cron: Annotated[str, typer.Argument(help="minute hour day-of-month month day-of-week, such as '0 6 * * *'.")],
    *,
    queue: Annotated[str, typer.Option(help="Where its tasks are pushed.")],
    kind: Annotated[str, typer.Option(help="Their kind.")] = "default",
    tz: Tz = "UTC",
    payload: Annotated[str, typer.Option(help="Their payload, a JSON object.")] = "{}",
    priority: Annotated[int, typer.Option(help="0 to 9; smaller runs first.")] = 5,
    backfill: Annotated[str, typer.Option(help="Ticks that passed while nothing ran: none, last or all.")] = "last",
    dry_run: DryRun = False,
) -> None:
    """Add a schedule, or change one. Another line or time zone counts from now.

    Example: penstock schedules add nightly '0 6 * * *' --tz Europe/Rome --queue reports --kind report
    """
    line = cron_of(cron, tz)
    with shell.connected(rehearse=dry_run) as penstock:
        known = {one.name for one in penstock.schedules()}
        found = penstock.set_schedule(
            name,
            cron,
            queue=queue,
            kind=kind,
            tz=tz,
            payload=json_value(payload.encode()),
            priority=priority,
            backfill=cast("Backfill", one_of(backfill, ("none", "last", "all"), "backfill")),
        )
    verb = "set" if name in known else "added"
    said = f"schedule {harmless(name)} {'would be ' if dry_run else ''}{verb}: {spoken(line, found.at, 1)}"
    shell.answer(schedule_json(found) | ({"dry_run": True} if dry_run else {}), said)


@app.command("rm")
@with_shell
def rm(shell: Shell, name: Name, *, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Remove a schedule. The tasks that it pushed stay. One that the code has comes back when a worker starts.

    Example: penstock schedules rm nightly --yes
    """
    check_consent(yes=yes, dry_run=dry_run)
    with shell.connected(rehearse=dry_run) as penstock:
        if not (yes or dry_run):
            the(penstock, name)
            ask(f"Remove schedule {harmless(name)}?")
        penstock.drop_schedule(name)
    told = {"name": name, "removed": not dry_run} | ({"dry_run": True} if dry_run else {})
    shell.answer(told, f"schedule {harmless(name)} {'would be removed' if dry_run else 'removed'}")


@app.command("pause")
@with_shell
def pause(shell: Shell, name: Name, *, dry_run: DryRun = False) -> None:
    """Push nothing until `resume`. Ticks that pass meanwhile are not made up for, whatever the backfill.

    Example: penstock schedules pause nightly
    """
    with shell.connected(rehearse=dry_run) as penstock:
        found = penstock.pause_schedule(name)
    said = f"schedule {harmless(name)} {'would be ' if dry_run else ''}paused"
    shell.answer(schedule_json(found) | ({"dry_run": True} if dry_run else {}), said)


@app.command("resume")
@with_shell
def resume(shell: Shell, name: Name, *, dry_run: DryRun = False) -> None:
    """Go on after `pause`, from now.

    Example: penstock schedules resume nightly
    """
    with shell.connected(rehearse=dry_run) as penstock:
        found = penstock.resume_schedule(name)
    said = f"schedule {harmless(name)} {'would be ' if dry_run else ''}resumed; next: {next_words(found)}"
    shell.answer(schedule_json(found) | ({"dry_run": True} if dry_run else {}), said)


@app.command("next")
@with_shell
def next_(
    shell: Shell,
    name: Annotated[str | None, typer.Argument(help="A schedule.", show_default=False)] = None,
    *,
    cron: Annotated[str | None, typer.Option(help="A line; needs no database.", show_default=False)] = None,
    tz: Tz = "UTC",
) -> None:
    """Say in words what a schedule or a cron line means, and when it runs the next five times.

    Example: penstock schedules next --cron '0 6 * * *' --tz Europe/Rome
    """
    if (name is None) == (cron is None):
        raise ValidationError("name: give a schedule, or a line with --cron", hint="Such as --cron '0 6 * * *'.")
    paused, now = False, datetime.now(UTC)
    if name is not None:
        with shell.connected() as penstock:
            found = the(penstock, name)
        line, paused, now = cron_of(found.cron, found.tz), found.paused, found.at
    else:
        line = cron_of(cron or "", tz)
    told = {
        "cron": line.line,
        "tz": line.tz,
        "meaning": meaning(line),
        "paused": paused,
        "next": [tick.astimezone(line.zone).isoformat() for tick in islice(line.ticks(now), RUNS)],
    }
    shell.answer(told, ("paused; it would run " if paused else "") + spoken(line, now))


def spoken(line: Cron, now: datetime, runs: int = RUNS) -> str:
    """What it means, and its next runs, each on a line of its own."""
    words = [in_words(tick, line.zone, now) for tick in islice(line.ticks(now), runs)]
    return f"{meaning(line)}; next: {words[0]}" if runs == 1 else "\n  ".join([meaning(line), *words])


def the(penstock: Penstock, name: str) -> CronSchedule:
    schedule_name(name)
    for one in penstock.schedules():
        if one.name == name:
            return one
    raise NotFound(f"schedule {harmless(name, most=80)!r} does not exist", hint="`penstock schedules ls` lists them.")


def row(one: CronSchedule) -> tuple[str, ...]:
    return (
        cell(one.name),
        one.queue,
        cell(one.kind),
        cell(one.cron),
        cell(one.tz),
        next_words(one),
        clock(one.last_tick),
    )


def next_words(one: CronSchedule) -> str:
    if one.paused:
        return "paused"
    if one.next_at <= one.at:
        return "now"
    try:
        return in_words(one.next_at, zone_of(one.tz), one.at)
    except ValidationError:  # set where that zone is known
        return clock(one.next_at)


def schedule_json(one: CronSchedule) -> dict[str, Any]:
    moments = {key: iso(getattr(one, key)) for key in ("mark", "next_at", "last_tick", "created", "updated", "at")}
    return {key: value for key, value in asdict(one).items() if key != "size"} | moments
