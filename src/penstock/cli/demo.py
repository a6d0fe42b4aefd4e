"""`penstock demo`: the main job, end to end, on a PostgreSQL that came with the install."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock import embedded
from penstock.app import Penstock
from penstock.cli.options import Debug, Quiet
from penstock.cli.output import interrupted, progress_bar, say
from penstock.cli.status import print_status
from penstock.cli.work import bar
from penstock.errors import PenstockError
from penstock.model import Json
from penstock.queue import Queue
from penstock.worker import logs, orders
from penstock.worker.supervisor import Plan
from penstock.worker.supervisor import work as supervise

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUE = "demo"


def demo(  # noqa: PLR0917 - as many as the command has
    tasks: Annotated[int, typer.Option(help="How many tasks to push and drain.", min=1)] = 100_000,
    processes: Annotated[int, typer.Option(help="How many processes drain them.", min=1, max=64)] = 2,
    spark: Annotated[bool, typer.Option(help="Load the tasks from Parquet, by Spark.")] = True,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server running.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
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
            if spark and with_spark(quiet):
                load(queue, server.dsn, home, tasks, quiet)
            else:
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


def with_spark(quiet: bool) -> bool:
    there = importlib.util.find_spec("pyspark") is not None
    if not there:
        say("without Spark, which is not installed: pip install 'penstock[spark]'", quiet=quiet)
    return there


def load(queue: Queue, dsn: str, home: Path, tasks: int, quiet: bool) -> None:
    """From a Parquet file, by Spark's executors, as a data engineer would."""
    from penstock.spark import push as push_frame  # noqa: PLC0415 - an extra
    from penstock.spark import session  # noqa: PLC0415 - an extra

    began = time.perf_counter()
    settings: dict[str, Any] = {
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.log.level": "ERROR",
    }
    with muted():
        spark = session("penstock demo", master="local[*]", **settings)
    try:
        say(f"Spark {spark.version} is up after {time.perf_counter() - began:.1f} s", quiet=quiet)
        file = home / "demo-tasks.parquet"
        frame(spark, tasks).write.mode("overwrite").parquet(str(file))
        began = time.perf_counter()
        report = push_frame(spark.read.parquet(str(file)), queue.name, dsn=dsn)
        seconds = time.perf_counter() - began
        took = f"in {seconds:.1f} s: {report.created / seconds:,.0f}/s"
        say(f"Spark pushed {report.created:,} tasks from {file} {took}", quiet=quiet)
    finally:
        spark.stop()


def frame(spark: SparkSession, count: int) -> DataFrame:
    """What `payloads` gives, as rows."""
    lines = "array(named_struct('item', id % 97, 'cents', id % 9973))"
    fields = f"'invoice', id, 'to', concat('customer-', id, '@example.com'), 'lines', {lines}"
    return spark.range(count).selectExpr(f"named_struct({fields}) as payload")


@contextmanager
def muted() -> Iterator[None]:
    """Spark's Java greets with warnings before it can be told not to; what goes wrong comes as an exception."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - not a file of ours
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def payloads(count: int) -> Iterator[Json]:
    for n in range(count):
        yield {"invoice": n, "to": f"customer-{n}@example.com", "lines": [{"item": n % 97, "cents": n % 9973}]}


def drain(queue: Queue, dsn: str, processes: int, quiet: bool) -> None:
    """By workers as everybody has them: `penstock drain demo --handler penstock.cli.demo:bill`, so to speak."""
    target = f"{__name__}:bill"
    logs.set_up("text", quiet=True)
    plan = Plan(target, dsn, {QUEUE: 1}, processes=processes, until_empty=True, handler_of=QUEUE, grace=1.0, quiet=True)
    with bar(f"drain with {processes} processes", quiet=quiet) as progress:
        report = supervise(plan, orders.load(target, QUEUE)[0], progress)
    if report.signal is not None:
        raise KeyboardInterrupt
    done, seconds = queue.status().totals["done"], report.seconds
    took = f"in {seconds:.1f} s: {report.done / seconds:,.0f}/s (starting the processes included)"
    say(f"drained {report.done:,} tasks {took}; {done:,} in all", quiet=quiet)


def bill(invoice: int, to: str, lines: list[Any]) -> None:
    """What a task of the demo does: nothing."""


@contextmanager
def deaf() -> Iterator[None]:
    """Ctrl-C does nothing meanwhile."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def finish(penstock: Penstock, quiet: bool) -> None:
    penstock.upkeep()
    verdict = penstock.verify()
    if not quiet:
        print_status([penstock.queue(QUEUE).status()])
    if not verdict.ok:
        raise PenstockError("the books do not agree", hint="Run `penstock verify`.")
    say("verified: counters, places and history agree", quiet=quiet)
