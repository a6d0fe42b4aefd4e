"""The child process of a process slot: `python -m penstock.worker.child`.

It reads a job, runs it, answers, and repeats.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from penstock import validate
from penstock.child_process import become_child
from penstock.client.database import Database
from penstock.client.queue import Queue
from penstock.handlers import Context, Held, Registry
from penstock.handlers.notes import Notes
from penstock.handlers.outcomes import LOST, SETTLED
from penstock.model import DONE, Claim, Outcome, Task
from penstock.worker import execution, logs
from penstock.worker.config import DEADLINE, RunnerConfig
from penstock.worker.debugging import explain_breakpoints
from penstock.worker.executors.base import call_hooks
from penstock.worker.loading import load
from penstock.worker.task_log import restored

Json = dict[str, Any]
TELL_AFTER = 0.2  # seconds after which the runner is sent what a handler said


def job_to_json(claim: Claim, work: Task | list[Task]) -> Json:
    """Returns the message that sends a job to the child process."""
    tasks = work if isinstance(work, list) else [work]
    return {"queue": claim.queue, "token": str(claim.token), "tasks": [list(one) for one in tasks]}


def outcome_to_json(outcome: Outcome) -> Json:
    """Returns an outcome as JSON."""
    due = None if outcome.due is None else outcome.due.isoformat()
    delay = outcome.delay.total_seconds() if isinstance(outcome.delay, timedelta) else outcome.delay
    payload = None if outcome.payload is None else json.loads(validate.payload(outcome.payload, validate.MAX_PAYLOAD))
    return {**outcome._asdict(), "due": due, "delay": delay, "payload": payload}


def outcome_from_json(message: Json) -> Outcome:
    """Returns the outcome that JSON describes."""
    if message["word"] == "done":
        return DONE
    if message["word"] in ("settled", "lost"):
        return SETTLED if message["word"] == "settled" else LOST
    return Outcome(**{**message, "due": message["due"] and datetime.fromisoformat(message["due"])})


class JobServer:
    """Answers the jobs of a runner, with the handlers and a database of this process for their transactions."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lines = end.makefile("rb")
        config = RunnerConfig(**self._next()["config"])
        logs.set_up(config.log_format, quiet=config.quiet, tracebacks=config.dev)
        explain_breakpoints()
        self._registry: Registry = load(config.target, config.handler_of, tracebacks=config.tracebacks)[0]
        self._registry.starting.append(partial(logs.correlate, config.log_format))
        self._database = Database(config.dsn, max_connections=2, deadline=DEADLINE)
        self._leases = config.leases
        self._sending = threading.Lock()
        self._teller: threading.Timer | None = None  # sends what a handler said, soon after it did

    def serve(self) -> None:
        """Runs jobs until the runner closes the socket; calls the start and stop hooks."""
        asyncio.run(call_hooks(self._registry.starting))
        self._say(ready=True)
        while message := self._next():
            with restored():
                self._run(message["job"])
        asyncio.run(call_hooks(self._registry.stopping))

    def _next(self) -> Json:
        line = self._lines.readline()
        return json.loads(line) if line else {}

    def _say(self, **message: Any) -> None:
        with self._sending:
            self._end.sendall(json.dumps(message).encode() + b"\n")

    def _run(self, job: Json) -> None:
        held = self._claim_of(job)
        outcomes = {id_: outcome_to_json(one) for id_, one in self._outcomes(held).items()}
        if self._teller is not None:
            self._teller.cancel()
        self._say(outcomes=outcomes, notes=[] if held.notes is None else held.notes.collect())

    def _claim_of(self, job: Json) -> Held:
        tasks = [Task(*one) for one in job["tasks"]]
        claim = Claim(job["queue"], UUID(job["token"]), None, tuple(tasks), os.getpid())
        held = Held(claim, self._leases.get(claim.queue, 0.0))
        self._teller = None
        held.notes = Notes(lambda: self._tell_soon(held))
        return held

    def _outcomes(self, held: Held) -> dict[int, Outcome]:
        claim = held.claim
        first = claim.tasks[0]
        spec = self._registry.find(claim.queue, first.kind)
        assert spec is not None
        if spec.batch is not None:
            return execution.run_batch(spec, claim.tasks)
        context = Context(first, held, Queue(self._database, claim.queue), self._postpone)
        return {first.id: execution.run(spec, first, context)}

    def _tell_soon(self, held: Held) -> None:
        """Sends what the handler said a little later, together with what it says until then."""
        if self._teller is None or not self._teller.is_alive():
            self._teller = threading.Timer(TELL_AFTER, self._tell, (held,))
            self._teller.daemon = True
            self._teller.start()

    def _tell(self, held: Held) -> None:
        self._teller = None  # what is said from now on is sent by the next one
        if held.notes is not None:
            collected = held.notes.collect()
            with suppress(OSError):
                self._say(notes=collected)
                held.notes.note_stored(collected)

    def _postpone(self, length: timedelta) -> None:
        self._say(postpone=length.total_seconds())


def main() -> None:
    """Runs the child process."""
    end = become_child()
    with suppress(BrokenPipeError, ConnectionError):
        JobServer(end).serve()


if __name__ == "__main__":
    main()
