"""`penstock pipeline profile`, `evidence` and `report` learn from a lake."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock import validate
from penstock.cli.commands.pipeline import Master, StageProgress, app, find_reader, open_work, start_quiet_spark
from penstock.cli.commands.retry import list_tiers, list_waits
from penstock.cli.terminal.formatting import escape, format_cell, format_seconds, to_iso
from penstock.cli.terminal.options import OneOrAll, Shell, parse_moment, with_shell
from penstock.cli.terminal.output import print_interrupted, print_json, print_line, print_table
from penstock.cli.terminal.queue_settings import format_strategy
from penstock.client import profiles
from penstock.client.database import Database
from penstock.errors import ConfigError, Unavailable, ValidationError
from penstock.formatting import format_age, format_count
from penstock.model import StoredProfile
from penstock.retry import Progressive
from penstock.spark import require_pyspark as spark_needed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.lake import Lake
    from penstock.pipeline.learn.evidence import Evidence, Plans
    from penstock.pipeline.learn.retry_advice import Chance, Prospect

__all__ = ["app"]
ExistingLake = Annotated[str, typer.Option("--lake", help="The directory of the lake.", metavar="DIR")]
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MAX_KINDS = 5  # kinds that are printed in full
MAX_WAITS = 8  # waits of a strategy that are printed


@app.command("profile")
@with_shell
def profile(
    shell: Shell,
    queue: OneOrAll = None,
    *,
    lake: Annotated[
        str | None,
        typer.Option("--lake", help="The directory of the lake to learn from.", metavar="DIR", show_default=False),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Only print the stored profiles, and their age.")] = False,
    master: Master = None,
) -> None:
    """Learn profiles from the lake for the scaler: arrivals by the hour of the week, run times and start times.

    They replace the profiles that are stored in the database. A queue without history in the lake has none.

    Example: penstock pipeline profile --lake /srv/lake; penstock pipeline profile --show
    """
    name = None if queue is None else validate.queue_name(queue)
    if not show:
        if lake is None:
            raise ValidationError(
                "lake: no lake is given", hint="Write --lake DIR, or --show to print the stored profiles."
            )
        learn(shell, lake, name, master)
    with open_database(shell) as database:
        print_profiles(shell, profiles.find_profiles(database, name))


def learn(shell: Shell, lake: str, queue: str | None, master: str | None) -> None:
    find_reader(lake)
    with open_work(shell, lake, master=master) as (work, watch):
        from penstock.pipeline.learn.profile import make_profiles  # noqa: PLC0415 - Spark is an extra

        if queue is not None:
            profiles.find_profiles(work.database, queue)  # raises for a missing queue, with a hint at a similar name
        watch.tell("learning")
        make_profiles(work.spark, work.lake, work.database, queues=[queue] if queue else ())


@app.command("evidence")
@with_shell
def evidence(shell: Shell, queue: OneOrAll = None, *, lake: ExistingLake, master: Master = None) -> None:
    """Print how often retries succeed by attempt, age and error, what they cost, and a strategy that costs less.

    It reads the present strategy from the database, if that answers. With too few attempts it suggests nothing.

    Example: penstock pipeline evidence mail --lake /srv/lake
    """
    plans = read_present_plans(shell)
    with open_lake(shell, lake, master) as (spark, found, watch):
        from penstock.pipeline.learn.evidence import find_evidence  # noqa: PLC0415 - Spark is an extra

        watch.tell("weighing")
        several = find_evidence(spark, found, plans or {}, queue=queue)
    if shell.json:
        print_json({"present_known": plans is not None, "kinds": [evidence_json(one) for one in several]})
        return
    if plans is None:
        print_line("The database cannot be reached: the present settings are unknown.", quiet=shell.quiet)
    print_evidence(shell, several)


@app.command("report")
@with_shell
def report(
    shell: Shell,
    *,
    lake: ExistingLake,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="The HTML file; default: report.html in the lake.", metavar="FILE", show_default=False
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Only attempts that began after this moment.", show_default=False)
    ] = None,
    queues: Annotated[
        list[str] | None, typer.Option(help="Only these queues, as mail,invoices.", show_default=False)
    ] = None,
    master: Master = None,
) -> None:
    """Render a report: whether the promise was kept, and what it cost. The page needs no network and no database.

    Example: penstock pipeline report --lake /srv/lake --since 2026-11-01 --out november.html
    """
    begin = parse_moment(since, "since")
    names = [validate.queue_name(name) for given in queues or () for name in given.split(",")]
    with open_lake(shell, lake, master) as (spark, found, watch):
        from penstock.pipeline.report import make_report  # noqa: PLC0415 - Spark is an extra

        watch.tell("adding up")
        made = make_report(spark, found, out, since=begin, queues=names)
    shell.answer(made.to_json(), f"{escape(made.verdict)}\n{escape(str(made.path))}")


# --- lake and database ------------------------------------------------------------------------------------------------


@contextmanager
def open_lake(shell: Shell, directory: str, master: str | None) -> Iterator[tuple[SparkSession, Lake, StageProgress]]:
    """Opens a lake for reading, which other processes may change, and starts Spark."""
    spark_needed()
    from penstock.pipeline.lake import Lake  # noqa: PLC0415 - Spark is an extra
    from penstock.pipeline.work import make_own_session, sparks_errors  # noqa: PLC0415 - Spark is an extra

    found = Lake(directory)
    found.refresh()  # raises if there is no lake, before Spark is started
    spark: SparkSession | None = None
    try:
        with StageProgress(shell) as watch, sparks_errors():
            watch.tell("Spark starts")
            spark = start_quiet_spark(master)
            yield make_own_session(spark), found, watch
    except KeyboardInterrupt:
        print_interrupted("nothing was written")
        raise
    finally:
        if spark is not None:
            spark.stop()


@contextmanager
def open_database(shell: Shell) -> Iterator[Database]:
    with shell.connect() as penstock:
        database = Database(penstock.dsn, source=penstock.dsn_source)
        try:
            yield database
        finally:
            database.close()


def read_present_plans(shell: Shell) -> Plans | None:
    """Reads the present strategies. Returns None if no database is named or it does not answer."""
    spark_needed()
    from penstock.pipeline.learn.evidence import present_plans  # noqa: PLC0415 - Spark is an extra

    try:
        with open_database(shell) as database:
            return present_plans(database)
    except Unavailable:
        return None
    except ConfigError:
        if shell.dsn is not None:
            raise
        return None


# --- profiles ---------------------------------------------------------------------------------------------------------


def print_profiles(shell: Shell, stored: Sequence[StoredProfile]) -> None:
    if shell.json:
        print_json([profile_json(one) for one in stored])
    elif not shell.quiet:
        print_table(
            ("queue", "made", "covers", "a minute", "busiest hour", "φ", "run p50", "p99", "start p90"),
            [*map(format_profile, stored)],
        )


def profile_json(one: StoredProfile) -> dict[str, Any]:
    return {
        "queue": one.queue,
        "version": one.version,
        "made": to_iso(one.made),
        "age_seconds": None if one.age is None else one.age.total_seconds(),
        "covers_from": to_iso(one.covers_from),
        "covers_to": to_iso(one.covers_to),
        "profile": one.data,
    }


def format_profile(one: StoredProfile) -> tuple[str, ...]:
    """Writes the profile of a queue as a row of the table."""
    if one.data is None or one.age is None or one.covers_from is None or one.covers_to is None:
        return (format_cell(one.queue), "none", *["–"] * 7)
    service, start = one.data["service"] or {}, one.data["start"] or {}
    return (
        format_cell(one.queue),
        f"{format_age(one.age.total_seconds())} ago",
        format_age((one.covers_to - one.covers_from).total_seconds()),
        f"{one.data['level']:.3g}",
        format_busiest_hour(one.data["hours"]),
        f"{one.data['dispersion']:.3g}",
        format_age(service.get("p50")),
        format_age(service.get("p99")),
        format_age(start.get("p90")),
    )


def format_busiest_hour(hours: dict[str, list[float | None]]) -> str:
    known = [(value, -hour) for hour, value in enumerate(hours["p90"]) if value is not None]
    if not known:
        return "–"
    most, hour = max(known)
    return f"{DAYS[-hour // 24]} {-hour % 24:02}:00, p90 {most:.3g}"


# --- evidence ---------------------------------------------------------------------------------------------------------


def evidence_json(one: Evidence) -> dict[str, Any]:
    """Returns the evidence as JSON, with strategies in the form that --retry accepts."""
    found = one.to_json()
    for name in ("present", "suggested"):
        if found["advice"][name] is not None:
            found["advice"][name]["retry"] = format_strategy(found["advice"][name]["strategy"])
    return found


def print_evidence(shell: Shell, several: Sequence[Evidence]) -> None:
    if shell.quiet:
        return
    tried = [one for one in several if one.retries.tries]
    for one in tried[:MAX_KINDS]:
        print_kind(one)
    if not tried:
        print_line("Nothing was tried twice.")
    elif len(tried) > MAX_KINDS:
        print_line(
            f"{format_count(len(tried) - MAX_KINDS, 'more kind')} with fewer retries; name a queue, or --json for all."
        )


def print_kind(one: Evidence) -> None:
    share = f"{100 * one.retries.share:.1f} %"
    print_line(f"{escape(one.queue)}, {escape(one.kind)}: {format_retries(one.retries.tries)}, {share} succeeded")
    rows = [(f"attempt {attempt}", *format_chance(chance)) for attempt, chance in one.attempts]
    rows += [(f"retries from {format_age(begin)} of age", *format_chance(chance)) for begin, chance in one.ages]
    rows += [(f"after {escape(each.shape, most=40)}", *format_chance(each.chance)) for each in one.fingerprints]
    print_table(("what", "tries", "success", "surely", "took"), rows)
    print_comparison(one.advice.present, one.advice.suggested)
    print_line(f"{one.advice.said}\n")


def format_retries(count: int) -> str:
    return f"{count:,} {'retry' if count == 1 else 'retries'}"


def format_chance(chance: Chance) -> tuple[str, ...]:
    least, most = chance.interval
    surely = f"{100 * least:.0f}–{100 * most:.0f} %"
    return f"{chance.tries:,}", f"{100 * chance.share:.1f} %", surely, format_age(chance.seconds)


def print_comparison(now: Prospect | None, better: Prospect | None) -> None:
    """Prints the present and the suggested strategy side by side."""
    found = [(name, one) for name, one in (("now", now), ("suggested", better)) if one is not None]
    if not found:
        return
    rows = [
        ("--retry", *(format_strategy(one.plan.strategy.to_json()) for _, one in found)),
        ("--max-attempts", *(str(one.plan.max_attempts or "–") for _, one in found)),
        ("in Python", *(one.to_json()["code"] for _, one in found)),
        ("waits", *(format_waits(one) for _, one in found)),
        ("recovered", *(f"{100 * one.least:.1f}–{100 * one.recovered:.1f} %" for _, one in found)),
        ("retries each", *(f"{one.retries:.1f}" for _, one in found)),
        ("until success", *(format_age(one.until) for _, one in found)),
        ("in vain each", *(format_age(one.seconds) for _, one in found)),
    ]
    names = [name for name, _ in found]
    print_table(("", *names), rows, words=names)


def format_waits(one: Prospect) -> str:
    plan = one.plan
    if isinstance(plan.strategy, Progressive):
        return ", ".join(
            f"every {format_seconds(each['every'])} until {format_age(each['until'])}"
            for each in list_tiers(plan.strategy)
        )
    found = list_waits(plan.strategy, min(MAX_WAITS + 1, max(1, (plan.max_attempts or MAX_WAITS + 2) - 1)))
    return ", ".join(format_age(wait) for wait in found[:MAX_WAITS]) + (", …" if len(found) > MAX_WAITS else "")
