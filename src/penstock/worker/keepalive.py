"""Extends leases while their runner lives.

This runs in the supervisor, so that a handler that holds the interpreter, or keeps both cores busy, cannot stop it.
"""

from __future__ import annotations

import asyncio

from penstock.errors import PenstockError, Unavailable
from penstock.worker.duties import Problems, wait_until
from penstock.worker.leases import Leases
from penstock.worker.member import Members

EXTENDING = "extension of leases"  # this duty, as the log and the probe name it


class KeepAlive:
    """The duty to extend the leases of all runners in time."""

    def __init__(self, members: Members, problems: Problems) -> None:
        self._members = members
        self._problems = problems
        self._sooner = asyncio.Event()  # set when a lease has to be extended earlier than all others
        self._wakes_at = 0.0

    def note(self, leases: Leases) -> None:
        """Reacts to a new lease, which may have to be extended earlier than all others."""
        if leases.next_due < self._wakes_at:
            self._sooner.set()

    async def run(self) -> None:
        """Extends each lease when it is due."""
        while True:
            self._sooner.clear()
            self._wakes_at = min((member.leases.next_due for member in self._members.present), default=float("inf"))
            await wait_until(self._wakes_at, self._sooner)
            try:
                for member in [*self._members.present]:
                    await member.leases.extend()
                self._problems.note_success(EXTENDING)
            except Unavailable as error:
                await self._problems.wait_for_database(error, EXTENDING)
            except PenstockError as error:
                self._problems.log_once("leases not extended", error)
                await asyncio.sleep(0.1)
