"""`penstock retry plan` prints the waits of a retry strategy."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock import validate
from penstock.cli.terminal.formatting import format_seconds
from penstock.cli.terminal.options import AsJson, Debug
from penstock.cli.terminal.output import print_json, print_line, print_table
from penstock.errors import ValidationError
from penstock.formatting import format_age
from penstock.retry import GRAMMAR, Progressive, Strategy, from_json, parse

app = typer.Typer(help="Show when failed tasks are tried again.", no_args_is_help=True)

First = Annotated[
    str | None,
    typer.Option("--unit", "--base", "--delay", help="The first wait of fibonacci, exponential or fixed."),
]
Option = Annotated[str | None, typer.Option(show_default=False)]


@app.command("plan")
def plan(
    strategy: Annotated[str, typer.Argument(help=f"The name of a strategy, or the whole strategy. {GRAMMAR}")],
    *,
    unit: First = None,
    cap: Option = None,
    factor: Option = None,
    jitter: Option = None,
    failures: Annotated[int, typer.Option(help="The number of failures in a row.")] = 10,
    json: AsJson = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Print how long a task waits after each failure, or for progressive how often it is tried at which age.

    Waits are without jitter. The list ends where the strategy stops: the task is then dead.

    Example: penstock retry plan fibonacci --unit 1m --failures 8
    """
    validate.whole(failures, "failures", 1, 1000)
    found = parse(join_options(strategy, unit, cap=cap, factor=factor, jitter=jitter))
    if isinstance(found, Progressive):
        print_tiers(list_tiers(found), json=json)
    else:
        print_waits(list_waits(found, failures), json=json)


def join_options(strategy: str, first: str | None, **named: str | None) -> str:
    """Joins the options to the name, in the form that --retry accepts."""
    words = [*([first] if first else []), *(f"{name}={value}" for name, value in named.items() if value is not None)]
    if words and ":" in strategy:
        raise ValidationError(
            f"retry: {strategy!r} is a whole strategy; leave out the options", hint=GRAMMAR, field="retry"
        )
    return f"{strategy}:{','.join(words)}" if words else strategy


def list_waits(strategy: Strategy, failures: int) -> list[float]:
    """Lists the seconds to wait after each failure, until the strategy stops."""
    stored = strategy.to_json()
    plain = from_json({**stored, "jitter": 0.0}) if "jitter" in stored else strategy
    found = (plain.delay(n) for n in range(1, failures + 1))
    return [drop_zero_fraction(wait.total_seconds()) for wait in found if wait is not None]


def drop_zero_fraction(seconds: float) -> float:
    return int(seconds) if seconds == int(seconds) else seconds


def list_tiers(strategy: Progressive) -> list[dict[str, Any]]:
    """Lists the tiers: the range of ages, how often a task is tried, and how many tries that makes."""
    found, begins = [], 0.0
    for until, every in strategy.tiers:
        tries = int((until - begins) // every)
        found.append(
            {
                "from": drop_zero_fraction(begins),
                "until": drop_zero_fraction(until),
                "every": drop_zero_fraction(every),
                "tries": tries,
            }
        )
        begins = until
    return found


def print_waits(found: list[float], *, json: bool) -> None:
    if json:
        print_json(found)
        return
    total = 0.0
    rows = []
    for n, wait in enumerate(found, 1):
        total += wait
        rows.append((str(n), format_seconds(wait), format_seconds(total)))
    print_table(("failures", "waits", "in all"), rows)


def print_tiers(found: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        print_json(found)
        return
    rows = [
        (f"{format_age(one['from'])} – {format_age(one['until'])}", format_seconds(one["every"]), f"{one['tries']:,}")
        for one in found
    ]
    print_table(("age", "tried every", "tries"), rows)
    print_line(f"older: dead, after {sum(one['tries'] for one in found):,} tries at most")
