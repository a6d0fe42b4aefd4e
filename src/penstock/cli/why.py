"""`penstock why`: what the scaler decided for a queue, now or then, in words."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from penstock.app import Penstock
from penstock.cli.board import Memory, Standing, ended, point, signals_of
from penstock.cli.options import QueueName, Shell, moment, reading, with_shell
from penstock.cli.output import age, clock, emit, harmless, iso, many, say, table
from penstock.cli.scale import as_json as decision_json
from penstock.cli.scale import facts
from penstock.errors import NotFound
from penstock.model import Board, NotedDecision, Sampled, Scaled
from penstock.scaler import policies
from penstock.scaler.decision import Decision
from penstock.scaler.signals import Fleet, Limits, rate_over

LOOK_BACK = 31  # samples, ten seconds apart
SLOTS = 10  # of a worker, as long as there is none to ask
CHANGES = ("workers", "actual", "wanted", "urgency", "bound_by", "policy", "epoch")
WORDS = {"workers": "target", "actual": "workers", "bound_by": "decided by"}


@with_shell
@reading
def why(
    shell: Shell,
    queue: QueueName,
    *,
    at: Annotated[
        str | None,
        typer.Option(help="The decision of that moment: 2030-01-31T06:00:00Z; default: now.", show_default=False),
    ] = None,
) -> None:
    """Why a queue has so many workers: what was decided, by which rule, from which numbers, and what changed.

    Where no scaler has ever run, it says so, and what one would decide now: that changes nothing.

    Example: penstock why mail --at 2030-01-31T06:00:00Z
    """
    when = moment(at, "at")
    with shell.connected() as penstock:
        found = penstock.decisions(queue, at=when, limit=2)
        board = None if when is not None and found else known_board(penstock, queue, found)
    if found:
        scaled = None if board is None or when is not None else board.scaling.get(queue)
        tell(shell, found, scaled, None if when is not None else board)
    elif when is not None:
        hint = "Decisions are kept for 90 days; `penstock why` without --at tells the last one."
        raise NotFound(f"queue {queue}: nothing was decided by {clock(when)}", hint=hint)
    else:
        rehearse(shell, queue, board)


def known_board(penstock: Penstock, queue: str, found: Sequence[NotedDecision]) -> Board | None:
    """An adopted table has decisions, and no counts of ours."""
    try:
        return penstock.board(queue, decisions=0, samples=LOOK_BACK)
    except NotFound:
        if found:
            return None
        raise


# --- what was decided -------------------------------------------------------------------------------------------------


def tell(shell: Shell, found: Sequence[NotedDecision], scaled: Scaled | None, board: Board | None) -> None:
    one, before = found[0], found[1] if len(found) > 1 else None
    since = changes(one, before)
    if shell.json:
        held = None if scaled is None else {"holder": scaled.holder, "alive": scaled.alive, "target": scaled.target}
        emit({**noted_json(one), "before": before and noted_json(before), "changed": since, "scaler": held})
        return
    say(f"{many(one.workers, 'worker')} for {one.queue}, {one.urgency}, decided {clock(one.at)}", quiet=shell.quiet)
    for line in (
        harmless(one.reason.removeprefix(f"{one.workers}: ")),
        f"{many(one.actual, 'worker')} there were; {noted_facts(one)}",
        f"policy {one.policy}, epoch {one.epoch}" + held_words(scaled, board),
        change_words(since, before, one),
    ):
        say(line, quiet=shell.quiet)
    if not shell.quiet:
        print_rules(one.rules)
        print_inputs(one.inputs)


def held_words(scaled: Scaled | None, board: Board | None) -> str:
    if scaled is None or board is None:
        return ""
    if scaled.alive:
        return f"; {harmless(scaled.holder)} scales it, and looked {age(scaled.decided)} ago"
    return "; no scaler runs now: this is what the last one wanted"


def noted_facts(one: NotedDecision) -> str:
    return facts(
        Decision(
            workers=one.workers,
            urgency=one.urgency,
            reason=one.reason,
            bound_by=one.bound_by,
            rules=one.rules,
            time_to_breach=one.time_to_breach,
            predicted_breach=one.predicted_breach,
            wanted=one.wanted,
        )
    ) + ("" if one.predicted_breach is None else f"; at that pace a task is late in {age(one.predicted_breach)}")


def changes(one: NotedDecision, before: NotedDecision | None) -> dict[str, list[Any]]:
    """What is another than in the decision before, with what it was and is."""
    if before is None:
        return {}
    found = {name: [getattr(before, name), getattr(one, name)] for name in CHANGES}
    return {name: pair for name, pair in found.items() if pair[0] != pair[1]}


def change_words(since: Mapping[str, Sequence[Any]], before: NotedDecision | None, one: NotedDecision) -> str:
    if before is None:
        return "the first decision there is"
    ago = age(max(0.0, (one.at - before.at).total_seconds()))
    if not since:
        return f"as in the decision before, {ago} earlier"
    told = ", ".join(f"{WORDS.get(name, name)} {old} → {new}" for name, (old, new) in since.items())
    return f"since the decision before, {ago} earlier: {told}"


def noted_json(one: NotedDecision) -> dict[str, Any]:
    return {
        "queue": one.queue,
        "at": iso(one.at),
        "workers": one.workers,
        "actual": one.actual,
        "wanted": one.wanted,
        "urgency": one.urgency,
        "bound_by": one.bound_by,
        "reason": one.reason,
        "time_to_breach": one.time_to_breach,
        "predicted_breach": one.predicted_breach,
        "rules": dict(one.rules),
        "inputs": dict(one.inputs),
        "policy": one.policy,
        "epoch": one.epoch,
    }


def print_rules(rules: Mapping[str, float]) -> None:
    if rules:
        say("")
        ordered = sorted(rules.items(), key=lambda one: -one[1])
        table(("rule", "workers"), [(harmless(rule), f"{workers:,.4g}") for rule, workers in ordered])


def print_inputs(inputs: Mapping[str, Any]) -> None:
    if inputs:
        say("")
        table(("input", "value"), [(harmless(name), shortly(value)) for name, value in inputs.items()])


def shortly(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return "–" if value is None else harmless(str(value), most=60)


# --- what would be decided --------------------------------------------------------------------------------------------


def rehearse(shell: Shell, queue: str, board: Board | None) -> None:
    """From counters and samples alone; a scaler looks at ages, leases and the calendar too."""
    assert board is not None
    (standing,) = Memory().see(board)
    if standing.status.sla is None:
        hint = f"penstock queues set {queue} --sla 30s"
        raise NotFound(f"queue {queue}: no scaler has ever run, and it has no SLA to decide by", hint=hint)
    found = would(board, standing)
    if shell.json:
        emit({"queue": queue, "decided": False, "would": decision_json(policies.DEFAULT, found)})
        return
    say(f"no scaler has ever run for {queue}", quiet=shell.quiet)
    say(f"one would ask now for {many(found.workers, 'worker')}, {found.urgency}", quiet=shell.quiet)
    say(found.reason.removeprefix(f"{found.workers}: "), quiet=shell.quiet)
    say(facts(found), quiet=shell.quiet)
    if not shell.quiet:
        print_rules(found.rules)
        say("")
        say("start one: penstock scale MODULE:APP")


def would(board: Board, standing: Standing) -> Decision:
    own = [worker for worker in board.workers if standing.status.queue in worker.queues and not worker.leaving]
    slots = max((worker.slots for worker in own), default=SLOTS)
    limits = Limits(standing.status.sla or 1.0, min_workers=0, max_workers=max(10, 2 * len(own)), slots=slots)
    points = [*board.samples.get(standing.status.queue, ()), point(board, standing.status)]
    signals = signals_of(points, board.at, limits, fleet=Fleet(len(own)), service=service_of(points))
    return policies.find(policies.DEFAULT).decide(signals)


def service_of(points: Sequence[Sampled]) -> float | None:
    """How long a task takes: so many ran on average, and so many a second ended."""
    pace = rate_over([(one.at, float(ended(one))) for one in points], 10.0 * LOOK_BACK)
    running = statistics.fmean(one.active for one in points)
    return max(1e-3, running / pace) if pace and running else None
