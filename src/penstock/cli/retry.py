"""`penstock retry plan`: what a strategy means, in seconds, before a queue is given it."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer

from penstock import validate
from penstock.cli.options import AsJson, Debug
from penstock.cli.output import age, emit, say, table
from penstock.errors import ValidationError
from penstock.retry import GRAMMAR, Progressive, Strategy, from_json, parse

app = typer.Typer(help="When failed tasks are tried again.", no_args_is_help=True)

First = Annotated[
    str | None,
    typer.Option("--unit", "--base", "--delay", help="The first wait: of fibonacci, exponential or fixed."),
]
Option = Annotated[str | None, typer.Option(show_default=False)]


@app.command("plan")
def plan(
    strategy: Annotated[str, typer.Argument(help=f"A name, or all of it. {GRAMMAR}")],
    *,
    unit: First = None,
    cap: Option = None,
    factor: Option = None,
    jitter: Option = None,
    failures: Annotated[int, typer.Option(help="For so many failures in a row.")] = 10,
    json: AsJson = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Print how long a task waits after each failure; of progressive, how often it is tried at which age.

    Waits are without jitter. A strategy that stops says so: then the task is dead.

    Example: penstock retry plan fibonacci --unit 1m --failures 8
    """
    validate.whole(failures, "failures", 1, 1000)
    found = parse(spelt_out(strategy, unit, cap=cap, factor=factor, jitter=jitter))
    if isinstance(found, Progressive):
        print_tiers(tiers(found), json=json)
    else:
        print_waits(waits(found, failures), json=json)


def spelt_out(strategy: str, first: str | None, **named: str | None) -> str:
    """The options as one writes them behind the name."""
    words = [*([first] if first else []), *(f"{name}={value}" for name, value in named.items() if value is not None)]
    if words and ":" in strategy:
        raise ValidationError(f"retry: {strategy!r} says it all; leave out the options", hint=GRAMMAR, field="retry")
    return f"{strategy}:{','.join(words)}" if words else strategy


def waits(strategy: Strategy, failures: int) -> list[float]:
    """Seconds after each failure, until it stops."""
    stored = strategy.to_json()
    plain = from_json({**stored, "jitter": 0.0}) if "jitter" in stored else strategy
    found = (plain.delay(n) for n in range(1, failures + 1))
    return [number(wait.total_seconds()) for wait in found if wait is not None]


def number(seconds: float) -> float:
    return int(seconds) if seconds == int(seconds) else seconds


def tiers(strategy: Progressive) -> list[dict[str, Any]]:
    """Per tier: from which age to which, how often, and how many tries that makes."""
    found, begins = [], 0.0
    for until, every in strategy.tiers:
        tries = int((until - begins) // every)
        found.append({"from": number(begins), "until": number(until), "every": number(every), "tries": tries})
        begins = until
    return found


def print_waits(found: list[float], *, json: bool) -> None:
    if json:
        emit(found)
        return
    total = 0.0
    rows = []
    for n, wait in enumerate(found, 1):
        total += wait
        rows.append((str(n), spoken(wait), spoken(total)))
    table(("failures", "waits", "in all"), rows)


def print_tiers(found: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        emit(found)
        return
    rows = [(f"{age(one['from'])} – {age(one['until'])}", spoken(one["every"]), f"{one['tries']:,}") for one in found]
    table(("age", "tried every", "tries"), rows)
    say(f"older: dead, after {sum(one['tries'] for one in found):,} tries at most")


def spoken(seconds: float) -> str:
    return str(timedelta(seconds=seconds)) if seconds >= 1 else f"{seconds * 1000:g} ms"
