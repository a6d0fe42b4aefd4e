"""Why a task does not run: the statement, and the sentence for each reason that `penstock.why` gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import orjson

from penstock.errors import printable
from penstock.formatting import format_count, format_duration, format_time
from penstock.model import Explanation, split_error

WHY = "select penstock.why(%s, %s)::text"
MOMENTS = ("at", "due", "since", "until", "ended_at", "finished_at", "renewed_to", "emptying_until", "expires")
MAX_ERROR = 200  # characters of an error in a sentence
SILENT_AFTER = 10  # seconds, as penstock._fleet_of counts them

Facts = Mapping[str, Any]


def read_explanation(raw: str) -> Explanation:
    """Reads the answer of WHY, and writes its sentence."""
    facts = read_facts(orjson.loads(raw))
    text = f"task {facts['id']} {SENTENCES[facts['reason']](facts)}"
    own = {name: facts.pop(name) for name in ("id", "queue", "at", "reason")}
    return Explanation(**own, text=text, facts=facts)


def read_facts(raw: dict[str, Any]) -> dict[str, Any]:
    """Returns the facts with their moments as datetimes."""
    last = raw.get("last")
    found = raw if last is None else {**raw, "last": read_facts(last)}
    return {
        name: datetime.fromisoformat(value) if name in MOMENTS and value is not None else value
        for name, value in found.items()
    }


# --- it is gone, or has ended -----------------------------------------------------------------------------------------


def say_unknown(_: Facts) -> str:
    """Says that Penstock knows no such task."""
    return "is not known: it never existed, was removed without an attempt, or ended before the days that history has"


def say_other_queue(facts: Facts) -> str:
    """Says of which queue the task is."""
    return f"is not of queue {facts['queue']} but of queue {facts['found_in']}"


def say_removed(facts: Facts) -> str:
    """Says that the task is removed, and how its last attempt ended."""
    last = facts["last"]
    return f"is removed; its last attempt ended at {format_time(last['finished_at'])}{describe_last(facts)}"


def say_done(facts: Facts) -> str:
    """Says that the task is done."""
    if not facts["removed"]:
        return f"is done since {format_time(facts['ended_at'])}"
    return f"was done at {format_time(facts['ended_at'])} by {name_worker(facts['worker'])}, and is removed"


def say_cancelled(facts: Facts) -> str:
    """Says that the task was cancelled."""
    cause = facts["cause"]
    said = f"was cancelled at {format_time(facts['ended_at'])}" + (f": {printable(cause)}" if cause else "")
    return said + (", and is removed" if facts["removed"] else "")


def say_dead(facts: Facts) -> str:
    """Says that the task is dead, and of what."""
    attempts = format_count(facts["attempts"] or 0, "attempt")
    error = describe_error(facts)
    said = f"died at {format_time(facts['ended_at'])} after {attempts}" + (f": {error}" if error else "")
    return said + ("; it is removed" if facts["removed"] else "")


def describe_error(facts: Facts) -> str:
    """Returns class and message of the error that ended a task on one line, and the reason of its end, if that is
    something else."""
    message = " ".join((split_error(facts["error"])[0] or "").split())
    error = ": ".join(filter(None, (facts["error_class"], message)))
    shown = printable(error if len(error) <= MAX_ERROR else error[: MAX_ERROR - 1] + "…")
    cause = printable(facts["cause"] or "")
    if not cause or message.startswith(cause):
        return shown or cause
    return f"{shown} ({cause})" if shown else cause


# --- it runs ----------------------------------------------------------------------------------------------------------


def say_running(facts: Facts) -> str:
    """Says where the task runs."""
    said = f"runs on {describe_run(facts)}; its lease lasts until {describe_coming(facts, 'until')}"
    if facts["renewed_to"] is None:
        return said
    return f"{said}; it was updated meanwhile, and runs again from {format_time(facts['renewed_to'])} on"


def say_lease_ended(facts: Facts) -> str:
    """Says that the task was on a worker that lost it."""
    ago = format_duration(seconds_between(facts["until"], facts["at"]))
    verb = "upkeep" if facts["paused"] else "claim"
    return f"was on {describe_run(facts)}; its lease ended {ago} ago, and the next {verb} puts it back"


def describe_run(facts: Facts) -> str:
    """Returns on which worker a task runs, since when, and in which attempt."""
    since = f"{format_time(facts['since'])}, for {format_duration(seconds_between(facts['since'], facts['at']))}"
    return f"{name_worker(facts['worker'])} since {since}, attempt {facts['attempt']}"


# --- it may not start -------------------------------------------------------------------------------------------------


def say_expired(facts: Facts) -> str:
    """Says that the task was not started in time."""
    said = f"expired at {format_time(facts['expires'])} before a worker started it, and is not started any more"
    return f"{said}: the next {'upkeep' if facts['paused'] else 'claim or upkeep'} cancels it"


def say_waiting(facts: Facts) -> str:
    """Says that the task waits for others."""
    return f"waits for {format_count(facts['waits_for'], 'other task')} to end"


# --- it waits ---------------------------------------------------------------------------------------------------------


def say_paused(facts: Facts) -> str:
    """Says that the queue is paused."""
    said = f"waits because queue {facts['queue']} is paused"
    if facts["since"] is not None:
        ago = format_duration(seconds_between(facts["since"], facts["at"]))
        said += f" since {format_time(facts['since'])}, for {ago}, by {printable(facts['actor'])}"
    return said + (f"; it is due at {describe_coming(facts, 'due')}" if facts["later"] else "")


def say_planned(facts: Facts) -> str:
    """Says when the task is due."""
    until = f"; it expires at {format_time(facts['expires'])}" if facts["expires"] else ""
    return f"is due at {describe_coming(facts, 'due')}{until}{describe_last(facts)}"


def say_unknown_kind(facts: Facts) -> str:
    """Says that the last worker had no handler for its kind."""
    worker, kind = name_worker(facts["last"]["worker"]), printable(facts["kind"])
    return f"is due again at {describe_coming(facts, 'due')}: {worker} put it back, with no handler for kind {kind}"


def say_no_worker(facts: Facts) -> str:
    """Says that no worker serves the queue."""
    said = f"waits for a worker: none that serves queue {facts['queue']} has sent a beat in the last {SILENT_AFTER} s"
    known = {"silent": facts["silent"], "stopping": facts["leaving"]}
    others = [f"{count} {word}" for word, count in known.items() if count]
    said += f" ({', '.join(others)})" if others else ""
    return said + (f"; {describe_before(facts)} before it" if facts["before"] else "")


def say_quarantined(facts: Facts) -> str:
    """Says that the task waits to run alone."""
    said = "is quarantined after a crash and waits to run alone: "
    if facts.get("emptying"):
        said += f"{name_worker(facts['emptying'])} finishes its other tasks for that"
    else:
        said += f"no worker empties itself for that yet; {describe_fleet(facts)}"
    said += f"; {describe_before(facts)} before it" if facts["before"] else ""
    if facts["crashes"]:
        said += f"; it crashed alone {facts['crashes']} of at most {format_count(facts['max_crashes'], 'time')}"
    return said


def say_behind(facts: Facts) -> str:
    """Says how many tasks come first."""
    return f"waits behind {describe_before(facts)}; {describe_fleet(facts)}"


def say_next(facts: Facts) -> str:
    """Says that no task comes first."""
    return f"is next: no task is before it; {describe_fleet(facts)}"


def say_stray(_: Facts) -> str:
    """Says that the task is in no place."""
    return "neither waits nor runs, which should never be: `penstock verify --repair` puts it back"


def describe_before(facts: Facts) -> str:
    """Returns how many tasks come before this one. They are counted up to a limit."""
    count = format_count(facts["before"], "quarantined task" if facts["quarantined"] else "task")
    return count if facts["exact"] else f"at least {count}"


def describe_fleet(facts: Facts) -> str:
    """Returns how many workers serve the queue, and how many of their slots are free."""
    workers = facts["workers"]
    serve = f"{format_count(workers, 'worker')} {'serves' if workers == 1 else 'serve'} queue {facts['queue']}"
    slots = format_count(facts["slots"], "slot")
    if facts["free"]:
        return f"{serve}, with {facts['free']:,} of {slots} free"
    return f"{serve}, and its only slot is busy" if facts["slots"] == 1 else f"{serve}, and all {slots} are busy"


# --- parts of several sentences ---------------------------------------------------------------------------------------


def describe_last(facts: Facts) -> str:
    """Returns how the last attempt ended, as the end of a sentence. An attempt that ended the task explains nothing,
    because the task has begun anew since."""
    last = facts["last"]
    if last is None:
        return ""
    most = facts.get("max_attempts")
    attempt = f"; attempt {last['attempt']}" + (f" of {most}" if most else "")
    error = f" with {printable(last['error_class'])}" if last["error_class"] else ""
    return {
        "failed": f"{attempt} failed{error}",
        "expired": f"{attempt} ended with the lease of {name_worker(last['worker'])}",
        "again": "; its last run asked for another one",
        "released": f"; {name_worker(last['worker'])} put it back",
    }.get(last["outcome"], "")


def describe_coming(facts: Facts, name: str) -> str:
    """Returns a moment, and how far ahead it is."""
    return f"{format_time(facts[name])}, in {format_duration(max(0.0, seconds_between(facts['at'], facts[name])))}"


def seconds_between(earlier: datetime, later: datetime) -> float:
    """Returns the seconds from one moment to another."""
    return (later - earlier).total_seconds()


def name_worker(name: str) -> str:
    """Returns a worker as a sentence names it. A claim needs no name."""
    return f"worker {printable(name)}" if name else "a worker"


SENTENCES: dict[str, Callable[[Facts], str]] = {
    "unknown": say_unknown,
    "other_queue": say_other_queue,
    "removed": say_removed,
    "done": say_done,
    "cancelled": say_cancelled,
    "dead": say_dead,
    "running": say_running,
    "lease_ended": say_lease_ended,
    "expired": say_expired,
    "waiting": say_waiting,
    "paused": say_paused,
    "planned": say_planned,
    "unknown_kind": say_unknown_kind,
    "no_worker": say_no_worker,
    "quarantined": say_quarantined,
    "behind": say_behind,
    "busy": say_next,
    "next": say_next,
    "stray": say_stray,
}
