"""`penstock why` explains a decision of the scaler, or why a task does not run, in words."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from penstock.app import Penstock
from penstock.cli.commands.scale import decision_json, format_facts
from penstock.cli.terminal.formatting import escape, to_iso
from penstock.cli.terminal.options import QueueName, Shell, parse_moment, read_only, with_shell
from penstock.cli.terminal.output import print_json, print_line, print_table
from penstock.errors import NotFound, ValidationError
from penstock.formatting import format_age, format_count, format_time
from penstock.model import Board, Explanation, Sampled, Scaled, StoredDecision
from penstock.scaler.policy import policies
from penstock.scaler.policy.decision import Decision
from penstock.scaler.policy.signals import Fleet, Limits, rate_over
from penstock.scaler.standing import RecentBoards, SlaStanding, count_ended, make_sample, make_signals

MAX_SAMPLES = 31  # samples, ten seconds apart
DEFAULT_SLOTS = 10  # of a worker, while there is no worker to read them from
COMPARED_FIELDS = ("workers", "actual", "wanted", "urgency", "bound_by", "policy", "epoch")
FIELD_LABELS = {"workers": "target", "actual": "workers", "bound_by": "decided by"}


@with_shell
@read_only
def why(
    shell: Shell,
    queue: QueueName,
    *,
    at: Annotated[
        str | None,
        typer.Option(
            help="Explain the decision of this moment, as 2030-01-31T06:00:00Z; default: now.", show_default=False
        ),
    ] = None,
    task: Annotated[
        int | None, typer.Option(help="Explain why this task does not run, by its id.", show_default=False)
    ] = None,
) -> None:
    """Explain why a queue has so many workers: the decision, its rule, its numbers, and what has changed.

    If no scaler has ever run, it prints what a scaler would decide now. With --task it says why a task does not run,
    that it runs, or how it ended. It changes nothing.

    Example: penstock why mail --at 2030-01-31T06:00:00Z

    Example: penstock why mail --task 42
    """
    when = parse_moment(at, "at")
    if task is not None and when is not None:
        raise ValidationError("task: give one of --task and --at", field="task")
    with shell.connect() as penstock:
        if task is not None:
            print_explanation(shell, penstock.queue(queue).why(task))
            return
        found = penstock.decisions(queue, at=when, limit=2)
        board = None if when is not None and found else find_board(penstock, queue, found)
    if found:
        scaled = None if board is None or when is not None else board.scaling.get(queue)
        print_decision(shell, found, scaled, None if when is not None else board)
    elif when is not None:
        hint = "Decisions are kept for 90 days; `penstock why` without --at explains the last one."
        raise NotFound(f"queue {queue}: nothing was decided by {format_time(when)}", hint=hint)
    else:
        print_rehearsal(shell, queue, board)


def find_board(penstock: Penstock, queue: str, found: Sequence[StoredDecision]) -> Board | None:
    """Reads the board of a queue. An adopted table has decisions but no board: the result is then None."""
    try:
        return penstock.board(queue, decisions=0, samples=MAX_SAMPLES)
    except NotFound:
        if found:
            return None
        raise


def print_explanation(shell: Shell, found: Explanation) -> None:
    """Prints why a task does not run: the sentence, or with --json also the reason and the facts."""
    own = {"task": found.id, "queue": found.queue, "at": found.at, "reason": found.reason, "text": found.text}
    shell.answer(make_plain({**own, **found.facts}), found.text)


def make_plain(value: Any) -> Any:
    """Returns a value with its moments as text, for JSON."""
    if isinstance(value, Mapping):
        return {name: make_plain(one) for name, one in value.items()}
    return to_iso(value) if isinstance(value, datetime) else value


# --- the decision -----------------------------------------------------------------------------------------------------


def print_decision(shell: Shell, found: Sequence[StoredDecision], scaled: Scaled | None, board: Board | None) -> None:
    one, before = found[0], found[1] if len(found) > 1 else None
    since = find_changes(one, before)
    if shell.json:
        held = None if scaled is None else {"holder": scaled.holder, "alive": scaled.alive, "target": scaled.target}
        print_json({**noted_json(one), "before": before and noted_json(before), "changed": since, "scaler": held})
        return
    print_line(
        f"{format_count(one.workers, 'worker')} for {one.queue}, {one.urgency}, decided {format_time(one.at)}",
        quiet=shell.quiet,
    )
    for line in (
        escape(one.reason.removeprefix(f"{one.workers}: ")),
        f"{format_count(one.actual, 'worker')} at that moment; {format_noted_facts(one)}",
        f"policy {one.policy}, epoch {one.epoch}" + format_holder(scaled, board),
        format_changes(since, before, one),
    ):
        print_line(line, quiet=shell.quiet)
    if not shell.quiet:
        print_rules(one.rules)
        print_inputs(one.inputs)


def format_holder(scaled: Scaled | None, board: Board | None) -> str:
    if scaled is None or board is None:
        return ""
    if scaled.alive:
        return f"; {escape(scaled.holder)} scales it, and decided {format_age(scaled.decided)} ago"
    return "; no scaler runs now: this is what the last one wanted"


def format_noted_facts(one: StoredDecision) -> str:
    return format_facts(
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
    ) + ("" if one.predicted_breach is None else f"; at that pace a task is late in {format_age(one.predicted_breach)}")


def find_changes(one: StoredDecision, before: StoredDecision | None) -> dict[str, list[Any]]:
    """Returns the fields that differ from the decision before, each with its old and new value."""
    if before is None:
        return {}
    found = {name: [getattr(before, name), getattr(one, name)] for name in COMPARED_FIELDS}
    return {name: pair for name, pair in found.items() if pair[0] != pair[1]}


def format_changes(since: Mapping[str, Sequence[Any]], before: StoredDecision | None, one: StoredDecision) -> str:
    if before is None:
        return "the first decision there is"
    ago = format_age(max(0.0, (one.at - before.at).total_seconds()))
    if not since:
        return f"as in the decision before, {ago} earlier"
    changes = ", ".join(f"{FIELD_LABELS.get(name, name)} {old} → {new}" for name, (old, new) in since.items())
    return f"since the decision before, {ago} earlier: {changes}"


def noted_json(one: StoredDecision) -> dict[str, Any]:
    return {
        "queue": one.queue,
        "at": to_iso(one.at),
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
        print_line("")
        ordered = sorted(rules.items(), key=lambda one: -one[1])
        print_table(("rule", "workers"), [(escape(rule), f"{workers:,.4g}") for rule, workers in ordered])


def print_inputs(inputs: Mapping[str, Any]) -> None:
    if inputs:
        print_line("")
        print_table(("input", "value"), [(escape(name), format_value(value)) for name, value in inputs.items()])


def format_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    return "–" if value is None else escape(str(value), most=60)


# --- what a scaler would decide ---------------------------------------------------------------------------------------


def print_rehearsal(shell: Shell, queue: str, board: Board | None) -> None:
    """Prints what a scaler would decide from counters and samples; a real one also sees ages and profiles."""
    assert board is not None
    (standing,) = RecentBoards().see(board)
    if standing.status.sla is None:
        hint = f"penstock queues set {queue} --sla 30s"
        raise NotFound(f"queue {queue}: no scaler has ever run, and it has no SLA to decide by", hint=hint)
    found = decide_now(board, standing)
    if shell.json:
        print_json({"queue": queue, "decided": False, "would": decision_json(policies.DEFAULT, found)})
        return
    print_line(f"no scaler has ever run for {queue}", quiet=shell.quiet)
    print_line(f"one would ask now for {format_count(found.workers, 'worker')}, {found.urgency}", quiet=shell.quiet)
    print_line(found.reason.removeprefix(f"{found.workers}: "), quiet=shell.quiet)
    print_line(format_facts(found), quiet=shell.quiet)
    if not shell.quiet:
        print_rules(found.rules)
        print_line("")
        print_line("start one: penstock scale MODULE:APP")


def decide_now(board: Board, standing: SlaStanding) -> Decision:
    own = [worker for worker in board.workers if standing.status.queue in worker.queues and not worker.leaving]
    slots = max((worker.slots for worker in own), default=DEFAULT_SLOTS)
    limits = Limits(standing.status.sla or 1.0, min_workers=0, max_workers=max(10, 2 * len(own)), slots=slots)
    points = [*board.samples.get(standing.status.queue, ()), make_sample(board, standing.status)]
    fleet, service, ended = Fleet(len(own)), estimate_service(points), count_ended(points[-1])
    signals = make_signals(points, board.at, limits, fleet=fleet, service=service, ended=ended)
    return policies.find(policies.DEFAULT).decide(signals)


def estimate_service(points: Sequence[Sampled]) -> float | None:
    """Estimates the run time of a task from the tasks that run on average and those that end a second."""
    pace = rate_over([(one.at, float(count_ended(one))) for one in points], 10.0 * MAX_SAMPLES)
    running = statistics.fmean(one.active for one in points)
    return max(1e-3, running / pace) if pace and running else None
