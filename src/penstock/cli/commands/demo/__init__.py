"""`penstock demo` shows Penstock from end to end, on the embedded PostgreSQL."""

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
from penstock.cli.commands.demo import load
from penstock.cli.commands.demo.dashboard import serve_dashboard
from penstock.cli.commands.demo.load import QUEUE
from penstock.cli.commands.demo.stage import DemoProgress, DemoRun, start_scaler
from penstock.cli.commands.demo.view import Viewer
from penstock.cli.terminal.options import AsJson, Debug, Quiet
from penstock.cli.terminal.output import print_interrupted, print_json, print_line
from penstock.errors import NotFound, PenstockError
from penstock.formatting import format_age
from penstock.model import QueueStatus
from penstock.spark import installed as spark_is_installed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLA = 20.0
LEASE = "5s"  # short, so that the tasks of the killed worker run again before the demo ends


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The numbers of a finished demo."""

    pushed: int
    done: int
    dead: int
    waiting: int
    retried: int
    recovered: int  # tasks of the killed worker that ran again
    seconds: float
    sla: float
    worst_wait: float
    verdict: str | None  # of the report
    most_workers: int
    lake: str | None
    report: str | None


def demo(  # noqa: PLR0917 - one for each option
    tasks: Annotated[int, typer.Option(help="The number of tasks of the first wave.", min=100)] = 200_000,
    max_workers: Annotated[int, typer.Option(help="The largest number of workers.", min=1, max=64)] = 4,
    spark: Annotated[
        bool, typer.Option(help="Load the first wave from Parquet with Spark, and run the pipeline.")
    ] = True,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server running.")] = False,
    json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Run a demo: PostgreSQL starts, Spark loads a backlog, a scaler starts workers and keeps the promise, a dashboard
    shows it in a browser, a second wave arrives, a worker is killed, and the pipeline writes a lake and a report.

    Example: penstock demo --tasks 20000
    """
    home = embedded.home(os.environ)
    was_running = embedded.Server.running(home) is not None
    viewer = Viewer(quiet=quiet or json)
    try:
        with ExitStack() as stack:
            server = start_server(home, viewer, was_running=was_running)
            ending = run_demo(server, home, tasks, max_workers, spark=spark, viewer=viewer, stack=stack)
    except KeyboardInterrupt:
        print_interrupted()
        raise
    finally:
        stop_server(home, viewer, keep=keep, was_running=was_running)
    if json:
        print_json(asdict(ending))
    else:
        for one in format_summary(ending, home, keep=keep or was_running):
            print_line(one, quiet=quiet)


def run_demo(
    server: embedded.Server, home: Path, tasks: int, max_workers: int, *, spark: bool, viewer: Viewer, stack: ExitStack
) -> DemoResult:
    penstock = stack.enter_context(Penstock(server.dsn))
    penstock.init()
    create_fresh_queue(penstock)
    stack.enter_context(serve_dashboard(server.dsn, viewer))
    directory = home / "demo"
    directory.mkdir(exist_ok=True)
    session = start_spark(viewer, stack) if spark else None
    file = directory / "tasks.parquet"
    if session is not None:
        load.write_parquet(session, file, tasks)
    with start_scaler(server.dsn, directory / "scaler.log", max_workers) as scaler:
        viewer.tell(f"the scaler keeps the promise of {format_age(SLA)} with at most {max_workers} workers")
        first = partial(load_first_wave, penstock, session, file, tasks, viewer)
        with viewer.watching():
            scene = DemoRun(penstock, scaler, tasks, first, viewer.show, viewer.tell).run()
    verify_counters(penstock, viewer)
    answers = None if session is None else run_pipeline(session, server.dsn, directory / "lake", viewer)
    return collect_result(penstock.queue(QUEUE).status(), scene, directory / "lake", answers)


def start_server(home: Path, viewer: Viewer, *, was_running: bool) -> embedded.Server:
    began = time.perf_counter()
    server = embedded.Server.start(home, environ=os.environ)
    took = f"is up in {home} after {time.perf_counter() - began:.1f} s"
    viewer.tell(f"PostgreSQL {server.version} {f'is already running in {home}' if was_running else took}")
    return server


def create_fresh_queue(penstock: Penstock) -> None:
    """Creates the queue, after dropping that of an earlier demo."""
    try:
        penstock.queue(QUEUE).status()
    except NotFound:
        pass
    else:
        penstock.queue(QUEUE).drop(force=True)
    penstock.create_queue(QUEUE, sla=f"{SLA:.0f}s", lease=LEASE)


def start_spark(viewer: Viewer, stack: ExitStack) -> SparkSession | None:
    if not spark_is_installed():
        viewer.tell("Spark is not installed: pip install 'penstock[spark]'")
        return None
    began = time.perf_counter()
    session = stack.enter_context(load.open_spark())
    viewer.tell(f"Spark {session.version} is up after {time.perf_counter() - began:.1f} s")
    return session


def load_first_wave(penstock: Penstock, session: SparkSession | None, file: Path, tasks: int, viewer: Viewer) -> None:
    began = time.perf_counter()
    if session is None:
        pushed, how = penstock.queue(QUEUE).push_many(load.make_tasks(tasks)).created, "pushed"
    else:
        pushed, how = load.push_parquet(session, file, penstock.dsn), f"loaded by Spark from {file}"
    seconds = time.perf_counter() - began
    viewer.tell(f"{pushed:,} tasks {how} in {seconds:.1f} s: {pushed / seconds:,.0f}/s")


def verify_counters(penstock: Penstock, viewer: Viewer) -> None:
    penstock.upkeep()
    if not penstock.verify().ok:
        raise PenstockError("the counters are wrong", hint="Run `penstock verify`.")
    viewer.tell("verified: counters, places and history agree")


def run_pipeline(session: SparkSession, dsn: str, lake: Path, viewer: Viewer) -> StageAnswers:
    """Runs the pipeline, stage by stage."""
    from penstock.pipeline.run import STAGES, run  # noqa: PLC0415 - Spark is an extra
    from penstock.pipeline.work import working  # noqa: PLC0415 - Spark is an extra

    if lake.exists():  # it belongs to an earlier demo, perhaps of another server
        shutil.rmtree(lake)
    with working(session, lake, dsn=dsn) as work:
        outcomes = run(work, STAGES, ends=lambda one: viewer.tell(f"pipeline: {one.stage} in {one.seconds:.1f} s"))
    wrong = [one.stage for one in outcomes if not one.ok]
    if wrong:
        hint = f"penstock pipeline reconcile --lake {lake}"
        raise PenstockError(f"the pipeline found something wrong: {', '.join(wrong)}", hint=hint)
    return {one.stage: one.answer for one in outcomes}


StageAnswers = dict[str, Any]


# --- what happened ----------------------------------------------------------------------------------------------------


def collect_result(status: QueueStatus, scene: DemoProgress, lake: Path, answers: StageAnswers | None) -> DemoResult:
    report = None if answers is None else answers.get("report")
    return DemoResult(
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
        lake=None if answers is None else str(lake),
        report=None if report is None else report["path"],
    )


def format_summary(end: DemoResult, home: Path, *, keep: bool) -> Iterator[str]:
    """Writes the summary of the demo, in ten lines."""
    adds_up = "=" if end.pushed == end.done + end.dead + end.waiting else "≠"
    yield f"pushed {end.pushed:,} {adds_up} done {end.done:,} + dead {end.dead:,} + waiting {end.waiting:,}"
    yield format_promise(end)
    yield f"up to {end.most_workers} workers drained it in {end.seconds:.0f} s: {end.done / end.seconds:,.0f} tasks/s"
    yield f"one of them was killed with -9: {end.recovered:,} tasks came back from it, none was lost"
    yield f"{end.retried:,} failures were tried again by Fibonacci; what is poison ended dead: {end.dead:,}"
    yield f"the data is in {home}" + ("" if keep else ", and PostgreSQL is stopped: `penstock up` starts it again")
    yield f"the lake is in {end.lake}" if end.lake else "no lake without Spark: pip install 'penstock[spark]'"
    yield f"the report is {end.report}: open it in a browser" if end.report else "and no report"
    up = "" if keep else "penstock up && "
    yield f"next: {up}penstock status · penstock why {QUEUE} · penstock dead ls {QUEUE}"
    yield "and then: docs/quickstart.md"


def format_promise(end: DemoResult) -> str:
    worst = f"the oldest waited {end.worst_wait:.1f} s of {end.sla:.0f}"
    if end.worst_wait <= end.sla:
        return f"SLA kept: {worst}"
    return f"SLA missed by {end.worst_wait - end.sla:.1f} s: {worst}"


def stop_server(home: Path, viewer: Viewer, *, keep: bool, was_running: bool) -> None:
    """Stops the server, unless it ran before or --keep is given. It may not be up yet after Ctrl-C."""
    with ignore_interrupts():
        server = embedded.Server.running(home)
        if server is not None and not keep and not was_running:
            server.stop()
            viewer.tell("PostgreSQL is stopped again")


@contextmanager
def ignore_interrupts() -> Iterator[None]:
    """Ignores Ctrl-C within the block."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
