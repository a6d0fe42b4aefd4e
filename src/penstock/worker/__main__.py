"""A runner's process: `python -m penstock.worker FD …`. What follows the FD is for readers of the process list."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys

from penstock.errors import PenstockError
from penstock.worker import logs
from penstock.worker.link import Link
from penstock.worker.orders import Orders, in_one_line, load
from penstock.worker.runner import Runner


async def serve(end: socket.socket) -> int:
    link = await Link.over(end)
    first = await link.receive()
    if first is None:
        return 0
    orders = Orders(**first["orders"])
    logs.set_up(orders.log_format, quiet=orders.quiet)
    try:
        registry, _ = load(orders.target, orders.handler_of)
        calm_the_collector()
        runner = Runner(orders, registry, link)
        await runner.run()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, the supervisor is told
        hint = error.hint if isinstance(error, PenstockError) else None
        code = error.exit_code if isinstance(error, PenstockError) else 1
        link.send(failed=in_one_line(error), hint=hint, exit_code=code)
        await asyncio.sleep(0.05)
        return code
    await asyncio.sleep(0)
    link.close()
    if runner.stuck:  # its tasks are somebody else's by now, or soon
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


def calm_the_collector() -> None:
    """What the application loaded stays, and half a million tasks a minute leave no cycles: looking for some took a
    tenth of all time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def main() -> None:
    sys.exit(asyncio.run(serve(socket.socket(fileno=int(sys.argv[1])))))


if __name__ == "__main__":
    main()
