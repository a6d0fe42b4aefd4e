"""The application that workers run in the fault tests. Its handlers leave effects in a table. Each process that imports
it notes its claims, extends and settles in a history file, and may end at a named point."""

from __future__ import annotations

import ctypes
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from notes import Notes, describe_claim
from penstock import Context, LeaseLost, Outcome, Penstock, Unavailable
from penstock.client import database as sync_database
from penstock.client.claims import Claimer
from penstock.client.connections import fetch_raw
from penstock.client.queue import Queue
from penstock.client.queue_async import AsyncQueue
from penstock.model import Claim, Task

app = Penstock(os.environ["PENSTOCK_DSN"])
note = Notes(Path(os.environ["FAULT_HISTORY"])).write
POINTS = Path(os.environ["FAULT_POINTS"])
OWN = threading.local()


def reached(point: str) -> None:
    """End the process here if there is a file for this point. Each file is for one process."""
    for file in POINTS.glob(f"{point}.*"):
        try:
            file.unlink()
        except FileNotFoundError:
            continue
        note(op="exit", point=point)
        os._exit(7)


# --- notes of what the worker does ----------------------------------------------------------------------------------


def noted(verb: str, call: Callable[..., Any], asked: Callable[..., dict[int, str]]) -> Callable[..., Any]:
    """Return the verb with a note before it and one after it. `asked` returns the outcome that each id is given."""

    def run(queue: Queue, claim: Any, *given: Any, **named: Any) -> Any:
        outcomes = asked(claim, *given)
        others = {id_: word for id_, word in outcomes.items() if word != "done"}
        facts = {"op": verb, "token": str(getattr(claim, "token", claim)), "ids": [*outcomes], "others": others}
        reached(f"before_{verb}")
        note(**facts, phase="invoke")
        try:
            answer = call(queue, claim, *given, **named)
        except LeaseLost as error:
            left = {*error.refused, *error.revoked}
            note(**{**facts, "ids": [*left]}, phase="fail")
            kept = {id_: word for id_, word in outcomes.items() if id_ not in left}
            note(**{**facts, "ids": [*kept]}, phase="ok", states=kept)
            raise
        except Unavailable:
            note(**facts, phase="unknown")
            raise
        reached(f"after_{verb}_commit")
        note(**facts, phase="ok", states=answer)
        return answer

    return run


def settle_outcomes(claim: Claim, outcomes: Any = None) -> dict[int, str]:
    if isinstance(outcomes, Mapping):
        return {id_: outcome.word for id_, outcome in outcomes.items()}
    return dict.fromkeys(claim.ids if outcomes is None else outcomes, "done")


@contextmanager
def noted_settling(queue: Queue, claim: Claim, id_: int, outcome: Any = Outcome.done) -> Iterator[Any]:
    """Note the end of a task that a handler settles with `transaction()`."""
    facts = {"op": "settle", "token": str(claim.token), "ids": [id_]}
    note(**facts, phase="invoke")
    try:
        with SETTLING(queue, claim, id_, outcome) as connection:
            yield connection
    except LeaseLost:
        note(**facts, phase="fail")
        raise
    except BaseException:
        note(**facts, phase="unknown")
        raise
    note(**facts, phase="ok", states={id_: "done"})


def noted_claim(claimer: Claimer, once: Any, wanted: Any) -> Claim:
    """Note a claim with its time in PostgreSQL, by which history can be joined to it."""
    claim: Claim = CLAIM(claimer, once, wanted)
    if claim:
        note(**describe_claim(claim, float(wanted.lease)))
        reached("after_claim")
    return claim


def fetched(*given: Any) -> Any:
    rows = FETCH(*given)
    if rows:
        reached("before_claim_is_known")
    return rows


async def extended(queue: AsyncQueue, token: Any, **named: Any) -> Any:
    try:
        return await EXTEND(queue, token, **named)
    except LeaseLost:
        note(op="extend", phase="fail", token=str(token), ids=[])
        raise


CLAIM, SETTLING, FETCH, EXTEND = Claimer._claim, Queue.settling, fetch_raw, AsyncQueue.extend
Claimer._claim = noted_claim  # type: ignore[method-assign, assignment]
Queue.settling = noted_settling  # type: ignore[method-assign, assignment]
Queue.settle = noted("settle", Queue.settle, settle_outcomes)  # type: ignore[method-assign]
Queue.release = noted("release", Queue.release, lambda claim: dict.fromkeys(claim.ids, "release"))  # type: ignore[method-assign]
AsyncQueue.extend = extended  # type: ignore[assignment, method-assign]
sync_database.fetch_raw = fetched  # type: ignore[assignment, attr-defined]


# --- handlers -------------------------------------------------------------------------------------------------------


def own_connection() -> psycopg.Connection:
    found: psycopg.Connection | None = getattr(OWN, "connection", None)
    if found is None or found.closed:
        found = OWN.connection = psycopg.connect(os.environ["PENSTOCK_DSN"], autocommit=True)
    return found


@app.task(queue="faults", kind="plain")
def plain(serial: int, seconds: float, task: Task) -> None:
    """Write an effect at once, so that it happens once or more often."""
    time.sleep(seconds)
    reached("mid_handler")
    own_connection().execute(
        "insert into effect (task, key, attempt, pid) values (%s, %s, %s, %s)",
        (task.id, serial, task.attempt, os.getpid()),
    )


@app.task(queue="faults", kind="exact")
def exact(serial: int, seconds: float, context: Context) -> None:
    """Write an effect in the transaction that settles the task, so that it happens exactly once."""
    time.sleep(seconds)
    with context.transaction() as connection:
        connection.execute(
            "insert into exact (task, key, attempt, pid) values (%s, %s, %s, %s)",
            (context.task.id, serial, context.attempt, os.getpid()),
        )
        reached("mid_handler")


@app.task(queue="faults", kind="quick")
def quick(serial: int) -> None:
    """Do nothing; the point is in the middle of a batch."""
    reached("mid_batch")


@app.task(queue="faults", kind="hot")
def hot(version: int, seconds: float) -> None:
    """Run a task whose subject is pushed to again and again: while it waits, while it runs, and after it has ended."""
    time.sleep(seconds)


@app.task(queue="faults", kind="greedy")
def greedy(serial: int, seconds: int) -> None:
    """Hold the interpreter, so that nothing else in this process runs meanwhile."""
    note(op="greedy", phase="invoke", key=serial)
    ctypes.PyDLL(None).usleep(seconds * 1_000_000)
    note(op="greedy", phase="ok", key=serial)


@app.task(queue="faults", kind="poison", max_attempts=3, on_dead="faults:buried")
def poison(serial: int) -> None:
    os._exit(9)


@app.task(queue="faults", kind="buried")
def buried(payload: dict[str, Any]) -> None:
    """Follow a poison task that died. The checker looks for it in history."""


@app.task(queue="faults", kind="shaky")
def shaky(serial: int) -> Outcome | None:
    return Outcome.failed("shaky") if random.random() < 0.3 else None
