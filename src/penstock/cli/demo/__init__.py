"""`penstock demo`: the whole of Penstock, end to end, on a PostgreSQL that came with the install."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock import embedded
from penstock.app import Penstock
from penstock.cli.demo import load
from penstock.cli.demo.load import QUEUE
from penstock.cli.demo.stage import Play, Scene, fleet
from penstock.cli.demo.view import Viewer
from penstock.cli.options import AsJson, Debug, Quiet
from penstock.cli.output import age, emit, interrupted, say
from penstock.errors import NotFound, PenstockError
from penstock.model import QueueStatus
from penstock.spark import installed as spark_is_installed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLA = 20.0
LEASE = "5s"  # so that a killed worker's tasks come back while somebody watches


@dataclass(frozen=True, slots=True)
class Ending:
    """What happened, as numbers."""

    pushed: int
    done: int
    dead: int
    waiting: int
    retried: int
    recovered: int  # came back from the worker that was killed, and ran
    seconds: float
    sla: float
    worst_wait: float
    verdict: str | None  # the report's
    most_workers: int
    lake: str | None
    report: str | None


def demo(  # noqa: PLR0917 - as many as the command has
    tasks: Annotated[int, typer.Option(help="How many the first wave has.", min=100)] = 200_000,
    max_workers: Annotated[int, typer.Option(help="The most that the scaler may start.", min=1, max=64)] = 4,
    spark: Annotated[
        bool, typer.Option(help="Load the first wave from Parquet by Spark, and run the pipeline.")
    ] = True,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server running.")] = False,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """From nothing: PostgreSQL starts, Spark loads a backlog, a scaler starts workers and keeps the promise, a second
    wave comes, a worker is killed, and the pipeline writes a lake and a report.

    Example: penstock demo --tasks 20000
    """
    home = embedded.home(os.environ)
    was_running = embedded.Server.running(home) is not None
    viewer = Viewer(quiet=quiet or json)
    try:
        with ExitStack() as stack:
            server = start(home, viewer, was_running=was_running)
            ending = performed(server, home, tasks, max_workers, spark=spark, viewer=viewer, stack=stack)
    except KeyboardInterrupt:
        interrupted()
        raise
    finally:
        leave(home, viewer, keep=keep, was_running=was_running)
    if json:
        emit(asdict(ending))
    else:
        for one in last_lines(ending, home, keep=keep or was_running):
            say(one, quiet=quiet)


def performed(
    server: embedded.Server, home: Path, tasks: int, max_workers: int, *, spark: bool, viewer: Viewer, stack: ExitStack
) -> Ending:
    penstock = stack.enter_context(Penstock(server.dsn))
    penstock.init()
    fresh_queue(penstock)
    place = home / "demo"
    place.mkdir(exist_ok=True)
    session = started(viewer, stack) if spark else None
    file = place / "tasks.parquet"
    if session is not None:
        load.write_parquet(session, file, tasks)
    with fleet(server.dsn, place / "scaler.log", max_workers) as scaler:
        viewer.tell(f"the scaler keeps the promise of {age(SLA)} with at most {max_workers} workers")
        first = partial(first_wave, penstock, session, file, tasks, viewer)
        with viewer.watching():
            scene = Play(penstock, scaler, tasks, first, viewer.show, viewer.tell).run()
    checked(penstock, viewer)
    told = None if session is None else analysed(session, server.dsn, place / "lake", viewer)
    return ending(penstock.queue(QUEUE).status(), scene, place / "lake", told)


def start(home: Path, viewer: Viewer, *, was_running: bool) -> embedded.Server:
    began = time.perf_counter()
    server = embedded.Server.start(home, environ=os.environ)
    took = f"is up in {home} after {time.perf_counter() - began:.1f} s"
    viewer.tell(f"PostgreSQL {server.version} {f'is already running in {home}' if was_running else took}")
    return server


def fresh_queue(penstock: Penstock) -> None:
    """What an earlier demo left is not counted again."""
    try:
        penstock.queue(QUEUE).status()
    except NotFound:
        pass
    else:
        penstock.queue(QUEUE).drop(force=True)
    penstock.create_queue(QUEUE, sla=f"{SLA:.0f}s", lease=LEASE)


def started(viewer: Viewer, stack: ExitStack) -> SparkSession | None:
    if not spark_is_installed():
        viewer.tell("without Spark, which is not installed: pip install 'penstock[spark]'")
        return None
    began = time.perf_counter()
    session = stack.enter_context(load.spark_session())
    viewer.tell(f"Spark {session.version} is up after {time.perf_counter() - began:.1f} s")
    return session


def first_wave(penstock: Penstock, session: SparkSession | None, file: Path, tasks: int, viewer: Viewer) -> None:
    began = time.perf_counter()
    if session is None:
        pushed, how = penstock.queue(QUEUE).push_many(load.tasks(tasks)).created, "pushed"
    else:
        pushed, how = load.push_parquet(session, file, penstock.dsn), f"loaded by Spark from {file}"
    seconds = time.perf_counter() - began
    viewer.tell(f"{pushed:,} tasks {how} in {seconds:.1f} s: {pushed / seconds:,.0f}/s")


def checked(penstock: Penstock, viewer: Viewer) -> None:
    penstock.upkeep()
    if not penstock.verify().ok:
        raise PenstockError("the books do not agree", hint="Run `penstock verify`.")
    viewer.tell("verified: counters, places and history agree")


def analysed(session: SparkSession, dsn: str, lake: Path, viewer: Viewer) -> Answers:
    """The pipeline, stage by stage."""
    from penstock.pipeline.run import STAGES, run  # noqa: PLC0415 - Spark is an extra
    from penstock.pipeline.work import working  # noqa: PLC0415 - Spark is an extra

    if lake.exists():  # of an earlier demo, whose server may have been another
        shutil.rmtree(lake)
    with working(session, lake, dsn=dsn) as work:
        outcomes = run(work, STAGES, ends=lambda one: viewer.tell(f"pipeline: {one.stage} in {one.seconds:.1f} s"))
    wrong = [one.stage for one in outcomes if not one.ok]
    if wrong:
        hint = f"penstock pipeline reconcile --lake {lake}"
        raise PenstockError(f"the pipeline found something wrong: {', '.join(wrong)}", hint=hint)
    return {one.stage: one.answer for one in outcomes}


Answers = dict[str, Any]


# --- what happened ----------------------------------------------------------------------------------------------------


def ending(status: QueueStatus, scene: Scene, lake: Path, told: Answers | None) -> Ending:
    report = None if told is None else told.get("report")
    return Ending(
        pushed=status.totals["pushed"],
        done=status.totals["done"],
        dead=status.totals["dead"],
        waiting=status.pending + status.planned + status.active,
        retried=status.totals["failed"],
        recovered=status.totals["expired"],
        seconds=scene.seconds,
        sla=SLA,
        worst_wait=scene.worst_usage * SLA,
        verdict=None if report is None else report["verdict"],
        most_workers=scene.most_workers,
        lake=None if told is None else str(lake),
        report=None if report is None else report["path"],
    )


def last_lines(end: Ending, home: Path, *, keep: bool) -> Iterator[str]:
    """Ten, and not one more."""
    adds_up = "=" if end.pushed == end.done + end.dead + end.waiting else "≠"
    yield f"pushed {end.pushed:,} {adds_up} done {end.done:,} + dead {end.dead:,} + waiting {end.waiting:,}"
    yield promise(end)
    yield f"up to {end.most_workers} workers drained it in {end.seconds:.0f} s: {end.done / end.seconds:,.0f} tasks/s"
    yield f"one of them was killed with -9: {end.recovered:,} tasks came back from it, none was lost"
    yield f"{end.retried:,} failures were tried again by Fibonacci; what is poison ended dead: {end.dead:,}"
    yield f"the data is in {home}" + ("" if keep else ", and PostgreSQL is stopped: `penstock up` starts it again")
    yield f"the lake is in {end.lake}" if end.lake else "no lake without Spark: pip install 'penstock[spark]'"
    yield f"the report is {end.report}: open it in a browser" if end.report else "and no report"
    up = "" if keep else "penstock up && "
    yield f"next: {up}penstock status · penstock why {QUEUE} · penstock dead ls {QUEUE}"
    yield "and then: docs/quickstart.md"


def promise(end: Ending) -> str:
    worst = f"the oldest waited {end.worst_wait:.1f} s of {end.sla:.0f}"
    if end.worst_wait <= end.sla:
        return f"SLA kept: {worst}"
    return f"SLA missed by {end.worst_wait - end.sla:.1f} s: {worst}"


def leave(home: Path, viewer: Viewer, *, keep: bool, was_running: bool) -> None:
    """The server as it was found, unless it shall stay. Also when it was interrupted before it was up."""
    with deaf():
        server = embedded.Server.running(home)
        if server is not None and not keep and not was_running:
            server.stop()
            viewer.tell("PostgreSQL is stopped again")


@contextmanager
def deaf() -> Iterator[None]:
    """Ctrl-C does nothing meanwhile."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
