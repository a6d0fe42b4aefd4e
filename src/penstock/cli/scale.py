"""`penstock scale decide`: how many workers a policy would ask for, before anybody lets it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from penstock import validate
from penstock.cli.options import AsJson, Debug, flowing
from penstock.cli.output import age, emit, many, say, table
from penstock.cli.scaling import RunByDefault, run
from penstock.errors import ValidationError, shown
from penstock.scaler import policies
from penstock.scaler.decision import Decision
from penstock.scaler.signals import LONGEST, MOST_WORKERS, Fleet, Limits, Sample, Signals, number
from penstock.scaler.traces import between

app = typer.Typer(
    help="Keep every queue's promise: `penstock scale MODULE:APP` starts and stops workers. Or ask how many, and why.",
    no_args_is_help=True,
    cls=RunByDefault,
)
app.command("run")(run)

PLANNED = re.compile(r"([0-9]{1,9})@(.+)")
WINDOW, EVERY = 60, 5  # seconds: what a policy is shown of the past, when arrivals are given
NOW = 1e6  # any moment will do


@app.command("decide")
def decide(
    *,
    policy: Annotated[str, typer.Option(help="Who decides; `penstock scale policies` lists them.")] = policies.DEFAULT,
    pending: Annotated[int, typer.Option(help="Tasks that are due and wait.")],
    oldest_age: Annotated[str, typer.Option(help="How long the oldest of them has waited.")] = "0s",
    sla: Annotated[str, typer.Option(help="How long a task may wait: 30s, 5m, or seconds.")],
    rate: Annotated[
        float | None,
        typer.Option(help="Tasks a second that one worker finishes; default: not known yet.", show_default=False),
    ] = None,
    workers: Annotated[int, typer.Option(help="Workers there are now.")] = 1,
    min_workers: Annotated[int, typer.Option(help="Never fewer.")] = 1,
    max_workers: Annotated[int, typer.Option(help="Never more.")] = 10,
    active: Annotated[
        int | None,
        typer.Option(help="Tasks that run; default: all slots if anything waits, else none.", show_default=False),
    ] = None,
    arrivals: Annotated[
        float | None, typer.Option(help="Tasks a second that arrive; default: nobody knows.", show_default=False)
    ] = None,
    slots: Annotated[int, typer.Option(help="Tasks that one worker runs at a time.")] = 1,
    start_latency: Annotated[str, typer.Option(help="From asking for a worker to its first task.")] = "20s",
    interval: Annotated[str, typer.Option(help="Between two decisions.")] = "5s",
    planned: Annotated[
        list[str] | None,
        typer.Option(help="Tasks that will fall due, as 300@10m; may be repeated.", show_default=False),
    ] = None,
    json: AsJson = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Print what a policy decides for a queue that stands like this, and what each of its rules says.

    Nothing is read from a database and nothing is started. The policy remembers nothing: it sees this for the first
    time.

    Example: penstock scale decide --policy backlog-drain --pending 500 --oldest-age 55 --sla 60 --rate 8 --workers 5
    --max-workers 20
    """
    limits = Limits(
        sla=seconds(sla, "sla"),
        min_workers=min_workers,
        max_workers=max_workers,
        slots=slots,
        interval=seconds(interval, "interval"),
        start_latency=seconds(start_latency, "start_latency"),
    )
    chosen = policies.find(policy)
    validate.whole(workers, "workers", 0, MOST_WORKERS)
    service = None if rate is None else slots / between(rate, "rate", 1e-6, 1e6)
    if active is None:
        active = workers * slots if pending > 0 else 0
    latest = Sample(NOW, pending, active, seconds(oldest_age, "oldest_age"), workers=workers)
    signals = Signals(
        now=NOW,
        limits=limits,
        samples=samples(latest, arrivals, service),
        fleet=Fleet(workers),
        planned=tuple(sorted(in_future(one) for one in planned or ())),
        service=service,
        start_latency=limits.start_latency,
    )
    answer(chosen.name, chosen.decide(signals), json=json)


def seconds(value: str, field: str) -> float:
    """`90`, `90s` or `1m30s`."""
    try:
        given: str | float = float(value)
    except ValueError:
        given = value
    return validate.duration(given, field).total_seconds()


def samples(latest: Sample, arrivals: float | None, service: float | None) -> tuple[Sample, ...]:
    """One look, or those of the last minute: as many arrived as are said to, and as many were finished, because nobody
    said that the backlog grows or shrinks."""
    if arrivals is None:
        return (latest,)
    per_second = between(arrivals, "arrivals", 0.0, 1e9)
    found = []
    for ago in range(WINDOW, -1, -EVERY):
        count = round(per_second * (WINDOW - ago))
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


def in_future(text: str) -> tuple[float, int]:
    """`300@10m`."""
    found = PLANNED.fullmatch(text)
    if found is None:
        hint = "Write 300@10m: 300 tasks fall due in ten minutes."
        raise ValidationError(f"planned: {shown(text)} is not tasks@time", hint=hint, field="planned")
    after = seconds(found[2], "planned")
    number("planned", after, 0.0, LONGEST)
    return after, int(found[1])


def answer(name: str, found: Decision, *, json: bool) -> None:
    if json:
        emit(as_json(name, found))
        return
    say(f"{many(found.workers, 'worker')}, {found.urgency}")
    say(found.reason.removeprefix(f"{found.workers}: "))
    say(facts(found))
    say("")
    rules = sorted(found.rules.items(), key=lambda one: -one[1])
    table(
        ("rule", "workers"),
        [(rule, f"{workers:,.4g}" if workers % 1 else f"{workers:,.0f}") for rule, workers in rules],
    )


def as_json(name: str, found: Decision) -> dict[str, Any]:
    return {**found.to_json(), "policy": name}


def facts(found: Decision) -> str:
    parts = [f"decided by {found.bound_by}"]
    if found.capacity_short:
        parts.append(f"{many(found.capacity_short, 'worker')} short of {found.wanted:,}")
    left = found.time_to_breach
    if left is not None:
        parts.append(f"the oldest task is late in {age(left)}" if left > 0 else f"the oldest task is {age(-left)} late")
    return "; ".join(parts)


@app.command("policies")
def names(json: AsJson = False, debug: Debug = False) -> None:  # noqa: ARG001 - read by main
    """List the policies: the default, the rules that people write, and how other tools decide.

    Example: penstock scale policies
    """
    catalogue([(name, type(policy).__doc__) for name, policy in policies.POLICIES.items()], "policy", json=json)


def catalogue(found: Sequence[tuple[str, str | None]], kind: str, *, json: bool) -> None:
    """Names, and the first sentence of what was written about each: a line of it may end anywhere."""
    rows = [(name, first_sentence(about or "")) for name, about in found]
    if json:
        emit([{"name": name, "about": about} for name, about in rows])
    else:
        table((kind, "about"), rows, words=("about",))


def first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", flowing(text).strip(), maxsplit=1)[0]
