"""Runs the demo: the scaler, a second wave of tasks, and a worker killed with -9, until all tasks are done."""

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
from penstock.cli.commands.demo.load import QUEUE
from penstock.cli.commands.demo.load import make_tasks as second_wave
from penstock.errors import PenstockError
from penstock.model import Board, BoardWorker
from penstock.scaler.standing import SAMPLES, RecentBoards, SlaStanding

CONCURRENCY = 20
LOOK_INTERVAL = 0.5  # seconds between two
SECOND_WAVE_SHARE = 0.5  # of the first wave; the second is pushed when a quarter of the first is done
MAX_SECONDS = 600.0  # seconds after which the demo gives up
STOP_TIMEOUT = 30.0  # seconds that the scaler and its workers have to stop


@dataclass
class DemoProgress:
    """The progress of the demo."""

    began: float = field(default_factory=time.monotonic)
    killed: str | None = None
    most_workers: int = 0
    worst_usage: float = 0.0  # the largest share of the SLA that the oldest task has used up

    ended: float | None = None

    @property
    def seconds(self) -> float:
        return (self.ended or time.monotonic()) - self.began


Show = Callable[[Board, list[SlaStanding], DemoProgress], None]
Tell = Callable[[str], None]


@contextmanager
def start_scaler(dsn: str, log: Path, max_workers: int) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `penstock scale` in a session of its own, so that Ctrl-C reaches only the demo."""
    command = [sys.executable, "-m", "penstock.cli", "scale", "penstock.cli.commands.demo.tasks:app", "--queues", QUEUE]
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
        stop_scaler(process)


def stop_scaler(process: subprocess.Popen[bytes]) -> None:
    """Stops the scaler and its workers with SIGTERM, twice, and then kills them."""
    for urge in (signal.SIGTERM, signal.SIGTERM):
        process.send_signal(urge)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT)
            return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class WaveThread(Thread):
    """Pushes a wave in a thread. `over` raises its error."""

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
class DemoRun:
    """Pushes the first wave, then the second, kills a worker, and watches until all tasks are done."""

    penstock: Penstock
    scaler: subprocess.Popen[bytes]
    tasks: int
    load: Callable[[], None]
    show: Show
    tell: Tell
    scene: DemoProgress = field(default_factory=DemoProgress)
    waves: list[WaveThread] = field(default_factory=list)

    def run(self) -> DemoProgress:
        self.waves.append(WaveThread(self.load))
        memory = RecentBoards()
        while self.scene.seconds < MAX_SECONDS:
            board = self.penstock.board(QUEUE, decisions=3, samples=SAMPLES)
            (standing,) = memory.see(board)
            self.note(standing)
            self.show(board, [standing], self.scene)
            if self.scaler.poll() is not None:
                raise PenstockError("the scaler ended", hint="Its output is in scaler.log, beside the data.")
            if self.is_over(standing):
                self.scene.ended = time.monotonic()
                return self.scene
            self.act(board, standing)
            time.sleep(LOOK_INTERVAL)
        raise PenstockError(f"the demo did not end within {MAX_SECONDS:.0f} s", hint="Try fewer tasks: --tasks 20000")

    def note(self, standing: SlaStanding) -> None:
        scene = self.scene
        scene.most_workers = max(scene.most_workers, standing.workers)
        scene.worst_usage = max(scene.worst_usage, standing.usage or 0.0)

    def is_over(self, standing: SlaStanding) -> bool:
        status = standing.status
        played = len(self.waves) == 2 and all(wave.over for wave in self.waves) and self.scene.killed is not None
        return played and not (status.pending or status.active or status.planned)

    def act(self, board: Board, standing: SlaStanding) -> None:
        first, *second = self.waves
        if not second and first.over and standing.status.totals["done"] >= self.tasks / 4:
            self.waves.append(WaveThread(self.push_more))
            self.tell(f"a second wave: {int(self.tasks * SECOND_WAVE_SHARE):,} tasks more")
        elif second and self.scene.killed is None and self.in_full_swing(standing) and (victim := find_busiest(board)):
            os.kill(victim.pid or 0, signal.SIGKILL)
            self.scene.killed = victim.name
            self.tell(f"kill -9 of {victim.name}, with {victim.busy} tasks running")

    def in_full_swing(self, standing: SlaStanding) -> bool:
        """Whether workers are busy: while tasks wait, all are. A small demo may be over before the first look."""
        return standing.status.pending > 0 or all(wave.over for wave in self.waves)

    def push_more(self) -> None:
        self.penstock.queue(QUEUE).push_many(second_wave(int(self.tasks * SECOND_WAVE_SHARE), first=self.tasks))


def find_busiest(board: Board) -> BoardWorker | None:
    """Returns the worker with the most running tasks, which may be none in a small demo."""
    found = [one for one in board.workers if one.pid and not one.leaving and one.silent < 5]
    return max(found, key=lambda one: one.busy) if found else None
