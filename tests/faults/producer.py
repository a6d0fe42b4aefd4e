"""A producer in the fault tests: it pushes tasks at a rate, alone and in bulk, upserts hot subjects with rising
versions, and cancels some tasks. It notes every operation before it begins and when its end is known: ok, fail (surely
not written) or unknown. Only this process writes its subjects, so the last version that was reported must run.

    python producer.py '{"dsn": …, "history": …, "counts": …, "number": 3, "seed": 7, "rate": 200, "tasks": 10000}'
"""

from __future__ import annotations

import json
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from notes import Notes
from penstock import CommitUnknown, NewTask, Penstock, PenstockError, Unavailable

KEYS = 10_000_000  # of one producer; the next one begins there
PAUSE = 0.2  # seconds after PostgreSQL was not available
ASKED_AGAIN = 5  # times that a cancel of a busy task is repeated


@dataclass(frozen=True)
class ProducerConfig:
    """The arguments of a producer. `mix` has the weights of its operations."""

    dsn: str
    history: str
    counts: str  # a file: how many tasks it has pushed
    number: int
    seed: int
    rate: float
    tasks: int
    subjects: int = 20
    longest: float = 0.1  # seconds that a handler sleeps
    mix: dict[str, float] | None = None
    kinds: dict[str, float] | None = None  # the weights of bulk tasks
    singles: dict[str, float] | None = None  # and of tasks that are pushed one by one


Weights = Mapping[str, float]
MIX: Weights = {
    "bulk": 5,
    "single": 3,
    "cancelled": 2,
    "upsert": 6,
    "upsert_many": 1,
    "cancel_subject": 0.3,
    "poison": 0.01,
}
BULK_KINDS: Weights = {"quick": 8, "plain": 1, "exact": 1}
SINGLE_KINDS: Weights = {"plain": 1, "exact": 1, "shaky": 2, "quick": 1}
CANCELLED_KINDS = ("plain", "exact", "quick")


class Producer:
    def __init__(self, config: ProducerConfig) -> None:
        self._config = config
        self._dice = random.Random(f"{config.seed}/{config.number}")
        self._notes = Notes(Path(config.history))
        self._counts = Path(config.counts)
        self._app = Penstock(config.dsn, timeout=5.0)
        self._queue = self._app.queue("faults")
        self._next_key = config.number * KEYS
        self._versions = {f"hot-{config.number}-{n}": 0 for n in range(config.subjects)}
        self._pushed = 0
        self._over = False

    def stop(self) -> None:
        self._over = True

    def run(self) -> None:
        """Run until all tasks are pushed, or until `stop` is called."""
        mix = self._config.mix or MIX
        began = time.monotonic()
        while self._pushed < self._config.tasks and not self._over:
            if self._pushed > (time.monotonic() - began + 0.5) * self._config.rate:
                time.sleep(0.02)
                continue
            act: Callable[[], int] = getattr(self, self._draw(mix))
            try:
                self._pushed += act()
            except Unavailable:
                time.sleep(PAUSE)
            self._counts.write_text(str(self._pushed))
        self._app.close()

    def _draw(self, weights: Weights) -> str:
        return self._dice.choices([*weights], [*weights.values()])[0]

    def _payload(self, kind: str) -> dict[str, Any]:
        key, self._next_key = self._next_key, self._next_key + 1
        if kind in ("plain", "exact"):
            return {"serial": key, "seconds": round(self._dice.uniform(0, self._config.longest), 4)}
        return {"serial": key}

    # --- tasks without a subject ------------------------------------------------------------------------------------

    def bulk(self) -> int:
        """A push of many, repeated with its batch id until it is known to be written."""
        kind = self._draw(self._config.kinds or BULK_KINDS)
        most = max(10, round(self._config.rate))  # tasks of one second, so that they do not come all at once
        count = min(self._dice.choice((10, 50, 200, 500)), most, self._config.tasks - self._pushed)
        items = [NewTask(self._payload(kind), kind=kind) for _ in range(count)]
        batch = uuid4()
        first = self._next_key - count
        facts: dict[str, Any] = {"op": "push", "batch": str(batch), "kind": kind, "first": first, "count": count}
        self._notes.write(**facts, phase="invoke")
        while True:
            try:
                report = self._queue.push_many(items, batch_id=batch)
            except Unavailable:
                if self._over:
                    return 0  # invoked, and its end is not known
                time.sleep(PAUSE)
            else:
                assert report.created == count
                self._notes.write(**facts, phase="ok")
                return count

    def single(self) -> int:
        return 1 if self._push_one(self._draw(self._config.singles or SINGLE_KINDS)) is not None else 0

    def poison(self) -> int:
        return 1 if self._push_one("poison") is not None else 0

    def _push_one(self, kind: str) -> tuple[int, int] | None:
        """Push a task and return its key and id."""
        payload = self._payload(kind)
        facts = {"op": "push", "batch": str(uuid4()), "kind": kind, "first": payload["serial"], "count": 1}
        self._notes.write(**facts, phase="invoke")
        pushed = self._told(facts, lambda: self._queue.push(payload, kind=kind))
        self._notes.write(**facts, phase="ok")
        return payload["serial"], pushed.id

    def _told(self, facts: dict[str, Any], act: Callable[[], Any]) -> Any:
        """Call `act`, note its end and return its answer. An error that leaves the end open is noted as unknown."""
        try:
            return act()
        except CommitUnknown:
            self._notes.write(**facts, phase="unknown")
            raise
        except PenstockError:
            self._notes.write(**facts, phase="fail")
            raise

    def cancelled(self) -> int:
        """Push a task and cancel it soon: it waits, runs, or is done by then."""
        kinds = [kind for kind in CANCELLED_KINDS if kind in (self._config.singles or SINGLE_KINDS)]
        key, id_ = self._push_one(self._dice.choice(kinds)) or (0, 0)
        time.sleep(self._dice.uniform(0, 0.1))
        facts = {"op": "cancel", "key": key, "task": id_}
        for _ in range(ASKED_AGAIN):
            self._notes.write(**facts, phase="invoke")
            result = self._told(facts, lambda: self._queue.cancel([id_]))[id_]
            self._notes.write(**facts, phase="ok", result=result)
            if result != "busy":
                break
        return 1

    # --- hot subjects -----------------------------------------------------------------------------------------------

    def upsert(self) -> int:
        self._upsert([self._dice.choice([*self._versions])])
        return 1

    def upsert_many(self) -> int:
        chosen = self._dice.sample([*self._versions], min(10, len(self._versions)))
        self._upsert(chosen)
        return len(chosen)

    def _upsert(self, subjects: list[str]) -> None:
        """Push the next version of each subject. A single push is not repeated; a bulk push is, until it is written."""
        for subject in subjects:
            self._versions[subject] += 1
        items = [(subject, self._versions[subject]) for subject in subjects]
        facts: dict[str, Any] = {"op": "upsert", "items": items, "batch": str(uuid4())}
        seconds = round(self._dice.uniform(0, self._config.longest), 4)
        tasks = [NewTask({"version": v, "seconds": seconds}, subject, kind="hot") for subject, v in items]
        self._notes.write(**facts, phase="invoke")
        if len(tasks) > 1:
            self._told_by_parts(facts, tasks)
            return
        (task,) = tasks
        pushed = self._told(
            facts,
            lambda: self._queue.push(task.payload, subject=task.subject, kind="hot", on_conflict="update"),
        )
        self._notes.write(**facts, phase="ok", result=pushed.result)

    def _told_by_parts(self, facts: dict[str, Any], tasks: list[NewTask]) -> None:
        batch = uuid4()
        while True:
            try:
                self._queue.upsert_many(tasks, batch_id=batch)
            except Unavailable:
                if self._over:
                    return
                time.sleep(PAUSE)
            else:
                self._notes.write(**facts, phase="ok")
                return

    def cancel_subject(self) -> int:
        subject = self._dice.choice([*self._versions])
        facts = {"op": "cancel", "subject": subject}
        self._notes.write(**facts, phase="invoke")
        found = self._told(facts, lambda: self._queue.cancel(subjects=[subject]))
        self._notes.write(**facts, phase="ok", result=next(iter(found.values()), "unknown"))
        return 0


def main() -> None:
    producer = Producer(ProducerConfig(**json.loads(sys.argv[1])))
    signal.signal(signal.SIGTERM, lambda *_: producer.stop())
    producer.run()


if __name__ == "__main__":
    main()
