"""Says in words how a promise stands, why, and what to do. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.formatting import format_age, format_count
from penstock.model import Board
from penstock.scaler.standing import SlaStanding

LATE = ("BREACH",)
ENDANGERED = ("WARNING", "CRITICAL")
SILENT_AFTER = 10.0  # seconds without a beat: the worker may be gone
FORESEEN = 3600.0  # a breach that is foreseen within this time is a danger


@dataclass(frozen=True, slots=True)
class Advice:
    """How the promise of a queue stands. `level` is late, danger, paused, kept or none (the queue has no promise)."""

    level: str
    word: str
    what: str
    why: str = ""
    act: str = ""
    command: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether a person should look at the queue."""
        return self.level in ("late", "danger")


def advise(one: SlaStanding, board: Board) -> Advice:
    """Returns how the promise of a queue stands, why, and what to do about it."""
    level, word = grade(one)
    what = describe(one, level)
    if level not in ("late", "danger", "paused"):
        return Advice(level, word, what)
    return Advice(level, word, what, *explain(one, board))


def grade(one: SlaStanding) -> tuple[str, str]:
    """Returns the level of a queue and the word for it."""
    if one.status.paused:
        return "paused", "paused"
    if one.status.sla is None:
        return "none", "no promise"
    if one.urgency in LATE:
        return "late", "late"
    foreseen = one.predicted_breach is not None and one.predicted_breach < min(FORESEEN, one.status.sla)
    if one.urgency in ENDANGERED or (foreseen and one.urgency != "NORMAL"):
        return "danger", "at risk"
    return "kept", "kept"


def describe(one: SlaStanding, level: str) -> str:
    """Says how long the oldest task has waited, and how long it may wait."""
    age, sla = one.status.oldest_pending_age, one.status.sla
    if sla is None:
        return "No promise is set: tasks may wait for any time."
    if level == "paused" and age is None:
        return "It is paused, and no task waits."
    if age is None:
        return f"No task waits. A task may wait {format_age(sla)}."
    waited = f"The oldest task has waited {format_age(age)}; a task may wait {format_age(sla)}."
    if level == "danger" and one.predicted_breach is not None and age < sla:
        return f"{waited} At this pace one is late in {format_age(one.predicted_breach)}."
    return waited


def explain(one: SlaStanding, board: Board) -> tuple[str, str, str]:
    """Returns why tasks wait, what to do, and the command that does it. The first cause that holds is told."""
    name = one.status.queue
    own = [worker for worker in board.workers if name in worker.queues]
    silent = [worker for worker in own if worker.silent > SILENT_AFTER]
    alive = [worker for worker in own if worker.silent <= SILENT_AFTER and not worker.leaving]
    if one.status.paused:
        return "The queue is paused, so workers take nothing from it.", "Resume it:", f"penstock queues resume {name}"
    if not alive:
        return explain_no_workers(one, len(silent))
    if one.scaled is not None and one.scaled.alive:
        return explain_scaled(one, len(alive), len(silent))
    why = explain_pace(one, len(alive))
    if one.scaled is not None:
        return f"{why} No scaler runs now.", "Start the scaler again:", "penstock scale MODULE:APP"
    return why, "Start more workers, or let a scaler do it:", f"penstock work MODULE:APP --queues {name}"


def explain_no_workers(one: SlaStanding, silent: int) -> tuple[str, str, str]:
    """Explains a queue without workers."""
    why = "No worker serves this queue."
    if silent:
        why = f"{format_count(silent, 'worker')} served it, and sent no sign of life for {SILENT_AFTER:.0f} s or more."
    if one.scaled is not None and one.scaled.alive and one.scaled.target:
        return f"{why} The scaler has asked for {one.scaled.target}.", "See why they do not start, in its log.", ""
    return why, "Start one:", f"penstock work MODULE:APP --queues {one.status.queue}"


def explain_scaled(one: SlaStanding, alive: int, silent: int) -> tuple[str, str, str]:
    """Explains a queue that a scaler serves."""
    target, why = one.target or 0, explain_pace(one, alive)
    if silent:
        why += f" {format_count(silent, 'worker')} sent no sign of life for {SILENT_AFTER:.0f} s or more."
    if one.decision is not None and one.decision.bound_by == "max":
        wanted = one.decision.wanted
        return (
            f"{why} The scaler may start {target}, and {wanted} are needed.",
            "Allow more workers, or move work to another time:",
            f"penstock scale MODULE:APP --max-workers {wanted}",
        )
    if target > alive:
        return f"{why} The scaler has asked for {target}.", "More workers are on their way: watch the workers.", ""
    return f"{why} The scaler has started what it needs.", "Nothing: the backlog is being drained.", ""


def explain_pace(one: SlaStanding, alive: int) -> str:
    """Compares what arrives with what the workers end."""
    workers = f"{format_count(alive, 'worker')} {'ends' if alive == 1 else 'end'}"
    if one.arriving is None or one.leaving is None:
        return f"{format_count(alive, 'worker')} {'serves' if alive == 1 else 'serve'} it."
    pace = f"{one.arriving:,.1f} tasks/s arrive and {workers} {one.leaving:,.1f}/s"
    if one.arriving > one.leaving * 1.02:
        return f"The backlog grows: {pace}."
    if one.eta is not None:
        return f"The backlog shrinks: {pace}; it is gone in {format_age(one.eta)}."
    return f"{pace[0].upper()}{pace[1:]}."


def headline(advices: list[Advice]) -> tuple[str, bool]:
    """Sums up all promises in one sentence, and says whether it is bad news."""
    promised = [one for one in advices if one.level != "none"]
    late = sum(one.level == "late" for one in promised)
    danger = sum(one.level == "danger" for one in promised)
    if not advices:
        return "There are no queues yet", False
    if not promised:
        return "No queue has a promise yet", False
    total = len(promised)
    if late:
        more = f", and {danger} more at risk" if danger else ""
        return f"{late} of {format_count(total, 'promise')} {'is' if late == 1 else 'are'} broken{more}", True
    if danger:
        return f"{danger} of {format_count(total, 'promise')} {'is' if danger == 1 else 'are'} at risk", True
    return ("The promise is kept" if total == 1 else f"All {total} promises are kept"), False
