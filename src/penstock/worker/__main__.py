"""The process of a runner: `python -m penstock.worker FD …`.

The arguments after FD only serve readers of the process list.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import traceback
from functools import partial

from penstock.errors import PenstockError
from penstock.worker import logs
from penstock.worker.config import RunnerConfig
from penstock.worker.debugging import explain_breakpoints
from penstock.worker.loading import in_one_line, load
from penstock.worker.pipe import Pipe
from penstock.worker.reloading import Files, files_in, loaded_files
from penstock.worker.runner import Runner


async def serve(end: socket.socket) -> int:
    """Runs a runner over this socket, and returns the exit code."""
    pipe = await Pipe.over(end)
    first = await pipe.receive()
    if first is None:
        return 0
    config = RunnerConfig(**first["config"])
    logs.set_up(config.log_format, quiet=config.quiet, tracebacks=config.dev)
    explain_breakpoints()
    try:
        registry, _ = load(config.target, config.handler_of, tracebacks=config.tracebacks)
        registry.starting.append(partial(logs.correlate, config.log_format))  # after the hooks of the application
        calm_the_collector()
        runner = Runner(config, registry, pipe)
        await runner.run()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the supervisor is told of any error
        hint = error.hint if isinstance(error, PenstockError) else None
        code = error.exit_code if isinstance(error, PenstockError) else 1
        files = Files()
        if config.dev:
            files.add([*loaded_files(), *files_in(error)])
        if config.dev and not isinstance(error, PenstockError):
            traceback.print_exception(error)
        elif config.dev and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        pipe.send(failed=in_one_line(error), hint=hint, exit_code=code, files=files.stamps)
        await asyncio.sleep(0.05)
        return code
    await asyncio.sleep(0)
    pipe.close()
    if runner.stuck:  # other workers have its tasks now, or soon
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


def calm_the_collector() -> None:
    """Makes the garbage collector run rarely.

    The objects of the application stay, and half a million tasks a minute leave no cycles: the search for cycles took a
    tenth of all time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def main() -> None:
    """Runs the process: the first argument is the number of the socket's file descriptor."""
    sys.exit(asyncio.run(serve(socket.socket(fileno=int(sys.argv[1])))))


if __name__ == "__main__":
    main()
