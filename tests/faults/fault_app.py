"""The application that workers run while they are harmed. Its handlers leave effects in a table; claims, extends and
settles of whatever process imports this are noted in a history file, and may end at a named point."""

from __future__ import annotations

import ctypes
import json
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from penstock import Context, LeaseLost, Outcome, Penstock, Unavailable
from penstock import database as sync_database
from penstock.aio.queue import AsyncQueue
from penstock.model import Claim, Task
from penstock.queue import Queue

app = Penstock(os.environ["PENSTOCK_DSN"])
HISTORY = os.open(os.environ["FAULT_HISTORY"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
POINTS = Path(os.environ["FAULT_POINTS"])
OWN = threading.local()


def note(**facts: Any) -> None:
    """One line, one write: whole, whoever else writes and whatever happens next."""
    os.write(HISTORY, json.dumps({"at": time.time(), "pid": os.getpid(), **facts}).encode() + b"\n")


def reached(point: str) -> None:
    """The process ends here if somebody wants it to. Each file is one death."""
    for file in POINTS.glob(f"{point}.*"):
        try:
            file.unlink()
        except FileNotFoundError:
            continue
        note(op="exit", point=point)
        os._exit(7)


# --- what the worker does, noted ------------------------------------------------------------------------------------


def noted(verb: str, call: Callable[..., Any], ids: Callable[..., list[int]]) -> Callable[..., Any]:
    def run(queue: Queue, claim: Any, *given: Any, **named: Any) -> Any:
        facts = {"op": verb, "token": str(getattr(claim, "token", claim)), "ids": ids(claim, *given)}
        reached(f"before_{verb}")
        note(**facts, phase="invoke")
        try:
            answer = call(queue, claim, *given, **named)
        except LeaseLost as error:
            left = [*error.refused, *error.revoked]
            note(**{**facts, "ids": left}, phase="fail")
            note(**{**facts, "ids": [one for one in facts["ids"] if one not in left]}, phase="ok")
            raise
        except Unavailable:
            note(**facts, phase="unknown")
            raise
        reached(f"after_{verb}_commit")
        note(**facts, phase="ok", states=answer)
        return answer

    return run


def settled_ids(claim: Claim, outcomes: Any = None) -> list[int]:
    return claim.ids if outcomes is None else list(outcomes)


def claimed(queue: Queue, *given: Any, **named: Any) -> Claim:
    claim: Claim = CLAIM(queue, *given, **named)
    if claim:
        note(op="claim", phase="ok", token=str(claim.token), ids=claim.ids)
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


CLAIM, FETCH, EXTEND = Queue.claim, sync_database.fetch_raw, AsyncQueue.extend
Queue.claim = claimed  # type: ignore[assignment, method-assign]
Queue.settle = noted("settle", Queue.settle, settled_ids)  # type: ignore[method-assign]
Queue.release = noted("release", Queue.release, lambda claim: claim.ids)  # type: ignore[method-assign]
AsyncQueue.extend = extended  # type: ignore[assignment, method-assign]
sync_database.fetch_raw = fetched  # type: ignore[assignment]


# --- handlers -------------------------------------------------------------------------------------------------------


def own_connection() -> psycopg.Connection:
    found: psycopg.Connection | None = getattr(OWN, "connection", None)
    if found is None or found.closed:
        found = OWN.connection = psycopg.connect(os.environ["PENSTOCK_DSN"], autocommit=True)
    return found


@app.task(queue="faults", kind="plain")
def plain(seconds: float, task: Task) -> None:
    """An effect that is there as soon as it happens: once or more often."""
    time.sleep(seconds)
    reached("mid_handler")
    own_connection().execute(
        "insert into effect (task, attempt, pid) values (%s, %s, %s)", (task.id, task.attempt, os.getpid())
    )


@app.task(queue="faults", kind="exact")
def exact(seconds: float, context: Context) -> None:
    """An effect in the transaction that settles the task: exactly once."""
    time.sleep(seconds)
    with context.transaction() as connection:
        connection.execute(
            "insert into exact (task, attempt, pid) values (%s, %s, %s)",
            (context.task.id, context.attempt, os.getpid()),
        )
        reached("mid_handler")


@app.task(queue="faults", kind="quick")
def quick() -> None:
    """In the middle of a batch."""
    reached("mid_batch")


@app.task(queue="faults", kind="asleep")
async def asleep(seconds: float, task: Task) -> None:
    import asyncio

    await asyncio.sleep(seconds)
    note(op="ran", phase="ok", ids=[task.id])


@app.task(queue="faults", kind="greedy")
def greedy(seconds: int, task: Task) -> None:
    """Holds the interpreter: nothing else in this process runs meanwhile."""
    note(op="greedy", phase="invoke", ids=[task.id])
    ctypes.PyDLL(None).usleep(seconds * 1_000_000)
    note(op="greedy", phase="ok", ids=[task.id])


@app.task(queue="faults", kind="poison", max_attempts=3)
def poison() -> None:
    os._exit(9)


@app.task(queue="faults", kind="shaky")
def shaky(task: Task) -> Outcome | None:
    return Outcome.failed("shaky") if random.random() < 0.3 else None
