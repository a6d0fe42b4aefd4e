"""The inside of a process slot: `python -m penstock.worker.cell`. It reads a job, runs it, answers, and again."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from penstock import validate
from penstock.database import Database
from penstock.handlers import Context, Held, Registry, Spec
from penstock.model import DONE, Claim, Outcome, Task
from penstock.queue import Queue
from penstock.worker import execution
from penstock.worker.crew import called
from penstock.worker.execution import LOST, SETTLED
from penstock.worker.orders import Orders, load

Json = dict[str, Any]
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def job_to_json(claim: Claim, spec: Spec, work: Task | list[Task]) -> Json:
    tasks = work if isinstance(work, list) else [work]
    return {"queue": claim.queue, "token": str(claim.token), "kind": spec.kind, "tasks": [list(one) for one in tasks]}


def outcome_to_json(outcome: Outcome) -> Json:
    due = None if outcome.due is None else outcome.due.isoformat()
    delay = outcome.delay.total_seconds() if isinstance(outcome.delay, timedelta) else outcome.delay
    payload = None if outcome.payload is None else json.loads(validate.payload(outcome.payload, validate.LARGEST_EVER))
    return {**outcome._asdict(), "due": due, "delay": delay, "payload": payload}


def outcome_from_json(told: Json) -> Outcome:
    if told["word"] == "done":
        return DONE
    if told["word"] in ("settled", "lost"):
        return SETTLED if told["word"] == "settled" else LOST
    return Outcome(**{**told, "due": told["due"] and datetime.fromisoformat(told["due"])})


class Inside:
    """What this process has: the handlers, a database of its own for their transactions, and the line."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._lines = line.makefile("rb")
        orders = Orders(**self._next()["orders"])
        self._registry: Registry = load(orders.target, orders.handler_of)[0]
        self._database = Database(orders.dsn, max_connections=2)
        self._leases = orders.leases

    def serve(self) -> None:
        asyncio.run(called(self._registry.starting))
        self._say(ready=True)
        while message := self._next():
            self._say(outcomes={id_: outcome_to_json(one) for id_, one in self._run(message["job"]).items()})
        asyncio.run(called(self._registry.stopping))

    def _next(self) -> Json:
        line = self._lines.readline()
        return json.loads(line) if line else {}

    def _say(self, **message: Any) -> None:
        self._line.sendall(json.dumps(message).encode() + b"\n")

    def _run(self, job: Json) -> dict[int, Outcome]:
        tasks = [Task(*one) for one in job["tasks"]]
        claim = Claim(job["queue"], UUID(job["token"]), None, tuple(tasks), os.getpid())
        spec = self._registry.find(job["queue"], job["kind"])
        assert spec is not None
        if spec.batch is not None:
            return execution.run_batch(spec, tasks)
        held = Held(claim, self._leases.get(claim.queue, 0.0))
        context = Context(tasks[0], held, Queue(self._database, claim.queue), self._postpone)
        return {tasks[0].id: execution.run(spec, tasks[0], context)}

    def _postpone(self, length: timedelta) -> None:
        self._say(postpone=length.total_seconds())


def main() -> None:
    # Signals to a group or a service are the runner's affair: it ends this process when it must. They are not ignored,
    # because programs that handlers start would inherit that.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: None)
    die_with_parent()
    with suppress(BrokenPipeError, ConnectionError):
        Inside(socket.socket(fileno=int(sys.argv[1]))).serve()


def die_with_parent() -> None:
    """Where the system can do that (Linux): no handler goes on when nobody can settle it any more."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)


if __name__ == "__main__":
    main()
