"""How a supervisor stops: after a signal, after an error, or when its work is done."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable

from penstock.errors import PenstockError
from penstock.worker.member import Members

LOG = logging.getLogger("penstock.worker")
UNSETTLED = 4  # exit code: PostgreSQL did not take the outcomes of some tasks


class Shutdown:
    """Whether a supervisor stops, and why.

    A supervisor that does not own its process leaves signals and the process alone.
    """

    def __init__(
        self, grace: float, members: Members, *, owns_process: bool, begun: Callable[[], None] = lambda: None
    ) -> None:
        self._grace = grace
        self._members = members
        self._owns_process = owns_process
        self._begun = begun  # called when the first stop begins
        self.stopping = False
        self.signal: int | None = None
        self.error: PenstockError | None = None
        self.done = asyncio.Event()

    def handle_signals(self) -> None:
        """Stops at SIGTERM and Ctrl-C from now on; a second signal does not wait for running tasks."""
        if self._owns_process:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop_by_signal, number)

    def _stop_by_signal(self, number: int) -> None:
        again = self.signal is not None
        self.signal = self.signal or number
        LOG.info("stopping", extra={"signal": signal.Signals(number).name, "grace": 0 if again else self._grace})
        self.stop(0.0 if again else None)

    def fail(self, error: PenstockError) -> None:
        """Stops because of an error. The first error is kept."""
        self.error = self.error or error
        self.stop()

    def stop(self, grace: float | None = None) -> None:
        """Stops all runners; running tasks may finish within the grace period."""
        allowed = self._grace if grace is None else grace
        if self._owns_process and (not self.stopping or grace is not None):
            # Even if something hangs, such as a server that does not answer, this process ends later.
            asyncio.get_running_loop().call_later(allowed + 25, lambda: os._exit(self.late_code))
        if not self.stopping:
            self._begun()
        self.stopping = True
        self._members.beat_now.set()  # so that this worker is no longer counted
        for member in self._members.present:
            member.stop(allowed)
        if not self._members.present and not self._members.leaving:
            self.done.set()

    @property
    def late_code(self) -> int:
        """The exit code when there is no time for a report.

        Tasks of leases that are still held may have been done, and run again.
        """
        if self._members.counts["unsettled"] or any(len(member.leases) for member in self._members.present):
            return UNSETTLED
        return 128 + signal.SIGINT if self.signal == signal.SIGINT else int(self.error is not None)
