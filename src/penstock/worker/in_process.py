"""A worker inside the caller's process, for scripts and notebooks: two threads instead of two processes.

The supervisor's thread keeps leases alive; the runner's thread claims, runs async handlers and settles. Sync handlers
run in threads of the runner, as in `penstock work`. This worker handles no signals and never ends the process.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from concurrent.futures import Future
from typing import Self

from penstock.errors import ConfigError, PenstockError
from penstock.handlers import Registry
from penstock.worker.config import RunnerConfig
from penstock.worker.loading import in_one_line
from penstock.worker.pipe import Pipe
from penstock.worker.plan import Plan, WorkerReport
from penstock.worker.runner import Runner
from penstock.worker.supervisor import Supervisor


class InProcessWorker:
    """Runs tasks in this process from `start` to `stop`."""

    def __init__(self, registry: Registry, plan: Plan) -> None:
        for name in plan.queues:
            registry.check(name)
        for spec in registry.specs.values():
            if spec.mode == "process" and spec.queue in plan.queues:
                raise ConfigError(
                    f"{spec.name}: its tasks need processes of their own, which run_worker cannot start",
                    hint='Run it with `penstock work`, or say run="thread".',
                )
        self._registry = registry
        self._plan = plan
        self._began: Future[tuple[Supervisor, asyncio.AbstractEventLoop]] = Future()
        self._ended: Future[WorkerReport] = Future()

    def start(self) -> Self:
        """Starts both threads, and returns when the worker claims.

        Raises the error that prevents it, such as a missing queue.
        """
        threading.Thread(target=self._live, name="penstock-worker", daemon=True).start()
        self._began.result()
        return self

    def stop(self) -> WorkerReport:
        """Lets running tasks finish within the grace period; the others go back.

        Raises the error that ended the worker early.
        """
        supervisor, loop = self._began.result()
        if not self._ended.done():
            loop.call_soon_threadsafe(supervisor.shutdown.stop)
        return self._ended.result()

    @property
    def report(self) -> WorkerReport:
        """The counts of the tasks so far."""
        return self._began.result()[0].progress.report

    def _live(self) -> None:
        try:
            self._ended.set_result(asyncio.run(self._supervise()))
        except BaseException as error:  # noqa: BLE001 - start or stop raises it
            self._ended.set_exception(error)
            if not self._began.done():
                self._began.set_exception(error)

    async def _supervise(self) -> WorkerReport:
        supervisor = supervise_thread(self._plan, self._registry)
        loop = asyncio.get_running_loop()
        return await supervisor.run(lambda: self._began.set_result((supervisor, loop)))


def supervise_thread(plan: Plan, registry: Registry) -> Supervisor:
    """Returns a supervisor that starts its runner in a thread, and leaves signals and the process alone."""
    return Supervisor(plan, registry, spawn=lambda end, _: RunnerThread(end.dup(), registry), owns_process=False)


class RunnerThread:
    """A runner in a thread, with the methods of a process that a supervisor uses."""

    def __init__(self, end: socket.socket, registry: Registry) -> None:
        self.pid = os.getpid()
        self._registry = registry
        self._given_up = False
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(end)), name="penstock-runner", daemon=True
        )
        self._thread.start()

    def poll(self) -> int | None:
        """Returns None while the thread runs, or 0 after it ended or was given up."""
        return None if self._thread.is_alive() and not self._given_up else 0

    def kill(self) -> None:
        """Stops waiting for the thread, which cannot be ended. Its handler may still run, but its leases end."""
        self._given_up = True

    async def _serve(self, end: socket.socket) -> None:
        pipe = await Pipe.over(end)
        try:
            first = await pipe.receive()
            if first is not None:
                runner = Runner(RunnerConfig(**first["config"]), self._registry, pipe)
                try:
                    await runner.run()
                finally:
                    await runner.close()
        except PenstockError as error:
            pipe.send(failed=in_one_line(error), hint=error.hint, exit_code=error.exit_code)
        except Exception as error:  # noqa: BLE001 - the supervisor is told
            pipe.send(failed=in_one_line(error), hint=None, exit_code=1)
        finally:
            await asyncio.sleep(0.05)  # until the message is sent
            pipe.close()
