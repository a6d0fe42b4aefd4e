"""Waits for PostgreSQL before any work begins (`--wait`).

There may be no primary yet during a failover, or if a service manager starts everything at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import signal
import time
from typing import Any

from penstock.client.conninfo import describe_dsn
from penstock.client.database_async import AsyncDatabase
from penstock.client.sqlstate import first_line
from penstock.errors import Unavailable
from penstock.service_manager import ServiceManager
from penstock.worker import health

LOG = logging.getLogger("penstock.worker")
LONGEST_TRY = 15.0  # seconds without an answer after which an attempt has failed
SAY_AGAIN = 60.0  # seconds after which the same reason is logged again
SAY_OTHER = 5.0  # seconds after which another reason is logged
ASK_FOR_TIME = 5.0  # seconds between two requests for time to the service manager
QUICK = 1.0  # seconds in which the first attempt usually ends; the probe is not served before


async def wait_for_primary(
    dsn: str, *, at_most: float = math.inf, probe_at: str | None = None, manager: ServiceManager | None = None
) -> int | None:
    """Returns None when PostgreSQL accepts writes, or the signal that ended the waiting.

    Raises `Unavailable` after `at_most` seconds. Raises at once the errors that waiting does not solve: a wrong
    password, a missing schema. The liveness probe at `probe_at` is served meanwhile, because the absence of PostgreSQL
    is no reason for a restart.
    """
    stopped: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, resolve_once, stopped, number)
    tries = asyncio.ensure_future(try_until_writable(dsn, at_most))
    running: list[asyncio.Future[Any]] = [stopped, tries]
    try:
        await asyncio.wait(running, timeout=QUICK, return_when=asyncio.FIRST_COMPLETED)
        if probe_at is not None and not any(one.done() for one in running):
            running.append(asyncio.ensure_future(health.serve(probe_at, probe)))
        if manager is not None and not any(one.done() for one in running):
            running.append(asyncio.ensure_future(ask_for_time(manager)))
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        if stopped in done:
            return stopped.result()
        for one in done:
            one.result()  # raises the error if it failed
        return None
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def ask_for_time(manager: ServiceManager) -> None:
    """Tells the service manager why the worker is not ready yet, so that it does not give up the start."""
    while True:
        manager.waiting("waiting for PostgreSQL")
        await asyncio.sleep(ASK_FOR_TIME)


def resolve_once(future: asyncio.Future[int], number: int) -> None:
    """Sets the result of a future, unless it is already set."""
    if not future.done():
        future.set_result(number)


async def try_until_writable(dsn: str, at_most: float) -> None:
    """Tries to reach a writable PostgreSQL until it succeeds, and logs the reasons why it does not."""
    database, began = AsyncDatabase(dsn), time.monotonic()
    said, said_at = "", -math.inf
    while True:
        try:
            async with asyncio.timeout(LONGEST_TRY):
                await database.check_writable()
        except TimeoutError:
            error = Unavailable(
                f"PostgreSQL ({describe_dsn(dsn)}) has not answered for {LONGEST_TRY:g} s", reason="silent"
            )
        except Unavailable as found:
            error = found
        else:
            if said:
                LOG.info("PostgreSQL accepts writes", extra={"waited": round(time.monotonic() - began, 1)})
            return
        now = time.monotonic()
        if now - began >= at_most:
            raise error
        reason = first_line(error.__cause__) if error.__cause__ is not None else error.message
        if now - said_at >= (SAY_AGAIN if reason == said else SAY_OTHER):
            LOG.warning("waiting for PostgreSQL, %s: %s", describe_dsn(dsn), reason)
            said, said_at = reason, now
        await asyncio.sleep(random.uniform(0.25, 0.75))  # noqa: S311 - so that a fleet does not connect at once


def probe() -> dict[str, Any]:
    """Returns the answer of the liveness probe for a worker that waits."""
    nothing = {
        "processes": 0,
        "busy": 0,
        "silent": [],
        "stalled": [],
        "given_up": [],
        "database": False,
        "stopping": False,
    }
    return {"ok": True, "pid": os.getpid(), **nothing, "waiting": True}
