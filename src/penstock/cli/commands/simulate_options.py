"""Options of `penstock simulate`, some of which `penstock pipeline backtest` shares."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from penstock import validate
from penstock.cli.terminal.options import AsJson, Options, parse_seconds, share_options
from penstock.errors import ValidationError, shown
from penstock.scaler.policy.signals import Limits

P = ParamSpec("P")


MAX_SEEDS = 1000


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """The options that `simulate` and `compare` share, checked."""

    limits: Limits
    max_workers: int | None
    made: dict[str, Any]  # the options by which traces are made
    seeds: int
    solve: bool
    plot: Path | None
    json: bool

    @classmethod
    def of(cls, given: dict[str, Any]) -> SimulationOptions:
        most, least = given["max_workers"], given["min_workers"]
        limits = Limits(
            sla=parse_seconds(given["sla"], "sla"),
            min_workers=least,
            max_workers=max(1, least) if most is None else most,
            slots=given["slots"],
            interval=parse_seconds(given["interval"], "interval"),
            start_latency=parse_seconds(given["start_latency"], "start_latency"),
        )
        made = check_trace_options(**{name: given[name] for name in ("service", "cv", "start", "duration", "tasks")})
        seeds = validate.whole(given["seeds"], "seeds", 1, MAX_SEEDS)
        plot = None if given["plot"] is None else check_writable(given["plot"])
        return cls(limits, most, made, seeds, not given["no_bound"], plot, given["json"])

    def inputs(self) -> dict[str, Any]:
        limits = self.limits
        return {
            "sla": limits.sla,
            "start_latency": limits.start_latency,
            "interval": limits.interval,
            "slots": limits.slots,
            "min_workers": limits.min_workers,
            "max_workers": self.max_workers,
            "seeds": self.seeds,
            **self.made,
        }


def check_trace_options(
    *, service: str, cv: float, start: str | None, duration: str | None, tasks: int | None
) -> dict[str, Any]:
    """Checks the options by which traces are made."""
    return {
        "service": parse_seconds(service, "service"),
        "cv": cv,
        "start": parse_start(start),
        "duration": None if duration is None else parse_seconds(duration, "duration"),
        "tasks": tasks,
    }


def parse_start(text: str | None) -> float | str | None:
    """Reads seconds into a recording, or returns a timestamp as it is: only the trace can read it."""
    if text is None:
        return None
    try:
        return parse_seconds(text, "start")
    except ValidationError:
        return text


def check_writable(text: str) -> Path:
    """Checks before a long run that a file can be written. An existing file stays until the new chart is drawn."""
    path, existed = Path(text), os.path.lexists(text)
    try:
        with path.open("a", encoding="utf-8"):
            pass
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        hint = "Name a file in a directory that exists and is writable."
        raise ValidationError(f"plot: {shown(text)}: {why}", hint=hint, field="plot") from None
    if not existed:
        path.unlink()
    return path


COMMON: Options = (
    ("sla", Annotated[str, typer.Option(help="How long a task may wait.")], "30s"),
    (
        "start_latency",
        Annotated[str, typer.Option(help="The time from the start of a worker to its first task.")],
        "20s",
    ),
    ("service", Annotated[str, typer.Option(help="The run time of a task, if the trace has none.")], "2s"),
    ("cv", Annotated[float, typer.Option(help="How much the run time varies: standard deviation / mean.")], 1.0),
    ("interval", Annotated[str, typer.Option(help="The time between two decisions.")], "5s"),
    ("min_workers", Annotated[int, typer.Option(help="The smallest number of workers.")], 1),
    (
        "max_workers",
        Annotated[
            int | None,
            typer.Option(
                help="The largest number of workers; default: 1.5 × the most that a clairvoyant would use.",
                show_default=False,
            ),
        ],
        None,
    ),
    ("slots", Annotated[int, typer.Option(help="How many tasks one worker runs at once.")], 1),
    (
        "seeds",
        Annotated[
            int, typer.Option(help="The number of traces, each with other random numbers; the output shows means.")
        ],
        1,
    ),
    (
        "duration",
        Annotated[
            str | None,
            typer.Option(
                help="The length of the trace; default: all of a file, 6h of a synthetic trace.", show_default=False
            ),
        ],
        None,
    ),
    (
        "start",
        Annotated[str | None, typer.Option(help="Where to begin in a file, as 2h or a timestamp.", show_default=False)],
        None,
    ),
    (
        "tasks",
        Annotated[
            int | None,
            typer.Option(
                help="Scale the trace to so many tasks; default: as in the file, 100000 if synthetic.",
                show_default=False,
            ),
        ],
        None,
    ),
    ("plot", Annotated[str | None, typer.Option(help="Draw a chart into this SVG file.", show_default=False)], None),
    ("no_bound", Annotated[bool, typer.Option("--no-bound", help="Do not compute the least possible cost.")], False),
    ("json", AsJson, False),
)


def with_setup(command: Callable[Concatenate[SimulationOptions, P], None]) -> Callable[..., None]:
    """Adds the shared options to a command, which receives them, checked, as its first argument."""
    return share_options(COMMON, SimulationOptions.of, command)
