"""On stage: the scaler and its fleet, a second wave, and a worker killed with -9, watched until everything is done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

from penstock.app import Penstock
from penstock.cli.board import SAMPLES, Memory, Standing
from penstock.cli.demo.load import QUEUE
from penstock.cli.demo.load import tasks as second_wave
from penstock.errors import PenstockError
from penstock.model import Board, BoardWorker

CONCURRENCY = 20
LOOKS = 0.5  # seconds between two
WAVE = 0.5  # of the first one: the second, when a quarter of that is done
LAST = 600.0  # seconds after which the demo gives up
STOPPING = 30.0  # seconds that a fleet has to go by itself


@dataclass
class Scene:
    """What happened so far."""

    began: float = field(default_factory=time.monotonic)
    killed: str | None = None
    most_workers: int = 0
    worst_usage: float = 0.0  # the oldest task's age against the SLA, at its worst

    ended: float | None = None

    @property
    def seconds(self) -> float:
        return (self.ended or time.monotonic()) - self.began


Show = Callable[[Board, list[Standing], Scene], None]
Tell = Callable[[str], None]


@contextmanager
def fleet(dsn: str, log: Path, max_workers: int) -> Iterator[subprocess.Popen[bytes]]:
    """`penstock scale`, in a session of its own: Ctrl-C is for us, and what follows from it too."""
    command = [sys.executable, "-m", "penstock.cli", "scale", "penstock.cli.demo.tasks:app", "--queues", QUEUE]
    command += ["--concurrency", str(CONCURRENCY), "--max-workers", str(max_workers), "--grace", "5s"]
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: S603 - ours
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PENSTOCK_DSN": dsn},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Its workers go first. Whoever does not go is told so again, then killed, and his workers with him."""
    for urge in (signal.SIGTERM, signal.SIGTERM):
        process.send_signal(urge)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOPPING)
            return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Beside(Thread):
    """Something that goes on while others watch. What goes wrong with it is raised where it is asked for."""

    def __init__(self, run: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._run = run
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self._run()
        except Exception as error:  # noqa: BLE001 - raised by `over`
            self._error = error

    @property
    def over(self) -> bool:
        if self._error is not None:
            raise self._error
        return not self.is_alive()


@dataclass
class Play:
    """One thing after the other: the first wave, the second when that is under way, the killing; until all is done."""

    penstock: Penstock
    scaler: subprocess.Popen[bytes]
    tasks: int
    load: Callable[[], None]
    show: Show
    tell: Tell
    scene: Scene = field(default_factory=Scene)
    waves: list[Beside] = field(default_factory=list)

    def run(self) -> Scene:
        self.waves.append(Beside(self.load))
        memory = Memory()
        while self.scene.seconds < LAST:
            board = self.penstock.board(QUEUE, decisions=3, samples=SAMPLES)
            (standing,) = memory.see(board)
            self.note(standing)
            self.show(board, [standing], self.scene)
            if self.scaler.poll() is not None:
                raise PenstockError("the scaler ended", hint="Its last words are in scaler.log, beside the data.")
            if self.is_over(standing):
                self.scene.ended = time.monotonic()
                return self.scene
            self.act(board, standing)
            time.sleep(LOOKS)
        raise PenstockError(f"the demo did not end within {LAST:.0f} s", hint="Try fewer tasks: --tasks 20000")

    def note(self, standing: Standing) -> None:
        scene = self.scene
        scene.most_workers = max(scene.most_workers, standing.workers)
        scene.worst_usage = max(scene.worst_usage, standing.usage or 0.0)

    def is_over(self, standing: Standing) -> bool:
        status = standing.status
        played = len(self.waves) == 2 and all(wave.over for wave in self.waves) and self.scene.killed is not None
        return played and not (status.pending or status.active or status.planned)

    def act(self, board: Board, standing: Standing) -> None:
        first, *second = self.waves
        if not second and first.over and standing.status.totals["done"] >= self.tasks / 4:
            self.waves.append(Beside(self.push_more))
            self.tell(f"a second wave: {int(self.tasks * WAVE):,} tasks more")
        elif second and self.scene.killed is None and self.in_full_swing(standing) and (victim := busiest(board)):
            os.kill(victim.pid or 0, signal.SIGKILL)
            self.scene.killed = victim.name
            self.tell(f"kill -9 of {victim.name}, with {victim.busy} tasks in its hands")

    def in_full_swing(self, standing: Standing) -> bool:
        """While tasks wait, every worker has its hands full. A small demo may be over before anybody looks."""
        return standing.status.pending > 0 or all(wave.over for wave in self.waves)

    def push_more(self) -> None:
        self.penstock.queue(QUEUE).push_many(second_wave(int(self.tasks * WAVE), first=self.tasks))


def busiest(board: Board) -> BoardWorker | None:
    """In a small demo none may be busy any more when we look."""
    found = [one for one in board.workers if one.pid and not one.leaving and one.silent < 5]
    return max(found, key=lambda one: one.busy) if found else None
