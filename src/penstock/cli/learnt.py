"""`penstock pipeline profile | evidence | report`: what the lake says of queues, their retries and their promises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock import queue as seam
from penstock import validate
from penstock.cli.options import OneOrAll, Shell, moment, with_shell
from penstock.cli.output import age, cell, emit, harmless, interrupted, iso, many, say, table
from penstock.cli.pipeline import Master, Watch, app, quiet_session, reader_of, site
from penstock.cli.retry import spoken, tiers, waits
from penstock.cli.settings import strategy
from penstock.database import Database
from penstock.errors import ConfigError, Unavailable, ValidationError
from penstock.model import StoredProfile
from penstock.retry import Progressive
from penstock.spark import needed as spark_needed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.pipeline.evidence import Evidence, Plans
    from penstock.pipeline.lake import Lake
    from penstock.pipeline.tries import Chance, Prospect

__all__ = ["app"]
ExistingLake = Annotated[str, typer.Option("--lake", help="The lake's directory.", metavar="DIR")]
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MOST_KINDS = 5  # that are printed in full
PREVIEW = 8  # waits of a schedule


@app.command("profile")
@with_shell
def profile(
    shell: Shell,
    queue: OneOrAll = None,
    *,
    lake: Annotated[
        str | None, typer.Option("--lake", help="The lake to learn from.", metavar="DIR", show_default=False)
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Only print what is known now, and how old it is.")] = False,
    master: Master = None,
) -> None:
    """Learn from the lake what the scaler should expect: arrivals by the hour of the week, run times, start times.

    What is learnt is kept in the database, in place of what was known before. A queue of which the lake has nothing is
    said to have none.

    Example: penstock pipeline profile --lake /srv/lake; penstock pipeline profile --show
    """
    name = None if queue is None else validate.queue_name(queue)
    if not show:
        if lake is None:
            raise ValidationError("lake: say which to learn from", hint="--lake DIR, or --show to only look.")
        learn(shell, lake, name, master)
    with opened(shell) as database:
        print_profiles(shell, seam.profiles(database, name))


def learn(shell: Shell, lake: str, queue: str | None, master: str | None) -> None:
    reader_of(lake)
    with site(shell, lake, master=master) as (work, watch):
        from penstock.pipeline.profile import make_profiles  # noqa: PLC0415 - Spark is an extra

        if queue is not None:
            seam.profiles(work.database, queue)  # NotFound says which is near
        watch.tell("learning")
        make_profiles(work.spark, work.lake, work.database, queues=[queue] if queue else ())


@app.command("evidence")
@with_shell
def evidence(shell: Shell, queue: OneOrAll = None, *, lake: ExistingLake, master: Master = None) -> None:
    """Print how retries went, by attempt, age and error, what they cost, and a schedule that would have cost less.

    The present schedule is read from the database, if it can be reached. Where too little is known nothing is
    suggested.

    Example: penstock pipeline evidence mail --lake /srv/lake
    """
    plans = present(shell)
    with reading(shell, lake, master) as (spark, found, watch):
        from penstock.pipeline.evidence import find_evidence  # noqa: PLC0415 - Spark is an extra

        watch.tell("weighing")
        several = find_evidence(spark, found, plans or {}, queue=queue)
    if shell.json:
        emit({"present_known": plans is not None, "kinds": [told(one) for one in several]})
        return
    if plans is None:
        say("The database can not be reached: what is set now is not known.", quiet=shell.quiet)
    print_evidence(shell, several)


@app.command("report")
@with_shell
def report(
    shell: Shell,
    *,
    lake: ExistingLake,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The page; default: report.html in the lake.", metavar="FILE", show_default=False),
    ] = None,
    since: Annotated[str | None, typer.Option(help="Only what began after this moment.", show_default=False)] = None,
    queues: Annotated[
        list[str] | None, typer.Option(help="Only these queues: mail,invoices.", show_default=False)
    ] = None,
    master: Master = None,
) -> None:
    """Make one page that says whether the promise was kept, and what that cost. It needs no network and no database.

    Example: penstock pipeline report --lake /srv/lake --since 2026-11-01 --out november.html
    """
    begin = moment(since, "since")
    names = [validate.queue_name(name) for given in queues or () for name in given.split(",")]
    with reading(shell, lake, master) as (spark, found, watch):
        from penstock.pipeline.report import make_report  # noqa: PLC0415 - Spark is an extra

        watch.tell("adding up")
        made = make_report(spark, found, out, since=begin, queues=names)
    shell.answer(made.to_json(), f"{harmless(made.verdict)}\n{harmless(str(made.path))}")


# --- where they look --------------------------------------------------------------------------------------------------


@contextmanager
def reading(shell: Shell, place: str, master: str | None) -> Iterator[tuple[SparkSession, Lake, Watch]]:
    """A lake that others may change meanwhile, and no database."""
    spark_needed()
    from penstock.pipeline.lake import Lake  # noqa: PLC0415 - Spark is an extra
    from penstock.pipeline.work import own, sparks_errors  # noqa: PLC0415 - Spark is an extra

    found = Lake(place)
    found.refresh()  # there must be one, before Spark is started
    spark: SparkSession | None = None
    try:
        with Watch(shell) as watch, sparks_errors():
            watch.tell("Spark starts")
            spark = quiet_session(master)
            yield own(spark), found, watch
    except KeyboardInterrupt:
        interrupted("nothing was written")
        raise
    finally:
        if spark is not None:
            spark.stop()


@contextmanager
def opened(shell: Shell) -> Iterator[Database]:
    with shell.connected() as penstock:
        database = Database(penstock.dsn, source=penstock.dsn_source)
        try:
            yield database
        finally:
            database.close()


def present(shell: Shell) -> Plans | None:
    """What is set now. None: no database is named, or it does not answer; a wrong password is an error all the same."""
    spark_needed()
    from penstock.pipeline.evidence import present_plans  # noqa: PLC0415 - Spark is an extra

    try:
        with opened(shell) as database:
            return present_plans(database)
    except Unavailable:
        return None
    except ConfigError:
        if shell.dsn is not None:
            raise
        return None


# --- profiles ---------------------------------------------------------------------------------------------------------


def print_profiles(shell: Shell, profiles: Sequence[StoredProfile]) -> None:
    if shell.json:
        emit([profile_json(one) for one in profiles])
    elif not shell.quiet:
        table(
            ("queue", "made", "covers", "a minute", "busiest hour", "φ", "run p50", "p99", "start p90"),
            [*map(row, profiles)],
        )


def profile_json(one: StoredProfile) -> dict[str, Any]:
    return {
        "queue": one.queue,
        "version": one.version,
        "made": iso(one.made),
        "age_seconds": None if one.age is None else one.age.total_seconds(),
        "covers_from": iso(one.covers_from),
        "covers_to": iso(one.covers_to),
        "profile": one.data,
    }


def row(one: StoredProfile) -> tuple[str, ...]:
    """A queue without history is said to have none."""
    if one.data is None or one.age is None or one.covers_from is None or one.covers_to is None:
        return (cell(one.queue), "none", *["–"] * 7)
    service, start = one.data["service"] or {}, one.data["start"] or {}
    return (
        cell(one.queue),
        f"{age(one.age.total_seconds())} ago",
        age((one.covers_to - one.covers_from).total_seconds()),
        f"{one.data['level']:.3g}",
        busiest(one.data["hours"]),
        f"{one.data['dispersion']:.3g}",
        age(service.get("p50")),
        age(service.get("p99")),
        age(start.get("p90")),
    )


def busiest(hours: dict[str, list[float | None]]) -> str:
    known = [(value, -hour) for hour, value in enumerate(hours["p90"]) if value is not None]
    if not known:
        return "–"
    most, hour = max(known)
    return f"{DAYS[-hour // 24]} {-hour % 24:02}:00, p90 {most:.3g}"


# --- evidence ---------------------------------------------------------------------------------------------------------


def told(one: Evidence) -> dict[str, Any]:
    """With strategies as one writes them in a shell."""
    found = one.to_json()
    for name in ("present", "suggested"):
        if found["advice"][name] is not None:
            found["advice"][name]["retry"] = strategy(found["advice"][name]["strategy"])
    return found


def print_evidence(shell: Shell, several: Sequence[Evidence]) -> None:
    if shell.quiet:
        return
    tried = [one for one in several if one.retries.tries]
    for one in tried[:MOST_KINDS]:
        print_one(one)
    if not tried:
        say("Nothing was tried twice.")
    elif len(tried) > MOST_KINDS:
        say(f"{many(len(tried) - MOST_KINDS, 'more kind')} with fewer retries; name a queue, or --json for all.")


def print_one(one: Evidence) -> None:
    share = f"{100 * one.retries.share:.1f} %"
    say(f"{harmless(one.queue)}, {harmless(one.kind)}: {tries(one.retries.tries)}, {share} succeeded")
    rows = [(f"attempt {attempt}", *numbers(chance)) for attempt, chance in one.attempts]
    rows += [(f"retries from {age(begin)} of age", *numbers(chance)) for begin, chance in one.ages]
    rows += [(f"after {harmless(each.shape, most=40)}", *numbers(each.chance)) for each in one.fingerprints]
    table(("what", "tries", "success", "surely", "took"), rows)
    side_by_side(one.advice.present, one.advice.suggested)
    say(f"{one.advice.said}\n")


def tries(count: int) -> str:
    return f"{count:,} {'retry' if count == 1 else 'retries'}"


def numbers(chance: Chance) -> tuple[str, ...]:
    least, most = chance.interval
    surely = f"{100 * least:.0f}–{100 * most:.0f} %"
    return f"{chance.tries:,}", f"{100 * chance.share:.1f} %", surely, age(chance.seconds)


def side_by_side(now: Prospect | None, better: Prospect | None) -> None:
    """What is set and what is suggested: how it is written, and what it means."""
    found = [(name, one) for name, one in (("now", now), ("suggested", better)) if one is not None]
    if not found:
        return
    rows = [
        ("--retry", *(strategy(one.plan.strategy.to_json()) for _, one in found)),
        ("--max-attempts", *(str(one.plan.max_attempts or "–") for _, one in found)),
        ("in Python", *(one.to_json()["code"] for _, one in found)),
        ("waits", *(preview(one) for _, one in found)),
        ("recovered", *(f"{100 * one.least:.1f}–{100 * one.recovered:.1f} %" for _, one in found)),
        ("retries each", *(f"{one.retries:.1f}" for _, one in found)),
        ("until success", *(age(one.until) for _, one in found)),
        ("in vain each", *(age(one.seconds) for _, one in found)),
    ]
    names = [name for name, _ in found]
    table(("", *names), rows, words=names)


def preview(one: Prospect) -> str:
    plan = one.plan
    if isinstance(plan.strategy, Progressive):
        return ", ".join(f"every {spoken(each['every'])} until {age(each['until'])}" for each in tiers(plan.strategy))
    found = waits(plan.strategy, min(PREVIEW + 1, max(1, (plan.max_attempts or PREVIEW + 2) - 1)))
    return ", ".join(age(wait) for wait in found[:PREVIEW]) + (", …" if len(found) > PREVIEW else "")
