"""Stops the workers of a scaler: they finish their tasks within the grace, and give back the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from penstock.scaler.run.fleet import Child, CommandedWorkers, LocalWorkers, Workers

POLL_INTERVAL = 0.2  # seconds
KILL_AFTER = 10.0  # seconds that a worker has after the second signal
Hurry = Callable[[], bool]  # whether the user has asked not to wait


def local_children(workers: Mapping[str, Workers]) -> list[Child]:
    return [child for one in workers.values() if isinstance(one, LocalWorkers) for child in one.children]


def inherited_names(workers: Mapping[str, Workers]) -> list[str]:
    """Returns the names of workers that an earlier scaler started."""
    return [name for one in workers.values() if isinstance(one, LocalWorkers) for name in one.inherited]


def wait_for_children(children: Sequence[Child], grace: float, hurry: Hurry) -> None:
    """Waits for children that were told to stop. After the grace they get a second signal, and then are killed."""
    until = time.monotonic() + grace
    while alive(children) and time.monotonic() < until and not hurry():
        time.sleep(POLL_INTERVAL)
    for child in alive(children):
        child.send_away()  # a second signal means: at once
    until = time.monotonic() + KILL_AFTER
    while alive(children) and time.monotonic() < until:
        time.sleep(POLL_INTERVAL / 4)
    for child in alive(children):
        child.process.kill()


def finish_commands(workers: Mapping[str, Workers], grace: float, hurry: Hurry) -> None:
    """Waits for commands that still run."""
    commanded = [one for one in workers.values() if isinstance(one, CommandedWorkers)]
    until = time.monotonic() + grace
    while any(one.running for one in commanded) and time.monotonic() < until and not hurry():
        for one in commanded:
            one.supervise()
        time.sleep(POLL_INTERVAL / 4)


def alive(children: Sequence[Child]) -> list[Child]:
    return [child for child in children if child.process.poll() is None]
