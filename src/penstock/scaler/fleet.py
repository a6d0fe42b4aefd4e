"""Workers as a scaler has them: how many there are, and make it so many.

Processes of this machine, whatever a command of yours starts, or nobody: then it is only said. Whoever started a worker
is in the registry; so a scaler that takes over knows the workers of the one before, and sends them away through
PostgreSQL: they hear of it when they beat. A worker that is sent away finishes what it has.
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
from penstock.model import Look, SeenWorker
from penstock.scaler.collect import counted_on
from penstock.scaler.signals import Fleet

LOG = logging.getLogger("penstock.scaler")
SETTLED_DOWN = 10.0  # seconds after which a start counts as a success
LONGEST_PAUSE = 30.0  # seconds between two tries
STILLBORN = 120.0  # seconds after which a worker that nobody has heard of is given up
COMMAND_TIME = 60.0  # seconds that a command may take
NO_HURRY = "7d"  # grace of a worker that is sent away: what runs is not interrupted


class Workers(Protocol):
    """Those of one queue."""

    def current(self, look: Look, latency: float) -> Fleet:
        """How many there are. `latency`: seconds until one that starts is there."""

    def resize(self, workers: int, reason: str) -> None:
        """Shall be so many. Never waits, and never interrupts a task."""


# --- processes of this machine -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a worker is started: `penstock work`."""

    target: str
    dsn: str = field(repr=False)
    slots: int
    log_format: str = "json"
    quiet: bool = False

    def command(self, queue: str, label: str, requested_at: datetime) -> list[str]:
        words = [sys.executable, "-P", "-m", "penstock.cli", "work", self.target, "--queues", queue, "--json"]
        words += ["--concurrency", str(self.slots), "--given-dsn", "--grace", NO_HURRY, "--started-by", label]
        words += ["--requested-at", requested_at.isoformat(), "--log-format", self.log_format]
        return [*words, "--quiet"] if self.quiet else words

    def start(self, queue: str, label: str, requested_at: datetime) -> subprocess.Popen[bytes]:
        """In a process group of its own: a Ctrl-C is ours to pass on. The DSN is nowhere on a command line."""
        return subprocess.Popen(  # noqa: S603 - ourselves
            self.command(queue, label, requested_at),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PENSTOCK_DSN": self.dsn},
            process_group=0,
        )


class Child:
    def __init__(self, process: subprocess.Popen[bytes], label: str) -> None:
        self.process = process
        self.label = label
        self.began = time.monotonic()
        self.registered = False
        self.told = False
        self.busy = 0

    @property
    def age(self) -> float:
        return time.monotonic() - self.began

    def send_away(self) -> None:
        self.told = True
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)


class LocalWorkers:
    """Worker processes of this machine for one queue. Others that serve it count too; those that a scaler before us
    started are ours now."""

    def __init__(self, queue: str, holder: str, recipe: Recipe, dismiss: Callable[[Sequence[str]], None]) -> None:
        self.queue, self.holder, self._recipe, self._dismiss = queue, holder, recipe, dismiss
        self._children: dict[str, Child] = {}
        self._inherited: list[SeenWorker] = []
        self._strangers = 0
        self._ended: set[str] = set()  # children that are gone, and still in the registry
        self._number = 0
        self._crashes = 0
        self._not_before = 0.0
        self._clock = 0.0  # PostgreSQL's, against ours

    @property
    def children(self) -> list[Child]:
        return [*self._children.values()]

    @property
    def inherited(self) -> list[str]:
        return [one.name for one in self._inherited]

    def current(self, look: Look, latency: float) -> Fleet:
        self._clock = look.at - time.monotonic()
        self.reap()
        serving = [one for one in look.workers if self.queue in one.queues]
        self._ended &= {one.started_by or "" for one in serving}
        self._recognise(serving)
        others = [one for one in serving if one.started_by not in self._ended | {*self._children}]
        present = [one for one in others if counted_on(one)]
        self._inherited = [one for one in present if one.started_by is not None]
        slots = sum(one.slots / len(one.queues) for one in present if one.started_by is None)
        self._strangers = math.floor(slots / self._recipe.slots + 1e-9)
        staying = [child for child in self.children if not child.told]
        starting = sorted(max(0.0, latency - child.age) for child in staying if not child.registered)
        told = sum(child.told for child in self.children)
        return Fleet(
            ready=len(staying) - len(starting) + len(self._inherited) + self._strangers,
            starting=tuple(starting),
            draining=told + sum(one.leaving for one in others),
        )

    def _recognise(self, registered: Sequence[SeenWorker]) -> None:
        for one in registered:
            child = self._children.get(one.started_by or "")
            if child is not None:
                child.registered, child.busy = True, one.busy
                child.told = child.told or one.leaving

    def reap(self) -> None:
        """Those that ended. One that was not told to is a reason to wait before the next, longer each time."""
        for child in self.children:
            code = child.process.poll()
            if code is None:
                if not child.registered and not child.told and child.age > STILLBORN:
                    LOG.error("worker never came up", extra={"queue": self.queue, "pid": child.process.pid})
                    child.send_away()
                    self._crashed()
                continue
            del self._children[child.label]
            self._ended.add(child.label)
            if child.registered and child.age > SETTLED_DOWN:
                self._crashes = 0
            if not child.told:
                self._crashed()
            level = logging.INFO if child.told else logging.ERROR
            LOG.log(level, "worker ended", extra={"queue": self.queue, "pid": child.process.pid, "exit": code})

    def _crashed(self) -> None:
        self._crashes += 1
        self._not_before = time.monotonic() + min(LONGEST_PAUSE, 0.25 * 2 ** min(self._crashes, 10))

    def resize(self, workers: int, reason: str) -> None:  # noqa: ARG002 - for commands
        staying = [child for child in self.children if not child.told]
        missing = workers - len(staying) - len(self._inherited) - self._strangers
        if missing > 0 and time.monotonic() >= self._not_before:
            for _ in range(missing):
                if not self._start():
                    return
        elif missing < 0:
            self._let_go(-missing, staying)

    def _start(self) -> bool:
        self._number += 1
        label = f"{self.holder}#{self._number}"
        requested = datetime.fromtimestamp(time.monotonic() + self._clock, UTC)
        try:
            process = self._recipe.start(self.queue, label, requested)
        except OSError as error:  # no memory, no more processes
            LOG.error("worker not started", extra={"queue": self.queue, "errno": error.errno})  # noqa: TRY400
            self._crashed()
            return False
        self._children[label] = Child(process, label)
        LOG.info("worker started", extra={"queue": self.queue, "pid": process.pid})
        return True

    def _let_go(self, count: int, staying: Sequence[Child]) -> None:
        """Idle ones first, then those that only start, then those with least to do; of equals the youngest stay."""
        line: list[tuple[int, float, Child | str]] = [
            (rank(child.busy, starting=not child.registered), -child.age, child) for child in staying
        ]
        line += [(rank(one.busy), -math.inf, one.name) for one in self._inherited]
        line.sort(key=lambda one: one[:2])
        chosen = [who for _, _, who in line[:count]]
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
        """Another scaler has the queue, and these with it: they go on."""
        self._children = {}
        self._inherited = []


def rank(busy: int, *, starting: bool = False) -> int:
    return 1 if starting else 1 + busy if busy else 0


# --- somebody else's -----------------------------------------------------------------------------------------------


class AdvisedWorkers:
    """Whoever reads `penstock.target_workers` starts them. Those that were asked for and are not there yet start."""

    def __init__(self, queue: str, slots: int) -> None:
        self.queue = queue
        self._slots = slots
        self._ready = 0
        self._asked: list[float] = []  # when, for each that is not there yet

    def current(self, look: Look, latency: float) -> Fleet:
        serving = [one for one in look.workers if self.queue in one.queues]
        slots = sum(one.slots / len(one.queues) for one in serving if counted_on(one))
        ready = math.floor(slots / self._slots + 1e-9)
        self._asked = self._asked[max(0, ready - self._ready) :]
        self._ready = ready
        now = time.monotonic()
        starting = sorted(max(0.0, latency - (now - asked)) for asked in self._asked)
        return Fleet(ready, tuple(starting), sum(one.leaving for one in serving))

    def resize(self, workers: int, reason: str) -> None:  # noqa: ARG002 - for commands
        missing = max(0, workers - self._ready)
        now = time.monotonic()
        self._asked = [*self._asked[:missing], *([now] * (missing - len(self._asked)))]


class CommandedWorkers(AdvisedWorkers):
    """A command of yours makes it so many: `kubectl scale deploy/{queue} --replicas={workers}`. No shell reads it."""

    def __init__(self, queue: str, slots: int, words: Sequence[str]) -> None:
        super().__init__(queue, slots)
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._wanted: tuple[int, str] | None = None
        self._said: int | None = None  # with success
        self._saying = 0
        self._failures = 0
        self._not_before = 0.0

    def current(self, look: Look, latency: float) -> Fleet:
        self.look_after()
        return super().current(look, latency)

    def resize(self, workers: int, reason: str) -> None:
        super().resize(workers, reason)
        self._wanted = (workers, reason)
        self.look_after()

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def failed(self) -> bool:
        """The last time."""
        return self._failures > 0

    def look_after(self) -> None:
        """One at a time; what was wanted meanwhile comes next, and what failed comes again."""
        if self._process is not None:
            code = self._process.poll()
            if code is None and time.monotonic() - self._began > COMMAND_TIME:
                self._process.kill()
                code = self._process.wait()
            if code is None:
                return
            self._process = None
            self._ended(code)
        if self._wanted is not None and self._wanted[0] != self._said and time.monotonic() >= self._not_before:
            self._begin(*self._wanted)

    def _begin(self, workers: int, reason: str) -> None:
        told = {"queue": self.queue, "workers": str(workers), "reason": reason}
        words = [word.format_map(told) for word in self._words]
        self._began, self._saying = time.monotonic(), workers
        environment = {f"PENSTOCK_{name.upper()}": value for name, value in told.items()}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - what the operator asked for, word by word
                words, stdin=subprocess.DEVNULL, stdout=sys.stderr, env={**os.environ, **environment}, process_group=0
            )
        except OSError as error:
            LOG.error("command not started", extra={"queue": self.queue, "errno": error.errno})  # noqa: TRY400
            self._ended(-1)

    def _ended(self, code: int) -> None:
        if code == 0:
            self._said, self._failures = self._saying, 0
            LOG.info("command ended", extra={"queue": self.queue, "workers": self._saying})
            return
        self._failures += 1
        self._not_before = time.monotonic() + min(LONGEST_PAUSE, 2.0 ** min(self._failures, 10))
        LOG.error("command failed", extra={"queue": self.queue, "workers": self._saying, "exit": code})


PLACES = ("queue", "workers", "reason")


def command_words(text: str) -> list[str]:
    """A command line, as a shell would cut it; what stands in braces is put into its words, never read again."""
    hint = "Such as: --command 'kubectl scale deploy/{queue} --replicas={workers}'."
    try:
        words = shlex.split(text)
        named = {name for word in words for _, name, *_ in string.Formatter().parse(word) if name is not None}
    except ValueError as error:
        raise ConfigError(f"command: {shown(text)} can not be read: {error}", hint=hint) from None
    unknown = sorted(named - {*PLACES})
    if unknown or not words:
        known = "{queue}, {workers} and {reason}"
        wrong = f"{{{unknown[0]}}} is not one of {known}" if unknown else "it is empty"
        raise ConfigError(f"command: {shown(text)}: {wrong}", hint=hint)
    return words
