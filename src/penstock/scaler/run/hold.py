"""The hold of a scaler on its queues: one scaler holds a queue at a time, by an epoch in PostgreSQL."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from secrets import token_hex

from penstock.client import scaling
from penstock.client.database import Database
from penstock.model import ScalingHold
from penstock.scaler.run.background import BackgroundCall
from penstock.scaler.run.plan import ScalingPlan

LOG = logging.getLogger("penstock.scaler")


class Hold:
    """The queues that this scaler holds, with the epoch of each."""

    def __init__(self, plan: ScalingPlan, database: Database, holder: str, background: BackgroundCall) -> None:
        self._plan, self._database, self._holder, self._background = plan, database, holder, background
        self.epochs: dict[str, int] = {}

    def take(self, timeout: float) -> dict[str, ScalingHold]:
        """Takes all queues, or raises Conflict if another scaler holds one of them."""
        held = self._background.call(self._take, timeout)
        self.epochs.update((queue, hold.epoch) for queue, hold in held.items())
        return held

    def _take(self) -> dict[str, ScalingHold]:
        """Takes the queues of the plan. It does not wait for a scaler that was killed on this machine."""
        wanted = [*self._plan.limits]
        held = {one.holder for one in scaling.list_scalers(self._database, wanted)}
        dead = sorted(one for one in held if is_dead(one))
        if dead:
            LOG.warning("scaler is dead", extra={"holder": ",".join(dead)})
        return scaling.hold_scaling(
            self._database,
            wanted,
            holder=self._holder,
            policy=self._plan.policy.name,
            lease=self._plan.lease,
            instead_of=dead,
        )


def new_holder() -> str:
    """Returns a unique name for a scaler, which says where it runs."""
    return f"{socket.gethostname()}:{namespace()}:{os.getpid()}:{token_hex(8)}"


def namespace() -> int:
    """Returns the PID namespace. Containers may have the same host name and the same process numbers."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def is_dead(holder: str) -> bool:
    """Whether the holder was a process of this machine that has ended. A holder elsewhere may be alive."""
    *origin, pid, _ = holder.split(":") if holder.count(":") == 3 else ["", "", ""]
    if origin != [socket.gethostname(), str(namespace())] or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
