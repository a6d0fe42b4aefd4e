"""The fleets of a scaler: how many workers there are, and how their number is changed.

Workers are processes of this machine, or a command of the operator starts them, or the number is only published. The
registry in PostgreSQL says which scaler started a worker. So a scaler that takes over knows the workers of the one
before, and stops them through PostgreSQL: they learn it at their next beat. A worker that is stopped finishes its
tasks.
"""

from __future__ import annotations

import logging
import math
import os
import shlex
import signal
import string
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from penstock.errors import ConfigError, shown
from penstock.model import ScalerSnapshot, SeenWorker
from penstock.scaler.policy.signals import Fleet
from penstock.scaler.run.collect import is_present

LOG = logging.getLogger("penstock.scaler")
SETTLED_DOWN = 10.0  # seconds after which a start counts as a success
MAX_PAUSE = 30.0  # seconds between two tries
START_TIMEOUT = 120.0  # seconds after which a worker that has not registered is given up
COMMAND_TIMEOUT = 60.0  # seconds
LONG_GRACE = "7d"  # of a worker that the scaler stops: its tasks are not interrupted


class Workers(Protocol):
    """The fleet of one queue."""

    def current(self, snapshot: ScalerSnapshot, latency: float) -> Fleet:
        """Returns the present fleet. `latency` is the seconds that a worker takes to start."""

    def resize(self, workers: int, reason: str) -> None:
        """Changes the number of workers. It does not wait, and does not interrupt a task."""


# --- processes of this machine -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a worker is started: by `penstock work`."""

    target: str
    dsn: str = field(repr=False)
    slots: int
    log_format: str = "json"
    quiet: bool = False

    def command(self, queue: str, label: str, requested_at: datetime) -> list[str]:
        words = [sys.executable, "-P", "-m", "penstock.cli", "work", self.target, "--queues", queue, "--json"]
        words += ["--concurrency", str(self.slots), "--given-dsn", "--grace", LONG_GRACE, "--started-by", label]
        words += ["--requested-at", requested_at.isoformat(), "--log-format", self.log_format]
        return [*words, "--quiet"] if self.quiet else words

    def start(self, queue: str, label: str, requested_at: datetime) -> subprocess.Popen[bytes]:
        """Starts a worker in its own process group, so that the scaler decides about Ctrl-C. The DSN is not on the
        command line."""
        return subprocess.Popen(  # noqa: S603 - it starts Penstock itself
            self.command(queue, label, requested_at),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PENSTOCK_DSN": self.dsn},
            process_group=0,
        )


class Child:
    """A worker process that this scaler started."""

    def __init__(self, process: subprocess.Popen[bytes], label: str) -> None:
        self.process = process
        self.label = label
        self.began = time.monotonic()
        self.registered = False
        self.stopping = False
        self.busy = 0

    @property
    def age(self) -> float:
        return time.monotonic() - self.began

    def send_away(self) -> None:
        """Tells the worker to finish its tasks and stop; the second time, to stop at once."""
        self.stopping = True
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)


class LocalWorkers:
    """Worker processes of this machine for one queue. Other workers that serve the queue count too. Workers of an
    earlier scaler belong to this one."""

    def __init__(self, queue: str, holder: str, recipe: Recipe, dismiss: Callable[[Sequence[str]], None]) -> None:
        self.queue, self.holder, self._recipe, self._dismiss = queue, holder, recipe, dismiss
        self._children: dict[str, Child] = {}
        self._inherited: list[SeenWorker] = []
        self._started_elsewhere = 0
        self._ended: set[str] = set()  # labels of ended children that are still registered
        self._number = 0
        self._crashes = 0
        self._not_before = 0.0
        self._clock = 0.0  # PostgreSQL's time minus the monotonic time of this process

    @property
    def children(self) -> list[Child]:
        return [*self._children.values()]

    @property
    def inherited(self) -> list[str]:
        return [one.name for one in self._inherited]

    def current(self, snapshot: ScalerSnapshot, latency: float) -> Fleet:
        self._clock = snapshot.at - time.monotonic()
        self.reap()
        serving = [one for one in snapshot.workers if self.queue in one.queues]
        self._ended &= {one.started_by or "" for one in serving}
        self._recognise(serving)
        others = [one for one in serving if one.started_by not in self._ended | {*self._children}]
        present = [one for one in others if is_present(one)]
        self._inherited = [one for one in present if one.started_by is not None]
        slots = sum(one.slots / len(one.queues) for one in present if one.started_by is None)
        self._started_elsewhere = math.floor(slots / self._recipe.slots + 1e-9)
        staying = [child for child in self.children if not child.stopping]
        starting = sorted(max(0.0, latency - child.age) for child in staying if not child.registered)
        stopping = sum(child.stopping for child in self.children)
        return Fleet(
            ready=len(staying) - len(starting) + len(self._inherited) + self._started_elsewhere,
            starting=tuple(starting),
            draining=stopping + sum(one.leaving for one in others),
        )

    def _recognise(self, registered: Sequence[SeenWorker]) -> None:
        for one in registered:
            child = self._children.get(one.started_by or "")
            if child is not None:
                child.registered, child.busy = True, one.busy
                child.stopping = child.stopping or one.leaving

    def reap(self) -> None:
        """Removes children that have ended. After one that was not told to stop, the next start waits, longer each
        time."""
        for child in self.children:
            code = child.process.poll()
            if code is None:
                if not child.registered and not child.stopping and child.age > START_TIMEOUT:
                    LOG.error("worker never came up", extra={"queue": self.queue, "pid": child.process.pid})
                    child.send_away()
                    self._delay_start()
                continue
            del self._children[child.label]
            self._ended.add(child.label)
            if child.registered and child.age > SETTLED_DOWN:
                self._crashes = 0
            if not child.stopping:
                self._delay_start()
            level = logging.INFO if child.stopping else logging.ERROR
            LOG.log(level, "worker ended", extra={"queue": self.queue, "pid": child.process.pid, "exit": code})

    def _delay_start(self) -> None:
        self._crashes += 1
        self._not_before = time.monotonic() + min(MAX_PAUSE, 0.25 * 2 ** min(self._crashes, 10))

    def resize(self, workers: int, reason: str) -> None:  # noqa: ARG002 - only commands use it
        staying = [child for child in self.children if not child.stopping]
        missing = workers - len(staying) - len(self._inherited) - self._started_elsewhere
        if missing > 0 and time.monotonic() >= self._not_before:
            for _ in range(missing):
                if not self._start():
                    return
        elif missing < 0:
            self._dismiss_some(-missing, staying)

    def _start(self) -> bool:
        self._number += 1
        label = f"{self.holder}#{self._number}"
        requested = datetime.fromtimestamp(time.monotonic() + self._clock, UTC)
        try:
            process = self._recipe.start(self.queue, label, requested)
        except OSError as error:  # out of memory or processes
            LOG.error("worker not started", extra={"queue": self.queue, "errno": error.errno})  # noqa: TRY400
            self._delay_start()
            return False
        self._children[label] = Child(process, label)
        LOG.info("worker started", extra={"queue": self.queue, "pid": process.pid})
        return True

    def _dismiss_some(self, count: int, staying: Sequence[Child]) -> None:
        """Stops idle workers first, then starting ones, then those with the fewest tasks; among equals, the oldest."""
        candidates: list[tuple[int, float, Child | str]] = [
            (rank(child.busy, starting=not child.registered), -child.age, child) for child in staying
        ]
        candidates += [(rank(one.busy), -math.inf, one.name) for one in self._inherited]
        candidates.sort(key=lambda one: one[:2])
        chosen = [candidate for _, _, candidate in candidates[:count]]
        for child in chosen:
            if isinstance(child, Child):
                LOG.info("worker sent away", extra={"queue": self.queue, "pid": child.process.pid})
                child.send_away()
        far = [name for name in chosen if isinstance(name, str)]
        if far:
            LOG.info("workers sent away", extra={"queue": self.queue, "names": ",".join(far)})
            self._dismiss(far)
            self._inherited = [one for one in self._inherited if one.name not in far]

    def forget(self) -> None:
        """Leaves the workers to the scaler that has taken over the queue."""
        self._children = {}
        self._inherited = []


def rank(busy: int, *, starting: bool = False) -> int:
    """Returns the order in which workers are stopped, the lowest first."""
    return 1 if starting else 1 + busy if busy else 0


# --- started by something else --------------------------------------------------------------------------------------


class AdvisedWorkers:
    """Workers that another tool starts, which reads `penstock.target_workers`. Requested workers count as starting
    until they are registered."""

    def __init__(self, queue: str, slots: int) -> None:
        self.queue = queue
        self._slots = slots
        self._ready = 0
        self._requested_at: list[float] = []  # when each worker that is not registered yet was requested

    def current(self, snapshot: ScalerSnapshot, latency: float) -> Fleet:
        serving = [one for one in snapshot.workers if self.queue in one.queues]
        slots = sum(one.slots / len(one.queues) for one in serving if is_present(one))
        ready = math.floor(slots / self._slots + 1e-9)
        self._requested_at = self._requested_at[max(0, ready - self._ready) :]
        self._ready = ready
        now = time.monotonic()
        starting = sorted(max(0.0, latency - (now - requested)) for requested in self._requested_at)
        return Fleet(ready, tuple(starting), sum(one.leaving for one in serving))

    def resize(self, workers: int, reason: str) -> None:  # noqa: ARG002 - only commands use it
        missing = max(0, workers - self._ready)
        now = time.monotonic()
        self._requested_at = [*self._requested_at[:missing], *([now] * (missing - len(self._requested_at)))]


class CommandedWorkers(AdvisedWorkers):
    """Workers that a command of the operator starts: `kubectl scale deploy/{queue} --replicas={workers}`. It does
    not run in a shell."""

    def __init__(self, queue: str, slots: int, words: Sequence[str]) -> None:
        super().__init__(queue, slots)
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._wanted: tuple[int, str] | None = None
        self._confirmed: int | None = None  # the number of the last command that succeeded
        self._requested = 0
        self._failures = 0
        self._not_before = 0.0

    def current(self, snapshot: ScalerSnapshot, latency: float) -> Fleet:
        self.supervise()
        return super().current(snapshot, latency)

    def resize(self, workers: int, reason: str) -> None:
        super().resize(workers, reason)
        self._wanted = (workers, reason)
        self.supervise()

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def failed(self) -> bool:
        """Whether the last command failed."""
        return self._failures > 0

    def supervise(self) -> None:
        """Runs one command at a time: the latest number comes next, and a failed command is repeated."""
        if self._process is not None:
            code = self._process.poll()
            if code is None and time.monotonic() - self._began > COMMAND_TIMEOUT:
                self._process.kill()
                code = self._process.wait()
            if code is None:
                return
            self._process = None
            self._finish(code)
        if self._wanted is not None and self._wanted[0] != self._confirmed and time.monotonic() >= self._not_before:
            self._begin(*self._wanted)

    def _begin(self, workers: int, reason: str) -> None:
        values = {"queue": self.queue, "workers": str(workers), "reason": reason}
        words = [word.format_map(values) for word in self._words]
        self._began, self._requested = time.monotonic(), workers
        environment = {"PENSTOCK_QUEUE": self.queue, "PENSTOCK_WORKERS": str(workers), "PENSTOCK_REASON": reason}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the command of the operator
                words, stdin=subprocess.DEVNULL, stdout=sys.stderr, env={**os.environ, **environment}, process_group=0
            )
        except OSError as error:
            LOG.error("command not started", extra={"queue": self.queue, "errno": error.errno})  # noqa: TRY400
            self._finish(-1)

    def _finish(self, code: int) -> None:
        if code == 0:
            self._confirmed, self._failures = self._requested, 0
            LOG.info("command ended", extra={"queue": self.queue, "workers": self._requested})
            return
        self._failures += 1
        self._not_before = time.monotonic() + min(MAX_PAUSE, 2.0 ** min(self._failures, 10))
        LOG.error("command failed", extra={"queue": self.queue, "workers": self._requested, "exit": code})


PLACEHOLDERS = ("queue", "workers", "reason")


def command_words(text: str) -> list[str]:
    """Splits a command line as a shell does. Values replace the placeholders of the words and are not parsed again."""
    hint = "For example: --command 'kubectl scale deploy/{queue} --replicas={workers}'."
    try:
        words = shlex.split(text)
        named = {name for word in words for _, name, *_ in string.Formatter().parse(word) if name is not None}
    except ValueError as error:
        raise ConfigError(f"command: {shown(text)} cannot be read: {error}", hint=hint) from None
    unknown = sorted(named - {*PLACEHOLDERS})
    if unknown or not words:
        known = "{queue}, {workers} and {reason}"
        wrong = f"{{{unknown[0]}}} is not one of {known}" if unknown else "it is empty"
        raise ConfigError(f"command: {shown(text)}: {wrong}", hint=hint)
    return words
