"""The runners of one supervisor, as the supervisor sees them."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from datetime import UTC, datetime
from secrets import token_urlsafe
from typing import Any

from penstock.client.database_async import AsyncDatabase
from penstock.worker.leases import Lease, Leases
from penstock.worker.measure_sums import MeasureSums, MemberMeasures
from penstock.worker.pipe import Message, Pipe, Process


class Member:
    """One runner, as the supervisor sees it."""

    def __init__(self, database: AsyncDatabase, process: Process, pipe: Pipe) -> None:
        self.process = process
        # The name has a random part, because containers may share host names and process ids. It is eight bytes,
        # written as eleven letters, because history repeats the name.
        self.name = f"{socket.gethostname()}:{token_urlsafe(8)}:{process.pid}"
        self.pipe = pipe
        self.leases = Leases(database, process.pid, self._send_loss, self._send_revoked)
        self.requested_at = datetime.now(UTC)
        self.began = time.monotonic()
        self.last_message_at = time.monotonic()
        self.ready = False
        self.busy = 0
        self.claims = True  # it claims tasks when it has a free slot
        self.told_busy = 0  # the number that PostgreSQL knows
        self.listening = False  # whether notifications of pushes arrive there
        self.stalled = 0.0  # seconds for which no claim, or no settle, has succeeded
        self.counts: Counter[str] = Counter()
        self.measures = MemberMeasures()
        self.bye: str | None = None
        self.end = ""
        self._channel: str | None = None
        # Files of an application that does not load (`--dev`): one of them must change.
        self.files: dict[str, list[int] | None] = {}

    def _send_loss(self, lease: Lease) -> None:
        self.pipe.send(lost=True, token=lease.token)

    def _send_revoked(self, lease: Lease, ids: tuple[int, ...]) -> None:
        self.pipe.send(revoked=list(ids), token=lease.token)

    @property
    def unnotified(self) -> bool:
        """Whether it should listen but notifications do not arrive, as behind a pooler in transaction mode."""
        return self._channel is not None and not self.listening

    def listen(self, channel: str | None) -> None:
        """Sets the channel on which the runner listens for pushes.

        None means that other workers of the fleet listen.
        """
        if channel != self._channel:
            self._channel = channel
            self.pipe.send(channel=channel)

    def beat(self, slots: int) -> dict[str, Any]:
        """Returns what PostgreSQL stores about this runner."""
        self.told_busy = min(self.busy, slots)
        return {
            "name": self.name,
            "pid": self.process.pid,
            "busy": self.told_busy,
            "requested_at": self.requested_at,
            "listens": self.listening,
        }

    def note(self, message: Message) -> None:
        """Records what a message of the runner says about it."""
        for token in message.get("gone", ()):
            self.leases.let_go(token)
        if "held" in message:
            self.leases.hold(message["held"], message["seconds"], message["age"])
        if "counts" in message:
            self.counts = Counter(message["counts"])
        self.ready = message.get("ready", self.ready)
        self.busy = message.get("busy", self.busy)
        self.listening = message.get("listening", self.listening)
        self.stalled = message.get("stalled", self.stalled)
        self.claims = message.get("claims", self.claims)
        self.bye = message.get("bye", self.bye)

    def stop(self, grace: float) -> None:
        """Asks the runner to stop, and kills it later if it does not."""
        self.pipe.send(stop=grace)
        asyncio.get_running_loop().call_later(grace + 20, self.process.kill)


class Members:
    """The runners of one supervisor: those that live, and the counts of those that ended."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.present: list[Member] = []
        self.leaving = 0  # processes that ended and whose leases are ending at this moment
        self.past: Counter[str] = Counter()
        self.measured = MeasureSums()
        self.beat_now = asyncio.Event()  # set when PostgreSQL should learn of a change at once

    @property
    def counts(self) -> Counter[str]:
        """The counts of all runners, including those that ended."""
        total = Counter(self.past)
        for member in self.present:
            total.update(member.counts)
        return total

    @property
    def idle(self) -> list[Member]:
        """The runners that have a free slot."""
        return [member for member in self.present if member.ready and member.busy < self._slots]

    @property
    def free(self) -> list[Member]:
        """The runners that have a free slot and claim."""
        return [member for member in self.idle if member.claims]

    def remove(self, member: Member) -> None:
        """Removes a runner that ended, and keeps its counts."""
        self.present.remove(member)
        self.past.update(member.counts)
        self.measured.end(member.measures)
