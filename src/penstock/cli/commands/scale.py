"""`penstock scale decide` and `policies`: what a policy would decide, without a database."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from penstock import validate
from penstock.cli.commands.scale_run import RunByDefault, run
from penstock.cli.terminal.options import AsJson, Debug, join_lines, parse_seconds
from penstock.cli.terminal.output import print_json, print_line, print_table
from penstock.errors import ValidationError, shown
from penstock.formatting import format_age, format_count
from penstock.scaler.judge.trace import check_between
from penstock.scaler.policy import policies
from penstock.scaler.policy.decision import Decision
from penstock.scaler.policy.signals import LONGEST, MAX_WORKERS, Fleet, Limits, Sample, Signals, check_number

app = typer.Typer(
    help="Run the scaler: `penstock scale MODULE:APP` keeps the promise of every queue. Or ask what it would decide.",
    no_args_is_help=True,
    cls=RunByDefault,
)
app.command("run")(run)

PLANNED_PATTERN = re.compile(r"([0-9]{1,9})@(.+)")
WINDOW_SECONDS, SAMPLE_SECONDS = 60, 5  # the samples of a policy, if --arrivals is given
NOW = 1e6  # seconds; any moment serves


@app.command("decide")
def decide(
    *,
    policy: Annotated[str, typer.Option(help="The policy; `penstock scale policies` lists them.")] = policies.DEFAULT,
    pending: Annotated[int, typer.Option(help="Tasks that are due and waiting.")],
    oldest_age: Annotated[str, typer.Option(help="How long the oldest of these has waited.")] = "0s",
    sla: Annotated[str, typer.Option(help="How long a task may wait, as 30s, 5m or seconds.")],
    rate: Annotated[
        float | None,
        typer.Option(help="Tasks that one worker finishes a second; default: unknown.", show_default=False),
    ] = None,
    workers: Annotated[int, typer.Option(help="The present number of workers.")] = 1,
    min_workers: Annotated[int, typer.Option(help="The smallest number of workers.")] = 1,
    max_workers: Annotated[int, typer.Option(help="The largest number of workers.")] = 10,
    active: Annotated[
        int | None,
        typer.Option(
            help="Tasks that run now; default: all slots if a task waits, otherwise none.", show_default=False
        ),
    ] = None,
    arrivals: Annotated[
        float | None, typer.Option(help="Tasks that arrive a second; default: unknown.", show_default=False)
    ] = None,
    slots: Annotated[int, typer.Option(help="Tasks that one worker runs at a time.")] = 1,
    start_latency: Annotated[str, typer.Option(help="The time from the start of a worker to its first task.")] = "20s",
    interval: Annotated[str, typer.Option(help="The time between two decisions.")] = "5s",
    planned: Annotated[
        list[str] | None,
        typer.Option(help="Tasks that will fall due, as 300@10m; you can repeat the option.", show_default=False),
    ] = None,
    json: AsJson = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Print what a policy decides for a queue in this state, and the result of each of its rules.

    It reads no database and starts nothing. The policy has no memory: it sees these numbers for the first time.

    Example: penstock scale decide --policy backlog-drain --pending 500 --oldest-age 55 --sla 60 --rate 8 --workers 5
    --max-workers 20
    """
    limits = Limits(
        sla=parse_seconds(sla, "sla"),
        min_workers=min_workers,
        max_workers=max_workers,
        slots=slots,
        interval=parse_seconds(interval, "interval"),
        start_latency=parse_seconds(start_latency, "start_latency"),
    )
    chosen = policies.find(policy)
    validate.whole(workers, "workers", 0, MAX_WORKERS)
    service = None if rate is None else slots / check_between(rate, "rate", 1e-6, 1e6)
    if active is None:
        active = workers * slots if pending > 0 else 0
    latest = Sample(NOW, pending, active, parse_seconds(oldest_age, "oldest_age"), workers=workers)
    signals = Signals(
        now=NOW,
        limits=limits,
        samples=make_samples(latest, arrivals, service),
        fleet=Fleet(workers),
        planned=tuple(sorted(parse_planned(one) for one in planned or ())),
        service=service,
        start_latency=limits.start_latency,
    )
    print_decision(chosen.name, chosen.decide(signals), json=json)


def make_samples(latest: Sample, arrivals: float | None, service: float | None) -> tuple[Sample, ...]:
    """Builds the samples of the last minute, or only the latest without --arrivals.

    As many tasks finish as arrive, since no option says that the backlog grows or shrinks.
    """
    if arrivals is None:
        return (latest,)
    per_second = check_between(arrivals, "arrivals", 0.0, 1e9)
    found = []
    for ago in range(WINDOW_SECONDS, -1, -SAMPLE_SECONDS):
        count = round(per_second * (WINDOW_SECONDS - ago))
        found.append(
            Sample(
                at=latest.at - ago,
                pending=latest.pending,
                active=latest.active,
                oldest_age=latest.oldest_age,
                arrived=count,
                finished=count,
                busy_seconds=count * (service or 0.0),
                workers=latest.workers,
            )
        )
    return tuple(found)


def parse_planned(text: str) -> tuple[float, int]:
    """Reads planned tasks, such as `300@10m`, as seconds and count."""
    found = PLANNED_PATTERN.fullmatch(text)
    if found is None:
        hint = "Write 300@10m: 300 tasks fall due in ten minutes."
        raise ValidationError(f"planned: {shown(text)} is not tasks@time", hint=hint, field="planned")
    after = parse_seconds(found[2], "planned")
    check_number("planned", after, 0.0, LONGEST)
    return after, int(found[1])


def print_decision(name: str, found: Decision, *, json: bool) -> None:
    if json:
        print_json(decision_json(name, found))
        return
    print_line(f"{format_count(found.workers, 'worker')}, {found.urgency}")
    print_line(found.reason.removeprefix(f"{found.workers}: "))
    print_line(format_facts(found))
    print_line("")
    rules = sorted(found.rules.items(), key=lambda one: -one[1])
    print_table(
        ("rule", "workers"),
        [(rule, f"{workers:,.4g}" if workers % 1 else f"{workers:,.0f}") for rule, workers in rules],
    )


def decision_json(name: str, found: Decision) -> dict[str, Any]:
    return {**found.to_json(), "policy": name}


def format_facts(found: Decision) -> str:
    parts = [f"decided by {found.bound_by}"]
    if found.capacity_short:
        parts.append(f"{format_count(found.capacity_short, 'worker')} short of {found.wanted:,}")
    left = found.time_to_breach
    if left is not None:
        parts.append(
            f"the oldest task is late in {format_age(left)}"
            if left > 0
            else f"the oldest task is {format_age(-left)} late"
        )
    return "; ".join(parts)


@app.command("policies")
def list_policies(json: AsJson = False, debug: Debug = False) -> None:  # noqa: ARG001 - read by main
    """List the policies: the default, common rules, and the policies of other tools.

    Example: penstock scale policies
    """
    print_catalogue([(name, type(policy).__doc__) for name, policy in policies.POLICIES.items()], "policy", json=json)


def print_catalogue(found: Sequence[tuple[str, str | None]], kind: str, *, json: bool) -> None:
    """Prints names, each with the first sentence of its docstring."""
    rows = [(name, take_first_sentence(about or "")) for name, about in found]
    if json:
        print_json([{"name": name, "about": about} for name, about in rows])
    else:
        print_table((kind, "about"), rows, words=("about",))


def take_first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", join_lines(text).strip(), maxsplit=1)[0]
