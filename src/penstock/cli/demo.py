"""`penstock demo`: the main job, end to end, on a PostgreSQL that came with the install."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from penstock import embedded
from penstock.app import Penstock
from penstock.cli.options import Debug, Quiet
from penstock.cli.output import interrupted, progress_bar, say
from penstock.cli.status import print_status
from penstock.errors import PenstockError
from penstock.model import Json
from penstock.queue import Queue

QUEUE = "demo"
BATCH = 500


def demo(
    tasks: Annotated[int, typer.Option(help="How many tasks to push and drain.", min=1)] = 100_000,
    processes: Annotated[int, typer.Option(help="How many processes drain them.", min=1, max=64)] = 2,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server running.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Start the embedded PostgreSQL, push tasks, drain them with several processes, and show what happened.

    Example: penstock demo --tasks 20000
    """
    home = embedded.home(os.environ)
    was_running = embedded.Server.running(home) is not None
    try:
        server = start(home, quiet, was_running=was_running)
        with Penstock(server.dsn) as penstock:
            penstock.init()
            queue = penstock.create_queue(QUEUE, sla="30s", exist_ok=True)
            push(queue, tasks, quiet)
            drain(queue, server.dsn, processes, quiet)
            finish(penstock, quiet)
    except KeyboardInterrupt:
        interrupted()
        raise
    finally:
        leave(home, quiet, keep=keep, was_running=was_running)


def start(home: Path, quiet: bool, *, was_running: bool) -> embedded.Server:
    began = time.perf_counter()
    server = embedded.Server.start(home, environ=os.environ)
    took = f"is up in {home} after {time.perf_counter() - began:.1f} s"
    say(f"PostgreSQL {server.version} {f'is already running in {home}' if was_running else took}", quiet=quiet)
    return server


def leave(home: Path, quiet: bool, *, keep: bool, was_running: bool) -> None:
    """The server as it was found, unless it shall stay. Also when it was interrupted before it was up."""
    with deaf():
        server = embedded.Server.running(home)
        if server is None:
            return
        if keep or was_running:
            said = "PostgreSQL keeps running: penstock status, and penstock down to stop it"
        else:
            server.stop()
            said = f"PostgreSQL is stopped again; the data stays in {home}: penstock up, then penstock status"
        say(said, quiet=quiet)


def push(queue: Queue, tasks: int, quiet: bool) -> None:
    began = time.perf_counter()
    with progress_bar("push", tasks, quiet=quiet) as bar:
        report = queue.push_many(payloads(tasks), progress=bar)
    seconds = time.perf_counter() - began
    say(f"pushed {report.created:,} tasks in {seconds:.1f} s: {report.created / seconds:,.0f}/s", quiet=quiet)


def payloads(count: int) -> Iterator[Json]:
    for n in range(count):
        yield {"invoice": n, "to": f"customer-{n}@example.com", "lines": [{"item": n % 97, "cents": n % 9973}]}


def drain(queue: Queue, dsn: str, processes: int, quiet: bool) -> None:
    before = queue.status()
    total = before.waiting + before.active
    began = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(dsn, f"demo-{n}"), daemon=True) for n in range(processes)]
    try:
        with deaf():
            for worker in workers:
                worker.start()
        with progress_bar(f"drain with {processes} processes", total, quiet=quiet) as bar:
            while any(worker.is_alive() for worker in workers):
                time.sleep(0.05)
                bar(queue.status().totals["done"] - before.totals["done"])
            bar(queue.status().totals["done"] - before.totals["done"])
    finally:
        with deaf():
            for worker in workers:
                if worker.is_alive():
                    worker.terminate()
                    worker.join()
    if any(worker.exitcode for worker in workers):
        raise PenstockError("a worker process of the demo failed", hint="Its own message is above.")
    seconds = time.perf_counter() - began
    done = queue.status().totals["done"] - before.totals["done"]
    say(
        f"drained {done:,} tasks in {seconds:.1f} s: {done / seconds:,.0f}/s (starting the processes included)",
        quiet=quiet,
    )


@contextmanager
def deaf() -> Iterator[None]:
    """Ctrl-C does nothing meanwhile, and never does anything to the processes started here: they inherit it, and are
    ended by the one that started them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def work(dsn: str, name: str) -> None:
    """One worker: claim, do nothing, settle, until nothing is left."""
    with Penstock(dsn) as penstock:
        queue = penstock.queue(QUEUE)
        while True:
            claim = queue.claim(BATCH, worker=name)
            if claim:
                queue.settle(claim)
            elif queue.status().pending == 0:
                return


def finish(penstock: Penstock, quiet: bool) -> None:
    penstock.upkeep()
    verdict = penstock.verify()
    if not quiet:
        print_status([penstock.queue(QUEUE).status()])
    if not verdict.ok:
        raise PenstockError("the books do not agree", hint="Run `penstock verify`.")
    say("verified: counters, places and history agree", quiet=quiet)
